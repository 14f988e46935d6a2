/* SPDX-License-Identifier: GPL-2.0-only */
/* Counters, events, and whether this generation of a part acts. */
#ifndef RINGFENCE_REPORT_H
#define RINGFENCE_REPORT_H

#include "maps.h"

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		(*value)++;
}

static __always_inline void populate(__u32 which, __s64 by)
{
	__s64 *value = bpf_map_lookup_elem(&population, &which);

	if (value)
		__sync_fetch_and_add(value, by);
}

static __always_inline __s64 populated(__u32 which)
{
	__s64 *value = bpf_map_lookup_elem(&population, &which);

	return value ? *(volatile __s64 *)value : 0;
}

/* The two words in one load, so that a hand-over is never seen half done. */
static __always_inline bool acts(__u32 part)
{
	__u64 *both = bpf_map_lookup_elem(&active, &part);
	__u64 word;

	if (!both)
		return false;
	word = *(volatile __u64 *)both;
	return (__u32)word <= generation && generation <= word >> 32;
}

static __always_inline bool present(__u32 part)
{
	__u64 *both = bpf_map_lookup_elem(&active, &part);

	return both && *(volatile __u64 *)both;
}

#endif
