// SPDX-License-Identifier: GPL-2.0-only
/* AMDGPU_INFO: what libdrm_amdgpu asks for. All of it is about the device. */
#include <linux/slab.h>

#include "amdgpu.h"

static int sim_info_copy(struct drm_amdgpu_info *info, const void *from, size_t size)
{
	size = min_t(size_t, size, info->return_size);
	return copy_to_user(u64_to_user_ptr(info->return_pointer), from, size) ? -EFAULT : 0;
}

static u64 sim_usage(struct amdgpu_device *adev, int mem_type)
{
	struct ttm_resource_manager *man = ttm_manager_type(&adev->mman.bdev, mem_type);

	return man ? ttm_resource_manager_usage(man) : 0;
}

static int sim_info_device(struct amdgpu_device *adev, struct drm_amdgpu_info *info)
{
	const struct sim_asic *asic = adev->sim_asic;
	u64 vm_size = adev->vm_manager.max_pfn * AMDGPU_GPU_PAGE_SIZE - AMDGPU_VA_RESERVED_TOP;
	struct drm_amdgpu_info_device *dev_info;
	int r;

	dev_info = kzalloc(sizeof(*dev_info), GFP_KERNEL);
	if (!dev_info)
		return -ENOMEM;
	dev_info->device_id = asic->device_id;
	dev_info->external_rev = 1;
	dev_info->pci_rev = adev->pdev->revision;
	dev_info->family = asic->family;
	dev_info->num_shader_engines = asic->shader_engines;
	dev_info->num_shader_arrays_per_engine = 1;
	dev_info->gpu_counter_freq = 100000;
	dev_info->max_engine_clock = (u64)asic->max_engine_clk_mhz * 1000;
	dev_info->min_engine_clock = dev_info->max_engine_clock;
	dev_info->max_memory_clock = (u64)asic->mem_clk_mhz * 1000;
	dev_info->min_memory_clock = dev_info->max_memory_clock;
	dev_info->cu_active_number = asic->cu_count;
	dev_info->num_hw_gfx_contexts = 8;
	dev_info->virtual_address_offset = AMDGPU_VA_RESERVED_BOTTOM;
	dev_info->virtual_address_max = min(vm_size, AMDGPU_GMC_HOLE_START);
	if (vm_size > AMDGPU_GMC_HOLE_START) {
		dev_info->high_va_offset = AMDGPU_GMC_HOLE_END;
		dev_info->high_va_max = AMDGPU_GMC_HOLE_END | vm_size;
	}
	dev_info->virtual_address_alignment = PAGE_SIZE;
	dev_info->pte_fragment_size = SZ_2M;
	dev_info->gart_page_size = PAGE_SIZE;
	dev_info->vram_type = asic->vram_type;
	dev_info->vram_bit_width = asic->vram_width;
	dev_info->wave_front_size = asic->wave_front_size;
	dev_info->num_cu_per_sh = asic->cu_per_sh;
	r = sim_info_copy(info, dev_info, sizeof(*dev_info));
	kfree(dev_info);
	return r;
}

static int sim_info_memory(struct amdgpu_device *adev, struct drm_amdgpu_info *info)
{
	struct ttm_resource_manager *gtt = &adev->mman.gtt_mgr.manager;
	struct drm_amdgpu_memory_info mem = {
		.vram = {
			.total_heap_size = adev->gmc.real_vram_size,
			.usable_heap_size = adev->gmc.real_vram_size,
			.heap_usage = sim_usage(adev, TTM_PL_VRAM),
			.max_allocation = adev->gmc.real_vram_size * 3 / 4,
		},
		.gtt = {
			.total_heap_size = gtt->size,
			.usable_heap_size = gtt->size,
			.heap_usage = sim_usage(adev, TTM_PL_TT),
			.max_allocation = gtt->size / 4 * 3,
		},
	};

	/* A large BAR: all of it is visible. */
	mem.cpu_accessible_vram = mem.vram;
	return sim_info_copy(info, &mem, sizeof(mem));
}

