// SPDX-License-Identifier: GPL-2.0-only
/* Attributes of the PCI device. */
#include <linux/device.h>
#include <linux/sysfs.h>

#include "amdgpu.h"

static struct amdgpu_device *sim_adev(struct device *dev)
{
	return drm_to_adev(dev_get_drvdata(dev));
}

static u64 sim_used(struct device *dev, int mem_type)
{
	struct ttm_resource_manager *man = ttm_manager_type(&sim_adev(dev)->mman.bdev, mem_type);

	return man ? ttm_resource_manager_usage(man) : 0;
}

#define SIM_ATTR(_name, _format, _value)                                                          \
	static ssize_t _name##_show(struct device *dev, struct device_attribute *attr, char *buf) \
	{                                                                                         \
		return sysfs_emit(buf, _format "\n", _value);                                     \
	}                                                                                         \
	static DEVICE_ATTR_RO(_name)

SIM_ATTR(mem_info_vram_total, "%llu", sim_adev(dev)->gmc.real_vram_size);
SIM_ATTR(mem_info_vis_vram_total, "%llu", sim_adev(dev)->gmc.visible_vram_size);
SIM_ATTR(mem_info_vram_used, "%llu", sim_used(dev, TTM_PL_VRAM));
SIM_ATTR(mem_info_vis_vram_used, "%llu", sim_used(dev, TTM_PL_VRAM));
SIM_ATTR(mem_info_gtt_total, "%llu", sim_adev(dev)->mman.gtt_mgr.manager.size);
SIM_ATTR(mem_info_gtt_used, "%llu", sim_used(dev, TTM_PL_TT));
SIM_ATTR(gpu_busy_percent, "%u", READ_ONCE(sim_adev(dev)->sim_gpu_busy_percent));
SIM_ATTR(mem_busy_percent, "%u", READ_ONCE(sim_adev(dev)->sim_mem_busy_percent));
SIM_ATTR(unique_id, "%016llx", sim_adev(dev)->unique_id);
SIM_ATTR(product_name, "%s", sim_adev(dev)->sim_asic->product_name);
SIM_ATTR(available_compute_partition, "%s",
	 sim_adev(dev)->sim_asic->num_xcc > 1 ? "SPX, DPX, QPX, CPX" : "SPX");
SIM_ATTR(available_memory_partition, "%s",
	 sim_adev(dev)->sim_asic->num_xcc > 1 ? "NPS1, NPS4" : "NPS1");

/* Readable as on a real card; another mode than the present one is refused. */
static ssize_t current_compute_partition_show(struct device *dev, struct device_attribute *attr,
					      char *buf)
{
	return sysfs_emit(buf, "SPX\n");
}

static ssize_t current_compute_partition_store(struct device *dev, struct device_attribute *attr,
					       const char *buf, size_t count)
{
	return sysfs_streq(buf, "SPX") ? count : -EINVAL;
}
static DEVICE_ATTR_RW(current_compute_partition);

static ssize_t current_memory_partition_show(struct device *dev, struct device_attribute *attr,
					     char *buf)
{
	return sysfs_emit(buf, "NPS1\n");
}

static ssize_t current_memory_partition_store(struct device *dev, struct device_attribute *attr,
					      const char *buf, size_t count)
{
	return sysfs_streq(buf, "NPS1") ? count : -EINVAL;
}
static DEVICE_ATTR_RW(current_memory_partition);

static struct attribute *sim_attributes[] = { &dev_attr_mem_info_vram_total.attr,
					      &dev_attr_mem_info_vis_vram_total.attr,
					      &dev_attr_mem_info_vram_used.attr,
					      &dev_attr_mem_info_vis_vram_used.attr,
					      &dev_attr_mem_info_gtt_total.attr,
					      &dev_attr_mem_info_gtt_used.attr,
					      &dev_attr_gpu_busy_percent.attr,
					      &dev_attr_mem_busy_percent.attr,
					      &dev_attr_unique_id.attr,
					      &dev_attr_product_name.attr,
					      NULL };

static struct attribute *sim_partition_attributes[] = {
	&dev_attr_current_compute_partition.attr, &dev_attr_available_compute_partition.attr,
	&dev_attr_current_memory_partition.attr, &dev_attr_available_memory_partition.attr, NULL
};

/* Radeon cards have no partition files. */
static umode_t sim_partition_visible(struct kobject *kobj, struct attribute *attr, int i)
{
	return sim_adev(kobj_to_dev(kobj))->sim_asic->partitions ? attr->mode : 0;
}

static const struct attribute_group sim_group = {
	.attrs = sim_attributes,
};

static const struct attribute_group sim_partition_group = {
	.attrs = sim_partition_attributes,
	.is_visible = sim_partition_visible,
};

const struct attribute_group *amdgpu_sysfs_groups[] = { &sim_group, &sim_partition_group, NULL };
