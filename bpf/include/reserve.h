/* SPDX-License-Identifier: GPL-2.0-only */
/* Testing a size against the limits and adding it, in one step per limit. */
#ifndef RINGFENCE_RESERVE_H
#define RINGFENCE_RESERVE_H

#include "charge.h"

/* Losing this many races in a row for one counter refuses the call. */
#define CHARGE_ATTEMPTS 64
/* No GPU has as much; keeps sums of sizes far from the sign bit. */
#define MAX_SIZE (1ULL << 62)

/* 0, or a REFUSED_* + 1. On refusal *why says what was in the way. */
APART int charge_one(__u64 cgroup, __u64 gpu, __u64 size, struct refusal *why)
{
	struct ledger_key key = { .cgroup = cgroup, .gpu = gpu };
	struct limit *limit;
	struct usage *of;
	__u64 most;
	int i;

	if (!why)
		return REFUSED_NO_SHARE + 1;
	limit = bpf_map_lookup_elem(&limits, &key);
	why->cgroup = cgroup;
	if (!limit)
		return REFUSED_NO_SHARE + 1;
	most = *(volatile __u64 *)&limit->bytes;
	why->limit = most;
	of = usage_of(&key);
	if (!of)
		return REFUSED_USAGE_FULL + 1;
	if (*(volatile __s64 *)&of->buffers >= MAX_BUFFERS_PER_TENANT)
		return REFUSED_BUFFERS_FULL + 1;
	for (i = 0; i < CHARGE_ATTEMPTS; i++) {
		__s64 seen = *(volatile __s64 *)&of->requested;
		__u64 used = seen < 0 ? 0 : seen;

		why->used = used;
		if (size > MAX_SIZE || size > most || used > most - size)
			return REFUSED_LIMIT + 1;
		if (__sync_val_compare_and_swap(&of->requested, seen, seen + (__s64)size) == seen) {
			__sync_fetch_and_add(&of->reserved, (__s64)size);
			raise_peak(of, used + size);
			return 0;
		}
	}
	return REFUSED_CONTENDED + 1;
}

/*
 * All owners or none: 0, or a REFUSED_* + 1. The innermost first: where pod and container have the
 * same limit, the container is told of as the one that was refused.
 */
static __noinline int charge(const struct owners *to, __u64 size, struct refusal *why)
{
	struct change undo = { .requested = -(__s64)size, .reserved = -(__s64)size };
	struct owners charged = { .gpu = to->gpu };
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < to->count; i++) {
		__u64 cgroup = to->cgroup[(to->count - 1 - i) & (MAX_OWNERS - 1)];
		int refused = charge_one(cgroup, to->gpu, size, why);

		if (refused) {
			apply_change(&charged, &undo);
			return refused;
		}
		charged.cgroup[i] = cgroup;
		charged.count = i + 1;
	}
	return 0;
}

#endif
