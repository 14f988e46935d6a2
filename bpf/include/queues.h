/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Compute queues and the compute units they may run on. A queue is made first and masked then; what
 * a container's slice has is in `cu_masks`, by its own cgroup.
 */
#ifndef RINGFENCE_QUEUES_H
#define RINGFENCE_QUEUES_H

#include "charge.h"
#include "demand.h"

static const struct compute no_compute;

static __always_inline struct compute *compute_of(const struct ledger_key *key)
{
	struct compute *found = bpf_map_lookup_elem(&compute, key);

	if (found)
		return found;
	bpf_map_update_elem(&compute, key, &no_compute, BPF_NOEXIST);
	return bpf_map_lookup_elem(&compute, key);
}

/* The compute units of the innermost of these cgroups that has any; NULL: none has. */
static __always_inline struct cu_mask *slice_of(const struct owners *cgroups, __u64 gpu,
						struct ledger_key *ret)
{
	__u32 i;

	ret->gpu = gpu;
	for (i = 0; i < MAX_OWNERS && i < cgroups->count; i++) {
		struct cu_mask *slice;

		ret->cgroup = cgroups->cgroup[(cgroups->count - 1 - i) & (MAX_OWNERS - 1)];
		slice = bpf_map_lookup_elem(&cu_masks, ret);
		if (slice)
			return slice;
	}
	return NULL;
}

/* 1: a mask has no bits beyond the slice's; 0: it has; -1: it cannot be read. */
static __always_inline int within(const struct cu_mask *slice, enum arguments_in where, __u64 mask,
				  __u32 bits)
{
	__u32 i, word;

	for (i = 0; i < CU_MASK_WORDS && i < bits / 32; i++) {
		if (!read_from(where, &word, sizeof(word), mask + i * sizeof(word)))
			return -1;
		if (word & ~*(volatile __u32 *)&slice->words[i])
			return 0;
	}
	return 1;
}

static __always_inline void count_wider(const struct ledger_key *key)
{
	struct compute *of = compute_of(key);

	count(CU_MASK_WIDER);
	if (of)
		__sync_fetch_and_add(&of->wider, 1);
}

#endif
