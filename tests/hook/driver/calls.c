// SPDX-License-Identifier: Apache-2.0
/* The system calls stood in for, and what the driver says of itself. */
#include "driver.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <drm/amdgpu_drm.h>
#include <linux/kfd_ioctl.h>

#define TYPE(request) ((request) >> 8 & 0xff)
#define NR(request)   ((request)&0xff)
#define GIB	      (UINT64_C(1) << 30)
#define FIRST_GPU_ID  1001
#define FIRST_RENDER  128

/* Newer than the installed header: names as the driver's uapi has them. */
#define IOC_AVAILABLE_MEMORY 0x23
#define IOC_EXPORT_DMABUF    0x24
#define IOC_RUNTIME_ENABLE   0x25
#define IOC_DBG_TRAP	     0x26

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

uint32_t driver_gpu_count(void)
{
	uint64_t count = number("THUNK_GPUS", 1);

	return count > DRIVER_MAX_GPUS ? DRIVER_MAX_GPUS : (uint32_t)count;
}

uint64_t driver_vram_bytes(void)
{
	return number("THUNK_VRAM", 8 * GIB);
}

uint32_t driver_gpu(uint32_t gpu_id)
{
	uint32_t place = gpu_id - FIRST_GPU_ID;

	return place < driver_gpu_count() ? place : DRIVER_MAX_GPUS;
}

void driver_log(const char *format, ...)
{
	const char *path = getenv("THUNK_LOG");
	va_list arguments;
	FILE *file;

	file = path ? fopen(path, "ae") : NULL;
	if (!file)
		return;
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	fclose(file);
}

static int apertures(struct kfd_ioctl_get_process_apertures_new_args *args)
{
	struct kfd_process_device_apertures *of = (void *)args->kfd_process_device_apertures_ptr;
	uint32_t count = driver_gpu_count();

	for (uint32_t i = 0; i < count && i < args->num_of_nodes; i++)
		of[i] = (struct kfd_process_device_apertures){
			.lds_base = UINT64_C(1) << 48,
			.lds_limit = (UINT64_C(1) << 48) + UINT32_MAX,
			.scratch_base = UINT64_C(2) << 48,
			.scratch_limit = (UINT64_C(2) << 48) + UINT32_MAX,
			.gpuvm_base = 4 << 20,
			.gpuvm_limit = (UINT64_C(1) << 47) - 1,
			.gpu_id = FIRST_GPU_ID + i,
		};
	args->num_of_nodes = count;
	return 0;
}

static void clocks(struct kfd_ioctl_get_clock_counters_args *args)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	args->cpu_clock_counter = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
	args->system_clock_counter = args->cpu_clock_counter;
	args->gpu_clock_counter = args->cpu_clock_counter / 10;
	args->system_clock_freq = 1000000000;
}

int driver_topology(unsigned int nr, void *arg)
{
	switch (nr) {
	case NR(AMDKFD_IOC_GET_VERSION):
		*(struct kfd_ioctl_get_version_args *)arg =
			(struct kfd_ioctl_get_version_args){ .major_version = 1,
							     .minor_version = 17 };
		return 0;
	case NR(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW):
		return apertures(arg);
	case NR(AMDKFD_IOC_GET_CLOCK_COUNTERS):
		clocks(arg);
		return 0;
	case NR(AMDKFD_IOC_GET_TILE_CONFIG): {
		struct kfd_ioctl_get_tile_config_args *args = arg;

		args->num_tile_configs = args->num_macro_tile_configs = 0;
		args->gb_addr_config = 0x2a114042;
		args->num_banks = 8;
		args->num_ranks = 1;
		return 0;
	}
	case NR(AMDKFD_IOC_SET_XNACK_MODE): {
		struct kfd_ioctl_set_xnack_mode_args *args = arg;

		/* Negative: the question what it is. */
		if (args->xnack_enabled < 0)
			args->xnack_enabled = (int)number("HSA_XNACK", 0);
		return 0;
	}
	case NR(AMDKFD_IOC_ACQUIRE_VM):
	case NR(AMDKFD_IOC_SET_MEMORY_POLICY):
	case NR(AMDKFD_IOC_SET_TRAP_HANDLER):
	case NR(AMDKFD_IOC_SET_SCRATCH_BACKING_VA):
	case NR(AMDKFD_IOC_ALLOC_QUEUE_GWS):
	case IOC_RUNTIME_ENABLE:
		return 0;
	default:
		/* No debugger, no event monitor, no checkpoint. */
		return EINVAL;
	}
}

static int kfd(unsigned int nr, void *arg)
{
	switch (nr) {
	case NR(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU):
	case NR(AMDKFD_IOC_FREE_MEMORY_OF_GPU):
	case NR(AMDKFD_IOC_MAP_MEMORY_TO_GPU):
	case NR(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU):
	case NR(AMDKFD_IOC_GET_DMABUF_INFO):
	case NR(AMDKFD_IOC_IMPORT_DMABUF):
	case NR(AMDKFD_IOC_SVM):
	case IOC_AVAILABLE_MEMORY:
	case IOC_EXPORT_DMABUF:
		return driver_memory(nr, arg);
	case NR(AMDKFD_IOC_CREATE_QUEUE):
	case NR(AMDKFD_IOC_DESTROY_QUEUE):
	case NR(AMDKFD_IOC_UPDATE_QUEUE):
	case NR(AMDKFD_IOC_SET_CU_MASK):
		return driver_queue(nr, arg);
	case NR(AMDKFD_IOC_CREATE_EVENT):
	case NR(AMDKFD_IOC_DESTROY_EVENT):
	case NR(AMDKFD_IOC_SET_EVENT):
	case NR(AMDKFD_IOC_RESET_EVENT):
	case NR(AMDKFD_IOC_WAIT_EVENTS):
		return driver_event(nr, arg);
	default:
		return driver_topology(nr, arg);
	}
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *arg;
	int error;

	va_start(arguments, request);
	arg = va_arg(arguments, void *);
	va_end(arguments);
	if (TYPE(request) == 'd' && NR(request) == DRM_COMMAND_BASE + DRM_AMDGPU_GEM_MMAP) {
		((union drm_amdgpu_gem_mmap *)arg)->out.addr_ptr = 1 << 20;
		return 0;
	}
	if (TYPE(request) != 'K')
		return (int)syscall(SYS_ioctl, fd, request, arg);
	error = kfd(NR(request), arg);
	if (!error)
		return 0;
	errno = error;
	return -1;
}

/* /dev/kfd and the render nodes are plain, empty files: what is mapped of them is memory. */
static bool is_device(int fd)
{
	char link[32], path[32];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length <= 0)
		return false;
	path[length] = '\0';
	return !strcmp(path, "/dev/kfd") || !strncmp(path, "/dev/dri/", 9);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
	if (fd >= 0 && is_device(fd)) {
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (flags & MAP_FIXED);
		fd = -1;
		offset = 0;
	}
	return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
	__attribute__((alias("mmap")));
