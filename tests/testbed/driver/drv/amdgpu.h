/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The device, its memory managers, buffer objects and address spaces.
 *
 * Names of structs, members and functions are those of the real driver where
 * something outside (a BPF program, a test) can see them; tests/testbed/
 * btf_compare.py holds them to it. Members that exist only here start with
 * "sim_".
 */
#ifndef SIM_AMDGPU_H
#define SIM_AMDGPU_H

#include <linux/atomic.h>
#include <linux/dma-fence.h>
#include <linux/dma-resv.h>
#include <linux/idr.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rbtree.h>
#include <linux/sched.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <drm/amdgpu_drm.h>
#include <drm/drm_device.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/ttm/ttm_bo.h>
#include <drm/ttm/ttm_device.h>
#include <drm/ttm/ttm_placement.h>
#include <drm/ttm/ttm_resource.h>
#include <drm/ttm/ttm_tt.h>

#include "compat.h"

#define AMDGPU_BO_MAX_PLACEMENTS 3
#define AMDGPU_GPU_PAGE_SIZE	 4096
/* Of every card, for page tables only. */
#define AMDGPU_VM_RESERVED_VRAM	  (8ULL << 20)
#define AMDGPU_PL_DOORBELL	  (TTM_PL_PRIV + 4)
#define AMDGPU_VA_RESERVED_BOTTOM (2ULL << 20)
#define AMDGPU_VA_RESERVED_TOP	  (2ULL << 30)
#define AMDGPU_GMC_HOLE_START	  0x0000800000000000ULL
#define AMDGPU_GMC_HOLE_END	  0xffff800000000000ULL
#define AMDGPU_GMC_HOLE_MASK	  0x0000ffffffffffffULL
#define AMDGPU_XCP_NO_PARTITION	  (~0)
#define MAX_XCP			  8
/* KFD userptr buffers carry this in amdgpu_bo.flags. */
#define AMDGPU_AMDKFD_CREATE_USERPTR_BO (1ULL << 63)

struct amdgpu_bo;
struct amdgpu_device;
struct amdgpu_job;
struct amdgpu_vm;
struct amdkfd_process_info;
struct kfd_dev;
struct kgd_mem;

/* What distinguishes one marketed GPU from another, for everything we report. */
struct sim_asic {
	const char *gfx;
	const char *product_name;
	const char *kfd_name;
	u32 gfx_target_version;
	u32 device_id;
	u32 family;
	u32 cu_count;
	u32 num_xcc;
	u32 simd_per_cu;
	u32 wave_front_size;
	u32 shader_engines;
	u32 cu_per_sh;
	u32 num_cp_queues;
	u32 max_engine_clk_mhz;
	u32 mem_clk_mhz;
	u32 vram_width;
	u32 vram_type;
	bool partitions;
};

extern const struct sim_asic *sim_asic_selected(void);

struct amdgpu_vres_task {
	pid_t pid;
	char comm[TASK_COMM_LEN];
};

struct amdgpu_vram_mgr_resource {
	struct ttm_resource base;
	struct list_head vres_node;
	struct amdgpu_vres_task task;
};

struct amdgpu_vram_mgr {
	struct ttm_resource_manager manager;
	/* Protects the list below and the sum of its sizes. */
	struct mutex lock;
	struct list_head allocated_vres_list;
	u64 sim_allocated;
	struct dmem_cgroup_region *cg_region;
};

struct amdgpu_gtt_mgr {
	struct ttm_resource_manager manager;
	spinlock_t lock;
	u64 sim_allocated;
};

struct amdgpu_mman {
	struct ttm_device bdev;
	bool initialized;
	struct amdgpu_vram_mgr vram_mgr;
	struct amdgpu_gtt_mgr gtt_mgr;
};

struct amdgpu_gmc {
	u64 mc_vram_size;
	u64 real_vram_size;
	u64 visible_vram_size;
};

struct amdgpu_vm_manager {
	u64 max_pfn;
};

struct amdgpu_kfd_dev {
	struct kfd_dev *dev;
	int64_t vram_used[MAX_XCP];
	uint64_t vram_used_aligned[MAX_XCP];
	bool init_complete;
	u32 sim_gpu_id;
};

