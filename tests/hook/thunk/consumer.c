// SPDX-License-Identifier: Apache-2.0
#include "consumer.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#define PACKET_BYTES   64
#define PACKET_SIGNAL  56 /* offset of the completion signal's handle */
#define SIGNAL_VALUE   8 /* offset of a signal's value */
#define PACKET_INVALID 1

struct queue {
	char *ring;
	uint64_t packets;
	uint64_t *written;
	uint64_t *read;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue queues[CONSUMER_MAX_QUEUES];
static bool runs;

static bool consume(struct queue *queue)
{
	uint64_t at = __atomic_load_n(queue->read, __ATOMIC_ACQUIRE);
	uint64_t end = __atomic_load_n(queue->written, __ATOMIC_ACQUIRE);
	bool any = false;

	for (; at < end; at++) {
		char *packet = queue->ring + at % queue->packets * PACKET_BYTES;
		uint16_t *header = (uint16_t *)packet;
		uint64_t signal;

		if ((__atomic_load_n(header, __ATOMIC_ACQUIRE) & 0xff) == PACKET_INVALID)
			break;
		signal = *(uint64_t *)(packet + PACKET_SIGNAL);
		if (signal)
			__atomic_fetch_sub((int64_t *)(signal + SIGNAL_VALUE), 1, __ATOMIC_SEQ_CST);
		__atomic_store_n(header, PACKET_INVALID, __ATOMIC_RELEASE);
		__atomic_store_n(queue->read, at + 1, __ATOMIC_RELEASE);
		any = true;
	}
	return any;
}

static void *consume_all(void *unused)
{
	(void)unused;
	for (;;) {
		bool any = false;

		pthread_mutex_lock(&lock);
		for (int i = 0; i < CONSUMER_MAX_QUEUES; i++)
			if (queues[i].ring)
				any |= consume(&queues[i]);
		pthread_mutex_unlock(&lock);
		if (!any)
			usleep(100);
	}
	return NULL;
}

bool consumer_start(uint64_t id, char *ring, uint64_t bytes, uint64_t *written, uint64_t *read)
{
	pthread_t thread;

	if (!id || id > CONSUMER_MAX_QUEUES)
		return false;
	pthread_mutex_lock(&lock);
	queues[id - 1] = (struct queue){ ring, bytes / PACKET_BYTES, written, read };
	if (!runs)
		runs = !pthread_create(&thread, NULL, consume_all, NULL) && !pthread_detach(thread);
	pthread_mutex_unlock(&lock);
	return true;
}

void consumer_stop(uint64_t id)
{
	pthread_mutex_lock(&lock);
	if (id && id <= CONSUMER_MAX_QUEUES)
		queues[id - 1].ring = NULL;
	pthread_mutex_unlock(&lock);
}
