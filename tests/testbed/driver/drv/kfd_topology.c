// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/class/kfd/kfd/topology: the CPUs' NUMA nodes, then the GPUs. The text
 * of every file is made when the set of GPUs changes.
 */
#include <linux/cpufreq.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/pci.h>
#include <linux/seq_buf.h>
#include <linux/slab.h>
#include <linux/topology.h>

#include <drm/drm_file.h>

#include "kfd.h"

#define CRAT_LINK_HYPERTRANSPORT    1
#define CRAT_LINK_PCIEXPRESS	    2
#define CRAT_LINK_XGMI		    11
#define CRAT_LINK_ENABLED	    1
#define HSA_MEM_HEAP_TYPE_SYSTEM    0
#define HSA_MEM_HEAP_TYPE_FB_PUBLIC 1
/* As a real MI210 reports; what the runtime reads out of it fits all models. */
#define SIM_CAPABILITY 746037888U
#define SIM_DEBUG_PROP 470ULL
#define SIM_HIVE_ID    0x5a1f3c2e00000001ULL

struct sim_topo_dir {
	struct list_head list;
	struct kobject *kobj;
};

struct sim_topo_file {
	struct list_head list;
	struct kobj_attribute attr;
	struct kfd_node *gpu;
	char *text;
};

static DEFINE_MUTEX(topology_lock);
static struct kobject *sim_topology;
static u32 sim_generation;
static LIST_HEAD(sim_topo_dirs);
static LIST_HEAD(sim_topo_files);
static struct kfd_node *sim_topo_gpus[MAX_GPU_INSTANCE];
static u32 sim_topo_gpu_count;

static ssize_t sim_topo_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	struct sim_topo_file *file = container_of(attr, struct sim_topo_file, attr);

	if (file->gpu && !sim_kfd_node_allowed(file->gpu))
		return -EPERM;
	return sysfs_emit(buf, "%s", file->text);
}

/* NULL when out of memory, or when @parent is NULL: errors may be checked once. */
static struct kobject *sim_topo_mkdir(struct kobject *parent, const char *name)
{
	struct sim_topo_dir *dir;

	if (!parent)
		return NULL;
	dir = kzalloc(sizeof(*dir), GFP_KERNEL);
	if (!dir)
		return NULL;
	dir->kobj = kobject_create_and_add(name, parent);
	if (!dir->kobj) {
		kfree(dir);
		return NULL;
	}
	/* Children are found before their parents on the way out. */
	list_add(&dir->list, &sim_topo_dirs);
	return dir->kobj;
}

static int sim_topo_mkfile(struct kobject *dir, const char *name, struct kfd_node *gpu,
			   const char *text)
{
	struct sim_topo_file *file;
	int r;

	if (!dir)
		return -ENOMEM;
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	file->text = kstrdup(text, GFP_KERNEL);
	if (!file->text) {
		kfree(file);
		return -ENOMEM;
	}
	sysfs_attr_init(&file->attr.attr);
	file->attr.attr.name = name;
	file->attr.attr.mode = 0444;
	file->attr.show = sim_topo_show;
	file->gpu = sim_kfd_node_get(gpu);
	r = sysfs_create_file(dir, &file->attr.attr);
	if (r) {
		sim_kfd_node_put(file->gpu);
		kfree(file->text);
		kfree(file);
		return r;
	}
	list_add(&file->list, &sim_topo_files);
	return 0;
}

static void sim_topo_clear(void)
{
	struct sim_topo_dir *dir, *next_dir;
	struct sim_topo_file *file, *next_file;

	list_for_each_entry_safe(dir, next_dir, &sim_topo_dirs, list) {
		kobject_del(dir->kobj);
		kobject_put(dir->kobj);
		list_del(&dir->list);
		kfree(dir);
	}
	list_for_each_entry_safe(file, next_file, &sim_topo_files, list) {
		sim_kfd_node_put(file->gpu);
		list_del(&file->list);
		kfree(file->text);
		kfree(file);
	}
}

static u32 sim_cpu_nodes(void)
{
	return num_online_nodes();
}

/* The topology's number of a NUMA node; unknown NUMA: the first. */
static u32 sim_cpu_index(int numa)
{
	int node, index = 0;

	for_each_online_node(node)
	{
		if (node == numa)
			return index;
		index++;
	}
	return 0;
}

