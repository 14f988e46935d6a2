// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shared virtual memory: ranges of a process's address space, and the VRAM buffers they are given
 * by a prefetch (in the call) or a page fault of the GPU (in a kernel thread). No page is moved, and
 * a range does not notice when its memory is unmapped: it ends with its process.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "kfd.h"

#ifdef SIM_HAS_SVM

/* What a fault on memory nobody has named gets: 2 MiB of it. */
#define SIM_FAULT_PAGES 512UL

struct svm_range_bo {
	struct amdgpu_bo bo;
	/* One for each range that lies in it: a range that is split shares it. */
	struct kref kref;
	struct kfd_node *node;
	struct mm_struct *mm;
};

struct svm_range {
	struct svm_range_list *svms;
	unsigned long start; /* pages, inclusive */
	unsigned long last;
	struct list_head list;
	uint64_t npages;
	struct svm_range_bo *svm_bo;
	uint32_t preferred_loc;
	uint32_t prefetch_loc;
	uint32_t actual_loc;
};

noinline void svm_range_bo_destroy(struct ttm_buffer_object *tbo)
{
	struct amdgpu_bo *bo = ttm_to_amdgpu_bo(tbo);
	struct svm_range_bo *svm_bo = container_of(bo, struct svm_range_bo, bo);

	drm_gem_object_release(&bo->tbo.base);
	/* TTM comes here with a buffer that it could not place, too. */
	if (svm_bo->mm)
		mmdrop(svm_bo->mm);
	kvfree(svm_bo);
}

static struct kfd_process *sim_process_of(struct svm_range *prange)
{
	return container_of(prange->svms, struct kfd_process, svms);
}

static void svm_range_bo_release(struct kref *kref)
{
	struct svm_range_bo *svm_bo = container_of(kref, struct svm_range_bo, kref);
	struct amdgpu_bo *bo = &svm_bo->bo;

	amdgpu_bo_unref(&bo);
}

/* With the process's mutex held, as all below. */
static void svm_range_vram_node_free(struct svm_range *prange)
{
	struct svm_range_bo *svm_bo = prange->svm_bo;
	struct kfd_process_device *pdd;

	if (!svm_bo)
		return;
	prange->svm_bo = NULL;
	prange->actual_loc = KFD_IOCTL_SVM_LOCATION_SYSMEM;
	if (kref_read(&svm_bo->kref) == 1) {
		pdd = kfd_process_device_data_by_id(sim_process_of(prange), svm_bo->node->id);
		if (pdd)
			atomic64_sub(amdgpu_bo_size(&svm_bo->bo), &pdd->vram_usage);
	}
	kref_put(&svm_bo->kref, svm_range_bo_release);
}

noinline int svm_range_vram_node_new(struct kfd_node *node, struct svm_range *prange, bool clear)
{
	struct kfd_process *p = sim_process_of(prange);
	struct amdgpu_bo_param bp = {
		.size = prange->npages * PAGE_SIZE,
		.byte_align = PAGE_SIZE,
		.bo_ptr_size = sizeof(struct svm_range_bo),
		.domain = AMDGPU_GEM_DOMAIN_VRAM,
		.flags = AMDGPU_GEM_CREATE_NO_CPU_ACCESS | AMDGPU_GEM_CREATE_DISCARDABLE |
			 (clear ? AMDGPU_GEM_CREATE_VRAM_CLEARED : 0),
		.type = ttm_bo_type_device,
		.destroy = svm_range_bo_destroy,
	};
	struct kfd_process_device *pdd;
	struct svm_range_bo *svm_bo;
	struct amdgpu_bo *bo;
	struct mm_struct *mm;
	int r;

	if (prange->svm_bo && prange->svm_bo->node == node)
		return 0;
	svm_range_vram_node_free(prange);
	mm = get_task_mm(p->lead_thread);
	if (!mm)
		return -ESRCH;
	r = amdgpu_bo_create(node->adev, &bp, &bo);
	if (r) {
		mmput(mm);
		return r;
	}
	svm_bo = container_of(bo, struct svm_range_bo, bo);
	kref_init(&svm_bo->kref);
	svm_bo->node = node;
	svm_bo->mm = mm;
	mmgrab(mm);
	mmput(mm);
	prange->svm_bo = svm_bo;
	pdd = kfd_process_device_data_by_id(p, node->id);
	if (pdd)
		atomic64_add(amdgpu_bo_size(bo), &pdd->vram_usage);
	return 0;
}

