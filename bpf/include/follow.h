/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ledger's entries, from a buffer's making to its end, however the driver's functions that say
 * so are come by.
 */
#ifndef RINGFENCE_FOLLOW_H
#define RINGFENCE_FOLLOW_H

#include "amdgpu_ioctl.h"
#include "charge.h"

/* Whether a tenant, or all of them, have so many buffers as to fill that part of their room. */
APART int crowded(const struct owners *to, __u32 part)
{
	__u32 i;

	if (!to || !part)
		return 0;
	for (i = 0; i < MAX_OWNERS && i < to->count; i++) {
		struct ledger_key key = { .cgroup = to->cgroup[i], .gpu = to->gpu };
		struct usage *of = bpf_map_lookup_elem(&usage, &key);

		if (of && *(volatile __s64 *)&of->buffers >= MAX_BUFFERS_PER_TENANT / part)
			return 1;
	}
	return populated(POPULATION_BUFFERS) >= (MAX_BUFFERS - BUFFERS_SPARE) / part;
}

/* A buffer is about to be made by the caller, for the caller. @again: told by the second copy. */
static __always_inline void begin_buffer(__u64 gpu, __u32 type, __u32 domain, bool again)
{
	struct owners tenants_found = {}, to = {};
	struct caller *caller = current_caller(0);

	if (caller && caller->asked & CALL_ON_BEHALF)
		tenants_found = caller->reserved_for;
	else
		find_tenants(&tenants_found);
	if (!tenants_found.count)
		return;
	if (!find_owners(&tenants_found, gpu, &to)) {
		if (type == ttm_bo_type_kernel)
			return;
		/* Nothing lets it pass but switched arguments: all its cgroups answer for it. */
		to = tenants_found;
		to.gpu = gpu;
	}
	if (!caller)
		caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!caller) {
		count(UNRECORDED_BUFFER);
		return;
	}
	/* Not asked for in a call the gate looks at, as a page directory at open(2). */
	if (type == ttm_bo_type_kernel && caller->kind == HOLDING_REQUESTED)
		end_earlier_call(caller);
	caller->creating = 0;
	if (type == ttm_bo_type_kernel && crowded(&to, 2)) {
		if (!again)
			count(UNRECORDED_PAGE_TABLE);
		return;
	}
	if (caller->asked & CALL_WAIVED && crowded(&to, 1)) {
		if (!again)
			count(UNRECORDED_BUFFER);
		return;
	}
	caller->creating_for = to;
	caller->kind = type == ttm_bo_type_kernel ? HOLDING_KERNEL : HOLDING_REQUESTED;
	caller->in_vram = !!(domain & AMDGPU_GEM_DOMAIN_VRAM);
	caller->creating = 1;
}

static __always_inline void set_overrun(__u64 cgroup)
{
	__u32 *flags = bpf_map_lookup_elem(&tenants, &cgroup);

	if (flags)
		*(volatile __u32 *)flags |= TENANT_OVERRAN;
}

/*
 * The caller has a buffer of this size made that the gate was not asked about, or not about so
 * much. 1: a cgroup is above its limit now. The enforcer is told of the innermost, and looks again.
 */
APART int judge_overrun(const struct caller *caller, __u64 size)
{
	struct refusal why = { .asked = size, .reason = OVERRAN };
	bool reported_only = switched(POLICY_SPARE_SWITCHED);
	const struct owners *of;
	__u32 i;

	if (!caller || !present(PART_GATE))
		return 0;
	of = &caller->creating_for;
	for (i = 0; i < MAX_OWNERS && i < of->count; i++)
		if (is_above(of->cgroup[i], of->gpu, &why) && !reported_only)
			set_overrun(of->cgroup[i]);
	if (!why.cgroup)
		return 0;
	/* Who is punished has been told of. */
	if (!(caller->asked & CALL_PUNISHED)) {
		count(OVERRAN);
		report(&why);
	}
	return !reported_only;
}

/*
 * A buffer that was asked for in VRAM: its reservation becomes its charge, at its true size. True:
 * nothing had let it pass, and it is too much.
 */
