/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is above its limit by a buffer that nothing had let pass gets nothing more. A limit that was
 * lowered below what is held makes nobody one of them.
 */
#ifndef RINGFENCE_ABOVE_H
#define RINGFENCE_ABOVE_H

#include "charge.h"

static __always_inline bool has_overrun(__u64 cgroup)
{
	__u32 *flags = bpf_map_lookup_elem(&tenants, &cgroup);

	return flags && *(volatile __u32 *)flags & TENANT_OVERRAN;
}

struct overruns {
	const struct owners *tenants_found;
	struct refusal *why;
	__u64 found;
};

static long find_above(void *gpus, const __u32 *minor, const __u64 *gpu, struct overruns *ret)
{
	__u32 i;

	/* The innermost first, as charge(). */
	for (i = 0; i < MAX_OWNERS && i < ret->tenants_found->count; i++) {
		__u32 at = (ret->tenants_found->count - 1 - i) & (MAX_OWNERS - 1);

		if (is_above(ret->tenants_found->cgroup[at], *gpu, ret->why)) {
			ret->found = 1;
			return 1;
		}
	}
	return 0;
}

/*
 * Whether one of them has overrun and is still above a limit, on whichever GPU: what a call asks
 * for can be switched to another. *why says which.
 */
static __noinline int still_above(const struct owners *tenants_found, struct refusal *why)
{
	struct overruns walk = { .tenants_found = tenants_found, .why = why };
	bool overran = false;
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < tenants_found->count; i++)
		overran = overran || has_overrun(tenants_found->cgroup[i]);
	if (overran)
		bpf_for_each_map_elem(&gpus_by_minor, find_above, &walk, 0);
	return walk.found;
}

#endif
