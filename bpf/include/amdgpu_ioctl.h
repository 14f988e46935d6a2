/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The calls that make VRAM, with the kernel's own names (include/uapi/linux/kfd_ioctl.h,
 * include/uapi/drm/amdgpu_drm.h, include/uapi/drm/drm.h). Only the number is matched: KFD ignores
 * type, direction and size of the command word, DRM trusts its own table.
 */
#ifndef RINGFENCE_AMDGPU_IOCTL_H
#define RINGFENCE_AMDGPU_IOCTL_H

#include "kernel.h"

#define IOCTL_NR(cmd)	((cmd)&0xff)
#define IOCTL_SIZE(cmd) (((cmd) >> 16) & 0x3fff)
#define IOCTL_WRITE	(1U << 30) /* user space writes, the kernel reads: IOC_IN */

#define AMDKFD_IOC_CREATE_QUEUE_NR     0x02
#define KFD_IOC_QUEUE_TYPE_COMPUTE     0x0
#define KFD_IOC_QUEUE_TYPE_COMPUTE_AQL 0x2

struct kfd_ioctl_create_queue_args {
	__u64 ring_base_address;
	__u64 write_pointer_address;
	__u64 read_pointer_address;
	__u64 doorbell_offset;
	__u32 ring_size;
	__u32 gpu_id;
	__u32 queue_type;
	__u32 queue_percentage;
	__u32 queue_priority;
	__u32 queue_id;
};

#define AMDKFD_IOC_SET_CU_MASK_NR 0x1a

struct kfd_ioctl_set_cu_mask_args {
	__u32 queue_id;
	__u32 num_cu_mask; /* bits */
	__u64 cu_mask_ptr;
};

#define AMDKFD_IOC_ALLOC_MEMORY_OF_GPU_NR     0x16
#define KFD_IOC_ALLOC_MEM_FLAGS_VRAM	      (1U << 0)
#define KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM (1U << 27)

struct kfd_ioctl_alloc_memory_of_gpu_args {
	__u64 va_addr;
	__u64 size;
	__u64 handle;
	__u64 mmap_offset;
	__u32 gpu_id;
	__u32 flags;
};

#define AMDKFD_IOC_IMPORT_DMABUF_NR 0x1d
/* Of amdgpu-dkms alone: a buffer by a name of 128 bits that another process was given for it. */
#define AMDKFD_IOC_IPC_IMPORT_HANDLE_NR 0x80

struct kfd_ioctl_import_dmabuf_args {
	__u64 va_addr;
	__u64 handle;
	__u32 gpu_id;
	__u32 dmabuf_fd;
};

#define AMDKFD_IOC_SVM_NR		 0x20
#define KFD_IOCTL_SVM_OP_SET_ATTR	 0
#define KFD_IOCTL_SVM_ATTR_PREFERRED_LOC 0
#define KFD_IOCTL_SVM_ATTR_PREFETCH_LOC	 1
#define KFD_IOCTL_SVM_LOCATION_SYSMEM	 0
#define KFD_IOCTL_SVM_LOCATION_UNDEFINED 0xffffffffU

struct kfd_ioctl_svm_attribute {
	__u32 type;
	__u32 value;
};

struct kfd_ioctl_svm_args {
	__u64 start_addr;
	__u64 size;
	__u32 op;
	__u32 nattr;
	struct kfd_ioctl_svm_attribute attrs[];
};

#define DRM_PRIME_FD_TO_HANDLE_NR 0x2e

struct drm_prime_handle {
	__u32 handle;
	__u32 flags;
	__s32 fd;
};

#define DRM_AMDGPU_GEM_CREATE_NR 0x40
#define AMDGPU_GEM_DOMAIN_VRAM	 0x4
#define AMDGPU_GEM_DOMAIN_GDS	 0x8
#define AMDGPU_GEM_DOMAIN_GWS	 0x10
#define AMDGPU_GEM_DOMAIN_OA	 0x20

struct drm_amdgpu_gem_create_in {
	__u64 bo_size;
	__u64 alignment;
	__u64 domains;
	__u64 domain_flags;
};

#define DRM_AMDGPU_GEM_OP_NR	    0x50
#define AMDGPU_GEM_OP_SET_PLACEMENT 1

struct drm_amdgpu_gem_op {
	__u32 handle;
	__u32 op;
	__u64 value;
};

#define DRM_MODE_CREATE_DUMB_NR 0xb2

struct drm_mode_create_dumb {
	__u32 height;
	__u32 width;
	__u32 bpp;
	__u32 flags;
	__u32 handle;
	__u32 pitch;
	__u64 size;
};

#endif
