/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's interface as this client speaks it: KFD 1.x and amdgpu DRM 3.x
 * on x86-64, written out here so that it needs no header package, and so that
 * a wrong number in the simulation driver cannot hide behind a shared header.
 * Names are those of linux/kfd_ioctl.h and drm/amdgpu_drm.h.
 */
#ifndef GPUCLIENT_ABI_H
#define GPUCLIENT_ABI_H

#include <stdint.h>
#include <sys/ioctl.h>

/* ---- /dev/kfd, type 'K' ---- */

struct kfd_ioctl_get_version_args {
	uint32_t major_version;
	uint32_t minor_version;
};

struct kfd_ioctl_create_queue_args {
	uint64_t ring_base_address;
	uint64_t write_pointer_address;
	uint64_t read_pointer_address;
	uint64_t doorbell_offset;
	uint32_t ring_size;
	uint32_t gpu_id;
	uint32_t queue_type;
	uint32_t queue_percentage;
	uint32_t queue_priority;
	uint32_t queue_id;
	uint64_t eop_buffer_address;
	uint64_t eop_buffer_size;
	uint64_t ctx_save_restore_address;
	uint32_t ctx_save_restore_size;
	uint32_t ctl_stack_size;
	uint32_t sdma_engine_id;
	uint32_t pad;
};

struct kfd_ioctl_destroy_queue_args {
	uint32_t queue_id;
	uint32_t pad;
};

struct kfd_ioctl_acquire_vm_args {
	uint32_t drm_fd;
	uint32_t gpu_id;
};

struct kfd_ioctl_alloc_memory_of_gpu_args {
	uint64_t va_addr;
	uint64_t size;
	uint64_t handle;
	uint64_t mmap_offset;
	uint32_t gpu_id;
	uint32_t flags;
};

struct kfd_ioctl_free_memory_of_gpu_args {
	uint64_t handle;
};

struct kfd_ioctl_map_memory_to_gpu_args {
	uint64_t handle;
	uint64_t device_ids_array_ptr;
	uint32_t n_devices;
	uint32_t n_success;
};

struct kfd_ioctl_set_cu_mask_args {
	uint32_t queue_id;
	uint32_t num_cu_mask;
	uint64_t cu_mask_ptr;
};

struct kfd_ioctl_get_dmabuf_info_args {
	uint64_t size;
	uint64_t metadata_ptr;
	uint32_t metadata_size;
	uint32_t gpu_id;
	uint32_t flags;
	uint32_t dmabuf_fd;
};

struct kfd_ioctl_import_dmabuf_args {
	uint64_t va_addr;
	uint64_t handle;
	uint32_t gpu_id;
	uint32_t dmabuf_fd;
};

struct kfd_ioctl_smi_events_args {
	uint32_t gpuid;
	uint32_t anon_fd;
};

struct kfd_ioctl_svm_attribute {
	uint32_t type;
	uint32_t value;
};

struct kfd_ioctl_svm_args {
	uint64_t start_addr;
	uint64_t size;
	uint32_t op;
	uint32_t nattr;
};

struct kfd_ioctl_get_available_memory_args {
	uint64_t available;
	uint32_t gpu_id;
	uint32_t pad;
};

struct kfd_ioctl_export_dmabuf_args {
	uint64_t handle;
	uint32_t flags;
	uint32_t dmabuf_fd;
};

#define AMDKFD_IOC_GET_VERSION		  0x80084b01UL
#define AMDKFD_IOC_CREATE_QUEUE		  0xc0604b02UL
#define AMDKFD_IOC_DESTROY_QUEUE	  0xc0084b03UL
#define AMDKFD_IOC_ACQUIRE_VM		  0x40084b15UL
#define AMDKFD_IOC_ALLOC_MEMORY_OF_GPU	  0xc0284b16UL
#define AMDKFD_IOC_FREE_MEMORY_OF_GPU	  0x40084b17UL
#define AMDKFD_IOC_MAP_MEMORY_TO_GPU	  0xc0184b18UL
#define AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU  0xc0184b19UL
#define AMDKFD_IOC_SET_CU_MASK		  0x40104b1aUL
#define AMDKFD_IOC_GET_DMABUF_INFO	  0xc0204b1cUL
#define AMDKFD_IOC_IMPORT_DMABUF	  0xc0184b1dUL
#define AMDKFD_IOC_SMI_EVENTS		  0xc0084b1fUL
#define AMDKFD_IOC_SVM_WITH_ONE_ATTRIBUTE 0xc0204b20UL
#define AMDKFD_IOC_AVAILABLE_MEMORY	  0xc0104b23UL
#define AMDKFD_IOC_EXPORT_DMABUF	  0xc0104b24UL
#define AMDKFD_IOC_CREATE_PROCESS	  0x00004b27UL

