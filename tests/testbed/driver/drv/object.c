// SPDX-License-Identifier: GPL-2.0-only
/* Buffer objects: creation, placement, destruction. */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include <drm/drm_prime.h>

#include "amdgpu.h"
#include "kfd.h"

static noinline void amdgpu_bo_destroy(struct ttm_buffer_object *tbo)
{
	struct amdgpu_bo *bo = ttm_to_amdgpu_bo(tbo);

	if (drm_gem_is_imported(&bo->tbo.base))
		drm_prime_gem_destroy(&bo->tbo.base, bo->tbo.sg);
	drm_gem_object_release(&bo->tbo.base);
	amdgpu_bo_unref(&bo->parent);
	if (bo->sim_usermm)
		mmdrop(bo->sim_usermm);
	kvfree(bo);
}

static noinline void amdgpu_bo_user_destroy(struct ttm_buffer_object *tbo)
{
	struct amdgpu_bo_user *ubo = to_amdgpu_bo_user(ttm_to_amdgpu_bo(tbo));

	kfree(ubo->metadata);
	amdgpu_bo_destroy(tbo);
}

bool amdgpu_bo_is_amdgpu_bo(struct ttm_buffer_object *bo)
{
#ifdef SIM_HAS_SVM
	if (bo->destroy == &svm_range_bo_destroy)
		return true;
#endif
	return bo->destroy == &amdgpu_bo_destroy || bo->destroy == &amdgpu_bo_user_destroy;
}

/* Fill in the placement list for @domain, best place first. */
void amdgpu_bo_placement_from_domain(struct amdgpu_bo *abo, u32 domain)
{
	struct ttm_place *places = abo->placements;
	u32 c = 0;

	if (domain & AMDGPU_GEM_DOMAIN_VRAM) {
		places[c] = (struct ttm_place){ .mem_type = TTM_PL_VRAM };
		if (!(abo->flags & AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED))
			places[c].flags |= TTM_PL_FLAG_TOPDOWN;
		if (abo->tbo.type == ttm_bo_type_kernel &&
		    abo->flags & AMDGPU_GEM_CREATE_VRAM_CONTIGUOUS)
			places[c].flags |= TTM_PL_FLAG_CONTIGUOUS;
		c++;
	}
	if (domain & AMDGPU_GEM_DOMAIN_GTT) {
		places[c] = (struct ttm_place){ .mem_type = TTM_PL_TT };
		/* Only an alternative: fill VRAM first. */
		if (abo->tbo.resource && domain & abo->preferred_domains & AMDGPU_GEM_DOMAIN_VRAM)
			places[c].flags |= TTM_PL_FLAG_FALLBACK;
		c++;
	}
	if (domain & AMDGPU_GEM_DOMAIN_CPU || !c) {
		places[c] = (struct ttm_place){ .mem_type = TTM_PL_SYSTEM };
		c++;
	}

	abo->placement.num_placement = c;
	abo->placement.placement = places;
}

/* Larger than a whole heap can never fit; ENOMEM without trying. */
static bool amdgpu_bo_validate_size(struct amdgpu_device *adev, unsigned long size, u32 domain)
{
	struct ttm_resource_manager *man;

	if (domain & AMDGPU_GEM_DOMAIN_GTT)
		man = ttm_manager_type(&adev->mman.bdev, TTM_PL_TT);
	else if (domain & AMDGPU_GEM_DOMAIN_VRAM)
		man = ttm_manager_type(&adev->mman.bdev, TTM_PL_VRAM);
	else
		return true;

	return man && size < man->size;
}

/* As long as a test holds up what users do; a signal has the call begun anew. */
int sim_wait_held(struct amdgpu_device *adev)
{
	while (READ_ONCE(adev->sim_holds)) {
		if (signal_pending(current))
			return -ERESTARTSYS;
		msleep_interruptible(20);
	}
	return 0;
}

noinline int amdgpu_bo_create(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
			      struct amdgpu_bo **bo_ptr)
{
	struct ttm_operation_ctx ctx = {
		.interruptible = bp->type != ttm_bo_type_kernel,
		.no_wait_gpu = bp->no_wait_gpu,
		.gfp_retry_mayfail = true,
		.allow_res_evict = bp->type != ttm_bo_type_kernel,
		.resv = bp->resv,
	};
	unsigned long page_align = ALIGN((unsigned long)bp->byte_align, PAGE_SIZE) >> PAGE_SHIFT;
	unsigned long size = ALIGN(bp->size, PAGE_SIZE);
	struct amdgpu_bo *bo;
	int r;

	*bo_ptr = NULL;
	/* ALIGN() of a size near ULONG_MAX wraps to 0. */
	if (!size || size < bp->size)
		return -EINVAL;
	if (!amdgpu_bo_validate_size(adev, size, bp->domain))
		return -ENOMEM;
	/* As where room has to be made by moving others out. */
	if (bp->type == ttm_bo_type_device) {
		r = sim_wait_held(adev);
		if (r)
			return r;
	}

