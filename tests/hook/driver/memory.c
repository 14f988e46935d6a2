// SPDX-License-Identifier: Apache-2.0
/* Buffers: a count for each GPU, and a file that stands for one that is shared. */
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <linux/kfd_ioctl.h>

#define NR(request) ((request)&0xff)
#define MAX_BUFFERS 65536

#define IOC_AVAILABLE_MEMORY 0x23
#define IOC_EXPORT_DMABUF    0x24

struct available_memory_args {
	uint64_t available;
	uint32_t gpu_id;
	uint32_t pad;
};

struct export_dmabuf_args {
	uint64_t handle;
	uint32_t flags;
	uint32_t dmabuf_fd;
};

struct buffer {
	uint64_t size;
	uint32_t gpu;
	bool vram;
};

/* What a file that stands for a shared buffer holds. */
struct shared {
	char magic[8];
	uint64_t size;
	uint32_t gpu_id;
	uint32_t flags;
};
static const char magic[8] = "dmabuf";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The handle is the place, from 1. */
static struct buffer buffers[MAX_BUFFERS];
static uint64_t last_handle;
static uint64_t used[DRIVER_MAX_GPUS];

static struct buffer *find(uint64_t handle)
{
	return handle && handle <= last_handle ? &buffers[handle - 1] : NULL;
}

static uint64_t add(uint64_t size, uint32_t gpu, bool vram)
{
	for (uint64_t i = 0; i < MAX_BUFFERS; i++) {
		if (buffers[i].size)
			continue;
		buffers[i] = (struct buffer){ size, gpu, vram };
		if (i >= last_handle)
			last_handle = i + 1;
		return i + 1;
	}
	return 0;
}

static int allocate(struct kfd_ioctl_alloc_memory_of_gpu_args *args)
{
	bool vram = args->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
	uint32_t gpu = driver_gpu(args->gpu_id);
	int error = 0;

	if (gpu == DRIVER_MAX_GPUS || !args->size)
		return EINVAL;
	if (vram && args->size > driver_vram_bytes() - used[gpu])
		error = ENOMEM;
	else if (!(args->handle = add(args->size, gpu, vram)))
		error = ENOMEM;
	else if (vram)
		used[gpu] += args->size;
	/* A user pointer's is given, and kept. */
	if (!(args->flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR))
		args->mmap_offset = args->handle << 32;
	if (vram)
		driver_log("alloc node=%u size=%llu status=%d used=%llu\n", gpu + 1,
			   (unsigned long long)args->size, error, (unsigned long long)used[gpu]);
	return error;
}

static int release(struct kfd_ioctl_free_memory_of_gpu_args *args)
{
	struct buffer *buffer = find(args->handle);

	if (!buffer || !buffer->size)
		return EINVAL;
	if (buffer->vram) {
		used[buffer->gpu] -= buffer->size;
		driver_log("free node=%u size=%llu used=%llu\n", buffer->gpu + 1,
			   (unsigned long long)buffer->size, (unsigned long long)used[buffer->gpu]);
	}
	buffer->size = 0;
	return 0;
}

static int export(struct export_dmabuf_args *args)
{
	struct shared shared = { .flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM };
	struct buffer *buffer = find(args->handle);
	int fd;

	if (!buffer || !buffer->size)
		return EINVAL;
	fd = memfd_create("dmabuf", MFD_CLOEXEC);
	memcpy(shared.magic, magic, sizeof(magic));
	shared.size = buffer->size;
	shared.gpu_id = 1001 + buffer->gpu;
	if (fd < 0 || write(fd, &shared, sizeof(shared)) != sizeof(shared))
		return EMFILE;
	args->dmabuf_fd = (uint32_t)fd;
	return 0;
}

static bool read_shared(uint32_t fd, struct shared *ret)
{
	return pread((int)fd, ret, sizeof(*ret), 0) == sizeof(*ret) &&
	       !memcmp(ret->magic, magic, sizeof(magic));
}

static int shared_info(struct kfd_ioctl_get_dmabuf_info_args *args)
{
	struct shared shared;

	if (!read_shared(args->dmabuf_fd, &shared))
		return EINVAL;
	args->size = shared.size;
	args->metadata_size = 0;
	args->gpu_id = shared.gpu_id;
	args->flags = shared.flags;
	return 0;
}

/* Another process's memory, or this one's: it takes no VRAM of its own. */
static int import(struct kfd_ioctl_import_dmabuf_args *args)
{
	struct shared shared;

	if (!read_shared(args->dmabuf_fd, &shared))
		return EINVAL;
	args->handle = add(shared.size, driver_gpu(args->gpu_id), false);
	driver_log("import size=%llu\n", (unsigned long long)shared.size);
	return args->handle ? 0 : ENOMEM;
}

static int map(struct kfd_ioctl_map_memory_to_gpu_args *args)
{
	args->n_success = args->n_devices;
	return 0;
}

static int available(struct available_memory_args *args)
{
	uint32_t gpu = driver_gpu(args->gpu_id);

	if (gpu == DRIVER_MAX_GPUS)
		return EINVAL;
	args->available = driver_vram_bytes() - used[gpu];
	return 0;
}

static int svm(const struct kfd_ioctl_svm_args *args)
{
	driver_log("svm size=%llu attributes=%u\n", (unsigned long long)args->size, args->nattr);
	return 0;
}

static int locked(unsigned int nr, void *arg)
{
	switch (nr) {
	case NR(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU):
		return allocate(arg);
	case NR(AMDKFD_IOC_FREE_MEMORY_OF_GPU):
		return release(arg);
	case NR(AMDKFD_IOC_MAP_MEMORY_TO_GPU):
	case NR(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU):
		/* Both have the same arguments. */
		return map(arg);
	case NR(AMDKFD_IOC_GET_DMABUF_INFO):
		return shared_info(arg);
	case NR(AMDKFD_IOC_IMPORT_DMABUF):
		return import(arg);
	case NR(AMDKFD_IOC_SVM):
		return svm(arg);
	case IOC_AVAILABLE_MEMORY:
		return available(arg);
	case IOC_EXPORT_DMABUF:
		return export(arg);
	default:
		return EINVAL;
	}
}

int driver_memory(unsigned int nr, void *arg)
{
	int error;

	pthread_mutex_lock(&lock);
	error = locked(nr, arg);
	pthread_mutex_unlock(&lock);
	return error;
}
