// SPDX-License-Identifier: GPL-2.0-only
/* GPU memory of KFD processes. */
#include <linux/dma-buf.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <drm/drm_gem.h>
#include <drm/drm_prime.h>

#include "kfd.h"

/* Device-wide, not per process: what KFD gave out and what it may. */
static struct {
	spinlock_t mem_limit_lock;
	uint64_t total_vram;
	int64_t system_mem_used;
} kfd_mem_limit = { .mem_limit_lock = __SPIN_LOCK_UNLOCKED(kfd_mem_limit.mem_limit_lock) };

void sim_amdkfd_total_mem_add(s64 bytes)
{
	spin_lock(&kfd_mem_limit.mem_limit_lock);
	kfd_mem_limit.total_vram += bytes;
	spin_unlock(&kfd_mem_limit.mem_limit_lock);
}

struct amdgpu_vm *drm_priv_to_vm(void *drm_priv)
{
	struct drm_file *file = drm_priv;
	struct amdgpu_fpriv *fpriv = file->driver_priv;

	return &fpriv->vm;
}

/* KFD keeps page tables of all the machine's VRAM free on each card. */
static size_t __get_available_memory(struct amdgpu_device *adev, uint8_t xcp_id, int64_t vram_used)
{
	s64 reserved_for_pt = max(kfd_mem_limit.total_vram >> 14, AMDGPU_VM_RESERVED_VRAM);
	s64 available = (s64)adev->gmc.real_vram_size - vram_used - reserved_for_pt;

	lockdep_assert_held(&kfd_mem_limit.mem_limit_lock);
	return max_t(s64, available, 0);
}

noinline int amdgpu_amdkfd_reserve_mem_limit(struct amdgpu_device *adev, uint64_t size,
					     u32 alloc_flag, int8_t xcp_id)
{
	int r = 0;

	spin_lock(&kfd_mem_limit.mem_limit_lock);
	/* GTT first: with both flags the buffer is in VRAM and counted here as GTT. */
	if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_GTT) {
		kfd_mem_limit.system_mem_used += size;
	} else if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
		if (xcp_id < 0 || xcp_id >= MAX_XCP) {
			r = -EINVAL;
		} else if (size >
			   __get_available_memory(adev, xcp_id, adev->kfd.vram_used[xcp_id])) {
			r = -ENOMEM;
		} else {
			adev->kfd.vram_used[xcp_id] += size;
			adev->kfd.vram_used_aligned[xcp_id] += ALIGN(size, VRAM_AVAILABILITY_ALIGN);
		}
	} else if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) {
		kfd_mem_limit.system_mem_used += size;
	} else if (!(alloc_flag &
		     (KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL | KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP))) {
		r = -ENOMEM;
	}
	spin_unlock(&kfd_mem_limit.mem_limit_lock);
	return r;
}

noinline void amdgpu_amdkfd_unreserve_mem_limit(struct amdgpu_device *adev, uint64_t size,
						u32 alloc_flag, int8_t xcp_id)
{
	spin_lock(&kfd_mem_limit.mem_limit_lock);
	if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_GTT) {
		kfd_mem_limit.system_mem_used -= size;
	} else if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
		if (!WARN_ON_ONCE(xcp_id < 0 || xcp_id >= MAX_XCP)) {
			adev->kfd.vram_used[xcp_id] -= size;
			adev->kfd.vram_used_aligned[xcp_id] -= ALIGN(size, VRAM_AVAILABILITY_ALIGN);
			WARN_ONCE(adev->kfd.vram_used[xcp_id] < 0,
				  "KFD VRAM memory accounting unbalanced\n");
		}
	} else if (alloc_flag & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) {
		kfd_mem_limit.system_mem_used -= size;
	}
	WARN_ONCE(kfd_mem_limit.system_mem_used < 0, "KFD system memory accounting unbalanced\n");
	spin_unlock(&kfd_mem_limit.mem_limit_lock);
}

noinline size_t amdgpu_amdkfd_get_available_memory(struct amdgpu_device *adev, uint8_t xcp_id)
{
	size_t available;

	spin_lock(&kfd_mem_limit.mem_limit_lock);
	available = __get_available_memory(adev, xcp_id, adev->kfd.vram_used_aligned[xcp_id]);
	spin_unlock(&kfd_mem_limit.mem_limit_lock);
	return available;
}

