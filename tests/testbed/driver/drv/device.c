// SPDX-License-Identifier: GPL-2.0-only
/* One GPU: what it pretends to be, its bring-up, its reset, its end. */
#include <linux/moduleparam.h>
#include <linux/string.h>

#include <drm/drm_drv.h>

#include "amdgpu.h"
#include "kfd.h"

static unsigned int vram_gib = 192;
module_param(vram_gib, uint, 0444);
MODULE_PARM_DESC(vram_gib, "VRAM of each GPU in GiB (default 192; costs nothing)");

static char *gfx = "gfx942";
module_param(gfx, charp, 0444);
MODULE_PARM_DESC(gfx, "model of every GPU: gfx942 (default), gfx90a, gfx1100, gfx1201");

static const struct sim_asic sim_asics[] = {
	{
		.gfx = "gfx942",
		.product_name = "AMD Instinct MI300X OAM",
		.kfd_name = "ip discovery",
		.gfx_target_version = 90402,
		.device_id = 0x74a1,
		.family = AMDGPU_FAMILY_AI,
		.cu_count = 304,
		.num_xcc = 8,
		.simd_per_cu = 4,
		.wave_front_size = 64,
		.shader_engines = 32,
		.cu_per_sh = 10,
		.num_cp_queues = 24,
		.max_engine_clk_mhz = 2100,
		.mem_clk_mhz = 1300,
		.vram_width = 8192,
		.vram_type = AMDGPU_VRAM_TYPE_HBM,
		.partitions = true,
	},
	{
		.gfx = "gfx90a",
		.product_name = "AMD Instinct MI210",
		.kfd_name = "aldebaran",
		.gfx_target_version = 90010,
		.device_id = 0x740f,
		.family = AMDGPU_FAMILY_AI,
		.cu_count = 104,
		.num_xcc = 1,
		.simd_per_cu = 4,
		.wave_front_size = 64,
		.shader_engines = 8,
		.cu_per_sh = 14,
		.num_cp_queues = 24,
		.max_engine_clk_mhz = 1700,
		.mem_clk_mhz = 1600,
		.vram_width = 4096,
		.vram_type = AMDGPU_VRAM_TYPE_HBM,
		.partitions = true,
	},
	{
		.gfx = "gfx1100",
		.product_name = "Radeon RX 7900 XTX",
		.kfd_name = "ip discovery",
		.gfx_target_version = 110000,
		.device_id = 0x744c,
		.family = AMDGPU_FAMILY_GC_11_0_0,
		.cu_count = 96,
		.num_xcc = 1,
		.simd_per_cu = 2,
		.wave_front_size = 32,
		.shader_engines = 6,
		.cu_per_sh = 8,
		.num_cp_queues = 8,
		.max_engine_clk_mhz = 2500,
		.mem_clk_mhz = 1249,
		.vram_width = 384,
		.vram_type = AMDGPU_VRAM_TYPE_GDDR6,
	},
	{
		.gfx = "gfx1201",
		.product_name = "Radeon RX 9070 XT",
		.kfd_name = "ip discovery",
		.gfx_target_version = 120001,
		.device_id = 0x7550,
		.family = AMDGPU_FAMILY_GC_12_0_0,
		.cu_count = 64,
		.num_xcc = 1,
		.simd_per_cu = 2,
		.wave_front_size = 32,
		.shader_engines = 4,
		.cu_per_sh = 8,
		.num_cp_queues = 8,
		.max_engine_clk_mhz = 2970,
		.mem_clk_mhz = 1258,
		.vram_width = 256,
		.vram_type = AMDGPU_VRAM_TYPE_GDDR6,
	},
};

const struct sim_asic *sim_asic_selected(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(sim_asics); i++) {
		if (!strcmp(sim_asics[i].gfx, gfx))
			return &sim_asics[i];
	}
	pr_err("amdgpu: gfx=%s: expected gfx942, gfx90a, gfx1100 or gfx1201\n", gfx);
	return NULL;
}

int amdgpu_device_init(struct amdgpu_device *adev)
{
	int r;

	adev->sim_asic = sim_asic_selected();
	if (!adev->sim_asic)
		return -EINVAL;
	if (vram_gib < 1 || vram_gib > 4096) {
		dev_err(adev->dev, "vram_gib=%u: expected 1 to 4096\n", vram_gib);
		return -EINVAL;
	}
	adev->gmc.real_vram_size = (u64)vram_gib << 30;
	adev->gmc.mc_vram_size = adev->gmc.real_vram_size;
	adev->gmc.visible_vram_size = adev->gmc.real_vram_size;
	/* 48 bits of address, as on gfx9 and later. */
	adev->vm_manager.max_pfn = 1ULL << 36;
	/* The same card has the same number after a reload. */
	adev->unique_id = 0x5a1000000000ULL + ((u64)pci_domain_nr(adev->pdev->bus) << 16) +
			  pci_dev_id(adev->pdev);
	mutex_init(&adev->sim_files_lock);
	INIT_LIST_HEAD(&adev->sim_files);
	spin_lock_init(&adev->sim_move_lock);
	adev->sim_move_context = dma_fence_context_alloc(1);
	adev->sim_move_wq =
		alloc_ordered_workqueue("amdgpu-move-%s", WQ_MEM_RECLAIM, pci_name(adev->pdev));
	if (!adev->sim_move_wq)
		return -ENOMEM;
	r = amdgpu_ttm_init(adev);
	if (r) {
		destroy_workqueue(adev->sim_move_wq);
		adev->sim_move_wq = NULL;
	}
	return r;
}

/* When nobody has the device open any more. */
void amdgpu_device_fini_sw(struct amdgpu_device *adev)
{
	amdgpu_ttm_fini(adev);
	if (adev->sim_move_wq)
		destroy_workqueue(adev->sim_move_wq);
	adev->sim_move_wq = NULL;
	if (adev->pdev)
		pci_dev_put(adev->pdev);
	adev->pdev = NULL;
}

/* What a user sees of a reset: events; if it worked, a counter and contents gone as well. */
noinline int amdgpu_device_gpu_recover(struct amdgpu_device *adev, struct amdgpu_job *job,
				       struct amdgpu_reset_context *reset_context)
{
	struct kfd_node *node = adev->kfd.dev ? sim_kfd_node_get(adev->kfd.dev->nodes[0]) : NULL;

	if (node) {
		WRITE_ONCE(node->sim_resetting, true);
		kfd_smi_event_update_gpu_reset(node, false, reset_context);
	}
	if (READ_ONCE(adev->sim_reset_fails)) {
		/* As in the real driver, nobody is told. */
		sim_kfd_node_put(node);
		return -EIO;
	}
	atomic_inc(&adev->vram_lost_counter);
	if (node) {
		WRITE_ONCE(node->sim_resetting, false);
		kfd_smi_event_update_gpu_reset(node, true, reset_context);
	}
	sim_kfd_node_put(node);
	sim_dev_wedged_event(adev_to_drm(adev));
	return 0;
}
