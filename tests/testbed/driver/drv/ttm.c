// SPDX-License-Identifier: GPL-2.0-only
/* What TTM asks of the driver: where to evict to, how to move. */
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "amdgpu.h"
#include "kfd.h"

static unsigned int gtt_gib = 256;
module_param(gtt_gib, uint, 0444);
MODULE_PARM_DESC(gtt_gib, "size of the GTT heap of each GPU in GiB (default 256; costs nothing)");

/*
 * A page list that holds no pages: buffers in system memory cost nothing
 * either. EXTERNAL keeps them out of TTM's page accounting and swapping.
 */
static struct ttm_tt *amdgpu_ttm_tt_create(struct ttm_buffer_object *bo, uint32_t page_flags)
{
	struct ttm_tt *ttm;

	ttm = kzalloc(sizeof(*ttm), GFP_KERNEL);
	if (!ttm)
		return NULL;
	ttm->num_pages = PAGE_ALIGN(bo->base.size) >> PAGE_SHIFT;
	ttm->page_flags = page_flags | TTM_TT_FLAG_EXTERNAL;
	ttm->caching = ttm_cached;
	ttm->sg = bo->sg;
	return ttm;
}

/* Without pages, something must still run out: as much as the GTT heap holds. */
static int amdgpu_ttm_tt_populate(struct ttm_device *bdev, struct ttm_tt *ttm,
				  struct ttm_operation_ctx *ctx)
{
	struct amdgpu_device *adev = amdgpu_ttm_adev(bdev);
	u64 limit = adev->mman.gtt_mgr.manager.size >> PAGE_SHIFT;

	if (atomic64_add_return(ttm->num_pages, &adev->sim_system_pages) > limit) {
		atomic64_sub(ttm->num_pages, &adev->sim_system_pages);
		return -ENOMEM;
	}
	return 0;
}

static void amdgpu_ttm_tt_unpopulate(struct ttm_device *bdev, struct ttm_tt *ttm)
{
	atomic64_sub(ttm->num_pages, &amdgpu_ttm_adev(bdev)->sim_system_pages);
}

static void amdgpu_ttm_backend_destroy(struct ttm_device *bdev, struct ttm_tt *ttm)
{
	ttm_tt_fini(ttm);
	kfree(ttm);
}

static noinline void amdgpu_evict_flags(struct ttm_buffer_object *bo,
					struct ttm_placement *placement)
{
	static const struct ttm_place system = { .mem_type = TTM_PL_SYSTEM };
	struct amdgpu_bo *abo;

	if (bo->type == ttm_bo_type_sg) {
		placement->num_placement = 0;
		return;
	}
	if (!amdgpu_bo_is_amdgpu_bo(bo)) {
		placement->placement = &system;
		placement->num_placement = 1;
		return;
	}
	abo = ttm_to_amdgpu_bo(bo);
	if (abo->flags & AMDGPU_GEM_CREATE_DISCARDABLE) {
		placement->num_placement = 0;
		return;
	}
	if (bo->resource->mem_type == TTM_PL_VRAM)
		amdgpu_bo_placement_from_domain(abo, AMDGPU_GEM_DOMAIN_GTT | AMDGPU_GEM_DOMAIN_CPU);
	else
		amdgpu_bo_placement_from_domain(abo, AMDGPU_GEM_DOMAIN_CPU);
	*placement = abo->placement;
}

/* @place is NULL when dmem.max was lowered: anywhere will do. */
static noinline bool amdgpu_ttm_bo_eviction_valuable(struct ttm_buffer_object *bo,
						     const struct ttm_place *place)
{
	struct dma_resv_iter cursor;
	struct dma_fence *f;

	if (!amdgpu_bo_is_amdgpu_bo(bo))
		return ttm_bo_eviction_valuable(bo, place);
	if (bo->resource->mem_type == TTM_PL_SYSTEM)
		return true;
	/* Page tables of a living address space stay; see README.md. */
	if (bo->type == ttm_bo_type_kernel && !bo->deleted)
		return false;

	/* A KFD process needs all its buffers at once: none makes room for another. */
	dma_resv_for_each_fence(&cursor, bo->base.resv, DMA_RESV_USAGE_BOOKKEEP, f)
	{
		if (amdkfd_fence_check_mm(f, current->mm) &&
		    !(place && place->flags & TTM_PL_FLAG_CONTIGUOUS))
			return false;
	}
	return ttm_bo_eviction_valuable(bo, place);
}

