// SPDX-License-Identifier: Apache-2.0
/* Queues and events of the driver. */
#include "driver.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
#include <linux/kfd_ioctl.h>

#include "../thunk/consumer.h"

#define NR(request) ((request)&0xff)

static int create(struct kfd_ioctl_create_queue_args *args)
{
	static uint32_t last;
	uint32_t gpu = driver_gpu(args->gpu_id);

	if (gpu == DRIVER_MAX_GPUS)
		return EINVAL;
	args->queue_id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	args->doorbell_offset = (uint64_t)args->queue_id << 12;
	if (args->queue_type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL &&
	    !consumer_start(args->queue_id, (char *)args->ring_base_address, args->ring_size,
			    (uint64_t *)args->write_pointer_address,
			    (uint64_t *)args->read_pointer_address))
		return ENOMEM;
	/* The thunk calls an AQL queue type 21, and the log speaks as it does. */
	driver_log("queue id=%u node=%u type=%u priority=%u\n", args->queue_id, gpu + 1,
		   args->queue_type == KFD_IOC_QUEUE_TYPE_COMPUTE_AQL ? 21 : args->queue_type,
		   args->queue_priority);
	return 0;
}

static int set_mask(const struct kfd_ioctl_set_cu_mask_args *args)
{
	const uint32_t *mask = (const uint32_t *)args->cu_mask_ptr;
	char text[512] = "";
	int length = 0;

	for (uint32_t i = 0; i < args->num_cu_mask / 32 && length < (int)sizeof(text) - 10; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%08x",
				   i ? "," : "", mask[i]);
	driver_log("cumask id=%u bits=%u mask=%s\n", args->queue_id, args->num_cu_mask, text);
	return 0;
}

int driver_queue(unsigned int nr, void *arg)
{
	switch (nr) {
	case NR(AMDKFD_IOC_CREATE_QUEUE):
		return create(arg);
	case NR(AMDKFD_IOC_DESTROY_QUEUE):
		consumer_stop(((struct kfd_ioctl_destroy_queue_args *)arg)->queue_id);
		return 0;
	case NR(AMDKFD_IOC_UPDATE_QUEUE): {
		const struct kfd_ioctl_update_queue_args *args = arg;

		driver_log("update id=%u priority=%u\n", args->queue_id, args->queue_priority);
		return 0;
	}
	default:
		return set_mask(arg);
	}
}

int driver_event(unsigned int nr, void *arg)
{
	static uint32_t last;

	switch (nr) {
	case NR(AMDKFD_IOC_CREATE_EVENT): {
		struct kfd_ioctl_create_event_args *args = arg;

		args->event_id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
		args->event_trigger_data = args->event_id;
		args->event_slot_index = args->event_id % KFD_SIGNAL_EVENT_LIMIT;
		return 0;
	}
	case NR(AMDKFD_IOC_WAIT_EVENTS):
		/* ROCr looks at the signal itself after every wait. */
		usleep(1000);
		((struct kfd_ioctl_wait_events_args *)arg)->wait_result =
			KFD_IOC_WAIT_RESULT_TIMEOUT;
		return 0;
	default:
		return 0;
	}
}
