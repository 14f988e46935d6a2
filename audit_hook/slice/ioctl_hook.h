/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the auditor asks of the tools library around an ioctl that creates or frees VRAM. The
 * auditor stands in the ioctl's way but keeps no books; the library keeps the books but is not in
 * the way.
 */
#ifndef RINGFENCE_IOCTL_HOOK_H
#define RINGFENCE_IOCTL_HOOK_H

#include <stdint.h>

#define RF_IOCTL_ENTER "ringfence_ioctl_enter"
#define RF_IOCTL_LEAVE "ringfence_ioctl_leave"

/* Between enter and leave of one ioctl. */
struct rf_ioctl_ticket {
	uint64_t bytes;
	uint64_t handle;
	int gpu;
};

/* 0, or the errno the ioctl is to fail with. */
typedef int (*rf_ioctl_enter_t)(int fd, unsigned long request, const void *arg,
				struct rf_ioctl_ticket *ticket);
/* failed: the kernel refused; what enter reserved is given back. */
typedef void (*rf_ioctl_leave_t)(int fd, unsigned long request, const void *arg,
				 const struct rf_ioctl_ticket *ticket, int failed);

/* The ioctls that matter, by type and number: the size in the command word grows with uapi. */
#define RF_IOC_TYPE(request)	 (((request) >> 8) & 0xff)
#define RF_IOC_NR(request)	 ((request)&0xff)
#define RF_KFD_TYPE		 'K'
#define RF_KFD_ALLOC_MEMORY	 0x16
#define RF_KFD_FREE_MEMORY	 0x17
#define RF_DRM_TYPE		 'd'
#define RF_DRM_GEM_CLOSE	 0x09
#define RF_DRM_AMDGPU_GEM_CREATE 0x40

static inline int rf_ioctl_matters(unsigned long request)
{
	switch (RF_IOC_TYPE(request)) {
	case RF_KFD_TYPE:
		return RF_IOC_NR(request) == RF_KFD_ALLOC_MEMORY ||
		       RF_IOC_NR(request) == RF_KFD_FREE_MEMORY;
	case RF_DRM_TYPE:
		return RF_IOC_NR(request) == RF_DRM_AMDGPU_GEM_CREATE ||
		       RF_IOC_NR(request) == RF_DRM_GEM_CLOSE;
	default:
		return 0;
	}
}

#endif
