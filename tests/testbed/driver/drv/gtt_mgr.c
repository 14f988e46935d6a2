// SPDX-License-Identifier: GPL-2.0-only
/* GTT: system memory the GPU can reach. Counted, never allocated. */
#include <linux/slab.h>

#include "amdgpu.h"

static struct amdgpu_gtt_mgr *to_gtt_mgr(struct ttm_resource_manager *man)
{
	return container_of(man, struct amdgpu_gtt_mgr, manager);
}

static noinline int amdgpu_gtt_mgr_new(struct ttm_resource_manager *man,
				       struct ttm_buffer_object *tbo, const struct ttm_place *place,
				       struct ttm_resource **res)
{
	struct amdgpu_gtt_mgr *mgr = to_gtt_mgr(man);
	struct ttm_resource *node;
	bool fits;

	node = kzalloc(sizeof(*node), GFP_KERNEL);
	if (!node)
		return -ENOMEM;
	ttm_resource_init(tbo, place, node);

	/* A move within the limit counts once: a temporary hop is let through. */
	spin_lock(&mgr->lock);
	fits = place->flags & TTM_PL_FLAG_TEMPORARY ||
	       node->size <= man->size - min(man->size, mgr->sim_allocated);
	if (fits)
		mgr->sim_allocated += node->size;
	spin_unlock(&mgr->lock);
	if (!fits) {
		ttm_resource_fini(man, node);
		kfree(node);
		return -ENOSPC;
	}
	node->start = 0;
	*res = node;
	return 0;
}

static noinline void amdgpu_gtt_mgr_del(struct ttm_resource_manager *man, struct ttm_resource *res)
{
	struct amdgpu_gtt_mgr *mgr = to_gtt_mgr(man);

	spin_lock(&mgr->lock);
	mgr->sim_allocated -= res->size;
	spin_unlock(&mgr->lock);
	ttm_resource_fini(man, res);
	kfree(res);
}

static const struct ttm_resource_manager_func amdgpu_gtt_mgr_func = {
	.alloc = amdgpu_gtt_mgr_new,
	.free = amdgpu_gtt_mgr_del,
};

int amdgpu_gtt_mgr_init(struct amdgpu_device *adev, uint64_t gtt_size)
{
	struct amdgpu_gtt_mgr *mgr = &adev->mman.gtt_mgr;
	struct ttm_resource_manager *man = &mgr->manager;

	spin_lock_init(&mgr->lock);
	man->use_tt = true;
	man->func = &amdgpu_gtt_mgr_func;
	ttm_resource_manager_init(man, &adev->mman.bdev, gtt_size);
	ttm_set_driver_manager(&adev->mman.bdev, TTM_PL_TT, man);
	ttm_resource_manager_set_used(man, true);
	return 0;
}

void amdgpu_gtt_mgr_fini(struct amdgpu_device *adev)
{
	struct ttm_resource_manager *man = &adev->mman.gtt_mgr.manager;

	ttm_resource_manager_set_used(man, false);
	if (WARN_ON(ttm_resource_manager_evict_all(&adev->mman.bdev, man)))
		return;
	ttm_resource_manager_cleanup(man);
	ttm_set_driver_manager(&adev->mman.bdev, TTM_PL_TT, NULL);
}
