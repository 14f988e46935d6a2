// SPDX-License-Identifier: GPL-2.0-only
/* The PCI driver, and the module. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>

#include <drm/drm_drv.h>

#include "amdgpu.h"
#include "kfd.h"

static unsigned int probe_ms;
module_param(probe_ms, uint, 0644);
MODULE_PARM_DESC(probe_ms, "milliseconds that each GPU takes until it is bound (default 0)");

static int amdgpu_pci_probe(struct pci_dev *pdev, const struct pci_device_id *ent)
{
	struct amdgpu_device *adev;
	struct drm_device *ddev;
	int r;

	adev = devm_drm_dev_alloc(&pdev->dev, &amdgpu_kms_driver, struct amdgpu_device, ddev);
	if (IS_ERR(adev))
		return PTR_ERR(adev);
	ddev = adev_to_drm(adev);
	adev->dev = &pdev->dev;
	/* Open files outlive an unbind. */
	adev->pdev = pci_dev_get(pdev);
	r = pci_enable_device(pdev);
	if (r)
		return r;
	pci_set_drvdata(pdev, ddev);

	r = amdgpu_device_init(adev);
	if (r)
		goto err_disable;
	r = drm_dev_register(ddev, 0);
	if (r)
		goto err_disable;
	r = amdgpu_amdkfd_device_init(adev);
	if (r)
		goto err_unregister;
	amdgpu_debugfs_init(adev);
	dev_info(adev->dev, "simulated %s (%s), %llu GiB VRAM, render node %d\n",
		 adev->sim_asic->product_name, adev->sim_asic->gfx, adev->gmc.real_vram_size >> 30,
		 ddev->render->index);
	msleep(probe_ms);
	return 0;

err_unregister:
	drm_dev_unregister(ddev);
err_disable:
	pci_disable_device(pdev);
	return r;
}

static void amdgpu_pci_remove(struct pci_dev *pdev)
{
	struct drm_device *ddev = pci_get_drvdata(pdev);
	struct amdgpu_device *adev = drm_to_adev(ddev);

	amdgpu_debugfs_fini(adev);
	amdgpu_amdkfd_device_fini(adev);
	drm_dev_unplug(ddev);
	pci_disable_device(pdev);
}

/* What QEMU's ati-vga offers. Other devices bind through new_id. */
static const struct pci_device_id pciidlist[] = { { PCI_VDEVICE(ATI, 0x5159) },
						  { PCI_VDEVICE(ATI, 0x5046) },
						  {} };
MODULE_DEVICE_TABLE(pci, pciidlist);

static struct pci_driver amdgpu_kms_pci_driver = {
	.name = "amdgpu",
	.id_table = pciidlist,
	.probe = amdgpu_pci_probe,
	.remove = amdgpu_pci_remove,
	.dev_groups = amdgpu_sysfs_groups,
};

static int __init amdgpu_init(void)
{
	int r;

	if (!sim_asic_selected())
		return -EINVAL;
	r = kfd_init();
	if (r)
		return r;
	r = pci_register_driver(&amdgpu_kms_pci_driver);
	if (r)
		kfd_exit();
	return r;
}

static void __exit amdgpu_exit(void)
{
	kfd_cleanup_processes();
	pci_unregister_driver(&amdgpu_kms_pci_driver);
	kfd_exit();
	/* Freed fences and notifiers may still be on their way. */
	rcu_barrier();
}

module_init(amdgpu_init);
module_exit(amdgpu_exit);

MODULE_DESCRIPTION(
	"Simulation of the amdgpu driver for tests: real DRM, TTM and KFD interfaces, no GPU");
MODULE_LICENSE("GPL");
