// SPDX-License-Identifier: GPL-2.0-only
/*
 * VRAM: sizes are counted, charged to dmem and kept on TTM's LRU; there is no
 * memory behind them.
 */
#include <linux/pm_runtime.h>
#include <linux/slab.h>

#include <drm/drm_drv.h>
#include <drm/drm_managed.h>
#include <drm/drm_print.h>

#include "amdgpu.h"

static struct amdgpu_vram_mgr *to_vram_mgr(struct ttm_resource_manager *man)
{
	return container_of(man, struct amdgpu_vram_mgr, manager);
}

static struct amdgpu_vram_mgr_resource *to_amdgpu_vram_mgr_resource(struct ttm_resource *res)
{
	return container_of(res, struct amdgpu_vram_mgr_resource, base);
}

static noinline int amdgpu_vram_mgr_new(struct ttm_resource_manager *man,
					struct ttm_buffer_object *tbo,
					const struct ttm_place *place, struct ttm_resource **res)
{
	struct amdgpu_vram_mgr *mgr = to_vram_mgr(man);
	struct amdgpu_vram_mgr_resource *vres;
	u64 limit = man->size;

	/* The last bytes are for page tables, so that a full card can still map. */
	if (tbo->type != ttm_bo_type_kernel)
		limit -= AMDGPU_VM_RESERVED_VRAM;

	vres = kzalloc(sizeof(*vres), GFP_KERNEL);
	if (!vres)
		return -ENOMEM;
	ttm_resource_init(tbo, place, &vres->base);

	mutex_lock(&mgr->lock);
	if (mgr->sim_allocated + vres->base.size > limit) {
		mutex_unlock(&mgr->lock);
		ttm_resource_fini(man, &vres->base);
		kfree(vres);
		return -ENOSPC;
	}
	mgr->sim_allocated += vres->base.size;
	vres->task.pid = task_pid_nr(current);
	get_task_comm(vres->task.comm, current);
	list_add_tail(&vres->vres_node, &mgr->allocated_vres_list);
	mutex_unlock(&mgr->lock);

	vres->base.start = 0;
	vres->base.placement |= TTM_PL_FLAG_CONTIGUOUS;
	vres->base.bus.caching = ttm_write_combined;
	*res = &vres->base;
	return 0;
}

static noinline void amdgpu_vram_mgr_del(struct ttm_resource_manager *man, struct ttm_resource *res)
{
	struct amdgpu_vram_mgr_resource *vres = to_amdgpu_vram_mgr_resource(res);
	struct amdgpu_vram_mgr *mgr = to_vram_mgr(man);

	mutex_lock(&mgr->lock);
	list_del(&vres->vres_node);
	mgr->sim_allocated -= res->size;
	mutex_unlock(&mgr->lock);

	ttm_resource_fini(man, res);
	kfree(vres);
}

static void amdgpu_vram_mgr_debug(struct ttm_resource_manager *man, struct drm_printer *printer)
{
	struct amdgpu_vram_mgr *mgr = to_vram_mgr(man);
	struct amdgpu_vram_mgr_resource *vres;

	mutex_lock(&mgr->lock);
	list_for_each_entry(vres, &mgr->allocated_vres_list, vres_node)
		drm_printf(printer, "%zu bytes by %s[%d]\n", vres->base.size, vres->task.comm,
			   vres->task.pid);
	mutex_unlock(&mgr->lock);
}

static const struct ttm_resource_manager_func amdgpu_vram_mgr_func = {
	.alloc = amdgpu_vram_mgr_new,
	.free = amdgpu_vram_mgr_del,
	.debug = amdgpu_vram_mgr_debug,
};

#ifdef SIM_HAS_DMEM_RECLAIM
/* dmem.max was set below the usage: evict, as the driver of 7.3 does. */
static int amdgpu_vram_mgr_dmem_reclaim(struct dmem_cgroup_pool_state *pool, u64 target_bytes,
					void *priv)
{
	struct ttm_resource_manager *man = priv;
	struct amdgpu_device *adev = amdgpu_ttm_adev(man->bdev);
	int ret, idx;

	if (!drm_dev_enter(adev_to_drm(adev), &idx))
		return -ENODEV;
	ret = ttm_resource_manager_dmem_reclaim(pool, target_bytes, priv);
	drm_dev_exit(idx);
	return ret;
}

static const struct dmem_cgroup_ops amdgpu_vram_mgr_dmem_ops = {
	.reclaim = amdgpu_vram_mgr_dmem_reclaim,
};
#endif

static int sim_register_region(struct amdgpu_device *adev)
{
#ifdef SIM_HAS_DMEM
	struct amdgpu_vram_mgr *mgr = &adev->mman.vram_mgr;
	struct dmem_cgroup_region *cg;

#ifdef SIM_HAS_DMEM_RECLAIM
	cg = dmem_cgroup_register_region(
		&(struct dmem_cgroup_init){
			.size = adev->gmc.real_vram_size,
			.ops = &amdgpu_vram_mgr_dmem_ops,
			.reclaim_priv = &mgr->manager,
		},
		"drm/%s/vram", adev_to_drm(adev)->unique);
	if (IS_ERR(cg))
		return PTR_ERR(cg);
	mgr->cg_region = cg;
	ttm_resource_manager_set_dmem_region(&mgr->manager, cg);
#else
	cg = drmm_cgroup_register_region(adev_to_drm(adev), "vram", adev->gmc.real_vram_size);
	if (IS_ERR(cg))
		return PTR_ERR(cg);
	mgr->manager.cg = cg;
#endif
#endif
	return 0;
}

static void sim_unregister_region(struct amdgpu_vram_mgr *mgr)
{
#ifdef SIM_HAS_DMEM_RECLAIM
	dmem_cgroup_unregister_region(mgr->cg_region);
	mgr->cg_region = NULL;
	ttm_resource_manager_set_dmem_region(&mgr->manager, NULL);
#endif
}

int amdgpu_vram_mgr_init(struct amdgpu_device *adev)
{
	struct amdgpu_vram_mgr *mgr = &adev->mman.vram_mgr;
	struct ttm_resource_manager *man = &mgr->manager;
	int r;

	ttm_resource_manager_init(man, &adev->mman.bdev, adev->gmc.real_vram_size);
	mutex_init(&mgr->lock);
	INIT_LIST_HEAD(&mgr->allocated_vres_list);
	man->func = &amdgpu_vram_mgr_func;

	r = sim_register_region(adev);
	if (r)
		return r;
	ttm_set_driver_manager(&adev->mman.bdev, TTM_PL_VRAM, man);
	ttm_resource_manager_set_used(man, true);
	return 0;
}

void amdgpu_vram_mgr_fini(struct amdgpu_device *adev)
{
	struct amdgpu_vram_mgr *mgr = &adev->mman.vram_mgr;
	struct ttm_resource_manager *man = &mgr->manager;
	int r;

	ttm_resource_manager_set_used(man, false);
	r = ttm_resource_manager_evict_all(&adev->mman.bdev, man);
	/* After the eviction, which still uncharges; before anything goes. */
	sim_unregister_region(mgr);
	if (WARN(r || mgr->sim_allocated, "VRAM still in use: %llu bytes, %d\n", mgr->sim_allocated,
		 r))
		return;
	ttm_resource_manager_cleanup(man);
	ttm_set_driver_manager(&adev->mman.bdev, TTM_PL_VRAM, NULL);
	mutex_destroy(&mgr->lock);
}
