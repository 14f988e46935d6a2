/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libhsakmt.so.1, the library through which ROCr reaches the kernel driver: it
 * shows made-up GPUs, gives out ordinary memory as VRAM and counts it, and consumes queue packets
 * without running kernels. Unmodified ROCr and HIP start on it and allocate as on a GPU.
 *
 * Environment:
 *   THUNK_GPUS   GPUs to show (1)                  THUNK_VRAM  bytes of VRAM of each (8 GiB)
 *   THUNK_GFX    their ISA as hexadecimal (90a)    THUNK_LOG   file for a line per event
 *   THUNK_LOCATION  bus, device and function of the first as hexadecimal (300), the others follow
 *   THUNK_IOCTL  set: also issue KFD's ioctls for VRAM, as the real library does
 */
#ifndef STAND_IN_THUNK_H
#define STAND_IN_THUNK_H

#include <stddef.h>
#include <hsakmt.h>

#define THUNK_MAX_GPUS	8
#define THUNK_MAX_NODES (1 + THUNK_MAX_GPUS)

HSAuint32 thunk_gpu_count(void);
HSAuint64 thunk_vram_bytes(void);
/* KFD's gpu_id of a node. */
HSAuint32 thunk_gpu_id(HSAuint32 node);

/* A file that stands for memory, to be shared. */
HSAKMT_STATUS thunk_export(void *address, HSAuint64 size, int *fd);

void thunk_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
