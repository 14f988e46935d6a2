// SPDX-License-Identifier: Apache-2.0
/* Queues and events: packets are consumed and their signals counted down; no kernel runs. */
#include "thunk.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "consumer.h"

#define DOORBELL_BYTES 8192

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *doorbells[CONSUMER_MAX_QUEUES];
static HSAuint64 queue_count;

HSAKMT_STATUS hsaKmtCreateQueue(HSAuint32 node, HSA_QUEUE_TYPE type, HSAuint32 percentage,
				HSA_QUEUE_PRIORITY priority, void *ring, HSAuint64 size,
				HsaEvent *event, HsaQueueResource *resource)
{
	HSAKMT_STATUS status = HSAKMT_STATUS_NO_MEMORY;
	char *doorbell;

	(void)percentage;
	(void)event;
	doorbell = mmap(NULL, DOORBELL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	if (doorbell == MAP_FAILED)
		return status;
	pthread_mutex_lock(&lock);
	if (queue_count < CONSUMER_MAX_QUEUES) {
		doorbells[queue_count++] = doorbell;
		resource->QueueId = queue_count;
		resource->Queue_DoorBell_aql = (HSAuint64 *)doorbell;
		if (type == HSA_QUEUE_COMPUTE_AQL) {
			consumer_start(queue_count, ring, size,
				       (uint64_t *)resource->Queue_write_ptr_aql,
				       (uint64_t *)resource->Queue_read_ptr_aql);
		} else {
			resource->Queue_write_ptr = (HSAuint32 *)(doorbell + 1024);
			resource->Queue_read_ptr = (HSAuint32 *)(doorbell + 2048);
		}
		status = HSAKMT_STATUS_SUCCESS;
		thunk_log("queue id=%llu node=%u type=%d priority=%d\n",
			  (unsigned long long)resource->QueueId, node, type, (int)priority);
	}
	pthread_mutex_unlock(&lock);
	return status;
}

HSAKMT_STATUS hsaKmtUpdateQueue(HSA_QUEUEID id, HSAuint32 percentage, HSA_QUEUE_PRIORITY priority,
				void *ring, HSAuint64 size, HsaEvent *event)
{
	(void)percentage;
	(void)ring;
	(void)size;
	(void)event;
	thunk_log("update id=%llu priority=%d\n", (unsigned long long)id, (int)priority);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtDestroyQueue(HSA_QUEUEID id)
{
	pthread_mutex_lock(&lock);
	if (id && id <= queue_count) {
		consumer_stop(id);
		munmap(doorbells[id - 1], DOORBELL_BYTES);
	}
	pthread_mutex_unlock(&lock);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetQueueCUMask(HSA_QUEUEID id, HSAuint32 bits, HSAuint32 *mask)
{
	char text[THUNK_MAX_NODES * 64] = "";
	int length = 0;

	for (HSAuint32 i = 0; i < bits / 32 && length < (int)sizeof(text) - 10; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%08x",
				   i ? "," : "", mask[i]);
	thunk_log("cumask id=%llu bits=%u mask=%s\n", (unsigned long long)id, bits, text);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtAllocQueueGWS(HSA_QUEUEID id, HSAuint32 count, HSAuint32 *first)
{
	(void)id;
	(void)count;
	*first = 0;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtCreateEvent(HsaEventDescriptor *descriptor, bool manual, bool signaled,
				HsaEvent **ret)
{
	static HSAuint32 last;
	HsaEvent *event;

	(void)manual;
	(void)signaled;
	event = calloc(1, sizeof(*event));
	if (!event)
		return HSAKMT_STATUS_NO_MEMORY;
	event->EventId = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	event->EventData.EventType = descriptor->EventType;
	event->EventData.HWData2 = event->EventId;
	*ret = event;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtDestroyEvent(HsaEvent *event)
{
	free(event);
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetEvent(HsaEvent *event)
{
	(void)event;
	return HSAKMT_STATUS_SUCCESS;
}

/* ROCr looks at the signal itself after every wait, so a short one that times out will do. */
HSAKMT_STATUS hsaKmtWaitOnEvent(HsaEvent *event, HSAuint32 milliseconds)
{
	(void)event;
	(void)milliseconds;
	usleep(1000);
	return HSAKMT_STATUS_WAIT_TIMEOUT;
}

HSAKMT_STATUS hsaKmtWaitOnMultipleEvents(HsaEvent *events[], HSAuint32 count, bool all,
					 HSAuint32 milliseconds)
{
	(void)events;
	(void)count;
	(void)all;
	(void)milliseconds;
	usleep(5000);
	return HSAKMT_STATUS_WAIT_TIMEOUT;
}
