/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that consumes the packets of AQL queues and counts their signals down. */
#ifndef STAND_IN_CONSUMER_H
#define STAND_IN_CONSUMER_H

#include <stdbool.h>
#include <stdint.h>

#define CONSUMER_MAX_QUEUES 1024

/* Ids count from 1. False where there are too many queues. */
bool consumer_start(uint64_t id, char *ring, uint64_t bytes, uint64_t *written, uint64_t *read);
void consumer_stop(uint64_t id);

#endif
