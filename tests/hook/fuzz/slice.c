// SPDX-License-Identifier: Apache-2.0
/*
 * Fuzz target: every parser of the hook for text that comes from a file or a variable, and what
 * the auditor composes of it. The auditor's source is part of this one, for what it keeps static.
 */
#include "../../../audit_hook/audit/pin.c"

#include <stdlib.h>
#include <string.h>

#include "../../../audit_hook/tool/cumask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPECT(condition)         \
	do {                      \
		if (!(condition)) \
			abort();  \
	} while (0)

static void check_gpu(const char *file, size_t size, const struct rf_gpu *gpu)
{
	uint32_t again[RF_MASK_WORDS];

	if (!gpu->masked)
		return;
	EXPECT(gpu->cu_list >= file && gpu->cu_list + gpu->cu_list_length < file + size);
	EXPECT(rf_parse_cu_list(gpu->cu_list, gpu->cu_list_length, again));
	EXPECT(!memcmp(again, gpu->cus, sizeof(again)));
}

static void parse_slice(const char *file, size_t size)
{
	if (rf_slice_parse(file, size, &slice))
		return;
	EXPECT(slice.gpu_count >= 1 && slice.gpu_count <= RF_MAX_GPUS);
	EXPECT(slice.priority >= -1 && slice.priority <= 1);
	for (uint32_t i = 0; i < slice.gpu_count; i++)
		check_gpu(file, size, &slice.gpus[i]);
	mask_by_index[0] = mask_for_all[0] = '\0';
	/* A file of the largest size is what the buffers of the masks are made for. */
	if (size <= RF_SLICE_MAX_BYTES)
		compose_masks();
	/* Cut short it must not be taken. */
	EXPECT(rf_slice_parse(file, size - 1, &slice));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Of exactly this size: the sanitizer sees a read past the end. */
	char *exact = malloc(size ? size : 1);
	char *string = malloc(size + 1);
	uint32_t mask[RF_MASK_WORDS];
	uint64_t bytes;

	if (!exact || !string)
		abort();
	memcpy(exact, data, size);
	memcpy(string, data, size);
	string[size] = '\0';
	parse_slice(exact, size);
	rf_parse_size(exact, size, &bytes);
	rf_parse_cu_list(exact, size, mask);
	if (rf_cumask_from_variable(string, size % 3, mask) == 1) {
		rf_cumask_fit(mask, (uint32_t)(size % 305), size % 2);
		rf_cumask_narrow(mask, 10, mask, size % 10, mask);
	}
	free(exact);
	free(string);
	return 0;
}