struct amdgpu_device {
	struct device *dev;
	struct pci_dev *pdev;
	struct drm_device ddev;
	uint64_t unique_id;
	struct amdgpu_gmc gmc;
	struct amdgpu_mman mman;
	struct amdgpu_vm_manager vm_manager;
	struct amdgpu_kfd_dev kfd;
	atomic64_t num_bytes_moved;
	atomic64_t num_evictions;
	atomic_t vram_lost_counter;

	const struct sim_asic *sim_asic;
	/* Copies "done by the GPU": signals move fences in order. */
	struct workqueue_struct *sim_move_wq;
	spinlock_t sim_move_lock;
	u64 sim_move_context;
	u64 sim_move_seqno;
	u32 sim_move_delay_ms;
	bool sim_holds;
	bool sim_reset_fails;
	/* Pages that buffers in system memory would have. */
	atomic64_t sim_system_pages;
	u32 sim_gpu_busy_percent;
	u32 sim_mem_busy_percent;
	/* Every open drm file, for the page table report. */
	struct mutex sim_files_lock;
	struct list_head sim_files;
	struct dentry *sim_debugfs;
};

static inline struct amdgpu_device *drm_to_adev(struct drm_device *ddev)
{
	return container_of(ddev, struct amdgpu_device, ddev);
}

static inline struct drm_device *adev_to_drm(struct amdgpu_device *adev)
{
	return &adev->ddev;
}

static inline struct amdgpu_device *amdgpu_ttm_adev(struct ttm_device *bdev)
{
	return container_of(bdev, struct amdgpu_device, mman.bdev);
}

/* ---- buffer objects (object.c, ttm.c) ---- */

struct amdgpu_bo_param {
	unsigned long size;
	int byte_align;
	u32 bo_ptr_size;
	u32 domain;
	u32 preferred_domain;
	u64 flags;
	enum ttm_bo_type type;
	bool no_wait_gpu;
	struct dma_resv *resv;
	void (*destroy)(struct ttm_buffer_object *bo);
	/* xcp partition number plus 1, 0 means any partition */
	int8_t xcp_id_plus1;
};

struct amdgpu_vm_bo_base {
	struct amdgpu_vm *vm;
	struct amdgpu_bo *bo;
	struct amdgpu_vm_bo_base *next;
};

struct amdgpu_bo_va_mapping {
	struct amdgpu_bo_va *bo_va;
	struct list_head list;
	struct rb_node rb;
	uint64_t start; /* GPU pages, inclusive */
	uint64_t last;
	uint64_t __subtree_last;
	uint64_t offset; /* bytes */
	uint32_t flags;
};

struct amdgpu_bo_va {
	struct amdgpu_vm_bo_base base;
	unsigned int ref_count;
	struct list_head valids;
	struct list_head sim_vm_node;
};

struct amdgpu_bo {
	/* Protected by tbo.reserved */
	u32 preferred_domains;
	u32 allowed_domains;
	struct ttm_place placements[AMDGPU_BO_MAX_PLACEMENTS];
	struct ttm_placement placement;
	struct ttm_buffer_object tbo;
	u64 flags;
	/* per VM structure for page tables */
	struct amdgpu_vm_bo_base *vm_bo;
	/* Constant after initialization */
	struct amdgpu_bo *parent;
	struct kgd_mem *kfd_bo;
	/* xcp partition number, -1 means any partition */
	int8_t xcp_id;
	/* GEM_USERPTR and KFD userptr: address in the owner's address space */
	u64 sim_userptr;
	struct mm_struct *sim_usermm;
};

struct amdgpu_bo_user {
	struct amdgpu_bo bo;
	u64 tiling_flags;
	u64 metadata_flags;
	void *metadata;
	u32 metadata_size;
};

struct amdgpu_bo_vm {
	struct amdgpu_bo bo;
	struct amdgpu_vm_bo_base entries[];
};

static inline struct amdgpu_bo *ttm_to_amdgpu_bo(struct ttm_buffer_object *tbo)
{
	return container_of(tbo, struct amdgpu_bo, tbo);
}

static inline struct amdgpu_bo *gem_to_amdgpu_bo(struct drm_gem_object *gobj)
{
	return container_of(gobj, struct amdgpu_bo, tbo.base);
}

