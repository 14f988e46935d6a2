/* SPDX-License-Identifier: GPL-2.0-only */
/* Who the caller is, and adding to and taking from what its cgroups hold. */
#ifndef RINGFENCE_CHARGE_H
#define RINGFENCE_CHARGE_H

#include "report.h"

#define PEAK_ATTEMPTS 4

/*
 * The cgroups of the caller, root first, that hold a share of any GPU. A tenant can make cgroups
 * below its own, so every ancestor is looked at. More than MAX_OWNERS: counted, not listed.
 */
APART int find_tenants(struct owners *ret)
{
	__u32 found = 0;
	int level;

	if (!ret)
		return 0;
	for (level = 1; level <= MAX_CGROUP_DEPTH; level++) {
		__u64 cgroup = bpf_get_current_ancestor_cgroup_id(level);

		if (!cgroup)
			break;
		if (!bpf_map_lookup_elem(&tenants, &cgroup))
			continue;
		if (found < MAX_OWNERS)
			ret->cgroup[found] = cgroup;
		found++;
	}
	ret->count = found;
	return found;
}

static __always_inline __u64 innermost_tenant(const struct owners *tenants_found)
{
	__u32 last = tenants_found->count < MAX_OWNERS ? tenants_found->count : MAX_OWNERS;

	return last ? tenants_found->cgroup[(last - 1) & (MAX_OWNERS - 1)] : 0;
}

static __always_inline bool among(const struct owners *tenants_found, __u64 cgroup)
{
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < tenants_found->count; i++)
		if (tenants_found->cgroup[i] == cgroup)
			return true;
	return false;
}

/* Of the tenants, those with a share of this GPU. */
APART int find_owners(const struct owners *tenants_found, __u64 gpu, struct owners *ret)
{
	__u32 i, found = 0;

	if (!tenants_found || !ret)
		return 0;
	ret->gpu = gpu;
	for (i = 0; i < MAX_OWNERS && i < tenants_found->count; i++) {
		struct ledger_key key = { .cgroup = tenants_found->cgroup[i], .gpu = gpu };

		if (!bpf_map_lookup_elem(&limits, &key))
			continue;
		if (found < MAX_OWNERS)
			ret->cgroup[found] = key.cgroup;
		found++;
	}
	ret->count = found;
	return found;
}

/* Not on the stack: there are 512 bytes of that for all frames, before 6.9 in steps of 32. */
static const struct usage no_usage;

static __always_inline struct usage *usage_of(const struct ledger_key *key)
{
	struct usage *found = bpf_map_lookup_elem(&usage, key);

	if (found)
		return found;
	/* Two tasks may meet here: whoever comes second keeps the first one's entry. */
	bpf_map_update_elem(&usage, key, &no_usage, BPF_NOEXIST);
	return bpf_map_lookup_elem(&usage, key);
}

static __always_inline void raise_peak(struct usage *of, __u64 to)
{
	int i;

	for (i = 0; i < PEAK_ATTEMPTS; i++) {
		__u64 peak = *(volatile __u64 *)&of->peak;

		if (to <= peak || __sync_val_compare_and_swap(&of->peak, peak, to) == peak)
			return;
	}
}

struct change {
	__s64 requested;
	__s64 reserved;
	__s64 resident;
	__s64 page_tables;
	__s64 buffers;
};

/* Untested: for what has already happened, and for giving back. */
APART int apply_change(const struct owners *to, const struct change *by)
{
	bool adds;
	__u32 i;

	if (!to || !by)
		return -EINVAL;
	/* The daemon deletes only entries that are 0: what is given back has its entry. */
	adds = by->requested > 0 || by->resident > 0 || by->page_tables > 0 || by->buffers > 0;
	for (i = 0; i < MAX_OWNERS && i < to->count; i++) {
		struct ledger_key key = { .cgroup = to->cgroup[i], .gpu = to->gpu };
		struct usage *of = adds ? usage_of(&key) : bpf_map_lookup_elem(&usage, &key);

		if (!of) {
			count(UNRECORDED_BUFFER);
			continue;
		}
		if (by->requested) {
			__s64 before = __sync_fetch_and_add(&of->requested, by->requested);

			if (by->requested > 0)
				raise_peak(of, before + by->requested);
		}
		if (by->reserved)
			__sync_fetch_and_add(&of->reserved, by->reserved);
		if (by->resident)
			__sync_fetch_and_add(&of->resident, by->resident);
		if (by->page_tables)
			__sync_fetch_and_add(&of->page_tables, by->page_tables);
		if (by->buffers)
			__sync_fetch_and_add(&of->buffers, by->buffers);
	}
	return 0;
}

/* A reservation that became no buffer. */
static __always_inline void give_back(struct caller *caller)
{
	struct change undo = {};

	if (!caller->reserved)
		return;
	undo.requested = -(__s64)caller->reserved;
	undo.reserved = -(__s64)caller->reserved;
	caller->reserved = 0;
	apply_change(&caller->reserved_for, &undo);
	count(GIVEN_BACK);
}

