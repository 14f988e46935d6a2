/* SPDX-License-Identifier: Apache-2.0 */
/* A growing table from a 64-bit key to what the books say of it; every call is thread-safe. */
#ifndef RINGFENCE_TABLE_H
#define RINGFENCE_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rf_entry {
	uint64_t key; /* 0: free; the key 0 itself cannot be kept */
	uint64_t bytes;
	int32_t gpu;
	uint32_t references;
};

struct rf_table {
	pthread_mutex_t lock;
	struct rf_entry *entries;
	size_t capacity; /* a power of two, or 0 */
	size_t count;
};

#define RF_TABLE_INIT                             \
	{                                         \
		.lock = PTHREAD_MUTEX_INITIALIZER \
	}

/* Adds an entry, or replaces the one of that key; false where memory is out. */
bool rf_table_put(struct rf_table *table, const struct rf_entry *entry);
/* Copies an entry and takes it out. */
bool rf_table_take(struct rf_table *table, uint64_t key, struct rf_entry *ret);
bool rf_table_get(struct rf_table *table, uint64_t key, struct rf_entry *ret);
/* Adds to the reference count of a known key and returns it; UINT32_MAX for an unknown one. */
uint32_t rf_table_reference(struct rf_table *table, uint64_t key, int change);
void rf_table_clear(struct rf_table *table);
/* In the child of a fork: whatever state another thread left it in, empty and unlocked. */
void rf_table_reset_after_fork(struct rf_table *table);

#endif
