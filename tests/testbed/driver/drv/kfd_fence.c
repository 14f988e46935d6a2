// SPDX-License-Identifier: GPL-2.0-only
/*
 * The eviction fence of a KFD process: attached to all its buffers. Who wants
 * to move one asks for the fence's signal, and that stops the queues first.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "kfd.h"

static const struct dma_fence_ops amdkfd_fence_ops;
static atomic_t fence_seq;

static struct amdgpu_amdkfd_fence *to_amdgpu_amdkfd_fence(struct dma_fence *f)
{
	if (rcu_access_pointer(f->ops) != &amdkfd_fence_ops)
		return NULL;
	return container_of(f, struct amdgpu_amdkfd_fence, base);
}

struct amdgpu_amdkfd_fence *amdgpu_amdkfd_fence_create(u64 context, struct mm_struct *mm,
						       u16 context_id)
{
	struct amdgpu_amdkfd_fence *fence;

	fence = kzalloc(sizeof(*fence), GFP_KERNEL);
	if (!fence)
		return NULL;
	mmgrab(mm);
	fence->mm = mm;
	get_task_comm(fence->timeline_name, current);
	spin_lock_init(&fence->lock);
	fence->context_id = context_id;
	dma_fence_init(&fence->base, &amdkfd_fence_ops, &fence->lock, context,
		       atomic_inc_return(&fence_seq));
	return fence;
}

static const char *amdkfd_fence_get_driver_name(struct dma_fence *f)
{
	return "amdgpu_amdkfd_fence";
}

static const char *amdkfd_fence_get_timeline_name(struct dma_fence *f)
{
	return container_of(f, struct amdgpu_amdkfd_fence, base)->timeline_name;
}

/* False: nobody is left who could signal it. Runs with the fence's lock held. */
static bool amdkfd_fence_enable_signaling(struct dma_fence *f)
{
	struct amdgpu_amdkfd_fence *fence = container_of(f, struct amdgpu_amdkfd_fence, base);

	return !kgd2kfd_schedule_evict_and_restore_process(fence->mm, fence->context_id, f);
}

static void amdkfd_fence_release(struct dma_fence *f)
{
	struct amdgpu_amdkfd_fence *fence = container_of(f, struct amdgpu_amdkfd_fence, base);

	mmdrop(fence->mm);
	kfree_rcu(f, rcu);
}

static const struct dma_fence_ops amdkfd_fence_ops = {
	.get_driver_name = amdkfd_fence_get_driver_name,
	.get_timeline_name = amdkfd_fence_get_timeline_name,
	.enable_signaling = amdkfd_fence_enable_signaling,
	.release = amdkfd_fence_release,
};

bool amdkfd_fence_check_mm(struct dma_fence *f, struct mm_struct *mm)
{
	struct amdgpu_amdkfd_fence *fence = to_amdgpu_amdkfd_fence(f);

	return fence && fence->mm == mm;
}

/* On release: no reason to evict a process for a buffer nobody has. */
void amdgpu_amdkfd_remove_all_eviction_fences(struct amdgpu_bo *bo)
{
	struct dma_resv *resv = &bo->tbo.base._resv;
	struct dma_fence *fence, *stub = dma_fence_get_stub();
	struct dma_resv_iter cursor;

	dma_resv_for_each_fence(&cursor, resv, DMA_RESV_USAGE_BOOKKEEP, fence)
	{
		if (to_amdgpu_amdkfd_fence(fence))
			dma_resv_replace_fences(resv, fence->context, stub,
						DMA_RESV_USAGE_BOOKKEEP);
	}
	dma_fence_put(stub);
}
