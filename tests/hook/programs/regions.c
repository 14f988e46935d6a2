// SPDX-License-Identifier: Apache-2.0
/*
 * `regions MiB...`: memory by HSA's own, older calls: of each size `device STATUS` from the first
 * region of the GPU that is VRAM, and at last `host STATUS` of the last size from the host's.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdio.h>
#include <stdlib.h>

struct search {
	bool host;
	hsa_region_t found;
};

static hsa_status_t visit_region(hsa_region_t region, void *data)
{
	struct search *search = data;
	hsa_region_segment_t segment;
	bool host = true, allocates = false;

	hsa_region_get_info(region, HSA_REGION_INFO_SEGMENT, &segment);
	hsa_region_get_info(region, HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED, &allocates);
	hsa_region_get_info(region, (hsa_region_info_t)HSA_AMD_REGION_INFO_HOST_ACCESSIBLE, &host);
	if (segment == HSA_REGION_SEGMENT_GLOBAL && allocates && host == search->host &&
	    !search->found.handle)
		search->found = region;
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t visit_agent(hsa_agent_t agent, void *data)
{
	struct search *searches = data;
	hsa_device_type_t type;

	hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
	hsa_agent_iterate_regions(agent, visit_region,
				  &searches[type == HSA_DEVICE_TYPE_GPU ? 0 : 1]);
	return HSA_STATUS_SUCCESS;
}

int main(int count, char **arguments)
{
	struct search searches[2] = { { .host = false }, { .host = true } };
	void *pointer;
	size_t size = 0;

	if (hsa_init() || hsa_iterate_agents(visit_agent, searches))
		return 3;
	hsa_region_get_info(searches[0].found, HSA_REGION_INFO_SIZE, &size);
	printf("size %zu\n", size >> 20);
	for (int i = 1; i < count; i++) {
		size = strtoull(arguments[i], NULL, 10) << 20;
		printf("device %x\n", hsa_memory_allocate(searches[0].found, size, &pointer));
		if (i + 2 < count)
			printf("free %x\n", hsa_memory_free(pointer));
	}
	printf("host %x\n", hsa_memory_allocate(searches[1].found, size, &pointer));
	return 0;
}
