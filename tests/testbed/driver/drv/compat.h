/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every difference between the kernel lines the simulation driver is built
 * for. Nothing outside this header looks at a kernel version.
 */
#ifndef SIM_COMPAT_H
#define SIM_COMPAT_H

#include <linux/dma-buf.h>
#include <linux/dma-fence.h>
#include <linux/mmu_notifier.h>
#include <linux/version.h>

#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/ttm/ttm_bo.h>
#include <drm/ttm/ttm_device.h>
#include <drm/ttm/ttm_resource.h>

#define SIM_KERNEL_AT_LEAST(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

/* amdgpu registers its VRAM with the dmem controller since 6.15. */
#if SIM_KERNEL_AT_LEAST(6, 15)
#define SIM_HAS_DMEM 1
#include <linux/cgroup_dmem.h>
#else
struct dmem_cgroup_region;
#endif

/* dmem_cgroup_register_region() takes a struct with a reclaim callback. */
#if SIM_KERNEL_AT_LEAST(7, 3)
#define SIM_HAS_DMEM_RECLAIM 1
#endif

/* drm_dev_wedged_event(), and its third argument. */
#if SIM_KERNEL_AT_LEAST(6, 17)
#define sim_dev_wedged_event(ddev) drm_dev_wedged_event(ddev, DRM_WEDGE_RECOVERY_NONE, NULL)
#elif SIM_KERNEL_AT_LEAST(6, 15)
#define sim_dev_wedged_event(ddev) drm_dev_wedged_event(ddev, DRM_WEDGE_RECOVERY_NONE)
#else
#define sim_dev_wedged_event(ddev) \
	do {                       \
	} while (0)
#endif

/* struct drm_driver.date was dropped in 6.14. */
#if SIM_KERNEL_AT_LEAST(6, 14)
#define SIM_DRIVER_DATE
#else
#define SIM_DRIVER_DATE .date = "20150101",
#endif

/* drm-total-/drm-resident- keys in fdinfo, struct dma_buf_attach_ops names. */
#if SIM_KERNEL_AT_LEAST(6, 14)
#define SIM_FDINFO_DRM_TOTAL 1
#endif

/* KMS_DRIVER_MINOR of the kernel line. */
#if SIM_KERNEL_AT_LEAST(7, 0)
#define SIM_DRIVER_MINOR 64
#else
#define SIM_DRIVER_MINOR 61
#endif

/* The process-wide pasid moved to the per-device struct. */
#if !SIM_KERNEL_AT_LEAST(6, 16)
#define SIM_KFD_PROCESS_PASID 1
#endif

/* AMDKFD_IOC_CREATE_PROCESS: several KFD contexts in one process. */
#if SIM_KERNEL_AT_LEAST(7, 0)
#define SIM_KFD_CONTEXTS 1
#endif

/* Debian builds with HSA_AMD_SVM from 6.16. */
#if SIM_KERNEL_AT_LEAST(6, 16)
#define SIM_HAS_SVM 1
#endif

static inline int sim_ttm_device_init(struct ttm_device *bdev, const struct ttm_device_funcs *funcs,
				      struct device *dev, struct drm_device *ddev)
{
#if SIM_KERNEL_AT_LEAST(7, 0)
	return ttm_device_init(bdev, funcs, dev, ddev->anon_inode->i_mapping,
			       ddev->vma_offset_manager, 0);
#else
	return ttm_device_init(bdev, funcs, dev, ddev->anon_inode->i_mapping,
			       ddev->vma_offset_manager, false, false);
#endif
}

/* The last GEM reference drops the TTM object. */
static inline void sim_ttm_bo_fini(struct ttm_buffer_object *tbo)
{
#if SIM_KERNEL_AT_LEAST(7, 0)
	ttm_bo_fini(tbo);
#else
	ttm_bo_put(tbo);
#endif
}

static inline void sim_dma_buf_invalidate(struct dma_buf *dmabuf)
{
#if SIM_KERNEL_AT_LEAST(7, 0)
	dma_buf_invalidate_mappings(dmabuf);
#else
	dma_buf_move_notify(dmabuf);
#endif
}

#if SIM_KERNEL_AT_LEAST(7, 0)
#define SIM_ATTACH_MOVE_NOTIFY .invalidate_mappings
#else
#define SIM_ATTACH_MOVE_NOTIFY .move_notify
#endif

/* Ask for a fence's signal without waiting for it. */
static inline void sim_fence_enable_signaling(struct dma_fence *fence)
{
#if SIM_KERNEL_AT_LEAST(7, 3)
	dma_fence_enable_signaling(fence);
#else
	dma_fence_enable_sw_signaling(fence);
#endif
}

/* MODULE_IMPORT_NS() takes a string since 6.13. */
#if SIM_KERNEL_AT_LEAST(6, 13)
#define SIM_NS_DMA_BUF "DMA_BUF"
#else
#define SIM_NS_DMA_BUF DMA_BUF
#endif

#endif
