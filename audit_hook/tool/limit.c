// SPDX-License-Identifier: Apache-2.0
#include "limit.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../slice/freestanding.h"
#include "../slice/podenv.h"
#include "cumask.h"
#include "ledger.h"
#include "log.h"

#define MEMORY_LIMIT "HIP_DEVICE_MEMORY_LIMIT"

static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
static bool known;
static struct rf_limits limits;
static struct rf_podenv podenv;
/* The CU lists of the slice point into it. */
static char text[RF_SLICE_MAX_BYTES];

static bool read_file(void)
{
	int fd = rf_open_readonly(RF_SLICE_PATH);
	int line;
	long size;

	if (fd == -ENOENT || fd == -ENOTDIR)
		return false;
	size = fd < 0 ? fd : rf_read_all(fd, text, sizeof(text));
	if (fd >= 0)
		rf_close(fd);
	if (size < 0) {
		limits.source = RF_LIMIT_BROKEN;
		rf_log(RF_LOG_ERROR, RF_LOG_BROKEN,
		       "slice " RF_SLICE_PATH
		       ": %s; no GPU is shown: ask the administrator to look at the mount",
		       strerror((int)-size));
		return true;
	}
	line = rf_slice_parse(text, (size_t)size, &limits.slice);
	if (line) {
		limits.source = RF_LIMIT_BROKEN;
		rf_log(RF_LOG_ERROR, RF_LOG_BROKEN,
		       "slice " RF_SLICE_PATH
		       ":%d: expected a slice file of version %d, found something else; no GPU "
		       "is shown: ask the administrator to restart the pod",
		       line, RF_SLICE_VERSION);
		return true;
	}
	limits.source = RF_LIMIT_FILE;
	return true;
}

static bool named(const char *name)
{
	return getenv(name) || rf_podenv_get(&podenv, name);
}

static bool any_variable(void)
{
	char name[sizeof(MEMORY_LIMIT) + 4];

	for (int i = 0; i < RF_MAX_GPUS; i++) {
		snprintf(name, sizeof(name), MEMORY_LIMIT "_%d", i);
		if (named(name))
			return true;
	}
	return named(MEMORY_LIMIT) || named("HSA_CU_MASK") || named("AMD_TASK_PRIORITY");
}

static bool is_true(const char *value)
{
	static const char word[] = "true";

	if (!value)
		return false;
	if (!strcmp(value, "1"))
		return true;
	for (size_t i = 0; i < sizeof(word); i++)
		if ((value[i] | (word[i] ? 0x20 : 0)) != word[i])
			return false;
	return true;
}

/* The pod's word goes before the process's own. */
static const char *pinned(const char *name)
{
	const char *value = rf_podenv_get(&podenv, name);

	return value ? value : getenv(name);
}

static void read_variables(void)
{
	const char *priority;

	rf_podenv_load(&podenv);
	if (!any_variable())
		return;
	limits.source = RF_LIMIT_VARIABLES;
	limits.slice.priority = -1;
	priority = pinned("AMD_TASK_PRIORITY");
	if (priority && *priority && strspn(priority, "0123456789") == strlen(priority))
		limits.slice.priority = strspn(priority, "0") == strlen(priority) ? 0 : 1;
	limits.slice.oversubscribe = is_true(pinned("HIP_OVERSUBSCRIBE"));
}

struct rf_limits *rf_limits_get(void)
{
	if (__atomic_load_n(&known, __ATOMIC_ACQUIRE))
		return &limits;
	pthread_mutex_lock(&once);
	if (!known) {
		if (!read_file())
			read_variables();
		rf_ledger_configure(limits.source == RF_LIMIT_FILE && !limits.slice.kernel_refuses);
		__atomic_store_n(&known, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&once);
	return &limits;
}

int rf_limits_find(const struct rf_limits *in, uint64_t pci)
{
	for (uint32_t i = 0; i < in->slice.gpu_count; i++)
		if (in->slice.gpus[i].pci == pci)
			return (int)i;
	return -1;
}

/*
 * A variable counts as the pod spec has it; a process may lower its own limit, not raise it.
 * 0 means no limit, as HAMi's users know it; what cannot be read means that no GPU is shown.
 */
static uint64_t limit_of(uint32_t index)
{
	const char *values[2][2];
	char name[sizeof(MEMORY_LIMIT) + 12];
	uint64_t limit = RF_UNLIMITED;

	snprintf(name, sizeof(name), MEMORY_LIMIT "_%u", index);
	values[0][0] = rf_podenv_get(&podenv, name);
	values[0][1] = rf_podenv_get(&podenv, MEMORY_LIMIT);
	values[1][0] = getenv(name);
	values[1][1] = getenv(MEMORY_LIMIT);
	for (int i = 0; i < 2; i++) {
		/* That of one GPU goes before that of all. */
		const char *value = values[i][0] ? values[i][0] : values[i][1];
		uint64_t bytes;

		if (!value)
			continue;
		if (!rf_parse_size(value, strlen(value), &bytes)) {
			rf_log(RF_LOG_ERROR, RF_LOG_BROKEN,
			       "GPU %u: %s is \"%.40s\", expected digits with an optional K, M, G "
			       "or T; no GPU is shown: correct the variable",
			       index, values[i][0] ? name : MEMORY_LIMIT, value);
			limits.source = RF_LIMIT_BROKEN;
			return 0;
		}
		if (bytes && bytes < limit)
			limit = bytes;
	}
	return limit;
}

int rf_limits_add_by_order(struct rf_limits *in, uint64_t pci)
{
	uint32_t index = in->slice.gpu_count;
	const char *mask = pinned("HSA_CU_MASK");
	struct rf_gpu *gpu;

	if (index == RF_MAX_GPUS)
		return -1;
	gpu = &in->slice.gpus[index];
	memset(gpu, 0, sizeof(*gpu));
	gpu->pci = pci;
	gpu->kfd = gpu->render = gpu->card = RF_UNKNOWN;
	gpu->vram = limit_of(index);
	if (mask) {
		switch (rf_cumask_from_variable(mask, index, gpu->cus)) {
		case 1:
			gpu->masked = true;
			break;
		case 0:
			break;
		default:
			rf_log(RF_LOG_ERROR, RF_LOG_MASK,
			       "GPU %u: HSA_CU_MASK is \"%.40s\", expected gpus:cus[;gpus:cus]; "
			       "ROCr stops at the first set it cannot read and masks nothing more: "
			       "correct the variable",
			       index, mask);
		}
	}
	in->slice.gpu_count++;
	return (int)index;
}
