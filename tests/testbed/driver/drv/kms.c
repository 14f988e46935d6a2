// SPDX-License-Identifier: GPL-2.0-only
/* The DRM driver: nodes, files, the ioctl table. */
#include <linux/module.h>
#include <linux/slab.h>

#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <drm/drm_managed.h>

#include "amdgpu.h"

noinline int amdgpu_driver_open_kms(struct drm_device *dev, struct drm_file *file_priv)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv;
	int pasid, r;

	fpriv = kzalloc(sizeof(*fpriv), GFP_KERNEL);
	if (!fpriv)
		return -ENOMEM;
	pasid = amdgpu_pasid_alloc(16);
	fpriv->vm.pasid = pasid < 0 ? 0 : pasid;
	/* Partition 0 of an unpartitioned card. */
	fpriv->xcp_id = 0;
	xa_init_flags(&fpriv->bo_list_handles, XA_FLAGS_ALLOC1);
	xa_init_flags(&fpriv->sim_contexts, XA_FLAGS_ALLOC1);
	r = amdgpu_vm_init(adev, &fpriv->vm, fpriv->xcp_id);
	if (r) {
		if (fpriv->vm.pasid)
			amdgpu_pasid_free(fpriv->vm.pasid);
		kfree(fpriv);
		return r;
	}
	fpriv->sim_filp = file_priv;
	file_priv->driver_priv = fpriv;
	mutex_lock(&adev->sim_files_lock);
	list_add_tail(&fpriv->sim_node, &adev->sim_files);
	mutex_unlock(&adev->sim_files_lock);
	return 0;
}

noinline void amdgpu_driver_postclose_kms(struct drm_device *dev, struct drm_file *file_priv)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = file_priv->driver_priv;

	if (!fpriv)
		return;
	mutex_lock(&adev->sim_files_lock);
	list_del(&fpriv->sim_node);
	mutex_unlock(&adev->sim_files_lock);
	sim_cs_file_fini(fpriv);
	amdgpu_vm_fini(adev, &fpriv->vm);
	if (fpriv->vm.pasid)
		amdgpu_pasid_free(fpriv->vm.pasid);
	kfree(fpriv);
	file_priv->driver_priv = NULL;
}

noinline long amdgpu_drm_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	return drm_ioctl(filp, cmd, arg);
}

#ifdef CONFIG_COMPAT
/* The driver's own calls have one layout for both word sizes. */
static long amdgpu_kms_compat_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	if (DRM_IOCTL_NR(cmd) < DRM_COMMAND_BASE)
		return drm_compat_ioctl(filp, cmd, arg);
	return amdgpu_drm_ioctl(filp, cmd, arg);
}
#endif

static int amdgpu_gem_object_mmap(struct file *filp, struct vm_area_struct *vma)
{
	return -ENODEV;
}

static const struct file_operations amdgpu_driver_kms_fops = {
	.owner = THIS_MODULE,
	.open = drm_open,
	.release = drm_release,
	.unlocked_ioctl = amdgpu_drm_ioctl,
	.mmap = amdgpu_gem_object_mmap,
	.poll = drm_poll,
	.read = drm_read,
#ifdef CONFIG_COMPAT
	.compat_ioctl = amdgpu_kms_compat_ioctl,
#endif
	.show_fdinfo = drm_show_fdinfo,
	.fop_flags = FOP_UNSIGNED_OFFSET,
};

int amdgpu_file_to_fpriv(struct file *filp, struct amdgpu_fpriv **fpriv)
{
	struct drm_file *file;

	if (filp->f_op != &amdgpu_driver_kms_fops)
		return -EINVAL;
	file = filp->private_data;
	if (!file || !file->driver_priv)
		return -EINVAL;
	*fpriv = file->driver_priv;
	return 0;
}

#define SIM_IOCTL(name, func) DRM_IOCTL_DEF_DRV(name, func, DRM_AUTH | DRM_RENDER_ALLOW)

static const struct drm_ioctl_desc amdgpu_ioctls_kms[] = {
	SIM_IOCTL(AMDGPU_GEM_CREATE, amdgpu_gem_create_ioctl),
	SIM_IOCTL(AMDGPU_CTX, amdgpu_ctx_ioctl),
	SIM_IOCTL(AMDGPU_VM, amdgpu_vm_ioctl),
	SIM_IOCTL(AMDGPU_BO_LIST, amdgpu_bo_list_ioctl),
	SIM_IOCTL(AMDGPU_GEM_MMAP, amdgpu_gem_mmap_ioctl),
	SIM_IOCTL(AMDGPU_GEM_WAIT_IDLE, amdgpu_gem_wait_idle_ioctl),
	SIM_IOCTL(AMDGPU_CS, amdgpu_cs_ioctl),
	SIM_IOCTL(AMDGPU_INFO, amdgpu_info_ioctl),
	SIM_IOCTL(AMDGPU_WAIT_CS, amdgpu_cs_wait_ioctl),
	SIM_IOCTL(AMDGPU_GEM_METADATA, amdgpu_gem_metadata_ioctl),
	SIM_IOCTL(AMDGPU_GEM_VA, amdgpu_gem_va_ioctl),
	SIM_IOCTL(AMDGPU_GEM_OP, amdgpu_gem_op_ioctl),
	SIM_IOCTL(AMDGPU_GEM_USERPTR, amdgpu_gem_userptr_ioctl),
};

/* The last reference to the device is gone: open files outlive an unbind. */
static void amdgpu_driver_release_kms(struct drm_device *dev)
{
	amdgpu_device_fini_sw(drm_to_adev(dev));
}

/* No MODESET: there are no outputs, and dumb buffers work without. */
const struct drm_driver amdgpu_kms_driver = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER | DRIVER_SYNCOBJ | DRIVER_SYNCOBJ_TIMELINE,
	.open = amdgpu_driver_open_kms,
	.postclose = amdgpu_driver_postclose_kms,
	.ioctls = amdgpu_ioctls_kms,
	.num_ioctls = ARRAY_SIZE(amdgpu_ioctls_kms),
	.dumb_create = amdgpu_mode_dumb_create,
	.fops = &amdgpu_driver_kms_fops,
	.release = amdgpu_driver_release_kms,
	.show_fdinfo = amdgpu_show_fdinfo,
	.gem_prime_import = amdgpu_gem_prime_import,
	.name = "amdgpu",
	.desc = "AMD GPU (simulated)",
	SIM_DRIVER_DATE.major = 3,
	.minor = SIM_DRIVER_MINOR,
	.patchlevel = 0,
};