/* The buffer is gone, and with it the record KFD kept of it. */
void amdgpu_amdkfd_release_notify(struct amdgpu_bo *bo)
{
	struct amdgpu_device *adev = amdgpu_ttm_adev(bo->tbo.bdev);

	amdgpu_amdkfd_unreserve_mem_limit(adev, amdgpu_bo_size(bo), bo->kfd_bo->alloc_flags,
					  bo->xcp_id);
	kfree(bo->kfd_bo);
	bo->kfd_bo = NULL;
}

static void sim_process_info_release(struct kref *ref)
{
	struct amdkfd_process_info *info = container_of(ref, struct amdkfd_process_info, sim_ref);

	WARN_ON(!list_empty(&info->kfd_bo_list));
	dma_fence_put(&info->eviction_fence->base);
	put_pid(info->pid);
	mutex_destroy(&info->lock);
	kfree(info);
}

void sim_process_info_put(struct amdkfd_process_info *info)
{
	if (info)
		kref_put(&info->sim_ref, sim_process_info_release);
}

/* Turn @avm into an address space of @p. Called with p->mutex held. */
int amdgpu_amdkfd_gpuvm_acquire_process_vm(struct amdgpu_device *adev, struct amdgpu_vm *avm,
					   struct kfd_process *p)
{
	struct amdkfd_process_info *info = p->kgd_process_info;

	if (!info) {
		info = kzalloc(sizeof(*info), GFP_KERNEL);
		if (!info)
			return -ENOMEM;
		mutex_init(&info->lock);
		kref_init(&info->sim_ref);
		INIT_LIST_HEAD(&info->vm_list_head);
		INIT_LIST_HEAD(&info->kfd_bo_list);
		info->eviction_fence = amdgpu_amdkfd_fence_create(dma_fence_context_alloc(1),
								  current->mm, sim_context_id(p));
		if (!info->eviction_fence) {
			mutex_destroy(&info->lock);
			kfree(info);
			return -ENOMEM;
		}
		info->pid = get_task_pid(current->group_leader, PIDTYPE_PID);
	}
	if (cmpxchg(&avm->process_info, NULL, info)) {
		if (!p->kgd_process_info)
			sim_process_info_put(info);
		return -EINVAL;
	}
	kref_get(&info->sim_ref);
	mutex_lock(&info->lock);
	list_add_tail(&avm->vm_list_node, &info->vm_list_head);
	info->n_vms++;
	mutex_unlock(&info->lock);
	avm->is_compute_context = true;
	if (!p->kgd_process_info) {
		p->kgd_process_info = info;
		rcu_assign_pointer(p->ef, dma_fence_get(&info->eviction_fence->base));
	}
	return 0;
}

void amdgpu_amdkfd_gpuvm_destroy_cb(struct amdgpu_device *adev, struct amdgpu_vm *vm)
{
	struct amdkfd_process_info *info = vm->process_info;

	if (!info)
		return;
	mutex_lock(&info->lock);
	list_del_init(&vm->vm_list_node);
	info->n_vms--;
	mutex_unlock(&info->lock);
	vm->process_info = NULL;
	sim_process_info_put(info);
}

/* With the buffer reserved. Not interruptible: half a process is no use. */
static int amdgpu_amdkfd_bo_validate(struct amdgpu_bo *bo, uint32_t domain)
{
	return sim_bo_validate(bo, domain, false);
}

static int amdgpu_amdkfd_bo_validate_and_fence(struct amdgpu_bo *bo, uint32_t domain,
					       struct dma_fence *fence)
{
	int r;

	r = amdgpu_bo_reserve(bo, true);
	if (r)
		return r;
	r = amdgpu_amdkfd_bo_validate(bo, domain);
	if (!r)
		r = dma_resv_reserve_fences(bo->tbo.base.resv, 1);
	if (!r)
		dma_resv_add_fence(bo->tbo.base.resv, fence, DMA_RESV_USAGE_BOOKKEEP);
	amdgpu_bo_unreserve(bo);
	return r;
}

