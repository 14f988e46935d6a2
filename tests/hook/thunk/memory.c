// SPDX-License-Identifier: Apache-2.0
/* Memory: VRAM is anonymous memory with a count; nothing is touched, so a card costs nothing. */
#include "thunk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BIG_PAGE   (UINT64_C(2) << 20)
#define SMALL_PAGE UINT64_C(4096)
#define MAX_BLOCKS 65536

/* struct kfd_ioctl_alloc_memory_of_gpu_args and its command, as the driver's uapi has them. */
struct kfd_alloc {
	HSAuint64 va_addr;
	HSAuint64 size;
	HSAuint64 handle;
	HSAuint64 mmap_offset;
	HSAuint32 gpu_id;
	HSAuint32 flags;
};
#define KFD_ALLOC     _IOWR('K', 0x16, struct kfd_alloc)
#define KFD_FREE      _IOW('K', 0x17, HSAuint64)
#define KFD_FLAG_VRAM 1
#define NO_DEVICE     (-1)

struct block {
	char *start;
	HSAuint64 size;
	void *mapping;
	HSAuint64 mapped;
	HSAuint32 node;
	HsaMemFlags flags;
	HSAuint64 handle;
	void *user_data;
	bool imported;
};

/* What a handle to share memory by holds. It is ROCr's to pass on, and has room for 32 bytes. */
struct shared {
	HSAuint64 size;
	HSAuint32 node;
	HSAuint32 magic;
};
#define SHARED_MAGIC 0x44524853

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[MAX_BLOCKS];
static int block_count;
static HSAuint64 used[THUNK_MAX_NODES];

static bool is_vram(HSAuint32 node, HsaMemFlags flags)
{
	return node != 0 && !flags.ui32.Scratch;
}

static struct block *containing(const void *address)
{
	const char *at = address;

	for (int i = 0; i < block_count; i++)
		if (blocks[i].start && at >= blocks[i].start &&
		    at < blocks[i].start + blocks[i].size)
			return &blocks[i];
	return NULL;
}

static struct block *free_block(void)
{
	for (int i = 0; i < block_count; i++)
		if (!blocks[i].start)
			return &blocks[i];
	return block_count < MAX_BLOCKS ? &blocks[block_count++] : NULL;
}