static int svm_migrate_ram_to_vram(struct svm_range *prange, uint32_t best_loc)
{
	struct kfd_process *p = sim_process_of(prange);
	struct kfd_process_device *pdd = kfd_process_device_data_by_id(p, best_loc);
	uint64_t size = prange->npages * PAGE_SIZE;
	int r;

	if (!pdd)
		return -ENODEV;
	/* For the time of the move, as if KFD had given out that much. */
	r = amdgpu_amdkfd_reserve_mem_limit(pdd->dev->adev, size, KFD_IOC_ALLOC_MEM_FLAGS_VRAM, 0);
	if (r)
		return -ENOSPC;
	r = svm_range_vram_node_new(pdd->dev, prange, true);
	if (!r)
		prange->actual_loc = best_loc;
	amdgpu_amdkfd_unreserve_mem_limit(pdd->dev->adev, size, KFD_IOC_ALLOC_MEM_FLAGS_VRAM, 0);
	return r;
}

static struct svm_range *svm_range_new(struct svm_range_list *svms, unsigned long start,
				       unsigned long last)
{
	struct svm_range *prange = kzalloc(sizeof(*prange), GFP_KERNEL);

	if (!prange)
		return NULL;
	prange->svms = svms;
	prange->start = start;
	prange->last = last;
	prange->npages = last - start + 1;
	prange->preferred_loc = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
	prange->prefetch_loc = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
	return prange;
}

static void svm_range_free(struct svm_range *prange)
{
	svm_range_vram_node_free(prange);
	list_del(&prange->list);
	kfree(prange);
}

/* The range that holds this page, or else the first one behind it; the list head if none is. */
static struct list_head *sim_find(struct svm_range_list *svms, unsigned long page)
{
	struct svm_range *prange;

	list_for_each_entry(prange, &svms->list, list) {
		if (prange->last >= page)
			return &prange->list;
	}
	return &svms->list;
}

/* Have a range begin at this page if one has it in its middle. */
static int sim_split_at(struct svm_range_list *svms, unsigned long page)
{
	struct list_head *at = sim_find(svms, page);
	struct svm_range *prange, *tail;

	if (at == &svms->list)
		return 0;
	prange = list_entry(at, struct svm_range, list);
	if (prange->start >= page)
		return 0;
	tail = svm_range_new(svms, page, prange->last);
	if (!tail)
		return -ENOMEM;
	tail->preferred_loc = prange->preferred_loc;
	tail->prefetch_loc = prange->prefetch_loc;
	tail->actual_loc = prange->actual_loc;
	tail->svm_bo = prange->svm_bo;
	if (tail->svm_bo)
		kref_get(&tail->svm_bo->kref);
	prange->last = page - 1;
	prange->npages = prange->last - prange->start + 1;
	list_add(&tail->list, &prange->list);
	return 0;
}

/* Ranges that cover these pages exactly, one after the other. */
static int svm_range_add(struct svm_range_list *svms, unsigned long start, unsigned long last)
{
	struct svm_range *prange;
	struct list_head *at;
	unsigned long end;
	int r;

	r = sim_split_at(svms, start);
	if (!r)
		r = sim_split_at(svms, last + 1);
	while (!r && start <= last) {
		at = sim_find(svms, start);
		end = last;
		if (at != &svms->list) {
			prange = list_entry(at, struct svm_range, list);
			if (prange->start <= start) {
				start = prange->last + 1;
				continue;
			}
			end = min(end, prange->start - 1);
		}
		prange = svm_range_new(svms, start, end);
		if (!prange)
			return -ENOMEM;
		list_add_tail(&prange->list, at);
		start = end + 1;
	}
	return r;
}

