// SPDX-License-Identifier: Apache-2.0
/*
 * An HSA queue, without HIP, whose mask is set back to all CUs: prints the error of each call and
 * the mask HSA reports of it.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <stdio.h>

static hsa_status_t visit(hsa_agent_t found, void *data)
{
	hsa_device_type_t type;

	hsa_agent_get_info(found, HSA_AGENT_INFO_DEVICE, &type);
	if (type == HSA_DEVICE_TYPE_GPU)
		*(hsa_agent_t *)data = found;
	return HSA_STATUS_SUCCESS;
}

static int show(hsa_queue_t *queue)
{
	uint32_t mask[4] = { 0 };
	int status = (int)hsa_amd_queue_cu_get_mask(queue, 128, mask);

	printf("mask %d %08x,%08x,%08x,%08x\n", status, mask[0], mask[1], mask[2], mask[3]);
	return status;
}

int main(void)
{
	hsa_agent_t agent = { 0 };
	hsa_queue_t *queue = NULL;
	int status;

	if (hsa_init() || hsa_iterate_agents(visit, &agent))
		return 3;
	status = (int)hsa_queue_create(agent, 1024, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &queue);
	printf("queue %d\n", status);
	if (status)
		return 0;
	printf("set %d\n", (int)hsa_amd_queue_cu_set_mask(queue, 0, NULL));
	return show(queue);
}