	bo = kvzalloc(bp->bo_ptr_size, GFP_KERNEL);
	if (!bo)
		return -ENOMEM;
	drm_gem_private_object_init(adev_to_drm(adev), &bo->tbo.base, size);
	bo->tbo.base.funcs = &amdgpu_gem_object_funcs;
	bo->preferred_domains = bp->preferred_domain ? bp->preferred_domain : bp->domain;
	bo->allowed_domains = bo->preferred_domains;
	if (bp->type != ttm_bo_type_kernel && !(bp->flags & AMDGPU_GEM_CREATE_DISCARDABLE) &&
	    bo->allowed_domains == AMDGPU_GEM_DOMAIN_VRAM)
		bo->allowed_domains |= AMDGPU_GEM_DOMAIN_GTT;
	bo->flags = bp->flags;
	bo->xcp_id = 0;
	bo->tbo.bdev = &adev->mman.bdev;
	bo->tbo.type = bp->type;
	amdgpu_bo_placement_from_domain(bo, bp->domain);
	if (bp->type == ttm_bo_type_kernel)
		bo->tbo.priority = 2;
	else if (!(bp->flags & AMDGPU_GEM_CREATE_DISCARDABLE))
		bo->tbo.priority = 1;
	if (!bp->destroy)
		bp->destroy = &amdgpu_bo_destroy;

	/* On failure TTM drops the object, which ends in bp->destroy(). */
	r = ttm_bo_init_reserved(&adev->mman.bdev, &bo->tbo, bp->type, &bo->placement, page_align,
				 &ctx, NULL, bp->resv, bp->destroy);
	if (r)
		return r;

	if (!bp->resv)
		amdgpu_bo_unreserve(bo);
	*bo_ptr = bo;

	/* From user space this flag is a hint only. */
	if (bp->type == ttm_bo_type_device)
		bo->flags &= ~AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
	return 0;
}

noinline int amdgpu_bo_create_user(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
				   struct amdgpu_bo_user **ubo_ptr)
{
	struct amdgpu_bo *bo;
	int r;

	bp->bo_ptr_size = sizeof(struct amdgpu_bo_user);
	bp->destroy = &amdgpu_bo_user_destroy;
	r = amdgpu_bo_create(adev, bp, &bo);
	if (r)
		return r;
	*ubo_ptr = to_amdgpu_bo_user(bo);
	return 0;
}

noinline int amdgpu_bo_create_vm(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
				 struct amdgpu_bo_vm **vmbo_ptr)
{
	struct amdgpu_bo *bo;
	int r;

	r = amdgpu_bo_create(adev, bp, &bo);
	if (r)
		return r;
	*vmbo_ptr = to_amdgpu_bo_vm(bo);
	return 0;
}

struct amdgpu_bo *amdgpu_bo_ref(struct amdgpu_bo *bo)
{
	if (bo)
		drm_gem_object_get(&bo->tbo.base);
	return bo;
}

noinline void amdgpu_bo_unref(struct amdgpu_bo **bo)
{
	if (!*bo)
		return;
	drm_gem_object_put(&(*bo)->tbo.base);
	*bo = NULL;
}

int sim_bo_validate(struct amdgpu_bo *bo, u32 domain, bool interruptible)
{
	struct ttm_operation_ctx ctx = { .interruptible = interruptible };

	if (bo->tbo.pin_count)
		return 0;
	amdgpu_bo_placement_from_domain(bo, domain);
	return ttm_bo_validate(&bo->tbo, &bo->placement, &ctx);
}

/* Called before a move (or, with @new_mem NULL, before the memory goes). */
noinline void amdgpu_bo_move_notify(struct ttm_buffer_object *bo, bool evict,
				    struct ttm_resource *new_mem)
{
	struct ttm_resource *old_mem = bo->resource;

	if (!amdgpu_bo_is_amdgpu_bo(bo))
		return;
	if (bo->base.dma_buf && !drm_gem_is_imported(&bo->base) && old_mem &&
	    old_mem->mem_type != TTM_PL_SYSTEM)
		sim_dma_buf_invalidate(bo->base.dma_buf);
}

/* Called by TTM when the last reference is gone, before the memory is freed. */
noinline void amdgpu_bo_release_notify(struct ttm_buffer_object *bo)
{
	struct amdgpu_bo *abo;

	if (!amdgpu_bo_is_amdgpu_bo(bo))
		return;
	abo = ttm_to_amdgpu_bo(bo);
	if (abo->kfd_bo)
		amdgpu_amdkfd_release_notify(abo);
	/* The private copy of the fences: nobody else can hold it any more. */
	if (WARN_ON_ONCE(!dma_resv_trylock(&bo->base._resv)))
		return;
	amdgpu_amdkfd_remove_all_eviction_fences(abo);
	dma_resv_unlock(&bo->base._resv);
}
