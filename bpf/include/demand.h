/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How much VRAM a call takes, by the driver's own arithmetic: from its arguments alone, so that the
 * gate can ask about the caller's copy of them and the ledger about the driver's.
 */
#ifndef RINGFENCE_DEMAND_H
#define RINGFENCE_DEMAND_H

#include "amdgpu_ioctl.h"
#include "report.h"

enum device {
	FOREIGN,
	KFD,
	DRM,
};

/* Room for the largest of them. */
struct arguments {
	__u64 words[5];
};

_Static_assert(sizeof(struct arguments) >= sizeof(struct kfd_ioctl_alloc_memory_of_gpu_args), "");
_Static_assert(sizeof(struct arguments) >= sizeof(struct drm_amdgpu_gem_create_in), "");
_Static_assert(sizeof(struct arguments) >= sizeof(struct drm_mode_create_dumb), "");

struct demand {
	__u64 gpu; /* of a DRM call: not in its arguments, for the caller of find_demand() to find */
	__u64 size;
	__u32 refused; /* a REFUSED_* + 1 */
	__u32 nr;
	__u32 fd; /* of an import: the buffer */
	__u32 pad;
};

static __always_inline void gpu_by(void *map, __u32 id, struct demand *ret)
{
	__u64 *gpu = bpf_map_lookup_elem(map, &id);

	if (gpu)
		ret->gpu = *gpu;
	else if (!ret->refused)
		ret->refused = REFUSED_UNKNOWN_GPU + 1;
}

/* amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu(): AQL queues get half, mapped twice. */
static __always_inline void kfd_alloc_demand(const struct arguments *from, struct demand *ret)
{
	const struct kfd_ioctl_alloc_memory_of_gpu_args *args = (const void *)from;
	__u64 size = args->size;

	if (!(args->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM))
		return;
	if (args->flags & KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)
		size >>= 1;
	ret->size = ALIGN_UP(size, PAGE_SIZE);
	if (ret->size)
		gpu_by(&gpus_by_kfd_id, args->gpu_id, ret);
}

/*
 * amdgpu_bo_create(): GDS, GWS and OA count units of one page each. VRAM among several domains is
 * taken as VRAM: the driver tries it first.
 */
static __always_inline void gem_create_demand(const struct arguments *from, struct demand *ret)
{
	const struct drm_amdgpu_gem_create_in *args = (const void *)from;

	if (!(args->domains & AMDGPU_GEM_DOMAIN_VRAM))
		return;
	if (args->domains & (AMDGPU_GEM_DOMAIN_GWS | AMDGPU_GEM_DOMAIN_OA))
		ret->size = args->bo_size << PAGE_SHIFT;
	else if (args->domains & AMDGPU_GEM_DOMAIN_GDS)
		ret->size = ALIGN_UP(args->bo_size, 4) << PAGE_SHIFT;
	else
		ret->size = ALIGN_UP(args->bo_size, PAGE_SIZE);
}

/*
 * Turning a system buffer into a VRAM one names it by handle, whose size is not in the arguments:
 * refused. No user-space driver of the last years does it.
 */
static __always_inline void gem_op_demand(const struct arguments *from, struct demand *ret)
{
	const struct drm_amdgpu_gem_op *args = (const void *)from;

	if (args->op == AMDGPU_GEM_OP_SET_PLACEMENT && args->value & AMDGPU_GEM_DOMAIN_VRAM)
		ret->refused = REFUSED_PLACEMENT + 1;
}

/* amdgpu_mode_dumb_create() and amdgpu_gem_align_pitch(). */
static __always_inline void dumb_create_demand(const struct arguments *from, struct demand *ret)
{
	const struct drm_mode_create_dumb *args = (const void *)from;
	__u32 bytes_per_pixel = args->bpp / 8 + (args->bpp % 8 != 0);
	__u32 pitch, mask = 0;

	if (bytes_per_pixel == 1)
		mask = 255;
	else if (bytes_per_pixel == 2)
		mask = 127;
	else if (bytes_per_pixel == 3 || bytes_per_pixel == 4)
		mask = 63;
	/* 32-bit, as the driver's pitch is. */
	pitch = ((args->width + mask) & ~mask) * bytes_per_pixel;
	ret->size = ALIGN_UP((__u64)pitch * args->height, PAGE_SIZE);
}

APART int find_demand(const struct arguments *args, enum device device, struct demand *ret)
{
	if (!args || !ret)
		return -EINVAL;
	if (device == KFD && ret->nr == AMDKFD_IOC_IMPORT_DMABUF_NR)
		ret->fd = ((const struct kfd_ioctl_import_dmabuf_args *)args)->dmabuf_fd;
	else if (device == KFD)
		kfd_alloc_demand(args, ret);
	else if (ret->nr == DRM_PRIME_FD_TO_HANDLE_NR)
		ret->fd = ((const struct drm_prime_handle *)args)->fd;
	else if (ret->nr == DRM_AMDGPU_GEM_CREATE_NR)
		gem_create_demand(args, ret);
	else if (ret->nr == DRM_AMDGPU_GEM_OP_NR)
		gem_op_demand(args, ret);
	else
		dumb_create_demand(args, ret);
	return 0;
}

#endif
