// SPDX-License-Identifier: GPL-2.0-only
/*
 * Knobs and truths for tests, in /sys/kernel/debug/amdgpu/<PCI name>/, a place
 * that is the same on every kernel line:
 *   sim_page_tables        pid, client, tables, bytes of every open drm file
 *   sim_buffers            place and bytes of what VRAM holds, by allocating task
 *   sim_move_delay_ms      how long a buffer move takes from now on
 *   sim_holds              buffers of users begin to be made or placed and are not done from now on
 *   sim_gpu_busy_percent, sim_mem_busy_percent   what sysfs shows
 *   amdgpu_gpu_recover     reading it "resets" the GPU, as in the real driver
 *   sim_reset_fails        resets begin and do not end from now on
 *   sim_vm_fault           writing a pasid makes a VM fault of it
 *   sim_svm_fault          writing "pid address" has that memory moved to the GPU
 */
#include <linux/debugfs.h>
#include <linux/pid.h>
#include <linux/seq_file.h>

#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_print.h>

#include "amdgpu.h"
#include "kfd.h"

static struct dentry *sim_root;
static unsigned int sim_root_users;
static DEFINE_MUTEX(sim_root_lock);

static int sim_page_tables_show(struct seq_file *m, void *unused)
{
	struct amdgpu_device *adev = m->private;
	struct amdgpu_fpriv *fpriv;
	pid_t pid;

	mutex_lock(&adev->sim_files_lock);
	list_for_each_entry(fpriv, &adev->sim_files, sim_node) {
		rcu_read_lock();
		pid = pid_nr(rcu_dereference(fpriv->sim_filp->pid));
		rcu_read_unlock();
		mutex_lock(&fpriv->vm.sim_lock);
		seq_printf(m, "pid %d client %llu tables %lu bytes %llu\n", pid,
			   (u64)fpriv->sim_filp->client_id, fpriv->vm.sim_table_count,
			   fpriv->vm.sim_table_bytes);
		mutex_unlock(&fpriv->vm.sim_lock);
	}
	mutex_unlock(&adev->sim_files_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(sim_page_tables);

static int sim_buffers_show(struct seq_file *m, void *unused)
{
	struct amdgpu_device *adev = m->private;
	struct drm_printer p = drm_seq_file_printer(m);
	struct ttm_resource_manager *man = ttm_manager_type(&adev->mman.bdev, TTM_PL_VRAM);

	if (man)
		man->func->debug(man, &p);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(sim_buffers);

static int amdgpu_gpu_recover_show(struct seq_file *m, void *unused)
{
	struct amdgpu_device *adev = m->private;
	struct amdgpu_reset_context context = { .reset_req_dev = adev };

	seq_printf(m, "gpu recover %d\n", amdgpu_device_gpu_recover(adev, NULL, &context));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(amdgpu_gpu_recover);

static int sim_vm_fault_set(void *data, u64 pasid)
{
	struct amdgpu_device *adev = data;

	if (pasid > U16_MAX)
		return -EINVAL;
	amdgpu_vm_handle_fault(adev, pasid, 1, 0, 0, ktime_get_ns(), false);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(sim_vm_fault_fops, NULL, sim_vm_fault_set, "%llu\n");

#ifdef SIM_HAS_SVM
/* "PID ADDRESS", the address in hexadecimal. */
static ssize_t sim_svm_fault_write(struct file *file, const char __user *from, size_t size,
				   loff_t *at)
{
	unsigned long long address;
	char text[64];
	int pid, r;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = 0;
	if (sscanf(text, "%d %llx", &pid, &address) != 2)
		return -EINVAL;
	r = sim_svm_fault(file_inode(file)->i_private, pid, address);
	return r ?: size;
}

static const struct file_operations sim_svm_fault_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = sim_svm_fault_write,
};
#endif

void amdgpu_debugfs_init(struct amdgpu_device *adev)
{
	struct dentry *dir;

	mutex_lock(&sim_root_lock);
	if (!sim_root_users++)
		sim_root = debugfs_create_dir("amdgpu", NULL);
	dir = debugfs_create_dir(pci_name(adev->pdev), sim_root);
	mutex_unlock(&sim_root_lock);
	adev->sim_debugfs = dir;

	debugfs_create_file("sim_page_tables", 0444, dir, adev, &sim_page_tables_fops);
	debugfs_create_file("sim_buffers", 0444, dir, adev, &sim_buffers_fops);
	debugfs_create_file("amdgpu_gpu_recover", 0444, dir, adev, &amdgpu_gpu_recover_fops);
	debugfs_create_file("sim_vm_fault", 0200, dir, adev, &sim_vm_fault_fops);
#ifdef SIM_HAS_SVM
	debugfs_create_file("sim_svm_fault", 0200, dir, adev, &sim_svm_fault_fops);
#endif
	debugfs_create_bool("sim_reset_fails", 0644, dir, &adev->sim_reset_fails);
	debugfs_create_u32("sim_move_delay_ms", 0644, dir, &adev->sim_move_delay_ms);
	debugfs_create_bool("sim_holds", 0644, dir, &adev->sim_holds);
	debugfs_create_u32("sim_gpu_busy_percent", 0644, dir, &adev->sim_gpu_busy_percent);
	debugfs_create_u32("sim_mem_busy_percent", 0644, dir, &adev->sim_mem_busy_percent);
}

void amdgpu_debugfs_fini(struct amdgpu_device *adev)
{
	debugfs_remove_recursive(adev->sim_debugfs);
	adev->sim_debugfs = NULL;
	mutex_lock(&sim_root_lock);
	if (!--sim_root_users) {
		debugfs_remove_recursive(sim_root);
		sim_root = NULL;
	}
	mutex_unlock(&sim_root_lock);
}
