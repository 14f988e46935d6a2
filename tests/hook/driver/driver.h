/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the amdgpu driver, for ROCr with its thunk inside (6.3 and later, and AMD's own
 * builds): preloaded, it answers the system calls that go to /dev/kfd and to render nodes, which
 * are plain files here. What sysfs says is a tree of files (tests/hook/sysfs.py). VRAM is ordinary
 * memory with a count; queue packets are consumed, no kernel runs.
 *
 * Environment:
 *   THUNK_GPUS  GPUs to show (1)     THUNK_VRAM  bytes of VRAM of each (8 GiB)
 *   THUNK_LOG   file for a line per event, worded as the stand-in thunk's are
 */
#ifndef STAND_IN_DRIVER_H
#define STAND_IN_DRIVER_H

#include <stdint.h>

/* Of each: 0, or the error number the ioctl fails with. */
int driver_topology(unsigned int number, void *arg);
int driver_memory(unsigned int number, void *arg);
int driver_queue(unsigned int number, void *arg);
int driver_event(unsigned int number, void *arg);

#define DRIVER_MAX_GPUS 8

uint32_t driver_gpu_count(void);
uint64_t driver_vram_bytes(void);
/* Place of a gpu_id among the GPUs, from 0; DRIVER_MAX_GPUS for none of them. */
uint32_t driver_gpu(uint32_t gpu_id);
void driver_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
