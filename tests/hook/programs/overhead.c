// SPDX-License-Identifier: Apache-2.0
/*
 * `overhead TOOL`: nanoseconds the tools library adds to one allocation and its free, the best of
 * several rounds. It is given tables of a ROCr that has one GPU, 0000:03:00.0, and does nothing, so
 * what is measured is the library alone.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../audit_hook/tool/hsa_abi.h"

#define ROUNDS 40
#define CALLS  20000
#define GPU    1
#define POOL   2

static hsa_status iterate(hsa_visit_t visit, void *data)
{
	return visit((struct hsa_handle){ GPU }, data);
}

static hsa_status agent_info(struct hsa_handle agent, uint32_t attribute, void *ret)
{
	(void)agent;
	if (attribute == HSA_AGENT_NAME)
		strcpy(ret, "gfx90a");
	else
		*(uint32_t *)ret = attribute == HSA_AGENT_DEVICE ? HSA_DEVICE_GPU :
				   attribute == HSA_AGENT_BDFID	 ? 3 << 8 :
				   attribute == HSA_AGENT_DOMAIN ? 0 :
								   104;
	return HSA_SUCCESS;
}

static hsa_status iterate_pools(struct hsa_handle agent, hsa_visit_t visit, void *data)
{
	(void)agent;
	return visit((struct hsa_handle){ POOL }, data);
}

static hsa_status pool_info(struct hsa_handle pool, uint32_t attribute, void *ret)
{
	(void)pool;
	if (attribute == HSA_POOL_SEGMENT)
		*(uint32_t *)ret = HSA_SEGMENT_GLOBAL;
	return HSA_SUCCESS;
}

static hsa_status allocate(struct hsa_handle pool, size_t size, uint32_t flags, void **ret)
{
	(void)pool;
	(void)size;
	(void)flags;
	*ret = (void *)(UINT64_C(1) << 40);
	return HSA_SUCCESS;
}

static hsa_status release(void *pointer)
{
	(void)pointer;
	return HSA_SUCCESS;
}

static struct hsa_table *table(uint32_t major, uint32_t bytes)
{
	struct hsa_table *made = calloc(1, bytes);

	if (!made)
		exit(3);
	made->version.major = major;
	made->version.minor = bytes;
	return made;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double measure(hsa_pool_allocate_t take, hsa_memory_free_t give)
{
	double best = 1e18;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now(), each;

		for (int i = 0; i < CALLS; i++) {
			void *pointer;

			if (take((struct hsa_handle){ POOL }, 4 << 20, 0, &pointer) ||
			    give(pointer))
				exit(4);
		}
		each = (now() - start) / CALLS;
		best = each < best ? each : best;
	}
	return best;
}

int main(int count, char **arguments)
{
	bool (*on_load)(void *, uint64_t, uint64_t, const char *const *);
	struct hsa_api_table api = { .version = { .major = 1, .minor = sizeof(api) } };
	void *tool = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;

	if (!tool)
		return 3;
	on_load = (bool (*)(void *, uint64_t, uint64_t, const char *const *))dlsym(tool, "OnLoad");
	api.core = table(1, 1016);
	api.amd = table(1, AMD1_SIZE);
	api.core->functions[CORE_ITERATE_AGENTS] = (hsa_function_t)iterate;
	api.core->functions[CORE_AGENT_GET_INFO] = (hsa_function_t)agent_info;
	api.amd->functions[AMD_AGENT_ITERATE_MEMORY_POOLS] = (hsa_function_t)iterate_pools;
	api.amd->functions[AMD_MEMORY_POOL_GET_INFO] = (hsa_function_t)pool_info;
	api.amd->functions[AMD_MEMORY_POOL_ALLOCATE] = (hsa_function_t)allocate;
	api.amd->functions[AMD_MEMORY_POOL_FREE] = (hsa_function_t)release;
	if (!on_load(&api, 3, 0, NULL))
		return 4;
	printf("%.1f\n", measure((hsa_pool_allocate_t)api.amd->functions[AMD_MEMORY_POOL_ALLOCATE],
				 (hsa_memory_free_t)api.amd->functions[AMD_MEMORY_POOL_FREE]) -
				 measure(allocate, release));
	return 0;
}
