// SPDX-License-Identifier: Apache-2.0
/* What ROCr 6 asks of the thunk beyond ROCr 5; built against its headers only. */
#include "thunk.h"

HSAKMT_STATUS hsaKmtGetRuntimeCapabilities(HSAuint32 *mask)
{
	*mask = 0;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetAMDGPUDeviceHandle(HSAuint32 node, HsaAMDGPUDeviceHandle *handle)
{
	/* Only ever handed back to the stand-in of libdrm_amdgpu. */
	*handle = (HsaAMDGPUDeviceHandle)(HSAuint64)node;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtExportDMABufHandle(void *address, HSAuint64 size, int *fd, HSAuint64 *offset)
{
	*offset = 0;
	return thunk_export(address, size, fd);
}

HSAKMT_STATUS hsaKmtWaitOnEvent_Ext(HsaEvent *event, HSAuint32 milliseconds, uint64_t *age)
{
	(void)age;
	return hsaKmtWaitOnEvent(event, milliseconds);
}

HSAKMT_STATUS hsaKmtWaitOnMultipleEvents_Ext(HsaEvent *events[], HSAuint32 count, bool all,
					     HSAuint32 milliseconds, uint64_t *age)
{
	(void)age;
	return hsaKmtWaitOnMultipleEvents(events, count, all, milliseconds);
}

/* No debugger, no event monitor, no performance streams, no address sanitizer here. */

HSAKMT_STATUS hsaKmtDbgEnable(void **info, HSAuint32 *size)
{
	(void)info;
	(void)size;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtDbgDisable(void)
{
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtDbgGetDeviceData(void **data, HSAuint32 *entries, HSAuint32 *size)
{
	(void)data;
	(void)entries;
	(void)size;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtDbgGetQueueData(void **data, HSAuint32 *entries, HSAuint32 *size, bool suspend)
{
	(void)suspend;
	return hsaKmtDbgGetDeviceData(data, entries, size);
}

HSAKMT_STATUS hsaKmtOpenSMI(HSAuint32 node, int *fd)
{
	(void)node;
	(void)fd;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtSPMAcquire(HSAuint32 node)
{
	(void)node;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtSPMRelease(HSAuint32 node)
{
	(void)node;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtSPMSetDestBuffer(HSAuint32 node, HSAuint32 size, HSAuint32 *timeout,
				     HSAuint32 *copied, void *address, bool *lost)
{
	(void)node;
	(void)size;
	(void)timeout;
	(void)copied;
	(void)address;
	(void)lost;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtReplaceAsanHeaderPage(void *address)
{
	(void)address;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtReturnAsanHeaderPage(void *address)
{
	(void)address;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}