static int sim_topo_link(struct kobject *links, u32 index, u32 type, u32 from, u32 to, u32 weight)
{
	char name[8], text[512];

	snprintf(name, sizeof(name), "%u", index);
	snprintf(text, sizeof(text),
		 "type %u\nversion_major 0\nversion_minor 0\nnode_from %u\nnode_to %u\n"
		 "weight %u\nmin_latency 0\nmax_latency 0\nmin_bandwidth %u\nmax_bandwidth %u\n"
		 "recommended_transfer_size 0\nrecommended_sdma_engine_id_mask 0\nflags %u\n",
		 type, from, to, weight, type == CRAT_LINK_PCIEXPRESS ? 312 : 0,
		 type == CRAT_LINK_PCIEXPRESS ? 32000 : 0, CRAT_LINK_ENABLED);
	return sim_topo_mkfile(sim_topo_mkdir(links, name), "properties", NULL, text);
}

static int sim_topo_mem_bank(struct kobject *node, struct kfd_node *gpu, u32 heap_type, u64 bytes,
			     u32 width, u32 mem_clk_max)
{
	struct kobject *banks = sim_topo_mkdir(node, "mem_banks");
	char text[160];

	snprintf(text, sizeof(text),
		 "heap_type %u\nsize_in_bytes %llu\nflags 0\nwidth %u\nmem_clk_max %u\n", heap_type,
		 bytes, width, mem_clk_max);
	return sim_topo_mkfile(sim_topo_mkdir(banks, "0"), "properties", gpu, text);
}

/* Everything of one "properties" file; zero where a kind of node has none. */
struct sim_topo_props {
	u32 cpu_cores, simds, io_links, p2p_links, cpu_core_id_base;
	struct kfd_node *gpu;
};

static int sim_topo_properties(struct kobject *node, const struct sim_topo_props *p)
{
	static const struct sim_asic none;
	const struct sim_asic *a = p->gpu ? p->gpu->adev->sim_asic : &none;
	struct pci_dev *pdev = p->gpu ? p->gpu->adev->pdev : NULL;
	u32 per_xcc = a->num_xcc ?: 1;
	struct seq_buf s;
	char *text;
	int r;

	text = kzalloc(PAGE_SIZE, GFP_KERNEL);
	if (!text)
		return -ENOMEM;
	seq_buf_init(&s, text, PAGE_SIZE);
	seq_buf_printf(&s, "cpu_cores_count %u\nsimd_count %u\nmem_banks_count 1\n", p->cpu_cores,
		       p->simds);
	seq_buf_printf(&s, "caches_count 0\nio_links_count %u\np2p_links_count %u\n", p->io_links,
		       p->p2p_links);
	seq_buf_printf(&s, "cpu_core_id_base %u\nsimd_id_base %u\n", p->cpu_core_id_base,
		       pdev ? 0x80001000U + p->gpu->id : 0);
	seq_buf_printf(&s, "max_waves_per_simd %u\nlds_size_in_kb %u\ngds_size_in_kb 0\n",
		       pdev ? (a->wave_front_size == 64 ? 8 : 16) : 0, pdev ? 64 : 0);
	seq_buf_printf(&s, "num_gws %u\nwave_front_size %u\n", pdev ? 64 : 0, a->wave_front_size);
	seq_buf_printf(&s, "array_count %u\nsimd_arrays_per_engine %u\ncu_per_simd_array %u\n",
		       pdev ? DIV_ROUND_UP(a->cu_count, a->cu_per_sh * per_xcc) * per_xcc : 0,
		       pdev ? 1 : 0, a->cu_per_sh);
	seq_buf_printf(&s, "simd_per_cu %u\nmax_slots_scratch_cu %u\ngfx_target_version %u\n",
		       a->simd_per_cu, pdev ? 32 : 0, a->gfx_target_version);
	seq_buf_printf(&s, "vendor_id %u\ndevice_id %u\nlocation_id %u\ndomain %u\n",
		       pdev ? PCI_VENDOR_ID_ATI : 0, a->device_id, pdev ? pci_dev_id(pdev) : 0,
		       pdev ? pci_domain_nr(pdev->bus) : 0);
	seq_buf_printf(&s, "drm_render_minor %d\nhive_id %llu\n",
		       pdev ? adev_to_drm(p->gpu->adev)->render->index : 0,
		       a->partitions ? SIM_HIVE_ID : 0);
	seq_buf_printf(&s, "num_sdma_engines %u\nnum_sdma_xgmi_engines %u\n", pdev ? 2 : 0,
		       a->partitions ? 3 : 0);
	seq_buf_printf(&s, "num_sdma_queues_per_engine %u\nnum_cp_queues %u\n", pdev ? 8 : 0,
		       a->num_cp_queues);
#if SIM_KERNEL_AT_LEAST(6, 18)
	seq_buf_printf(&s, "cwsr_size 0\nctl_stack_size 0\n");
#endif
	if (pdev) {
		seq_buf_printf(&s, "max_engine_clk_fcompute %u\nlocal_mem_size 0\nfw_version 92\n",
			       a->max_engine_clk_mhz);
		seq_buf_printf(&s, "capability %u\n", SIM_CAPABILITY);
#if SIM_KERNEL_AT_LEAST(6, 14)
		seq_buf_printf(&s, "capability2 0\n");
#endif
		seq_buf_printf(&s,
			       "debug_prop %llu\nsdma_fw_version 9\nunique_id %llu\nnum_xcc %u\n",
			       SIM_DEBUG_PROP, p->gpu->adev->unique_id, per_xcc);
	}
	seq_buf_printf(&s, "max_engine_clk_ccompute %u\n", cpufreq_quick_get_max(0) / 1000);
	r = seq_buf_has_overflowed(&s) ? -E2BIG : sim_topo_mkfile(node, "properties", p->gpu, text);
	kfree(text);
	return r;
}

