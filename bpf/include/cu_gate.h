/* SPDX-License-Identifier: GPL-2.0-only */
/* Calls about compute queues that go beyond the slice: counted, or refused where that is enforced. */
#ifndef RINGFENCE_CU_GATE_H
#define RINGFENCE_CU_GATE_H

#include "queues.h"

/* For a library to mask the queue it has just made. */
#define MASKING_NS 1000000000ULL

static __always_inline int refuse_compute(const struct ledger_key *key, __u32 reason, __u32 nr)
{
	struct refusal why = { .cgroup = key->cgroup, .gpu = key->gpu, .reason = reason, .nr = nr };
	struct compute *of = compute_of(key);

	if (of)
		__sync_fetch_and_add(&of->refused, 1);
	count(reason);
	report(&why);
	return -EACCES;
}

/*
 * By trying: of an entry that no queue's key has, for each CPU another. What is made at the same
 * moment elsewhere may still find the map full.
 */
static __always_inline bool room_for_a_queue(void)
{
	struct queue_key key = { .queue = bpf_get_smp_processor_id() };
	static const struct queue none;

	if (bpf_map_update_elem(&queues, &key, &none, BPF_ANY))
		return false;
	bpf_map_delete_elem(&queues, &key);
	return true;
}

/*
 * With a queue that may run anywhere a container has had its chance: no further one, until that
 * has its mask or is gone. What it runs on cannot be changed from here.
 */
static __noinline int judge_queue(const struct owners *tenants_found,
				  const struct kfd_ioctl_create_queue_args *args)
{
	struct demand demand = {};
	struct ledger_key key = {};
	struct cu_mask *slice;
	struct compute *of;

	if (args->queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE &&
	    args->queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
		return 0;
	gpu_by(&gpus_by_kfd_id, args->gpu_id, &demand);
	if (demand.refused)
		return 0;
	slice = slice_of(tenants_found, demand.gpu, &key);
	if (!slice || !slice->enforced)
		return 0;
	if (!room_for_a_queue())
		return refuse_compute(&key, REFUSED_QUEUES_FULL, AMDKFD_IOC_CREATE_QUEUE_NR);
	of = bpf_map_lookup_elem(&compute, &key);
	if (!of || *(volatile __s64 *)&of->queues <= *(volatile __s64 *)&of->masked ||
	    bpf_ktime_get_ns() - of->unmasked_since < MASKING_NS)
		return 0;
	return refuse_compute(&key, REFUSED_UNMASKED, AMDKFD_IOC_CREATE_QUEUE_NR);
}

static __always_inline int judge_mask(const struct owners *tenants_found, __u64 process,
				      const struct kfd_ioctl_set_cu_mask_args *args,
				      enum arguments_in where, bool again)
{
	struct queue_key queue_key = { .process = process, .queue = args->queue_id };
	struct queue *queue = bpf_map_lookup_elem(&queues, &queue_key);
	struct ledger_key key = {};
	struct cu_mask *slice;
	int fits;

	/* Not the caller's, or made while no ledger was there, or by one that follows no queues. */
	if (!queue)
		return 0;
	slice = slice_of(tenants_found, queue->owners.gpu, &key);
	if (!slice)
		return 0;
	fits = within(slice, where, args->cu_mask_ptr, args->num_cu_mask);
	if (fits > 0)
		return 0;
	/* Whichever copy refuses it is the only one that is asked. */
	if (!fits && (slice->enforced || !again))
		count_wider(&key);
	if (!slice->enforced)
		return 0;
	return refuse_compute(&key, REFUSED_CU_MASK, AMDKFD_IOC_SET_CU_MASK_NR);
}

#endif