static int sim_add_to_process(struct kgd_mem *mem, struct amdkfd_process_info *info)
{
	struct dma_fence *ef;
	int r = 0;

	mutex_lock(&info->lock);
	list_add_tail(&mem->validate_list, &info->kfd_bo_list);
	ef = &info->eviction_fence->base;
	/* While evicted, the restore worker brings it in. */
	if (!mem->bo->sim_usermm && !dma_fence_is_signaled(ef))
		r = amdgpu_amdkfd_bo_validate_and_fence(mem->bo, mem->domain, ef);
	if (r)
		list_del_init(&mem->validate_list);
	mutex_unlock(&info->lock);
	return r;
}

static int sim_alloc_domain(u32 flags, u32 *domain, u32 *alloc_domain, u64 *alloc_flags)
{
	*alloc_flags = 0;
	if (flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
		*domain = *alloc_domain = AMDGPU_GEM_DOMAIN_VRAM;
		*alloc_flags =
			AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE | AMDGPU_GEM_CREATE_VRAM_CLEARED;
		if (flags & KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC)
			*alloc_flags |= AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
	} else if (flags & KFD_IOC_ALLOC_MEM_FLAGS_GTT) {
		*domain = *alloc_domain = AMDGPU_GEM_DOMAIN_GTT;
	} else if (flags & (KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL |
			    KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP)) {
		*domain = AMDGPU_GEM_DOMAIN_GTT;
		*alloc_domain = AMDGPU_GEM_DOMAIN_CPU;
	} else {
		return -EINVAL;
	}
	if (flags & KFD_IOC_ALLOC_MEM_FLAGS_COHERENT)
		*alloc_flags |= AMDGPU_GEM_CREATE_COHERENT;
	if (flags & KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED)
		*alloc_flags |= AMDGPU_GEM_CREATE_UNCACHED;
	return 0;
}

noinline int amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu(struct amdgpu_device *adev, uint64_t va,
						     uint64_t size, void *drm_priv,
						     struct kgd_mem **mem, uint64_t *offset,
						     uint32_t flags, bool criu_resume)
{
	struct amdgpu_vm *avm = drm_priv_to_vm(drm_priv);
	struct drm_gem_object *gobj = NULL;
	u32 domain, alloc_domain;
	u64 alloc_flags, aligned_size, user_addr = 0;
	struct amdgpu_bo *bo;
	int r;

	r = sim_alloc_domain(flags, &domain, &alloc_domain, &alloc_flags);
	if (r)
		return r;
	if (flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR && domain == AMDGPU_GEM_DOMAIN_GTT &&
	    alloc_domain == AMDGPU_GEM_DOMAIN_CPU) {
		if (!offset || !*offset)
			return -EINVAL;
		user_addr = *offset;
	}

	*mem = kzalloc(sizeof(**mem), GFP_KERNEL);
	if (!*mem)
		return -ENOMEM;
	INIT_LIST_HEAD(&(*mem)->attachments);
	INIT_LIST_HEAD(&(*mem)->validate_list);
	mutex_init(&(*mem)->lock);
	(*mem)->aql_queue = !!(flags & KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM);
	(*mem)->alloc_flags = flags;

	/* The ring is mapped twice in a row: half the memory is enough. */
	if ((*mem)->aql_queue)
		size >>= 1;
	aligned_size = PAGE_ALIGN(size);
	if (!aligned_size) {
		r = -EINVAL;
		goto err_free_mem;
	}
	r = amdgpu_amdkfd_reserve_mem_limit(adev, aligned_size, flags, 0);
	if (r)
		goto err_free_mem;
	r = amdgpu_gem_object_create(adev, aligned_size, 1, alloc_domain, alloc_flags,
				     ttm_bo_type_device, NULL, &gobj, 1);
	if (r) {
		amdgpu_amdkfd_unreserve_mem_limit(adev, aligned_size, flags, 0);
		goto err_free_mem;
	}

	/* From here on the buffer's release undoes the reservation and frees *mem. */
	bo = gem_to_amdgpu_bo(gobj);
	bo->kfd_bo = *mem;
	(*mem)->bo = bo;
	(*mem)->va = va;
	(*mem)->domain = domain;
	(*mem)->process_info = avm->process_info;
	if (user_addr) {
		bo->flags |= AMDGPU_AMDKFD_CREATE_USERPTR_BO;
		bo->sim_userptr = user_addr;
		bo->sim_usermm = current->mm;
		mmgrab(bo->sim_usermm);
	}
	r = sim_add_to_process(*mem, avm->process_info);
	if (r) {
		drm_gem_object_put(gobj);
		return r;
	}
	if (offset)
		*offset = drm_vma_node_offset_addr(&gobj->vma_node);
	return 0;

err_free_mem:
	mutex_destroy(&(*mem)->lock);
	kfree(*mem);
	return r;
}