static HSAKMT_STATUS place(struct block *block)
{
	HSAuint64 alignment = block->size >= BIG_PAGE ? BIG_PAGE : SMALL_PAGE;
	int protection = PROT_READ | PROT_WRITE | (block->flags.ui32.ExecuteAccess ? PROT_EXEC : 0);

	block->mapped = block->size + alignment;
	block->mapping = mmap(NULL, block->mapped, protection,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (block->mapping == MAP_FAILED)
		return HSAKMT_STATUS_NO_MEMORY;
	block->start = (char *)(((HSAuint64)block->mapping + alignment - 1) & ~(alignment - 1));
	return HSAKMT_STATUS_SUCCESS;
}

static HSAKMT_STATUS allocate(struct block *block)
{
	struct kfd_alloc request = { .size = block->size,
				     .gpu_id = thunk_gpu_id(block->node),
				     .flags = KFD_FLAG_VRAM };
	bool vram = is_vram(block->node, block->flags);
	HSAKMT_STATUS status;

	if (vram && used[block->node] + block->size > thunk_vram_bytes())
		return HSAKMT_STATUS_NO_MEMORY;
	if (vram && getenv("THUNK_IOCTL")) {
		if (ioctl(NO_DEVICE, KFD_ALLOC, &request))
			return HSAKMT_STATUS_NO_MEMORY;
		block->handle = request.handle;
	}
	status = place(block);
	if (status == HSAKMT_STATUS_SUCCESS && vram)
		used[block->node] += block->size;
	return status;
}

HSAKMT_STATUS hsaKmtAllocMemory(HSAuint32 node, HSAuint64 size, HsaMemFlags flags, void **address)
{
	struct block wanted = { .size = size, .node = node, .flags = flags };
	HSAKMT_STATUS status = HSAKMT_STATUS_NO_MEMORY;
	struct block *block;

	if (node > thunk_gpu_count())
		return HSAKMT_STATUS_INVALID_NODE_UNIT;
	pthread_mutex_lock(&lock);
	block = free_block();
	if (block)
		status = allocate(&wanted);
	if (status == HSAKMT_STATUS_SUCCESS) {
		*block = wanted;
		*address = wanted.start;
	}
	thunk_log("alloc node=%u size=%llu status=%d used=%llu\n", node, (unsigned long long)size,
		  status, (unsigned long long)used[node]);
	pthread_mutex_unlock(&lock);
	return status;
}

HSAKMT_STATUS hsaKmtFreeMemory(void *address, HSAuint64 size)
{
	struct block *block;

	(void)size;
	pthread_mutex_lock(&lock);
	block = containing(address);
	if (!block || block->start != address) {
		pthread_mutex_unlock(&lock);
		return HSAKMT_STATUS_ERROR;
	}
	if (block->handle)
		ioctl(NO_DEVICE, KFD_FREE, &block->handle);
	if (is_vram(block->node, block->flags) && !block->imported)
		used[block->node] -= block->size;
	thunk_log("free node=%u size=%llu used=%llu\n", block->node,
		  (unsigned long long)block->size, (unsigned long long)used[block->node]);
	munmap(block->mapping, block->mapped);
	block->start = NULL;
	pthread_mutex_unlock(&lock);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtAvailableMemory(HSAuint32 node, HSAuint64 *bytes)
{
	pthread_mutex_lock(&lock);
	*bytes = thunk_vram_bytes() - used[node];
	pthread_mutex_unlock(&lock);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtQueryPointerInfo(const void *pointer, HsaPointerInfo *info)
{
	static HSAuint32 nodes[THUNK_MAX_NODES];
	struct block *block;

	memset(info, 0, sizeof(*info));
	pthread_mutex_lock(&lock);
	block = containing(pointer);
	if (block) {
		nodes[block->node] = block->node;
		info->Type = HSA_POINTER_ALLOCATED;
		info->Node = block->node;
		info->MemFlags = block->flags;
		info->CPUAddress = block->start;
		info->GPUAddress = (HSAuint64)block->start;
		info->SizeInBytes = block->size;
		info->NMappedNodes = 1;
		info->MappedNodes = &nodes[block->node];
		info->UserData = block->user_data;
	}
	pthread_mutex_unlock(&lock);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetMemoryUserData(const void *pointer, void *user_data)
{
	struct block *block;

	pthread_mutex_lock(&lock);
	block = containing(pointer);
	if (block)
		block->user_data = user_data;
	pthread_mutex_unlock(&lock);
	return HSAKMT_STATUS_SUCCESS;
}

static HSAKMT_STATUS same_address(void *address, HSAuint64 *gpu_address)
{
	if (gpu_address)
		*gpu_address = (HSAuint64)address;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtMapMemoryToGPU(void *address, HSAuint64 size, HSAuint64 *gpu_address)
{
	(void)size;
	return same_address(address, gpu_address);
}

HSAKMT_STATUS hsaKmtMapMemoryToGPUNodes(void *address, HSAuint64 size, HSAuint64 *gpu_address,
					HsaMemMapFlags flags, HSAuint64 count, HSAuint32 *nodes)
{
	(void)size;
	(void)flags;
	(void)count;
	(void)nodes;
	return same_address(address, gpu_address);
}

HSAKMT_STATUS hsaKmtUnmapMemoryToGPU(void *address)
{
	(void)address;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtRegisterMemoryWithFlags(void *address, HSAuint64 size, HsaMemFlags flags)
{
	(void)address;
	(void)size;
	(void)flags;
	return HSAKMT_STATUS_SUCCESS;
}

/* Memory of another process: an address, and none of the card. */
static HSAKMT_STATUS import(const struct shared *shared, void **address, HSAuint64 *size)
{
	struct block wanted = { .size = shared->size, .node = shared->node, .imported = true };
	HSAKMT_STATUS status = HSAKMT_STATUS_NO_MEMORY;
	struct block *block;

	if (shared->magic != SHARED_MAGIC)
		return HSAKMT_STATUS_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	block = free_block();
	if (block)
		status = place(&wanted);
	if (status == HSAKMT_STATUS_SUCCESS) {
		*block = wanted;
		*address = wanted.start;
		*size = wanted.size;
		thunk_log("import size=%llu\n", (unsigned long long)wanted.size);
	}
	pthread_mutex_unlock(&lock);
	return status;
}

HSAKMT_STATUS hsaKmtDeregisterMemory(void *address)
{
	struct block *block;
	bool imported;

	pthread_mutex_lock(&lock);
	block = containing(address);
	imported = block && block->imported;
	pthread_mutex_unlock(&lock);
	return imported ? hsaKmtFreeMemory(address, 0) : HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtShareMemory(void *address, HSAuint64 size, HsaSharedMemoryHandle *handle)
{
	struct shared shared = { .size = size, .magic = SHARED_MAGIC };
	struct block *block;

	pthread_mutex_lock(&lock);
	block = containing(address);
	if (block)
		shared.node = block->node;
	pthread_mutex_unlock(&lock);
	if (!block)
		return HSAKMT_STATUS_INVALID_HANDLE;
	memcpy(handle, &shared, sizeof(shared));
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtRegisterSharedHandle(const HsaSharedMemoryHandle *handle, void **address,
					 HSAuint64 *size)
{
	struct shared shared;

	memcpy(&shared, handle, sizeof(shared));
	return import(&shared, address, size);
}

HSAKMT_STATUS hsaKmtRegisterSharedHandleToNodes(const HsaSharedMemoryHandle *handle, void **address,
						HSAuint64 *size, HSAuint64 count, HSAuint32 *nodes)
{
	(void)count;
	(void)nodes;
	return hsaKmtRegisterSharedHandle(handle, address, size);
}

/* A DMA-BUF is a file that holds what a handle does. */
HSAKMT_STATUS thunk_export(void *address, HSAuint64 size, int *fd)
{
	HsaSharedMemoryHandle handle = { 0 };
	HSAKMT_STATUS status = hsaKmtShareMemory(address, size, &handle);

	if (status != HSAKMT_STATUS_SUCCESS)
		return status;
	*fd = memfd_create("dmabuf", 0);
	if (*fd < 0 || write(*fd, &handle, sizeof(handle)) != sizeof(handle))
		return HSAKMT_STATUS_ERROR;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtRegisterGraphicsHandleToNodes(HSAuint64 handle, HsaGraphicsResourceInfo *info,
						  HSAuint64 count, HSAuint32 *nodes)
{
	HsaSharedMemoryHandle shared;

	(void)count;
	(void)nodes;
	if (pread((int)handle, &shared, sizeof(shared), 0) != sizeof(shared))
		return HSAKMT_STATUS_INVALID_HANDLE;
	memset(info, 0, sizeof(*info));
	return hsaKmtRegisterSharedHandle(&shared, &info->MemoryAddress, &info->SizeInBytes);
}

HSAKMT_STATUS hsaKmtSVMSetAttr(void *start, HSAuint64 size, unsigned int count,
			       HSA_SVM_ATTRIBUTE *attributes)
{
	(void)start;
	(void)attributes;
	thunk_log("svm size=%llu attributes=%u\n", (unsigned long long)size, count);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSVMGetAttr(void *start, HSAuint64 size, unsigned int count,
			       HSA_SVM_ATTRIBUTE *attributes)
{
	(void)start;
	(void)size;
	(void)count;
	(void)attributes;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetMemoryPolicy(HSAuint32 node, HSAuint32 policy, HSAuint32 alternate,
				    void *base, HSAuint64 size)
{
	(void)node;
	(void)policy;
	(void)alternate;
	(void)base;
	(void)size;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetTrapHandler(HSAuint32 node, void *handler, HSAuint64 handler_size,
				   void *buffer, HSAuint64 buffer_size)
{
	(void)node;
	(void)handler;
	(void)handler_size;
	(void)buffer;
	(void)buffer_size;
	return HSAKMT_STATUS_SUCCESS;
}