static __always_inline bool settle(struct caller *caller, __u64 size)
{
	struct change by = { .requested = size };
	__u64 part = caller->reserved;

	if (!caller->reserved) {
		/*
		 * A page fault of the GPU, arguments switched after the gate had read them, or a call
		 * the gate was not asked about.
		 */
		if (!(caller->asked & CALL_WAIVED))
			count(caller->asked & CALL_ON_BEHALF ? SVM_FAULTED : UNRESERVED);
	} else if (caller->reserved_for.gpu != caller->creating_for.gpu) {
		give_back(caller);
		count(UNRESERVED);
	} else {
		/* The rest is for what the same call makes next. */
		if (caller->asked & CALL_SVM && size < part)
			part = size;
		by.reserved = -(__s64)part;
		by.requested -= part;
		/* The very cgroups that were charged, should the task have moved since. */
		caller->creating_for = caller->reserved_for;
		caller->reserved -= part;
		if (by.requested > 0)
			count(SETTLED_UP);
		else if (by.requested < 0)
			count(SETTLED_DOWN);
	}
	by.buffers = 1;
	apply_change(&caller->creating_for, &by);
	return !(caller->asked & CALL_ON_BEHALF) &&
	       (!(caller->asked & CALL_ASKED) || caller->asked & CALL_PUNISHED) &&
	       judge_overrun(caller, size);
}

static __noinline int change_svm(const struct owners *of, __s64 requested, __u64 faulted)
{
	static const struct svm_usage none;
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < of->count; i++) {
		struct ledger_key key = { .cgroup = of->cgroup[i], .gpu = of->gpu };
		struct svm_usage *found = bpf_map_lookup_elem(&svm, &key);

		if (!found && requested > 0) {
			bpf_map_update_elem(&svm, &key, &none, BPF_NOEXIST);
			found = bpf_map_lookup_elem(&svm, &key);
		}
		if (!found)
			continue;
		__sync_fetch_and_add(&found->requested, requested);
		__sync_fetch_and_add(&found->faulted, faulted);
	}
	return 0;
}

/* 1: it was on record. */
static __always_inline int end_buffer(__u64 key)
{
	struct change by = { .buffers = -1 };
	struct holding *found, holding;

	found = bpf_map_lookup_elem(&buffers, &key);
	if (!found)
		return 0;
	holding = *found;
	if (bpf_map_delete_elem(&buffers, &key))
		return 0;
	populate(POPULATION_BUFFERS, -1);
	if (holding.kind == HOLDING_REQUESTED)
		by.requested = -(__s64)holding.size;
	apply_change(&holding.owners, &by);
	if (holding.flags & HOLDING_SVM)
		change_svm(&holding.owners, -(__s64)holding.size, 0);
	return 1;
}

static __always_inline void record_buffer(struct caller *caller, __u64 key, __u64 size)
{
	struct holding holding = { .size = size, .kind = caller->kind };
	struct change by = { .buffers = 1 };

	if (caller->kind == HOLDING_REQUESTED && !caller->in_vram) {
		caller->asked |= CALL_MAY_COST_LESS;
		return;
	}
	if (holding.kind != HOLDING_REQUESTED)
		apply_change(&caller->creating_for, &by);
	else if (settle(caller, holding.size))
		holding.flags = HOLDING_OVERRAN;
	holding.owners = caller->creating_for;
	if (holding.kind == HOLDING_REQUESTED && caller->asked & CALL_SVM) {
		holding.flags |= HOLDING_SVM;
		change_svm(&holding.owners, size, caller->asked & CALL_ON_BEHALF ? size : 0);
	}
	/* Left over from an end nobody saw: whose it was is given it back. */
	if (end_buffer(key))
		count(STALE_HOLDING);
	/* Without an entry nobody gives the bytes back: the tenant keeps the charge, we count it. */
	if (bpf_map_update_elem(&buffers, &key, &holding, BPF_NOEXIST))
		count(UNRECORDED_BUFFER);
	else
		populate(POPULATION_BUFFERS, 1);
}