static struct kfd_mem_attachment *sim_find_attachment(struct kgd_mem *mem, struct amdgpu_vm *avm)
{
	struct kfd_mem_attachment *entry;

	list_for_each_entry(entry, &mem->attachments, list) {
		if (entry->bo_va->base.vm == avm)
			return entry;
	}
	return NULL;
}

/* With avm->sim_lock held. */
static struct kfd_mem_attachment *kfd_mem_attach(struct amdgpu_device *adev, struct kgd_mem *mem,
						 struct amdgpu_vm *avm)
{
	struct kfd_mem_attachment *entry;

	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return NULL;
	entry->bo_va = amdgpu_vm_bo_find(avm, mem->bo);
	if (entry->bo_va) {
		entry->bo_va->ref_count++;
	} else {
		entry->bo_va = amdgpu_vm_bo_add(adev, avm, mem->bo);
		if (!entry->bo_va) {
			kfree(entry);
			return NULL;
		}
	}
	entry->adev = adev;
	entry->va = mem->va;
	list_add_tail(&entry->list, &mem->attachments);
	return entry;
}

static void sim_unmap(struct amdgpu_device *adev, struct kgd_mem *mem,
		      struct kfd_mem_attachment *entry)
{
	u64 size = amdgpu_bo_size(mem->bo);

	amdgpu_vm_bo_unmap(adev, entry->bo_va, entry->va);
	if (mem->aql_queue)
		amdgpu_vm_bo_unmap(adev, entry->bo_va, entry->va + size);
	entry->is_mapped = false;
}

noinline int amdgpu_amdkfd_gpuvm_map_memory_to_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
						   void *drm_priv)
{
	struct amdgpu_vm *avm = drm_priv_to_vm(drm_priv);
	struct kfd_mem_attachment *entry;
	u64 size = amdgpu_bo_size(mem->bo);
	int r = 0;

	mutex_lock(&mem->process_info->lock);
	mutex_lock(&mem->lock);
	mutex_lock(&avm->sim_lock);
	entry = sim_find_attachment(mem, avm);
	if (!entry)
		entry = kfd_mem_attach(adev, mem, avm);
	if (!entry) {
		r = -ENOMEM;
		goto out;
	}
	if (entry->is_mapped)
		goto out;
	r = amdgpu_vm_bo_map(adev, entry->bo_va, entry->va, 0, size, 0);
	if (!r && mem->aql_queue) {
		r = amdgpu_vm_bo_map(adev, entry->bo_va, entry->va + size, 0, size, 0);
		if (r)
			amdgpu_vm_bo_unmap(adev, entry->bo_va, entry->va);
	}
	if (!r) {
		entry->is_mapped = true;
		mem->mapped_to_gpu_memory++;
	}
out:
	mutex_unlock(&avm->sim_lock);
	mutex_unlock(&mem->lock);
	mutex_unlock(&mem->process_info->lock);
	return r;
}

int amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
					      void *drm_priv)
{
	struct amdgpu_vm *avm = drm_priv_to_vm(drm_priv);
	struct kfd_mem_attachment *entry;
	int r = 0;

	mutex_lock(&mem->lock);
	mutex_lock(&avm->sim_lock);
	entry = sim_find_attachment(mem, avm);
	if (!entry) {
		r = -EINVAL;
	} else if (entry->is_mapped) {
		sim_unmap(adev, mem, entry);
		mem->mapped_to_gpu_memory--;
	}
	mutex_unlock(&avm->sim_lock);
	mutex_unlock(&mem->lock);
	return r;
}

static void sim_attachment_del(struct kfd_mem_attachment *entry)
{
	struct amdgpu_vm *avm = entry->bo_va->base.vm;

	mutex_lock(&avm->sim_lock);
	if (!--entry->bo_va->ref_count)
		amdgpu_vm_bo_del(entry->adev, entry->bo_va);
	mutex_unlock(&avm->sim_lock);
	list_del(&entry->list);
	kfree(entry);
}

