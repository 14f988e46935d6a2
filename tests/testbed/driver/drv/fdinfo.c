// SPDX-License-Identifier: GPL-2.0-only
/* /proc/PID/fdinfo of an open drm file, with the keys of the kernel line. */
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_print.h>

#include "amdgpu.h"

#define SIM_PLACES (TTM_PL_VRAM + 1)
/* How long every submission is said to have kept the graphics engine at work. */
#define SIM_GFX_NS_PER_SUBMISSION NSEC_PER_MSEC

struct sim_memory {
	struct drm_memory_stats drm[SIM_PLACES];
	/* Bytes of buffers that prefer this place and are elsewhere. */
	u64 evicted[SIM_PLACES];
	/* Bytes of shared buffers that are here, wherever they prefer to be. */
	u64 shared[SIM_PLACES];
};

static int sim_preferred_place(u32 domains)
{
	if (domains & AMDGPU_GEM_DOMAIN_VRAM)
		return TTM_PL_VRAM;
	return domains & AMDGPU_GEM_DOMAIN_GTT ? TTM_PL_TT : TTM_PL_SYSTEM;
}

static void sim_add_bo(struct sim_memory *stats, struct amdgpu_bo *bo)
{
	int preferred = sim_preferred_place(bo->preferred_domains);
	bool shared = drm_gem_object_is_shared_for_memory_stats(&bo->tbo.base);
	u64 size = amdgpu_bo_size(bo);
	int place;

	if (shared)
		stats->drm[preferred].shared += size;
	else
		stats->drm[preferred].private += size;
	if (!bo->tbo.resource || bo->tbo.resource->mem_type >= SIM_PLACES)
		return;
	place = bo->tbo.resource->mem_type;
	stats->drm[place].resident += size;
	if (shared)
		stats->shared[place] += size;
	if (bo->flags & AMDGPU_GEM_CREATE_DISCARDABLE)
		stats->drm[place].purgeable += size;
	if (place != preferred)
		stats->evicted[preferred] += size;
}

/* Every buffer with a handle or a KFD mapping in this file, and the page tables. */
static void amdgpu_vm_get_memory(struct amdgpu_vm *vm, struct sim_memory *stats)
{
	struct amdgpu_bo_va *bo_va;

	mutex_lock(&vm->sim_lock);
	list_for_each_entry(bo_va, &vm->sim_bo_vas, sim_vm_node) {
		if (amdgpu_bo_reserve(bo_va->base.bo, false))
			continue;
		sim_add_bo(stats, bo_va->base.bo);
		amdgpu_bo_unreserve(bo_va->base.bo);
	}
	stats->drm[TTM_PL_VRAM].private += vm->sim_table_bytes;
	stats->drm[TTM_PL_VRAM].resident += vm->sim_table_bytes;
	mutex_unlock(&vm->sim_lock);
}

static u64 sim_kib(u64 bytes)
{
	return bytes / 1024;
}

noinline void amdgpu_show_fdinfo(struct drm_printer *p, struct drm_file *file)
{
	struct amdgpu_fpriv *fpriv = file->driver_priv;
	struct sim_memory stats = {};
	struct drm_memory_stats *vram = &stats.drm[TTM_PL_VRAM];
	struct drm_memory_stats *gtt = &stats.drm[TTM_PL_TT];
	struct drm_memory_stats *cpu = &stats.drm[TTM_PL_SYSTEM];
	u64 submissions = atomic64_read(&fpriv->sim_fence_seq);

	amdgpu_vm_get_memory(&fpriv->vm, &stats);
	drm_printf(p, "pasid:\t%u\n", fpriv->vm.pasid);
#ifdef SIM_FDINFO_DRM_TOTAL
	{
		static const char *const names[] = { "cpu", "gtt", "vram" };
		static const char *const unused[] = { "gds", "gws", "oa", "doorbell", "mmioremap" };
		const struct drm_memory_stats none = {};
		int i;

		for (i = SIM_PLACES - 1; i >= 0; i--)
			drm_print_memory_stats(p, &stats.drm[i],
					       DRM_GEM_OBJECT_RESIDENT | DRM_GEM_OBJECT_PURGEABLE,
					       names[i]);
		for (i = 0; i < ARRAY_SIZE(unused); i++)
			drm_print_memory_stats(p, &none,
					       DRM_GEM_OBJECT_RESIDENT | DRM_GEM_OBJECT_PURGEABLE,
					       unused[i]);
	}
#endif
	drm_printf(p, "drm-memory-vram:\t%llu KiB\n", sim_kib(vram->resident));
	drm_printf(p, "drm-memory-gtt: \t%llu KiB\n", sim_kib(gtt->resident));
	drm_printf(p, "drm-memory-cpu: \t%llu KiB\n", sim_kib(cpu->resident));
#ifndef SIM_FDINFO_DRM_TOTAL
	drm_printf(p, "amd-memory-visible-vram:\t%llu KiB\n", sim_kib(vram->resident));
#endif
	drm_printf(p, "amd-evicted-vram:\t%llu KiB\n", sim_kib(stats.evicted[TTM_PL_VRAM]));
#ifndef SIM_FDINFO_DRM_TOTAL
	drm_printf(p, "amd-evicted-visible-vram:\t%llu KiB\n", 0ULL);
#endif
	drm_printf(p, "amd-requested-vram:\t%llu KiB\n", sim_kib(vram->shared + vram->private));
#ifndef SIM_FDINFO_DRM_TOTAL
	drm_printf(p, "amd-requested-visible-vram:\t%llu KiB\n", 0ULL);
#endif
	drm_printf(p, "amd-requested-gtt:\t%llu KiB\n", sim_kib(gtt->shared + gtt->private));
#ifndef SIM_FDINFO_DRM_TOTAL
	drm_printf(p, "drm-shared-vram:\t%llu KiB\n", sim_kib(stats.shared[TTM_PL_VRAM]));
	drm_printf(p, "drm-shared-gtt:\t%llu KiB\n", sim_kib(stats.shared[TTM_PL_TT]));
	drm_printf(p, "drm-shared-cpu:\t%llu KiB\n", sim_kib(stats.shared[TTM_PL_SYSTEM]));
#endif
	if (submissions) /* an engine that was never used is left out */
		drm_printf(p, "drm-engine-gfx:\t%llu ns\n",
			   submissions * SIM_GFX_NS_PER_SUBMISSION);
}
