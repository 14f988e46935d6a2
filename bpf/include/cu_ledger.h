/* SPDX-License-Identifier: GPL-2.0-only */
/* The compute queues of tenants, from their making to their end, and which of them are masked. */
#ifndef RINGFENCE_CU_LEDGER_H
#define RINGFENCE_CU_LEDGER_H

#include "follow.h"
#include "queues.h"

/* So many more queues in each of its cgroups, of which so many masked. */
static __noinline int change_queues(const struct owners *of, __s64 number, __s64 masked)
{
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < of->count; i++) {
		struct ledger_key key = { .cgroup = of->cgroup[i], .gpu = of->gpu };
		struct compute *found = compute_of(&key);

		/* A row to be seen in, also for who holds no memory yet. */
		if (!found || !usage_of(&key)) {
			count(UNRECORDED_QUEUE);
			continue;
		}
		if (number > masked &&
		    *(volatile __s64 *)&found->queues <= *(volatile __s64 *)&found->masked)
			found->unmasked_since = bpf_ktime_get_ns();
		__sync_fetch_and_add(&found->queues, number);
		__sync_fetch_and_add(&found->masked, masked);
	}
	return 0;
}

/* @data: the driver's copy of the arguments, with the queue's number in it. */
static __noinline int queue_made(__u64 process, const void *data)
{
	struct queue_key key = { .process = process };
	struct kfd_ioctl_create_queue_args args = {};
	struct owners tenants_found = {};
	struct demand demand = {};
	struct queue queue = {};

	if (bpf_probe_read_kernel(&args, sizeof(args), data))
		return 0;
	if (args.queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE &&
	    args.queue_type != KFD_IOC_QUEUE_TYPE_COMPUTE_AQL)
		return 0;
	gpu_by(&gpus_by_kfd_id, args.gpu_id, &demand);
	if (demand.refused || !find_tenants(&tenants_found) ||
	    !find_owners(&tenants_found, demand.gpu, &queue.owners))
		return 0;
	key.queue = args.queue_id;
	if (bpf_map_update_elem(&queues, &key, &queue, BPF_NOEXIST))
		count(UNRECORDED_QUEUE);
	else
		change_queues(&queue.owners, 1, 0);
	return 0;
}

static __always_inline void queue_gone(const struct queue_key *key)
{
	struct queue *found = bpf_map_lookup_elem(&queues, key), queue;

	if (!found)
		return;
	queue = *found;
	if (!bpf_map_delete_elem(&queues, key))
		change_queues(&queue.owners, -1, -(__s64) !!queue.masked);
}

/* @info: the driver's copy of the mask, which is in force now. */
static __noinline int queue_masked(const struct queue_key *key, struct mqd_update_info *info)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, key);
	__u64 mask = (__u64)BPF_CORE_READ(info, cu_mask.ptr);
	struct ledger_key slice_key = {};
	struct cu_mask *slice;
	__u32 masked;

	if (!queue || !mask)
		return 0;
	slice = slice_of(&queue->owners, queue->owners.gpu, &slice_key);
	if (!slice)
		return 0;
	masked = within(slice, IN_KERNEL_MEMORY, mask, BPF_CORE_READ(info, cu_mask.count)) > 0;
	if (masked != queue->masked) {
		queue->masked = masked;
		change_queues(&queue->owners, 0, masked ? 1 : -1);
	}
	return 0;
}

static long queue_of_gone(void *map, const struct queue_key *key, struct queue *queue,
			  __u64 *process)
{
	if (key->process == *process)
		queue_gone(key);
	return 0;
}

static long forget_queue(void *map, const struct queue_key *key, struct queue *queue,
			 struct forgetting *what)
{
	if (queue->owners.gpu == what->gpu && among(&queue->owners, what->cgroup))
		queue_gone(key);
	return 0;
}

/* As forget_cgroup(), of queues whose end nobody saw. */
static __always_inline void forget_queues(__u64 cgroup, __u64 gpu)
{
	struct forgetting what = { .cgroup = cgroup, .gpu = gpu };

	bpf_for_each_map_elem(&queues, forget_queue, &what, 0);
}

static __always_inline void process_gone(__u64 process)
{
	bpf_for_each_map_elem(&queues, queue_of_gone, &process, 0);
}

#endif