void sim_amdkfd_detach(struct kgd_mem *mem, void *drm_priv)
{
	struct amdgpu_vm *avm = drm_priv_to_vm(drm_priv);
	struct kfd_mem_attachment *entry;

	mutex_lock(&mem->lock);
	entry = sim_find_attachment(mem, avm);
	if (entry) {
		if (entry->is_mapped) {
			mutex_lock(&avm->sim_lock);
			sim_unmap(entry->adev, mem, entry);
			mutex_unlock(&avm->sim_lock);
			mem->mapped_to_gpu_memory--;
		}
		sim_attachment_del(entry);
	}
	mutex_unlock(&mem->lock);
}

/* -EBUSY while mapped. *size: bytes to take off the process's VRAM count. */
noinline int amdgpu_amdkfd_gpuvm_free_memory_of_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
						    void *drm_priv, uint64_t *size)
{
	struct drm_gem_object *gobj = &mem->bo->tbo.base;
	bool use_release_notifier = mem->bo->kfd_bo == mem;
	struct kfd_mem_attachment *entry, *next;
	struct dma_fence *stub;
	unsigned int mapped;

	mutex_lock(&mem->lock);
	mapped = mem->mapped_to_gpu_memory;
	mutex_unlock(&mem->lock);
	if (mapped)
		return -EBUSY;

	/* The restore worker must not find it any more. */
	mutex_lock(&mem->process_info->lock);
	list_del_init(&mem->validate_list);
	amdgpu_bo_reserve(mem->bo, true);
	stub = dma_fence_get_stub();
	dma_resv_replace_fences(mem->bo->tbo.base.resv,
				mem->process_info->eviction_fence->base.context, stub,
				DMA_RESV_USAGE_BOOKKEEP);
	dma_fence_put(stub);
	amdgpu_bo_unreserve(mem->bo);
	mutex_unlock(&mem->process_info->lock);

	list_for_each_entry_safe(entry, next, &mem->attachments, list)
		sim_attachment_del(entry);
	/* What was imported was never added to the count. */
	if (size)
		*size = !mem->is_imported && mem->alloc_flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM ?
				amdgpu_bo_size(mem->bo) :
				0;

	if (mem->dmabuf)
		dma_buf_put(mem->dmabuf);
	mem->dmabuf = NULL;
	mutex_destroy(&mem->lock);
	/* The last reference frees mem, unless it was imported. */
	drm_gem_object_put(gobj);
	if (!use_release_notifier)
		kfree(mem);
	return 0;
}

static int import_obj_create(struct amdgpu_device *adev, struct dma_buf *dma_buf,
			     struct drm_gem_object *obj, uint64_t va, void *drm_priv,
			     struct kgd_mem **mem, uint64_t *size, uint64_t *mmap_offset)
{
	struct amdgpu_vm *avm = drm_priv_to_vm(drm_priv);
	struct amdgpu_bo *bo = gem_to_amdgpu_bo(obj);
	bool vram = bo->preferred_domains & AMDGPU_GEM_DOMAIN_VRAM;
	int r;

	if (!(bo->preferred_domains & (AMDGPU_GEM_DOMAIN_VRAM | AMDGPU_GEM_DOMAIN_GTT)))
		return -EINVAL;
	*mem = kzalloc(sizeof(**mem), GFP_KERNEL);
	if (!*mem)
		return -ENOMEM;
	INIT_LIST_HEAD(&(*mem)->attachments);
	INIT_LIST_HEAD(&(*mem)->validate_list);
	mutex_init(&(*mem)->lock);
	(*mem)->alloc_flags = (vram ? KFD_IOC_ALLOC_MEM_FLAGS_VRAM : KFD_IOC_ALLOC_MEM_FLAGS_GTT) |
			      KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
	(*mem)->bo = bo;
	(*mem)->va = va;
	(*mem)->domain = vram ? AMDGPU_GEM_DOMAIN_VRAM : AMDGPU_GEM_DOMAIN_GTT;
	(*mem)->process_info = avm->process_info;
	(*mem)->is_imported = true;
	/* Evicted meanwhile? Then this brings it back, at the importer's charge. */
	r = sim_add_to_process(*mem, avm->process_info);
	if (r) {
		mutex_destroy(&(*mem)->lock);
		kfree(*mem);
		return r;
	}
	get_dma_buf(dma_buf);
	(*mem)->dmabuf = dma_buf;
	if (size)
		*size = amdgpu_bo_size(bo);
	if (mmap_offset)
		*mmap_offset = drm_vma_node_offset_addr(&obj->vma_node);
	return 0;
}