#define KFD_IOC_ALLOC_MEM_FLAGS_VRAM	   (1U << 0)
#define KFD_IOC_ALLOC_MEM_FLAGS_USERPTR	   (1U << 2)
#define KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE (1U << 30)
#define KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE   (1U << 31)
#define KFD_IOC_QUEUE_TYPE_SDMA		   1
#define KFD_IOC_QUEUE_TYPE_COMPUTE_AQL	   2
#define KFD_IOCTL_SVM_OP_SET_ATTR	   0
#define KFD_IOCTL_SVM_ATTR_PREFETCH_LOC	   1

/* ---- DRM nodes, type 'd' ---- */

struct drm_amdgpu_gem_create_in {
	uint64_t bo_size;
	uint64_t alignment;
	uint64_t domains;
	uint64_t domain_flags;
};

union drm_amdgpu_gem_create {
	struct drm_amdgpu_gem_create_in in;
	struct {
		uint32_t handle;
		uint32_t _pad;
	} out;
};

union drm_amdgpu_ctx {
	struct {
		uint32_t op;
		uint32_t flags;
		uint32_t ctx_id;
		int32_t priority;
	} in;
	struct {
		uint32_t ctx_id;
		uint32_t _pad;
	} out_alloc;
};

struct drm_amdgpu_bo_list_entry {
	uint32_t bo_handle;
	uint32_t bo_priority;
};

struct drm_amdgpu_bo_list_in {
	uint32_t operation;
	uint32_t list_handle;
	uint32_t bo_number;
	uint32_t bo_info_size;
	uint64_t bo_info_ptr;
};

struct drm_amdgpu_cs_chunk {
	uint32_t chunk_id;
	uint32_t length_dw;
	uint64_t chunk_data;
};

union drm_amdgpu_cs {
	struct {
		uint32_t ctx_id;
		uint32_t bo_list_handle;
		uint32_t num_chunks;
		uint32_t flags;
		uint64_t chunks;
	} in;
	struct {
		uint64_t handle;
	} out;
};

struct drm_amdgpu_info {
	uint64_t return_pointer;
	uint32_t return_size;
	uint32_t query;
	uint32_t arguments[4];
};

struct drm_amdgpu_heap_info {
	uint64_t total_heap_size;
	uint64_t usable_heap_size;
	uint64_t heap_usage;
	uint64_t max_allocation;
};

struct drm_amdgpu_memory_info {
	struct drm_amdgpu_heap_info vram;
	struct drm_amdgpu_heap_info cpu_accessible_vram;
	struct drm_amdgpu_heap_info gtt;
};

/* As in 6.12: newer kernels have more members and take the shorter struct. */
struct drm_amdgpu_gem_va {
	uint32_t handle;
	uint32_t _pad;
	uint32_t operation;
	uint32_t flags;
	uint64_t va_address;
	uint64_t offset_in_bo;
	uint64_t map_size;
};

struct drm_amdgpu_gem_op {
	uint32_t handle;
	uint32_t op;
	uint64_t value;
};

struct drm_amdgpu_gem_userptr {
	uint64_t addr;
	uint64_t size;
	uint32_t flags;
	uint32_t handle;
};

struct drm_gem_close {
	uint32_t handle;
	uint32_t pad;
};

struct drm_prime_handle {
	uint32_t handle;
	uint32_t flags;
	int32_t fd;
};

struct drm_mode_create_dumb {
	uint32_t height;
	uint32_t width;
	uint32_t bpp;
	uint32_t flags;
	uint32_t handle;
	uint32_t pitch;
	uint64_t size;
};

#define DRM_IOCTL_GEM_CLOSE	     0x40086409UL
#define DRM_IOCTL_PRIME_HANDLE_TO_FD 0xc00c642dUL
#define DRM_IOCTL_PRIME_FD_TO_HANDLE 0xc00c642eUL
#define DRM_IOCTL_MODE_CREATE_DUMB   0xc02064b2UL
#define DRM_IOCTL_AMDGPU_GEM_CREATE  0xc0206440UL
#define DRM_IOCTL_AMDGPU_CTX	     0xc0106442UL
#define DRM_IOCTL_AMDGPU_CS	     0xc0186444UL
#define DRM_IOCTL_AMDGPU_INFO	     0x40206445UL
#define DRM_IOCTL_AMDGPU_GEM_VA	     0x40286448UL
#define DRM_IOCTL_AMDGPU_GEM_OP	     0xc0106450UL
#define DRM_IOCTL_AMDGPU_GEM_USERPTR 0xc0186451UL

