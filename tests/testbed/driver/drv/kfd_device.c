// SPDX-License-Identifier: GPL-2.0-only
/* KFD's view of the GPUs: one node each (no partitions). */
#include <linux/device_cgroup.h>
#include <linux/slab.h>

#include <drm/drm_device.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>

#include "kfd.h"

static LIST_HEAD(sim_nodes);
static DEFINE_MUTEX(sim_nodes_lock);

int kfd_init(void)
{
	int r;

	r = kfd_process_create_wq();
	if (r)
		return r;
	r = kfd_chardev_init();
	if (r)
		goto err_wq;
	r = kfd_topology_init();
	if (r)
		goto err_chardev;
	r = sim_procfs_init(&kfd_device->kobj);
	if (r)
		goto err_topology;
	return 0;

err_topology:
	kfd_topology_shutdown();
err_chardev:
	kfd_chardev_exit();
err_wq:
	kfd_process_destroy_wq();
	return r;
}

void kfd_exit(void)
{
	kfd_cleanup_processes();
	sim_procfs_exit();
	kfd_topology_shutdown();
	kfd_chardev_exit();
	kfd_process_destroy_wq();
}

struct kfd_node *sim_kfd_node_get(struct kfd_node *node)
{
	if (node)
		kref_get(&node->sim_ref);
	return node;
}

static void sim_kfd_node_release(struct kref *ref)
{
	struct kfd_node *node = container_of(ref, struct kfd_node, sim_ref);

	/* What still names the node may look at the device, too. */
	drm_dev_put(adev_to_drm(node->adev));
	kfree(node);
}

void sim_kfd_node_put(struct kfd_node *node)
{
	if (node)
		kref_put(&node->sim_ref, sim_kfd_node_release);
}

bool sim_kfd_node_allowed(struct kfd_node *node)
{
	return !devcgroup_check_permission(DEVCG_DEV_CHAR, DRM_MAJOR,
					   adev_to_drm(node->adev)->render->index,
					   DEVCG_ACC_WRITE | DEVCG_ACC_READ);
}

unsigned int sim_kfd_node_count(void)
{
	unsigned int count;

	mutex_lock(&sim_nodes_lock);
	count = list_count_nodes(&sim_nodes);
	mutex_unlock(&sim_nodes_lock);
	return count;
}

int sim_kfd_for_each_node(int (*fn)(struct kfd_node *node, void *data), void *data)
{
	struct kfd_node *node;
	int r = 0;

	mutex_lock(&sim_nodes_lock);
	list_for_each_entry(node, &sim_nodes, sim_list) {
		r = fn(node, data);
		if (r)
			break;
	}
	mutex_unlock(&sim_nodes_lock);
	return r;
}

/* After the DRM device is registered: users may come at once. */
int amdgpu_amdkfd_device_init(struct amdgpu_device *adev)
{
	struct kfd_node *node;
	struct kfd_dev *kfd;
	int r;

	kfd = kzalloc(sizeof(*kfd), GFP_KERNEL);
	node = kzalloc(sizeof(*node), GFP_KERNEL);
	if (!kfd || !node) {
		kfree(node);
		kfree(kfd);
		return -ENOMEM;
	}
	kfd->adev = adev;
	kfd->nodes[0] = node;
	kfd->num_nodes = 1;
	node->adev = adev;
	node->kfd = kfd;
	node->xcc_mask = GENMASK(adev->sim_asic->num_xcc - 1, 0);
	INIT_LIST_HEAD(&node->smi_clients);
	spin_lock_init(&node->smi_lock);
	kref_init(&node->sim_ref);
	drm_dev_get(adev_to_drm(adev));

	mutex_lock(&sim_nodes_lock);
	node->id = sim_topology_gpu_id(node);
	list_add_tail(&node->sim_list, &sim_nodes);
	mutex_unlock(&sim_nodes_lock);
	adev->kfd.dev = kfd;
	adev->kfd.sim_gpu_id = node->id;
	sim_amdkfd_total_mem_add(adev->gmc.real_vram_size);
	r = kfd_topology_add_device(node);
	if (r) {
		amdgpu_amdkfd_device_fini(adev);
		return r;
	}
	kfd->init_complete = true;
	adev->kfd.init_complete = true;
	return 0;
}

/* The GPU goes (unbind): processes lose it, and their memory on it. */
void amdgpu_amdkfd_device_fini(struct amdgpu_device *adev)
{
	struct kfd_dev *kfd = adev->kfd.dev;
	struct kfd_node *node;

	if (!kfd)
		return;
	node = kfd->nodes[0];
	mutex_lock(&sim_nodes_lock);
	list_del(&node->sim_list);
	mutex_unlock(&sim_nodes_lock);
	kfd_topology_remove_device(node);
	sim_process_remove_node(node);
	sim_amdkfd_total_mem_add(-(s64)adev->gmc.real_vram_size);
	adev->kfd.init_complete = false;
	adev->kfd.dev = NULL;
	node->kfd = NULL;
	kfree(kfd);
	sim_kfd_node_put(node);
}
