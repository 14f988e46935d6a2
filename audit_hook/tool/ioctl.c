// SPDX-License-Identifier: Apache-2.0
/*
 * Books of the VRAM buffers that ROCm's libraries ask of the driver, for the auditor: scratch,
 * code objects and queues inside ROCr, and everything Vulkan and VA-API take through libdrm.
 */
#include "../slice/ioctl_hook.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "gpu.h"
#include "limit.h"
#include "table.h"

#define EXPORT __attribute__((visibility("default")))
#define NO_GPU (-1)

/* struct kfd_ioctl_alloc_memory_of_gpu_args, stable uapi. */
struct kfd_alloc {
	uint64_t va_addr;
	uint64_t size;
	uint64_t handle;
	uint64_t mmap_offset;
	uint32_t gpu_id;
	uint32_t flags;
};
#define KFD_FLAG_VRAM 1u

/* struct drm_amdgpu_gem_create_in and _out share their first word. */
union gem_create {
	struct {
		uint64_t size;
		uint64_t alignment;
		uint64_t domains;
		uint64_t flags;
	} in;
	uint32_t handle;
};
#define GEM_DOMAIN_VRAM 4u

struct gem_close {
	uint32_t handle;
	uint32_t pad;
};

#define DRM_MAJOR	 226
#define DRM_FIRST_RENDER 128
#define KFD_HANDLE_BIT	 (UINT64_C(1) << 63)

static struct rf_table buffers = RF_TABLE_INIT;
static bool registered;

static void after_fork(void)
{
	rf_table_reset_after_fork(&buffers);
}

static uint64_t whole_pages(uint64_t size)
{
	return size > UINT64_MAX - 4095 ? UINT64_MAX : (size + 4095) & ~UINT64_C(4095);
}

/* KFD names its buffers per process; they never come to 0 or to the top bit. */
static uint64_t kfd_key(uint64_t handle)
{
	return handle | KFD_HANDLE_BIT;
}

/* GEM handles are per open file; both numbers are small and positive. */
static uint64_t gem_key(int fd, uint32_t handle)
{
	return ((uint64_t)(uint32_t)fd + 1) << 32 | handle;
}

static int gpu_of_kfd(const struct rf_limits *limits, uint32_t gpu_id)
{
	for (uint32_t i = 0; i < limits->slice.gpu_count; i++)
		if (limits->slice.gpus[i].kfd == gpu_id)
			return (int)i;
	return NO_GPU;
}

static int gpu_of_drm(const struct rf_limits *limits, int fd)
{
	struct stat status;
	uint32_t minor_number;

	if (syscall(SYS_fstat, fd, &status) < 0 || !S_ISCHR(status.st_mode) ||
	    major(status.st_rdev) != DRM_MAJOR)
		return NO_GPU;
	minor_number = minor(status.st_rdev);
	for (uint32_t i = 0; i < limits->slice.gpu_count; i++) {
		const struct rf_gpu *gpu = &limits->slice.gpus[i];

		if (minor_number == (minor_number < DRM_FIRST_RENDER ? gpu->card : gpu->render))
			return (int)i;
	}
	return NO_GPU;
}

static uint64_t freed_key(int fd, unsigned long request, const void *arg)
{
	uint64_t kfd_handle;

	if (RF_IOC_TYPE(request) == RF_DRM_TYPE)
		return gem_key(fd, ((const struct gem_close *)arg)->handle);
	memcpy(&kfd_handle, arg, sizeof(kfd_handle));
	return kfd_key(kfd_handle);
}

static bool is_alloc(unsigned long request)
{
	return RF_IOC_TYPE(request) == RF_DRM_TYPE ?
		       RF_IOC_NR(request) == RF_DRM_AMDGPU_GEM_CREATE :
		       RF_IOC_NR(request) == RF_KFD_ALLOC_MEMORY;
}

static int enter_alloc(const struct rf_limits *limits, int fd, unsigned long request,
		       const void *arg, struct rf_ioctl_ticket *ticket)
{
	if (RF_IOC_TYPE(request) == RF_KFD_TYPE) {
		const struct kfd_alloc *kfd = arg;

		if (!(kfd->flags & KFD_FLAG_VRAM))
			return 0;
		ticket->gpu = gpu_of_kfd(limits, kfd->gpu_id);
		ticket->bytes = whole_pages(kfd->size);
	} else {
		const union gem_create *gem = arg;

		if (!(gem->in.domains & GEM_DOMAIN_VRAM))
			return 0;
		ticket->gpu = gpu_of_drm(limits, fd);
		ticket->bytes = whole_pages(gem->in.size);
	}
	/* A buffer of no GPU of the slice: not ours to count. */
	if (ticket->gpu == NO_GPU)
		return 0;
	if (rf_gpu_reserve(limits, ticket->gpu, RF_BOOK_DRIVER, ticket->bytes))
		return 0;
	ticket->gpu = NO_GPU;
	return ENOMEM;
}

EXPORT int ringfence_ioctl_enter(int fd, unsigned long request, const void *arg,
				 struct rf_ioctl_ticket *ticket);
EXPORT void ringfence_ioctl_leave(int fd, unsigned long request, const void *arg,
				  const struct rf_ioctl_ticket *ticket, int failed);

EXPORT int ringfence_ioctl_enter(int fd, unsigned long request, const void *arg,
				 struct rf_ioctl_ticket *ticket)
{
	const struct rf_limits *limits = rf_limits_get();

	*ticket = (struct rf_ioctl_ticket){ .gpu = NO_GPU };
	/* Without a slice file nothing says which GPU a KFD number or a DRM minor is. */
	if (!arg || (limits->source != RF_LIMIT_FILE && limits->source != RF_LIMIT_BROKEN))
		return 0;
	if (!registered)
		registered = pthread_atfork(NULL, NULL, after_fork) == 0;
	if (is_alloc(request))
		return enter_alloc(limits, fd, request, arg, ticket);
	ticket->handle = freed_key(fd, request, arg);
	return 0;
}

static void took(const struct rf_limits *limits, const struct rf_ioctl_ticket *ticket, uint64_t key)
{
	struct rf_entry entry = { .key = key, .bytes = ticket->bytes, .gpu = ticket->gpu };
	struct rf_entry stale;

	/* A file that was closed with buffers open freed them without a word. */
	if (rf_table_take(&buffers, key, &stale))
		rf_gpu_give_back(limits, stale.gpu, RF_BOOK_DRIVER, stale.bytes);
	/* Out of memory for the books: the buffer stays charged to the end of the process. */
	rf_table_put(&buffers, &entry);
}

EXPORT void ringfence_ioctl_leave(int fd, unsigned long request, const void *arg,
				  const struct rf_ioctl_ticket *ticket, int failed)
{
	const struct rf_limits *limits = rf_limits_get();
	struct rf_entry entry;

	if (ticket->handle) {
		if (!failed && rf_table_take(&buffers, ticket->handle, &entry))
			rf_gpu_give_back(limits, entry.gpu, RF_BOOK_DRIVER, entry.bytes);
		return;
	}
	if (ticket->gpu == NO_GPU)
		return;
	if (failed)
		rf_gpu_give_back(limits, ticket->gpu, RF_BOOK_DRIVER, ticket->bytes);
	else if (RF_IOC_TYPE(request) == RF_KFD_TYPE)
		took(limits, ticket, kfd_key(((const struct kfd_alloc *)arg)->handle));
	else
		took(limits, ticket, gem_key(fd, ((const union gem_create *)arg)->handle));
}