#define AMDGPU_GEM_DOMAIN_CPU		  1
#define AMDGPU_GEM_DOMAIN_GTT		  2
#define AMDGPU_GEM_DOMAIN_VRAM		  4
#define AMDGPU_CTX_OP_ALLOC_CTX		  1
#define AMDGPU_CTX_OP_FREE_CTX		  2
#define AMDGPU_CHUNK_ID_BO_HANDLES	  6
#define AMDGPU_INFO_MEMORY		  0x19
#define AMDGPU_VA_OP_MAP		  1
#define AMDGPU_VA_OP_UNMAP		  2
#define AMDGPU_VM_PAGE_READABLE		  2
#define AMDGPU_VM_PAGE_WRITEABLE	  4
#define AMDGPU_GEM_OP_GET_GEM_CREATE_INFO 0
#define AMDGPU_GEM_OP_SET_PLACEMENT	  1
#define AMDGPU_GEM_USERPTR_ANONONLY	  2
#define AMDGPU_GEM_USERPTR_REGISTER	  8

/* A command word says how long its argument is: the structs must agree. */
#define SPOKEN(cmd, type) \
	_Static_assert(_IOC_SIZE(cmd) == sizeof(type), #cmd " and " #type " disagree")

SPOKEN(AMDKFD_IOC_GET_VERSION, struct kfd_ioctl_get_version_args);
SPOKEN(AMDKFD_IOC_CREATE_QUEUE, struct kfd_ioctl_create_queue_args);
SPOKEN(AMDKFD_IOC_DESTROY_QUEUE, struct kfd_ioctl_destroy_queue_args);
SPOKEN(AMDKFD_IOC_ACQUIRE_VM, struct kfd_ioctl_acquire_vm_args);
SPOKEN(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, struct kfd_ioctl_alloc_memory_of_gpu_args);
SPOKEN(AMDKFD_IOC_FREE_MEMORY_OF_GPU, struct kfd_ioctl_free_memory_of_gpu_args);
SPOKEN(AMDKFD_IOC_MAP_MEMORY_TO_GPU, struct kfd_ioctl_map_memory_to_gpu_args);
SPOKEN(AMDKFD_IOC_SET_CU_MASK, struct kfd_ioctl_set_cu_mask_args);
SPOKEN(AMDKFD_IOC_GET_DMABUF_INFO, struct kfd_ioctl_get_dmabuf_info_args);
SPOKEN(AMDKFD_IOC_IMPORT_DMABUF, struct kfd_ioctl_import_dmabuf_args);
SPOKEN(AMDKFD_IOC_SMI_EVENTS, struct kfd_ioctl_smi_events_args);
SPOKEN(AMDKFD_IOC_AVAILABLE_MEMORY, struct kfd_ioctl_get_available_memory_args);
SPOKEN(AMDKFD_IOC_EXPORT_DMABUF, struct kfd_ioctl_export_dmabuf_args);
SPOKEN(DRM_IOCTL_GEM_CLOSE, struct drm_gem_close);
SPOKEN(DRM_IOCTL_PRIME_HANDLE_TO_FD, struct drm_prime_handle);
SPOKEN(DRM_IOCTL_MODE_CREATE_DUMB, struct drm_mode_create_dumb);
SPOKEN(DRM_IOCTL_AMDGPU_GEM_CREATE, union drm_amdgpu_gem_create);
SPOKEN(DRM_IOCTL_AMDGPU_CTX, union drm_amdgpu_ctx);
SPOKEN(DRM_IOCTL_AMDGPU_CS, union drm_amdgpu_cs);
SPOKEN(DRM_IOCTL_AMDGPU_INFO, struct drm_amdgpu_info);
SPOKEN(DRM_IOCTL_AMDGPU_GEM_VA, struct drm_amdgpu_gem_va);
SPOKEN(DRM_IOCTL_AMDGPU_GEM_OP, struct drm_amdgpu_gem_op);
SPOKEN(DRM_IOCTL_AMDGPU_GEM_USERPTR, struct drm_amdgpu_gem_userptr);

#undef SPOKEN

#endif