static bool svm_range_is_valid(struct mm_struct *mm, unsigned long start, unsigned long last)
{
	unsigned long addr = start << PAGE_SHIFT, end = (last + 1) << PAGE_SHIFT;
	struct vm_area_struct *vma;

	mmap_read_lock(mm);
	while (addr < end) {
		vma = vma_lookup(mm, addr);
		if (!vma)
			break;
		addr = vma->vm_end;
	}
	mmap_read_unlock(mm);
	return addr >= end;
}

static int svm_range_check_attr(struct kfd_process *p, uint32_t nattr,
				const struct kfd_ioctl_svm_attribute *attrs)
{
	uint32_t i, value;

	for (i = 0; i < nattr; i++) {
		value = attrs[i].value;
		switch (attrs[i].type) {
		case KFD_IOCTL_SVM_ATTR_PREFERRED_LOC:
			if (value == KFD_IOCTL_SVM_LOCATION_UNDEFINED)
				break;
			fallthrough;
		case KFD_IOCTL_SVM_ATTR_PREFETCH_LOC:
			if (value == KFD_IOCTL_SVM_LOCATION_SYSMEM)
				break;
			fallthrough;
		case KFD_IOCTL_SVM_ATTR_ACCESS:
		case KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE:
		case KFD_IOCTL_SVM_ATTR_NO_ACCESS:
			if (!kfd_process_device_data_by_id(p, value))
				return -EINVAL;
			break;
		case KFD_IOCTL_SVM_ATTR_SET_FLAGS:
		case KFD_IOCTL_SVM_ATTR_CLR_FLAGS:
		case KFD_IOCTL_SVM_ATTR_GRANULARITY:
			break;
		default:
			return -EINVAL;
		}
	}
	return 0;
}

/* A move to VRAM that fails leaves the range where it is, and the call succeeds all the same. */
static void svm_range_trigger_migration(struct svm_range *prange)
{
	if (prange->prefetch_loc == KFD_IOCTL_SVM_LOCATION_UNDEFINED)
		return;
	if (prange->prefetch_loc == KFD_IOCTL_SVM_LOCATION_SYSMEM)
		svm_range_vram_node_free(prange);
	else
		svm_migrate_ram_to_vram(prange, prange->prefetch_loc);
}

static int svm_range_set_attr(struct kfd_process *p, struct mm_struct *mm, uint64_t start,
			      uint64_t size, uint32_t nattr, struct kfd_ioctl_svm_attribute *attrs)
{
	uint64_t last = start + size - 1;
	struct svm_range *prange;
	uint32_t i;
	int r;

	r = svm_range_check_attr(p, nattr, attrs);
	if (r)
		return r;
	if (!p->kgd_process_info)
		return -EINVAL;
	if (!svm_range_is_valid(mm, start, last))
		return -EFAULT;
	r = svm_range_add(&p->svms, start, last);
	if (r)
		return r;
	list_for_each_entry(prange, &p->svms.list, list) {
		if (prange->last < start || prange->start > last)
			continue;
		for (i = 0; i < nattr; i++) {
			if (attrs[i].type == KFD_IOCTL_SVM_ATTR_PREFERRED_LOC)
				prange->preferred_loc = attrs[i].value;
			else if (attrs[i].type == KFD_IOCTL_SVM_ATTR_PREFETCH_LOC)
				prange->prefetch_loc = attrs[i].value;
		}
		svm_range_trigger_migration(prange);
	}
	return 0;
}

/* Of the locations: the common one, or none. */
static int svm_range_get_attr(struct kfd_process *p, uint64_t start, uint64_t size, uint32_t nattr,
			      struct kfd_ioctl_svm_attribute *attrs)
{
	uint64_t last = start + size - 1;
	struct svm_range *prange;
	bool first;
	uint32_t i, value;

	for (i = 0; i < nattr; i++) {
		if (attrs[i].type != KFD_IOCTL_SVM_ATTR_PREFERRED_LOC &&
		    attrs[i].type != KFD_IOCTL_SVM_ATTR_PREFETCH_LOC)
			return -EINVAL;
		first = true;
		attrs[i].value = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
		list_for_each_entry(prange, &p->svms.list, list) {
			if (prange->last < start || prange->start > last)
				continue;
			value = attrs[i].type == KFD_IOCTL_SVM_ATTR_PREFERRED_LOC ?
					prange->preferred_loc :
					prange->prefetch_loc;
			if (!first && value != attrs[i].value)
				value = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
			attrs[i].value = value;
			first = false;
		}
	}
	return 0;
}