static __always_inline struct caller *current_caller(__u64 flags)
{
	return bpf_task_storage_get(&callers, bpf_get_current_task_btf(), NULL, flags);
}

/* Above what any task id and below what any kernel address has in its upper bits. */
#define UNFOLLOWED_KEY_SHIFT 40

/*
 * The call is over and a buffer may have come of it, but none is on record: the kernel passed over
 * a program of ours. What was reserved stays charged, until the daemon finds the cgroup empty.
 */
static __noinline int keep_unfollowed(struct caller *caller)
{
	struct holding holding = { .kind = HOLDING_REQUESTED, .flags = HOLDING_UNFOLLOWED };
	struct change by = { .buffers = 1 };
	struct refusal what = { .reason = UNFOLLOWED };
	__u64 key = (__u64)(__u32)bpf_get_current_pid_tgid() << UNFOLLOWED_KEY_SHIFT |
		    (bpf_ktime_get_ns() & ((1ULL << UNFOLLOWED_KEY_SHIFT) - 1));

	holding.owners = caller->reserved_for;
	holding.size = caller->reserved;
	by.reserved = -(__s64)caller->reserved;
	caller->reserved = 0;
	apply_change(&holding.owners, &by);
	if (bpf_map_update_elem(&buffers, &key, &holding, BPF_NOEXIST))
		count(UNRECORDED_BUFFER);
	else
		populate(POPULATION_BUFFERS, 1);
	count(UNFOLLOWED);
	what.cgroup = innermost_tenant(&holding.owners);
	what.gpu = holding.owners.gpu;
	what.asked = holding.size;
	report(&what);
	return 0;
}

/*
 * A call begins or is over, or none will ever be. An earlier one that was inside amdgpu_bo_create may
 * have made its buffer: while programs come and go, the kernel runs none at the end of a function
 * that is being executed. So nothing is given back before this.
 */
static __always_inline void end_earlier_call(struct caller *caller)
{
	if (!caller->creating)
		return;
	if (caller->reserved)
		keep_unfollowed(caller);
	caller->creating = 0;
}

static __always_inline void give_back_current(void)
{
	struct caller *caller = current_caller(0);

	if (!caller)
		return;
	end_earlier_call(caller);
	give_back(caller);
	caller->asked = 0;
}

/*
 * A driver's call of the caller's returns. EFAULT may come after the buffer: its handle found no
 * place in the caller's memory.
 */
static __always_inline void end_call(long ret)
{
	struct caller *caller = current_caller(0);

	if (!caller)
		return;
	end_earlier_call(caller);
	if (caller->reserved && !(caller->asked & CALL_MAY_COST_LESS) &&
	    (ret >= 0 || ret == -EFAULT))
		keep_unfollowed(caller);
	else
		give_back(caller);
	caller->asked = 0;
}

/* For a program at the end of a function that answers an ioctl. */
static __always_inline int call_ended(void *ctx)
{
	__u64 ret = 0;

	if (acts(PART_LEDGER) && !bpf_get_func_ret(ctx, &ret))
		end_call(ret);
	return 0;
}

/*
 * Of the caller's cgroups with a share of this GPU, the innermost that is limited; 0: none. For a
 * tenant without a share every byte is beyond it: then the innermost of its cgroups.
 */
static __always_inline __u64 limited_by(__u64 gpu)
{
	struct owners tenants_found = {}, owners = {};
	__u64 innermost = 0;
	__u32 i;

	find_tenants(&tenants_found);
	if (!find_owners(&tenants_found, gpu, &owners))
		return innermost_tenant(&tenants_found);
	for (i = 0; i < MAX_OWNERS && i < owners.count; i++) {
		struct ledger_key key = { .cgroup = owners.cgroup[i], .gpu = gpu };
		struct limit *limit = bpf_map_lookup_elem(&limits, &key);

		if (limit && limit->bytes != NO_LIMIT)
			innermost = key.cgroup;
	}
	return innermost;
}

/* *why says by which numbers; it stays as it is otherwise. */
static __always_inline bool is_above(__u64 cgroup, __u64 gpu, struct refusal *why)
{
	struct ledger_key key = { .cgroup = cgroup, .gpu = gpu };
	struct limit *limit = bpf_map_lookup_elem(&limits, &key);
	struct usage *of = bpf_map_lookup_elem(&usage, &key);
	__u64 most;
	__s64 used;

	if (!limit || !of)
		return false;
	most = *(volatile __u64 *)&limit->bytes;
	used = *(volatile __s64 *)&of->requested;
	if (used < 0 || (__u64)used <= most)
		return false;
	why->cgroup = cgroup;
	why->gpu = gpu;
	why->used = used;
	why->limit = most;
	return true;
}

#endif
