/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Limits of cgroups that are just being made, and of those that go. A container's first instruction
 * may come before the daemon has seen its cgroup: its entry is made here, while its runtime is
 * still inside mkdir.
 */
#ifndef RINGFENCE_PENDING_H
#define RINGFENCE_PENDING_H

#include "report.h"

struct lineage {
	__u64 parent;
	__u64 cgroup;
};

/* Cgroup v1 numbers its cgroups from the same 1 on: only the unified hierarchy, number 0, is ours. */
static __always_inline bool unified(struct cgroup *cgroup)
{
	return !cgroup->root->hierarchy_id;
}

static long enter_limit(void *gpus, const __u32 *minor, const __u64 *gpu, struct lineage *of)
{
	struct ledger_key from = { .cgroup = of->parent, .gpu = *gpu };
	struct ledger_key to = { .cgroup = of->cgroup, .gpu = *gpu };
	struct limit *share = bpf_map_lookup_elem(&pending, &from);
	struct limit entry = { .flags = LIMIT_FROM_PENDING };
	__u32 tenant = 1;

	if (!share || bpf_map_lookup_elem(&limits, &to))
		return 0;
	entry.bytes = *(volatile __u64 *)&share->bytes;
	/* In the daemon's order: a tenant without its limit is held by its pod's. */
	if (bpf_map_update_elem(&tenants, &to.cgroup, &tenant, BPF_ANY) ||
	    bpf_map_update_elem(&limits, &to, &entry, BPF_NOEXIST))
		count(NOT_ENTERED);
	else
		count(ENTERED);
	return 0;
}

static long leave_limit(void *gpus, const __u32 *minor, const __u64 *gpu, struct lineage *of)
{
	struct ledger_key key = { .cgroup = of->cgroup, .gpu = *gpu };

	bpf_map_delete_elem(&limits, &key);
	bpf_map_delete_elem(&pending, &key);
	bpf_map_delete_elem(&cu_masks, &key);
	return 0;
}

/* A GPU has a card and a render node, so it comes twice: the second time finds the work done. */
SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(cgroup_made, struct cgroup *cgroup)
{
	struct lineage of = {};

	if (!acts(PART_GATE) || !unified(cgroup))
		return 0;
	of.parent = cgroup->self.parent->cgroup->kn->id;
	of.cgroup = cgroup->kn->id;
	/* Most cgroups are not made below a pod with a share. */
	if (bpf_map_lookup_elem(&tenants, &of.parent))
		bpf_for_each_map_elem(&gpus_by_minor, enter_limit, &of, 0);
	return 0;
}

/* No process is left in it: with no daemon running, entries must not pile up. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(cgroup_removed, struct cgroup *cgroup)
{
	struct lineage of = {};

	if (!acts(PART_GATE) || !unified(cgroup))
		return 0;
	of.cgroup = cgroup->kn->id;
	if (!bpf_map_lookup_elem(&tenants, &of.cgroup))
		return 0;
	bpf_for_each_map_elem(&gpus_by_minor, leave_limit, &of, 0);
	bpf_map_delete_elem(&tenants, &of.cgroup);
	return 0;
}

#endif