static int sim_topo_id_and_name(struct kobject *node, struct kfd_node *gpu, const char *name)
{
	char text[80];
	int r;

	snprintf(text, sizeof(text), "%u\n", gpu ? gpu->id : 0);
	r = sim_topo_mkfile(node, "gpu_id", gpu, text);
	if (r)
		return r;
	snprintf(text, sizeof(text), "%s\n", name);
	return sim_topo_mkfile(node, "name", gpu, text);
}

static int sim_topo_cpu(struct kobject *nodes, int numa, u32 index)
{
	struct sim_topo_props props = { .cpu_cores = cpumask_weight(cpumask_of_node(numa)) };
	struct kobject *node, *io, *p2p;
	char name[8];
	u32 i;
	int r;

	snprintf(name, sizeof(name), "%u", index);
	node = sim_topo_mkdir(nodes, name);
	io = sim_topo_mkdir(node, "io_links");
	p2p = sim_topo_mkdir(node, "p2p_links");
	r = sim_topo_id_and_name(node, NULL, boot_cpu_data.x86_model_id);
	for (i = 0; i < sim_cpu_nodes() && !r; i++) {
		if (i != index)
			r = sim_topo_link(io, props.io_links++, CRAT_LINK_HYPERTRANSPORT, index, i,
					  32);
	}
	for (i = 0; i < sim_topo_gpu_count && !r; i++) {
		if (sim_cpu_index(dev_to_node(sim_topo_gpus[i]->adev->dev)) == index)
			r = sim_topo_link(io, props.io_links++, CRAT_LINK_PCIEXPRESS, index,
					  sim_cpu_nodes() + i, 20);
		else
			r = sim_topo_link(p2p, props.p2p_links++, CRAT_LINK_PCIEXPRESS, index,
					  sim_cpu_nodes() + i, 52);
	}
	if (!r)
		r = sim_topo_mem_bank(node, NULL, HSA_MEM_HEAP_TYPE_SYSTEM,
				      (u64)node_present_pages(numa) << PAGE_SHIFT, 64, 0);
	if (!r)
		r = sim_topo_properties(node, &props);
	return r;
}

static int sim_topo_gpu(struct kobject *nodes, u32 gpu_index)
{
	struct kfd_node *gpu = sim_topo_gpus[gpu_index];
	const struct sim_asic *a = gpu->adev->sim_asic;
	struct sim_topo_props props = { .gpu = gpu, .simds = a->cu_count * a->simd_per_cu };
	u32 index = sim_cpu_nodes() + gpu_index, near = sim_cpu_index(dev_to_node(gpu->adev->dev));
	struct kobject *node, *io, *p2p;
	char name[8];
	u32 i;
	int r;

	snprintf(name, sizeof(name), "%u", index);
	node = sim_topo_mkdir(nodes, name);
	io = sim_topo_mkdir(node, "io_links");
	p2p = sim_topo_mkdir(node, "p2p_links");
	sim_topo_mkdir(node, "caches");
	r = sim_topo_id_and_name(node, gpu, a->kfd_name);
	if (!r)
		r = sim_topo_link(io, props.io_links++, CRAT_LINK_PCIEXPRESS, index, near, 20);
	for (i = 0; i < sim_cpu_nodes() && !r; i++) {
		if (i != near)
			r = sim_topo_link(p2p, props.p2p_links++, CRAT_LINK_PCIEXPRESS, index, i,
					  52);
	}
	/* Instinct: one XGMI hive of all. Radeon: through the CPUs. */
	for (i = 0; i < sim_topo_gpu_count && !r; i++) {
		if (i == gpu_index)
			continue;
		if (a->partitions)
			r = sim_topo_link(io, props.io_links++, CRAT_LINK_XGMI, index,
					  sim_cpu_nodes() + i, 15);
		else
			r = sim_topo_link(p2p, props.p2p_links++, CRAT_LINK_PCIEXPRESS, index,
					  sim_cpu_nodes() + i, 40);
	}
	if (!r)
		r = sim_topo_mem_bank(node, gpu, HSA_MEM_HEAP_TYPE_FB_PUBLIC,
				      gpu->adev->gmc.real_vram_size, a->vram_width, a->mem_clk_mhz);
	if (!r)
		r = sim_topo_properties(node, &props);
	return r;
}