static int sim_info_hw_ip(struct amdgpu_device *adev, struct drm_amdgpu_info *info)
{
	struct drm_amdgpu_info_hw_ip ip = {};

	if (info->query_hw_ip.type >= AMDGPU_HW_IP_NUM || info->query_hw_ip.ip_instance)
		return -EINVAL;
	if (info->query_hw_ip.type == AMDGPU_HW_IP_COMPUTE ||
	    info->query_hw_ip.type == AMDGPU_HW_IP_DMA) {
		ip.hw_ip_version_major = adev->sim_asic->gfx_target_version / 10000;
		ip.ib_start_alignment = 32;
		ip.ib_size_alignment = 32;
		ip.available_rings = 1;
	}
	return sim_info_copy(info, &ip, sizeof(ip));
}

/* libdrm reads one register of every GPU: how addresses are spread over memory channels. */
static int sim_info_register(struct drm_amdgpu_info *info)
{
	const u32 gb_addr_config = 0x2a114042;

	if (info->read_mmr_reg.dword_offset != 0x263e || info->read_mmr_reg.count != 1)
		return -EFAULT;
	return sim_info_copy(info, &gb_addr_config, sizeof(gb_addr_config));
}

noinline int amdgpu_info_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct drm_amdgpu_info *info = data;
	u64 value;
	u32 word;

	if (!info->return_size || !info->return_pointer)
		return -EINVAL;

	switch (info->query) {
	case AMDGPU_INFO_ACCEL_WORKING:
		word = 1;
		return sim_info_copy(info, &word, sizeof(word));
	case AMDGPU_INFO_HW_IP_INFO:
		return sim_info_hw_ip(adev, info);
	case AMDGPU_INFO_HW_IP_COUNT:
		word = info->query_hw_ip.type == AMDGPU_HW_IP_COMPUTE ||
		       info->query_hw_ip.type == AMDGPU_HW_IP_DMA;
		return sim_info_copy(info, &word, sizeof(word));
	case AMDGPU_INFO_TIMESTAMP:
		value = ktime_get_ns() / 10;
		return sim_info_copy(info, &value, sizeof(value));
	case AMDGPU_INFO_FW_VERSION: {
		struct drm_amdgpu_info_firmware fw = { .ver = 1, .feature = 1 };

		return sim_info_copy(info, &fw, sizeof(fw));
	}
	case AMDGPU_INFO_NUM_BYTES_MOVED:
		value = atomic64_read(&adev->num_bytes_moved);
		return sim_info_copy(info, &value, sizeof(value));
	case AMDGPU_INFO_NUM_EVICTIONS:
		value = atomic64_read(&adev->num_evictions);
		return sim_info_copy(info, &value, sizeof(value));
	case AMDGPU_INFO_VRAM_USAGE:
	case AMDGPU_INFO_VIS_VRAM_USAGE:
		value = sim_usage(adev, TTM_PL_VRAM);
		return sim_info_copy(info, &value, sizeof(value));
	case AMDGPU_INFO_GTT_USAGE:
		value = sim_usage(adev, TTM_PL_TT);
		return sim_info_copy(info, &value, sizeof(value));
	case AMDGPU_INFO_VRAM_GTT: {
		struct drm_amdgpu_info_vram_gtt heaps = {
			.vram_size = adev->gmc.real_vram_size,
			.vram_cpu_accessible_size = adev->gmc.visible_vram_size,
			.gtt_size = adev->mman.gtt_mgr.manager.size,
		};

		return sim_info_copy(info, &heaps, sizeof(heaps));
	}
	case AMDGPU_INFO_READ_MMR_REG:
		return sim_info_register(info);
	case AMDGPU_INFO_DEV_INFO:
		return sim_info_device(adev, info);
	case AMDGPU_INFO_MEMORY:
		return sim_info_memory(adev, info);
	case AMDGPU_INFO_VRAM_LOST_COUNTER:
		word = atomic_read(&adev->vram_lost_counter);
		return sim_info_copy(info, &word, sizeof(word));
	default:
		return -EINVAL;
	}
}
