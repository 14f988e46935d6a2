/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How much VRAM a call takes, by the driver's own arithmetic: from its arguments alone, so that the
 * gate can ask about the caller's copy of them and the ledger about the driver's.
 */
#ifndef RINGFENCE_DEMAND_H
#define RINGFENCE_DEMAND_H

#include "amdgpu_ioctl.h"
#include "gem.h"
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
	__u32 may_cost_less;
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

/* Where arguments are read from, and whether that may wait for them. */
enum arguments_in {
	IN_USER_MEMORY,
	IN_USER_MEMORY_WAIT,
	IN_KERNEL_MEMORY,
};

static __always_inline bool read_from(enum arguments_in where, void *to, __u32 size, __u64 from)
{
	if (where == IN_KERNEL_MEMORY)
		return !bpf_probe_read_kernel(to, size, (const void *)from);
	if (where == IN_USER_MEMORY_WAIT)
		return !bpf_copy_from_user(to, size, (const void *)from);
	return !bpf_probe_read_user(to, size, (const void *)from);
}

/* No GPU library of today sends a third as many; a tenant that sends more is refused. */
#define SVM_MOST_ATTRIBUTES 128

/*
 * Pages of a range go to where they are prefetched, or else, with the GPU's first touch, to where
 * they are preferred to be: its whole size, wherever it lies now. Of several attributes of a kind
 * the last one counts.
 */
static __always_inline void svm_demand(const struct arguments *from, enum arguments_in where,
				       __u64 address, struct demand *ret)
{
	const struct kfd_ioctl_svm_args *args = (const void *)from;
	__u32 preferred = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
	__u32 prefetched = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
	__u32 i;

	if (args->op != KFD_IOCTL_SVM_OP_SET_ATTR)
		return;
	if (args->nattr > SVM_MOST_ATTRIBUTES) {
		ret->refused = REFUSED_ARGUMENTS + 1;
		return;
	}
	address += sizeof(*args);
	for (i = 0; i < SVM_MOST_ATTRIBUTES && i < args->nattr; i++) {
		struct kfd_ioctl_svm_attribute attr = {};

		if (!read_from(where, &attr, sizeof(attr), address + i * sizeof(attr))) {
			ret->refused = REFUSED_ARGUMENTS + 1;
			return;
		}
		if (attr.type == KFD_IOCTL_SVM_ATTR_PREFETCH_LOC)
			prefetched = attr.value;
		else if (attr.type == KFD_IOCTL_SVM_ATTR_PREFERRED_LOC)
			preferred = attr.value;
	}
	if (prefetched == KFD_IOCTL_SVM_LOCATION_UNDEFINED ||
	    prefetched == KFD_IOCTL_SVM_LOCATION_SYSMEM)
		prefetched = preferred;
	if (prefetched == KFD_IOCTL_SVM_LOCATION_UNDEFINED ||
	    prefetched == KFD_IOCTL_SVM_LOCATION_SYSMEM)
		return;
	ret->size = ALIGN_UP(args->size, PAGE_SIZE);
	ret->may_cost_less = 1;
	if (ret->size)
		gpu_by(&gpus_by_kfd_id, prefetched, ret);
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
 * A system buffer that is to lie in VRAM from now on: charged in full, unless it is already. It
 * moves with the next use; when it is sent back, it stays charged to its end.
 */
static __always_inline void gem_op_demand(const struct arguments *from, struct drm_file *file,
					  struct demand *ret)
{
	const struct drm_amdgpu_gem_op *args = (const void *)from;
	struct drm_gem_object *object;
	__u64 key;

	if (args->op != AMDGPU_GEM_OP_SET_PLACEMENT || !(args->value & AMDGPU_GEM_DOMAIN_VRAM))
		return;
	if (!knows_handles()) {
		ret->refused = REFUSED_PLACEMENT + 1;
		return;
	}
	object = find_object(file, args->handle);
	key = (__u64)object;
	if (object && !bpf_map_lookup_elem(&buffers, &key))
		ret->size = BPF_CORE_READ(object, size);
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
	else
		dumb_create_demand(args, ret);
	return 0;
}

#endif