static inline struct amdgpu_bo_user *to_amdgpu_bo_user(struct amdgpu_bo *bo)
{
	return container_of(bo, struct amdgpu_bo_user, bo);
}

static inline struct amdgpu_bo_vm *to_amdgpu_bo_vm(struct amdgpu_bo *bo)
{
	return container_of(bo, struct amdgpu_bo_vm, bo);
}

static inline unsigned long amdgpu_bo_size(struct amdgpu_bo *bo)
{
	return bo->tbo.base.size;
}

static inline int amdgpu_bo_reserve(struct amdgpu_bo *bo, bool no_intr)
{
	return ttm_bo_reserve(&bo->tbo, !no_intr, false, NULL);
}

static inline void amdgpu_bo_unreserve(struct amdgpu_bo *bo)
{
	ttm_bo_unreserve(&bo->tbo);
}

void amdgpu_bo_placement_from_domain(struct amdgpu_bo *abo, u32 domain);
/* 0 when no test holds up what users do (any more), or -ERESTARTSYS. */
int sim_wait_held(struct amdgpu_device *adev);
int amdgpu_bo_create(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
		     struct amdgpu_bo **bo_ptr);
int amdgpu_bo_create_user(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
			  struct amdgpu_bo_user **ubo_ptr);
int amdgpu_bo_create_vm(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
			struct amdgpu_bo_vm **vmbo_ptr);
struct amdgpu_bo *amdgpu_bo_ref(struct amdgpu_bo *bo);
void amdgpu_bo_unref(struct amdgpu_bo **bo);
bool amdgpu_bo_is_amdgpu_bo(struct ttm_buffer_object *bo);
void amdgpu_bo_move_notify(struct ttm_buffer_object *bo, bool evict, struct ttm_resource *new_mem);
void amdgpu_bo_release_notify(struct ttm_buffer_object *bo);
/* Call with @bo reserved. Places it in @domain, or the errno TTM gave. */
int sim_bo_validate(struct amdgpu_bo *bo, u32 domain, bool interruptible);

int amdgpu_ttm_init(struct amdgpu_device *adev);
void amdgpu_ttm_fini(struct amdgpu_device *adev);
int amdgpu_vram_mgr_init(struct amdgpu_device *adev);
void amdgpu_vram_mgr_fini(struct amdgpu_device *adev);
int amdgpu_gtt_mgr_init(struct amdgpu_device *adev, uint64_t gtt_size);
void amdgpu_gtt_mgr_fini(struct amdgpu_device *adev);

/* ---- fences of moves (fence.c) ---- */

struct dma_fence *sim_move_fence_create(struct amdgpu_device *adev, struct dma_resv *resv);

/* ---- address spaces (vm.c) ---- */

enum amdgpu_vm_level {
	AMDGPU_VM_PDB2, /* the root: 512 GiB an entry */
	AMDGPU_VM_PDB1, /* 1 GiB an entry */
	AMDGPU_VM_PDB0, /* 2 MiB an entry; an entry may map 2 MiB itself */
	AMDGPU_VM_PTB, /* 4 KiB an entry */
};

struct amdgpu_vm {
	/* tree of virtual addresses mapped */
	struct rb_root_cached va;
	/* contains the page directory */
	struct amdgpu_vm_bo_base root;
	unsigned int pasid;
	/* Points to the KFD process VM info */
	struct amdkfd_process_info *process_info;
	/* List node in amdkfd_process_info.vm_list_head */
	struct list_head vm_list_node;
	bool is_compute_context;

	/* Outermost lock: buffers are reserved under it, never the reverse. */
	struct mutex sim_lock;
	struct list_head sim_bo_vas;
	/* (level << 56 | index) -> struct amdgpu_bo_vm *, without the root */
	struct xarray sim_tables;
	unsigned long sim_table_count;
	u64 sim_table_bytes;
};

struct amdgpu_fpriv {
	struct amdgpu_vm vm;
	struct xarray bo_list_handles;
	struct xarray sim_contexts;
	u32 xcp_id;
	/* Submissions so far. */
	atomic64_t sim_fence_seq;
	struct list_head sim_node;
	struct drm_file *sim_filp;
};

