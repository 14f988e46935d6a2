/* SPDX-License-Identifier: Apache-2.0 */
/* The slice file: what the node gave this container. Its grammar is in docs/hook-files.md. */
#ifndef RINGFENCE_SLICE_H
#define RINGFENCE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RF_SLICE_PATH	   "/etc/ringfence/slice"
#define RF_SLICE_VERSION   1
#define RF_SLICE_MAX_BYTES 32768
#define RF_MAX_GPUS	   64
#define RF_MAX_CUS	   1024
#define RF_MASK_WORDS	   (RF_MAX_CUS / 32)
#define RF_UNLIMITED	   UINT64_MAX
#define RF_UNKNOWN	   UINT32_MAX

struct rf_gpu {
	uint64_t pci; /* domain << 16 | bus << 8 | device << 3 | function */
	uint64_t vram; /* bytes; RF_UNLIMITED: counted, never refused */
	uint32_t kfd; /* KFD gpu_id, or RF_UNKNOWN */
	uint32_t render; /* DRM render minor, or RF_UNKNOWN */
	uint32_t card; /* DRM primary minor, or RF_UNKNOWN */
	bool masked; /* cus holds a mask; otherwise every CU is the container's */
	uint32_t cus[RF_MASK_WORDS];
	/* The list as written, for HSA_CU_MASK; not NUL-terminated. */
	const char *cu_list;
	size_t cu_list_length;
};

struct rf_slice {
	bool kernel_refuses; /* a kernel layer refuses: the hook only informs */
	bool oversubscribe;
	int priority; /* AMD_TASK_PRIORITY: 0 high, 1 low, -1 none given */
	uint32_t gpu_count;
	struct rf_gpu gpus[RF_MAX_GPUS];
};

/*
 * Parses a whole slice file. The result points into text. Returns 0, or the number of the first
 * line (from 1) that does not follow the grammar.
 */
int rf_slice_parse(const char *text, size_t size, struct rf_slice *ret);

/* Digits with an optional K, M, G or T (powers of 1024) and nothing else; false otherwise. */
bool rf_parse_size(const char *text, size_t length, uint64_t *ret);

/* `3`, `0-7,12` in decimal: ids below RF_MAX_CUS, none twice. */
bool rf_parse_cu_list(const char *text, size_t length, uint32_t ret[RF_MASK_WORDS]);

#endif
