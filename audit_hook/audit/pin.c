// SPDX-License-Identifier: Apache-2.0
#include "pin.h"

#include "../slice/freestanding.h"
#include "../slice/podenv.h"
#include "../slice/slice.h"
#include "tool_path.h"

/* `63:` and `;` around each list. */
#define MASK_BYTES (RF_SLICE_MAX_BYTES + RF_MAX_GPUS * 4)

enum source {
	NOT_READ,
	READING,
	FROM_FILE,
	FROM_POD_SPEC,
	BROKEN
};

static struct rf_slice slice;
static struct rf_podenv podenv;
static char text[RF_SLICE_MAX_BYTES];
static char mask_by_index[MASK_BYTES];
static char mask_for_all[MASK_BYTES];
static int source = NOT_READ;

static char *append(char *at, const char *s, size_t length)
{
	for (size_t i = 0; i < length; i++)
		*at++ = s[i];
	*at = '\0';
	return at;
}

static bool same_list(const struct rf_gpu *a, const struct rf_gpu *b)
{
	if (a->cu_list_length != b->cu_list_length)
		return false;
	for (size_t i = 0; i < a->cu_list_length; i++)
		if (a->cu_list[i] != b->cu_list[i])
			return false;
	return true;
}

/* HSA_CU_MASK counts GPUs as ROCr does: in the order of the slice, which is the pod's. */
static void compose_masks(void)
{
	char *at = mask_by_index;
	bool all_alike = true;

	for (uint32_t i = 0; i < slice.gpu_count; i++) {
		const struct rf_gpu *gpu = &slice.gpus[i];
		char index[3] = { (char)('0' + i / 10), (char)('0' + i % 10), ':' };

		all_alike &= same_list(gpu, &slice.gpus[0]);
		if (!gpu->masked)
			continue;
		if (at != mask_by_index)
			at = append(at, ";", 1);
		at = append(at, i < 10 ? index + 1 : index, i < 10 ? 2 : 3);
		at = append(at, gpu->cu_list, gpu->cu_list_length);
	}
	if (all_alike && slice.gpus[0].masked) {
		at = append(mask_for_all, "0-63:", 5);
		append(at, slice.gpus[0].cu_list, slice.gpus[0].cu_list_length);
	}
}

static int read_source(void)
{
	int fd = rf_open_readonly(RF_SLICE_PATH);
	long size;

	rf_podenv_load(&podenv);
	if (fd < 0)
		return FROM_POD_SPEC;
	size = rf_read_all(fd, text, sizeof(text));
	rf_close(fd);
	/* A slice that cannot be read is the tools library's to report: it shows no GPU. */
	if (size < 0 || rf_slice_parse(text, (size_t)size, &slice))
		return BROKEN;
	compose_masks();
	return FROM_FILE;
}

/* Two copies of ROCr can start at once, each under a lock of its own. */
static void know_source(void)
{
	int expected = NOT_READ;

	if (__atomic_compare_exchange_n(&source, &expected, READING, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		__atomic_store_n(&source, read_source(), __ATOMIC_RELEASE);
	while (__atomic_load_n(&source, __ATOMIC_ACQUIRE) == READING)
		;
}

/* Ours first, then what the process asks for: profilers keep working, behind the limit. */
static char *tools_list(const char *process)
{
	const char *ours = rf_tool_path();
	size_t length = rf_strlen(ours);
	size_t size;
	char *list, *at;

	if (!process || !*process)
		return (char *)ours;
	if (rf_starts_with(process, ours) && (process[length] == '\0' || process[length] == ' '))
		return (char *)process;
	size = length + rf_strlen(process) + 2;
	/* Given to the caller for good, as getenv's results are; ROCr asks once per start. */
	list = rf_map_pages(size);
	if (!list)
		return (char *)ours;
	at = append(list, ours, length);
	at = append(at, " ", 1);
	append(at, process, rf_strlen(process));
	return list;
}

/* Unset by the process, it is the pod's. */
static const char *visible_devices(rf_getenv_t process)
{
	const char *value = process("ROCR_VISIBLE_DEVICES");

	return value ? value : rf_podenv_get(&podenv, "ROCR_VISIBLE_DEVICES");
}

/*
 * A process may show itself fewer of its GPUs, or in another order, and then the indices of the
 * slice no longer fit. The queues a program makes are masked by PCI address in the tools library;
 * this variable is what reaches ROCr's own queues, and is pinned as far as it fits.
 */
static bool indices_fit(rf_getenv_t process)
{
	const char *visible = visible_devices(process);
	const char *pods = rf_podenv_get(&podenv, "ROCR_VISIBLE_DEVICES");

	return slice.gpu_count == 1 || !visible || (pods && rf_streq(visible, pods));
}

static char *cu_mask(rf_getenv_t process)
{
	const char *value;

	if (source == FROM_FILE) {
		if (mask_for_all[0])
			return mask_for_all;
		if (!mask_by_index[0])
			return process("HSA_CU_MASK");
		return indices_fit(process) ? mask_by_index : NULL;
	}
	value = rf_podenv_get(&podenv, "HSA_CU_MASK");
	return value ? (char *)value : process("HSA_CU_MASK");
}

static bool hidden(const char *name)
{
	/* The first lets queues start without a mask, the second swaps the thunk for any library. */
	return rf_streq(name, "HSA_CU_MASK_SKIP_INIT") || rf_streq(name, "HSA_ENABLE_DTIF");
}

char *rf_pinned_getenv(const char *name, rf_getenv_t process)
{
	if (!rf_starts_with(name, "HSA_") && !rf_starts_with(name, "ROCR_"))
		return process(name);
	know_source();
	if (rf_streq(name, "HSA_TOOLS_LIB"))
		return tools_list(process(name));
	if (rf_streq(name, "HSA_CU_MASK"))
		return cu_mask(process);
	/* Otherwise ROCr skips every other tool once a rocprofiler-sdk tool has registered. */
	if (rf_streq(name, "HSA_TOOLS_ROCPROFILER_V1_TOOLS"))
		return (char *)"1";
	if (rf_streq(name, "ROCR_VISIBLE_DEVICES"))
		return (char *)visible_devices(process);
	return hidden(name) ? NULL : process(name);
}