int amdgpu_vm_init(struct amdgpu_device *adev, struct amdgpu_vm *vm, int32_t xcp_id);
void amdgpu_vm_fini(struct amdgpu_device *adev, struct amdgpu_vm *vm);
int amdgpu_vm_pt_create(struct amdgpu_device *adev, struct amdgpu_vm *vm, int level, bool immediate,
			struct amdgpu_bo_vm **vmbo, int32_t xcp_id);
/* All below: with vm->sim_lock held. */
struct amdgpu_bo_va *amdgpu_vm_bo_find(struct amdgpu_vm *vm, struct amdgpu_bo *bo);
struct amdgpu_bo_va *amdgpu_vm_bo_add(struct amdgpu_device *adev, struct amdgpu_vm *vm,
				      struct amdgpu_bo *bo);
void amdgpu_vm_bo_del(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va);
int amdgpu_vm_bo_map(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va, uint64_t saddr,
		     uint64_t offset, uint64_t size, uint32_t flags);
int amdgpu_vm_bo_unmap(struct amdgpu_device *adev, struct amdgpu_bo_va *bo_va, uint64_t saddr);
int amdgpu_vm_bo_clear_mappings(struct amdgpu_device *adev, struct amdgpu_vm *vm, uint64_t saddr,
				uint64_t size);
bool amdgpu_vm_handle_fault(struct amdgpu_device *adev, u32 pasid, u32 vmid, u32 node_id,
			    uint64_t addr, uint64_t ts, bool write_fault);
int amdgpu_pasid_alloc(unsigned int bits);
void amdgpu_pasid_free(u32 pasid);

/* ---- ioctls (gem.c, cs.c, info.c, kms.c), PRIME (prime.c) ---- */

extern const struct drm_gem_object_funcs amdgpu_gem_object_funcs;

int amdgpu_gem_object_create(struct amdgpu_device *adev, unsigned long size, int alignment,
			     u32 initial_domain, u64 flags, enum ttm_bo_type type,
			     struct dma_resv *resv, struct drm_gem_object **obj,
			     int8_t xcp_id_plus1);
int amdgpu_gem_create_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_userptr_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_mmap_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_op_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_va_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_wait_idle_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_gem_metadata_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_mode_dumb_create(struct drm_file *file_priv, struct drm_device *dev,
			    struct drm_mode_create_dumb *args);
int amdgpu_ctx_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_vm_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_bo_list_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_cs_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
int amdgpu_cs_wait_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);
void sim_cs_file_fini(struct amdgpu_fpriv *fpriv);
int amdgpu_info_ioctl(struct drm_device *dev, void *data, struct drm_file *filp);

struct dma_buf *amdgpu_gem_prime_export(struct drm_gem_object *gobj, int flags);
struct drm_gem_object *amdgpu_gem_prime_import(struct drm_device *dev, struct dma_buf *dma_buf);
bool sim_is_amdgpu_dmabuf(struct dma_buf *dma_buf);

int amdgpu_driver_open_kms(struct drm_device *dev, struct drm_file *file_priv);
void amdgpu_driver_postclose_kms(struct drm_device *dev, struct drm_file *file_priv);
long amdgpu_drm_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);
void amdgpu_show_fdinfo(struct drm_printer *p, struct drm_file *file);
/* -EINVAL unless @filp is an open file of this driver's DRM devices. */
int amdgpu_file_to_fpriv(struct file *filp, struct amdgpu_fpriv **fpriv);

extern const struct drm_driver amdgpu_kms_driver;

/* ---- device (device.c), sysfs, debugfs ---- */

struct amdgpu_reset_context {
	int method;
	struct amdgpu_device *reset_req_dev;
	struct amdgpu_job *job;
	unsigned long flags;
};

int amdgpu_device_init(struct amdgpu_device *adev);
void amdgpu_device_fini_sw(struct amdgpu_device *adev);
int amdgpu_device_gpu_recover(struct amdgpu_device *adev, struct amdgpu_job *job,
			      struct amdgpu_reset_context *reset_context);

extern const struct attribute_group *amdgpu_sysfs_groups[];
void amdgpu_debugfs_init(struct amdgpu_device *adev);
void amdgpu_debugfs_fini(struct amdgpu_device *adev);

#endif