static __always_inline void change_residence(const struct holding *of, __s64 size)
{
	struct change by = {};

	if (of->kind == HOLDING_KERNEL)
		by.page_tables = size;
	else
		by.resident = size;
	apply_change(&of->owners, &by);
}

static __noinline int leave_vram(__u64 key)
{
	struct holding *found = bpf_map_lookup_elem(&resources, &key), holding;

	if (!found)
		return 0;
	holding = *found;
	if (bpf_map_delete_elem(&resources, &key))
		return 0;
	populate(POPULATION_RESOURCES, -1);
	change_residence(&holding, -(__s64)holding.size);
	return 1;
}

/* A resource in VRAM, for a buffer on record or for the one the caller is just making. */
static __always_inline void enter_vram(__u64 key, __u64 bo, __u64 size)
{
	struct holding holding = { .size = size }, *buffer;
	struct caller *caller;

	buffer = bpf_map_lookup_elem(&buffers, &bo);
	if (buffer) {
		holding.owners = buffer->owners;
		holding.kind = buffer->kind;
	} else {
		/* Its first resource, inside amdgpu_bo_create: not on record before the exit. */
		caller = current_caller(0);
		if (!caller || !caller->creating)
			return;
		holding.owners = caller->creating_for;
		holding.kind = caller->kind;
	}
	/* Left over from a free nobody saw, while no ledger was attached. */
	if (leave_vram(key))
		count(STALE_HOLDING);
	if (bpf_map_update_elem(&resources, &key, &holding, BPF_NOEXIST)) {
		count(UNRECORDED_RESOURCE);
		return;
	}
	populate(POPULATION_RESOURCES, 1);
	change_residence(&holding, holding.size);
}

struct forgetting {
	__u64 cgroup;
	__u64 gpu;
	__u32 found;
	__u32 pad;
};

static __always_inline bool concerns(const struct holding *holding, const struct forgetting *what)
{
	return holding->owners.gpu == what->gpu && among(&holding->owners, what->cgroup);
}

static long forget_buffer(void *map, const __u64 *key, struct holding *buffer,
			  struct forgetting *what)
{
	if (concerns(buffer, what) && end_buffer(*key)) {
		count(FORGOTTEN);
		what->found++;
	}
	return 0;
}

static long forget_resource(void *map, const __u64 *key, struct holding *resource,
			    struct forgetting *what)
{
	if (concerns(resource, what))
		leave_vram(*key);
	return 0;
}

/*
 * What a cgroup holds by the ledger and not in truth: ends were passed over, or nobody was there to
 * see them. Every cgroup that was charged for it is given it back; what then is left of the
 * cgroup's own charge, for which nothing is on record, goes too. Number of buffers dropped.
 *
 * The caller has made sure that no process is in it: what is on its way is left alone.
 */
static __always_inline int forget_cgroup(__u64 cgroup, __u64 gpu)
{
	struct forgetting what = { .cgroup = cgroup, .gpu = gpu };
	struct ledger_key key = { .cgroup = cgroup, .gpu = gpu };
	struct usage *of;
	__s64 rest;

	bpf_for_each_map_elem(&buffers, forget_buffer, &what, 0);
	bpf_for_each_map_elem(&resources, forget_resource, &what, 0);
	of = bpf_map_lookup_elem(&usage, &key);
	if (!of)
		return what.found;
	/* In this order: a reservation that comes in between is not taken for what is left. */
	rest = *(volatile __s64 *)&of->requested;
	rest -= *(volatile __s64 *)&of->reserved;
	__sync_fetch_and_add(&of->requested, -rest);
	__sync_fetch_and_add(&of->resident, -*(volatile __s64 *)&of->resident);
	__sync_fetch_and_add(&of->page_tables, -*(volatile __s64 *)&of->page_tables);
	__sync_fetch_and_add(&of->buffers, -*(volatile __s64 *)&of->buffers);
	return what.found;
}

#endif