static ssize_t generation_id_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(sim_generation));
}

static ssize_t system_properties_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "platform_oem 0\nplatform_id 0\nplatform_rev 0\n");
}

static struct kobj_attribute generation_id = __ATTR_RO(generation_id);
static struct kobj_attribute system_properties = __ATTR_RO(system_properties);

static const struct attribute *const sim_topo_attributes[] = {
	&generation_id.attr,
	&system_properties.attr,
	NULL,
};

/* With topology_lock held. On an error the tree is incomplete, never dangling. */
static int sim_topo_rebuild(void)
{
	struct kobject *nodes;
	int numa, r = 0;
	u32 i = 0;

	sim_topo_clear();
	WRITE_ONCE(sim_generation, sim_generation + 1);
	nodes = sim_topo_mkdir(sim_topology, "nodes");
	for_each_online_node(numa)
	{
		if (!r)
			r = sim_topo_cpu(nodes, numa, i++);
	}
	for (i = 0; i < sim_topo_gpu_count && !r; i++)
		r = sim_topo_gpu(nodes, i);
	return r;
}

/* CRC-16 (polynomial 0xA001, reflected), the kernel's crc16(). */
static u16 sim_crc16(const u8 *data, size_t length)
{
	u16 crc = 0;
	int bit;

	while (length--) {
		crc ^= *data++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xA001 : 0);
	}
	return crc;
}

struct sim_id_search {
	u32 id;
	bool taken;
};

/* The number all user space knows the GPU by; made from the same facts as the real one. */
u32 sim_topology_gpu_id(struct kfd_node *gpu)
{
	struct amdgpu_device *adev = gpu->adev;
	struct pci_dev *pdev = adev->pdev;
	u32 facts[8] = {
		pdev->devfn,
		pdev->subsystem_vendor | (u32)pdev->subsystem_device << 16,
		pci_domain_nr(pdev->bus),
		pdev->device,
		pdev->bus->number,
		lower_32_bits(adev->gmc.real_vram_size),
		upper_32_bits(adev->gmc.real_vram_size),
		(ffs(gpu->xcc_mask) - 1) | hweight32(gpu->xcc_mask) << 16,
	};
	u32 id = sim_crc16((u8 *)facts, sizeof(facts)), i;
	bool unique;

	mutex_lock(&topology_lock);
	do {
		unique = true;
		id = id ?: 1;
		for (i = 0; i < sim_topo_gpu_count; i++)
			unique &= sim_topo_gpus[i]->id != id;
		if (!unique)
			id = (id + 1) & 0xffff;
	} while (!unique);
	mutex_unlock(&topology_lock);
	return id;
}

int kfd_topology_add_device(struct kfd_node *gpu)
{
	int r = -ENOSPC;

	mutex_lock(&topology_lock);
	if (sim_topo_gpu_count < MAX_GPU_INSTANCE) {
		sim_topo_gpus[sim_topo_gpu_count++] = gpu;
		r = sim_topo_rebuild();
	}
	mutex_unlock(&topology_lock);
	return r;
}

void kfd_topology_remove_device(struct kfd_node *gpu)
{
	u32 i;

	mutex_lock(&topology_lock);
	for (i = 0; i < sim_topo_gpu_count && sim_topo_gpus[i] != gpu; i++)
		;
	if (i < sim_topo_gpu_count) {
		memmove(&sim_topo_gpus[i], &sim_topo_gpus[i + 1],
			(--sim_topo_gpu_count - i) * sizeof(sim_topo_gpus[0]));
		if (sim_topo_rebuild())
			pr_err("amdgpu: KFD topology incomplete: out of memory\n");
	}
	mutex_unlock(&topology_lock);
}

int kfd_topology_init(void)
{
	int r;

	mutex_lock(&topology_lock);
	sim_topology = kobject_create_and_add("topology", &kfd_device->kobj);
	r = sim_topology ? sysfs_create_files(sim_topology, sim_topo_attributes) : -ENOMEM;
	if (!r)
		r = sim_topo_rebuild();
	mutex_unlock(&topology_lock);
	if (r)
		kfd_topology_shutdown();
	return r;
}

void kfd_topology_shutdown(void)
{
	mutex_lock(&topology_lock);
	sim_topo_clear();
	kobject_del(sim_topology);
	kobject_put(sim_topology);
	sim_topology = NULL;
	mutex_unlock(&topology_lock);
}