/* The real one takes GEM handles of a kernel-internal client; none is needed here. */
noinline int amdgpu_amdkfd_gpuvm_import_dmabuf_fd(struct amdgpu_device *adev, int fd, uint64_t va,
						  void *drm_priv, struct kgd_mem **mem,
						  uint64_t *size, uint64_t *mmap_offset)
{
	struct drm_gem_object *obj;
	struct dma_buf *dma_buf;
	int r;

	dma_buf = dma_buf_get(fd);
	if (IS_ERR(dma_buf))
		return PTR_ERR(dma_buf);
	obj = amdgpu_gem_prime_import(adev_to_drm(adev), dma_buf);
	if (IS_ERR(obj)) {
		r = PTR_ERR(obj);
	} else {
		r = import_obj_create(adev, dma_buf, obj, va, drm_priv, mem, size, mmap_offset);
		if (r)
			drm_gem_object_put(obj);
	}
	dma_buf_put(dma_buf);
	return r;
}

int amdgpu_amdkfd_gpuvm_export_dmabuf(struct kgd_mem *mem, struct dma_buf **dma_buf)
{
	struct dma_buf *exported;
	int r = 0;

	mutex_lock(&mem->lock);
	if (!mem->dmabuf) {
		exported = amdgpu_gem_prime_export(
			&mem->bo->tbo.base,
			mem->alloc_flags & KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE ? DRM_RDWR : 0);
		if (IS_ERR(exported))
			r = PTR_ERR(exported);
		else
			mem->dmabuf = exported;
	}
	if (!r) {
		get_dma_buf(mem->dmabuf);
		*dma_buf = mem->dmabuf;
	}
	mutex_unlock(&mem->lock);
	return r;
}

/* In VRAM if it can be, else in GTT; then guarded by @fence again. */
static int sim_restore_bo(struct kgd_mem *mem, struct dma_fence *fence)
{
	struct amdgpu_bo *bo = mem->bo;
	int r;

	if (bo->sim_usermm)
		return 0;
	r = amdgpu_bo_reserve(bo, true);
	if (r)
		return r;
	r = amdgpu_amdkfd_bo_validate(bo, mem->domain);
	if (r)
		r = amdgpu_amdkfd_bo_validate(bo, AMDGPU_GEM_DOMAIN_GTT);
	if (!r)
		r = dma_resv_reserve_fences(bo->tbo.base.resv, 1);
	if (!r)
		dma_resv_add_fence(bo->tbo.base.resv, fence, DMA_RESV_USAGE_BOOKKEEP);
	amdgpu_bo_unreserve(bo);
	return r;
}

/*
 * Runs in a kernel thread, so dmem charges what comes back to the root cgroup:
 * that is what the real driver does, and why it is done here.
 */
noinline int amdgpu_amdkfd_gpuvm_restore_process_bos(void *info, struct dma_fence __rcu **ef)
{
	struct amdkfd_process_info *process_info = info;
	struct amdgpu_amdkfd_fence *old, *fence;
	struct kgd_mem *mem;
	int r = 0;

	mutex_lock(&process_info->lock);
	old = fence = process_info->eviction_fence;
	if (dma_fence_is_signaled(&old->base)) {
		fence = amdgpu_amdkfd_fence_create(old->base.context, old->mm, old->context_id);
		if (!fence) {
			r = -ENOMEM;
			goto out;
		}
	}
	list_for_each_entry(mem, &process_info->kfd_bo_list, validate_list) {
		r = sim_restore_bo(mem, &fence->base);
		if (r)
			break;
	}
	/*
	 * Also after a failure: buffers carry the new fence already, and who
	 * evicts one of them must find it. The caller tries again.
	 */
	if (fence != old) {
		process_info->eviction_fence = fence;
		rcu_assign_pointer(*ef, dma_fence_get(&fence->base));
		/* One reference was process_info's, one was *ef's. */
		dma_fence_put(&old->base);
		dma_fence_put(&old->base);
	}
out:
	mutex_unlock(&process_info->lock);
	return r;
}
