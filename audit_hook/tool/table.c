// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <stdlib.h>

#define FIRST_CAPACITY 1024

static size_t home_of(uint64_t key, size_t capacity)
{
	/* Fibonacci hashing: allocations are aligned, so their low bits say nothing. */
	return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (capacity - 1);
}

/* The entry of a key, or the free one it would go to. */
static struct rf_entry *find(struct rf_entry *entries, size_t capacity, uint64_t key)
{
	size_t i = home_of(key, capacity);

	while (entries[i].key && entries[i].key != key)
		i = (i + 1) & (capacity - 1);
	return &entries[i];
}

static bool grow(struct rf_table *table)
{
	size_t capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY;
	struct rf_entry *entries = calloc(capacity, sizeof(*entries));

	if (!entries)
		return false;
	for (size_t i = 0; i < table->capacity; i++)
		if (table->entries[i].key)
			*find(entries, capacity, table->entries[i].key) = table->entries[i];
	free(table->entries);
	table->entries = entries;
	table->capacity = capacity;
	return true;
}

bool rf_table_put(struct rf_table *table, const struct rf_entry *entry)
{
	bool kept = true;

	pthread_mutex_lock(&table->lock);
	if (table->count * 2 >= table->capacity)
		kept = grow(table) || table->count + 1 < table->capacity;
	if (kept) {
		struct rf_entry *place = find(table->entries, table->capacity, entry->key);

		table->count += !place->key;
		*place = *entry;
	}
	pthread_mutex_unlock(&table->lock);
	return kept;
}

/* Moves later entries of the run up, so that no mark of what was deleted is needed. */
static void close_gap(struct rf_table *table, size_t gap)
{
	size_t mask = table->capacity - 1;

	for (size_t i = (gap + 1) & mask; table->entries[i].key; i = (i + 1) & mask) {
		size_t home = home_of(table->entries[i].key, table->capacity);

		if (((i - home) & mask) < ((i - gap) & mask))
			continue;
		table->entries[gap] = table->entries[i];
		gap = i;
	}
	table->entries[gap].key = 0;
}

bool rf_table_take(struct rf_table *table, uint64_t key, struct rf_entry *ret)
{
	struct rf_entry *entry;
	bool found = false;

	pthread_mutex_lock(&table->lock);
	if (table->count && key) {
		entry = find(table->entries, table->capacity, key);
		found = entry->key == key;
		if (found) {
			*ret = *entry;
			close_gap(table, (size_t)(entry - table->entries));
			table->count--;
		}
	}
	pthread_mutex_unlock(&table->lock);
	return found;
}

bool rf_table_get(struct rf_table *table, uint64_t key, struct rf_entry *ret)
{
	bool found = false;

	pthread_mutex_lock(&table->lock);
	if (table->count && key) {
		struct rf_entry *entry = find(table->entries, table->capacity, key);

		found = entry->key == key;
		if (found)
			*ret = *entry;
	}
	pthread_mutex_unlock(&table->lock);
	return found;
}

uint32_t rf_table_reference(struct rf_table *table, uint64_t key, int change)
{
	uint32_t references = UINT32_MAX;

	pthread_mutex_lock(&table->lock);
	if (table->count && key) {
		struct rf_entry *entry = find(table->entries, table->capacity, key);

		if (entry->key == key) {
			entry->references += (uint32_t)change;
			references = entry->references;
		}
	}
	pthread_mutex_unlock(&table->lock);
	return references;
}

void rf_table_clear(struct rf_table *table)
{
	pthread_mutex_lock(&table->lock);
	free(table->entries);
	table->entries = NULL;
	table->capacity = table->count = 0;
	pthread_mutex_unlock(&table->lock);
}

void rf_table_reset_after_fork(struct rf_table *table)
{
	/* The memory may be half changed, and malloc's own lock is not ours to trust: left behind. */
	pthread_mutex_init(&table->lock, NULL);
	table->entries = NULL;
	table->capacity = table->count = 0;
}