noinline int svm_ioctl(struct kfd_process *p, enum kfd_ioctl_svm_op op, uint64_t start,
		       uint64_t size, uint32_t nattrs, struct kfd_ioctl_svm_attribute *attrs)
{
	int r;

	start >>= PAGE_SHIFT;
	size >>= PAGE_SHIFT;
	mutex_lock(&p->mutex);
	switch (op) {
	case KFD_IOCTL_SVM_OP_SET_ATTR:
		r = svm_range_set_attr(p, current->mm, start, size, nattrs, attrs);
		break;
	case KFD_IOCTL_SVM_OP_GET_ATTR:
		r = svm_range_get_attr(p, start, size, nattrs, attrs);
		break;
	default:
		r = -EINVAL;
	}
	mutex_unlock(&p->mutex);
	return r;
}

/* @addr: pages. On a GPU that can retry the access; XNACK is not asked for. */
noinline int svm_range_restore_pages(struct amdgpu_device *adev, unsigned int pasid, uint32_t vmid,
				     uint32_t node_id, uint64_t addr, uint64_t ts, bool write_fault)
{
	struct kfd_process *p = sim_lookup_process_by_pasid(pasid);
	unsigned long start = round_down(addr, SIM_FAULT_PAGES);
	struct kfd_node *node = adev->kfd.dev->nodes[0];
	struct svm_range *prange;
	struct list_head *at;
	int r = 0;

	if (!p)
		return -ESRCH;
	mutex_lock(&p->mutex);
	at = sim_find(&p->svms, addr);
	if (at == &p->svms.list || list_entry(at, struct svm_range, list)->start > addr) {
		r = svm_range_add(&p->svms, start, start + SIM_FAULT_PAGES - 1);
		at = sim_find(&p->svms, addr);
	}
	if (!r) {
		prange = list_entry(at, struct svm_range, list);
		/* Where it is wanted, or else where it is used. */
		if (kfd_process_device_data_by_id(p, prange->preferred_loc))
			r = svm_migrate_ram_to_vram(prange, prange->preferred_loc);
		else
			r = svm_migrate_ram_to_vram(prange, node->id);
	}
	mutex_unlock(&p->mutex);
	kfd_unref_process(p);
	return r;
}

struct sim_fault {
	struct work_struct work;
	struct amdgpu_device *adev;
	unsigned int pasid;
	uint64_t page;
	int result;
};

static void sim_fault_worker(struct work_struct *work)
{
	struct sim_fault *fault = container_of(work, struct sim_fault, work);

	fault->result = svm_range_restore_pages(fault->adev, fault->pasid, 1, 0, fault->page,
						ktime_get_ns(), true);
}

int sim_svm_fault(struct amdgpu_device *adev, pid_t pid, u64 address)
{
	struct sim_fault fault = {
		.adev = adev,
		.pasid = sim_pasid_of(pid, adev),
		.page = address >> PAGE_SHIFT,
	};

	if (!fault.pasid)
		return -ESRCH;
	INIT_WORK_ONSTACK(&fault.work, sim_fault_worker);
	schedule_work(&fault.work);
	flush_work(&fault.work);
	destroy_work_on_stack(&fault.work);
	return fault.result;
}

void sim_svm_drop_node(struct kfd_process *p, struct kfd_node *node)
{
	struct svm_range *prange;

	list_for_each_entry(prange, &p->svms.list, list) {
		if (prange->svm_bo && (!node || prange->svm_bo->node == node))
			svm_range_vram_node_free(prange);
	}
}

void svm_range_list_init(struct kfd_process *p)
{
	INIT_LIST_HEAD(&p->svms.list);
}

void svm_range_list_fini(struct kfd_process *p)
{
	struct svm_range *prange, *next;

	list_for_each_entry_safe(prange, next, &p->svms.list, list)
		svm_range_free(prange);
}

#endif