/* The copy itself is nothing; its fence takes as long as the knob says. */
static int amdgpu_move_blit(struct ttm_buffer_object *bo, bool evict, struct ttm_resource *new_mem)
{
	struct amdgpu_device *adev = amdgpu_ttm_adev(bo->bdev);
	struct dma_fence *fence;
	int r;

	fence = sim_move_fence_create(adev, bo->base.resv);
	if (IS_ERR(fence))
		return PTR_ERR(fence);
	if (bo->type == ttm_bo_type_kernel)
		r = ttm_bo_move_accel_cleanup(bo, fence, true, false, new_mem);
	else
		r = ttm_bo_move_accel_cleanup(bo, fence, evict, true, new_mem);
	dma_fence_put(fence);
	return r;
}

static noinline int amdgpu_bo_move(struct ttm_buffer_object *bo, bool evict,
				   struct ttm_operation_ctx *ctx, struct ttm_resource *new_mem,
				   struct ttm_place *hop)
{
	struct amdgpu_device *adev = amdgpu_ttm_adev(bo->bdev);
	struct ttm_resource *old_mem = bo->resource;
	int r;

	if (!old_mem || (old_mem->mem_type == TTM_PL_SYSTEM && !bo->ttm) ||
	    (old_mem->mem_type == TTM_PL_SYSTEM && new_mem->mem_type == TTM_PL_TT)) {
		amdgpu_bo_move_notify(bo, evict, new_mem);
		ttm_bo_move_null(bo, new_mem);
		return 0;
	}
	if (old_mem->mem_type == TTM_PL_TT &&
	    (new_mem->mem_type == TTM_PL_SYSTEM || new_mem->mem_type == TTM_PL_TT)) {
		r = ttm_bo_wait_ctx(bo, ctx);
		if (r)
			return r;
		amdgpu_bo_move_notify(bo, evict, new_mem);
		ttm_resource_free(bo, &bo->resource);
		ttm_bo_assign_mem(bo, new_mem);
		return 0;
	}
	if ((old_mem->mem_type == TTM_PL_SYSTEM && new_mem->mem_type == TTM_PL_VRAM) ||
	    (old_mem->mem_type == TTM_PL_VRAM && new_mem->mem_type == TTM_PL_SYSTEM)) {
		*hop = (struct ttm_place){
			.mem_type = TTM_PL_TT,
			.flags = TTM_PL_FLAG_TEMPORARY,
		};
		return -EMULTIHOP;
	}

	amdgpu_bo_move_notify(bo, evict, new_mem);
	r = amdgpu_move_blit(bo, evict, new_mem);
	if (r)
		return r;
	if (evict)
		atomic64_inc(&adev->num_evictions);
	atomic64_add(bo->base.size, &adev->num_bytes_moved);
	return 0;
}

static noinline void amdgpu_bo_delete_mem_notify(struct ttm_buffer_object *bo)
{
	amdgpu_bo_move_notify(bo, false, NULL);
}

/* There is nothing to map: a CPU access gets SIGBUS. */
static int amdgpu_ttm_io_mem_reserve(struct ttm_device *bdev, struct ttm_resource *mem)
{
	return mem->mem_type == TTM_PL_SYSTEM || mem->mem_type == TTM_PL_TT ? 0 : -EINVAL;
}

static const struct ttm_device_funcs amdgpu_bo_driver = {
	.ttm_tt_create = amdgpu_ttm_tt_create,
	.ttm_tt_populate = amdgpu_ttm_tt_populate,
	.ttm_tt_unpopulate = amdgpu_ttm_tt_unpopulate,
	.ttm_tt_destroy = amdgpu_ttm_backend_destroy,
	.eviction_valuable = amdgpu_ttm_bo_eviction_valuable,
	.evict_flags = amdgpu_evict_flags,
	.move = amdgpu_bo_move,
	.delete_mem_notify = amdgpu_bo_delete_mem_notify,
	.release_notify = amdgpu_bo_release_notify,
	.io_mem_reserve = amdgpu_ttm_io_mem_reserve,
};

int amdgpu_ttm_init(struct amdgpu_device *adev)
{
	int r;

	r = sim_ttm_device_init(&adev->mman.bdev, &amdgpu_bo_driver, adev->dev, adev_to_drm(adev));
	if (r)
		return r;
	r = amdgpu_vram_mgr_init(adev);
	if (r)
		goto err_vram;
	r = amdgpu_gtt_mgr_init(adev, (u64)gtt_gib << 30);
	if (r)
		goto err_gtt;
	adev->mman.initialized = true;
	return 0;

err_gtt:
	amdgpu_vram_mgr_fini(adev);
err_vram:
	ttm_device_fini(&adev->mman.bdev);
	return r;
}

void amdgpu_ttm_fini(struct amdgpu_device *adev)
{
	if (!adev->mman.initialized)
		return;
	amdgpu_vram_mgr_fini(adev);
	amdgpu_gtt_mgr_fini(adev);
	ttm_device_fini(&adev->mman.bdev);
	adev->mman.initialized = false;
}
