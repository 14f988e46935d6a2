/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared virtual memory: whose it is when a kernel thread makes it, and what a call asks for. */
#ifndef RINGFENCE_SVM_H
#define RINGFENCE_SVM_H

#include "demand.h"
#include "follow.h"
#include "judge.h"

/* As find_tenants(), of another task than the one that runs; none before Linux 6.1. */
static __noinline int find_tenants_of(struct task_struct *task, struct owners *ret)
{
	struct cgroup *cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp), *ancestor;
	int depth = BPF_CORE_READ(cgroup, level), level;
	__u32 found = 0;

	if (!bpf_core_field_exists(cgroup->ancestors))
		return 0;
	for (level = 1; level <= MAX_CGROUP_DEPTH && level <= depth; level++) {
		const void *first = __builtin_preserve_access_index(&cgroup->ancestors[0]);
		__u64 number;

		if (bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
					  first + level * sizeof(ancestor)))
			break;
		number = BPF_CORE_READ(ancestor, kn, id);
		if (!bpf_map_lookup_elem(&tenants, &number))
			continue;
		if (found < MAX_OWNERS)
			ret->cgroup[found] = number;
		found++;
	}
	ret->count = found;
	return found;
}

/* @thread: of the process that the buffer is for; NULL: not known. */
static __always_inline void begin_svm(struct task_struct *thread)
{
	struct owners tenants_found = {};
	struct caller *caller;
	__u32 how = CALL_SVM;

	if (!find_tenants(&tenants_found)) {
		struct task_struct *current = bpf_get_current_task_btf();

		if (!thread) {
			if (current->flags & PF_KTHREAD)
				count(SVM_UNOWNED);
			return;
		}
		how |= CALL_ON_BEHALF;
		if (!find_tenants_of(thread, &tenants_found))
			return;
	}
	caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!caller) {
		count(SVM_UNOWNED);
		return;
	}
	if (how & CALL_ON_BEHALF) {
		give_back(caller);
		caller->reserved_for = tenants_found;
	}
	caller->asked |= how;
}

static __always_inline void end_svm(void)
{
	struct caller *caller = current_caller(0);

	if (caller)
		caller->asked &= ~(CALL_SVM | CALL_ON_BEHALF);
}

static __noinline int judge_svm(const void *data)
{
	struct demand demand = { .nr = AMDKFD_IOC_SVM_NR };
	struct arguments args = {};

	if (!acts(PART_LEDGER) ||
	    bpf_probe_read_kernel(&args, sizeof(struct kfd_ioctl_svm_args), data))
		return 0;
	svm_demand(&args, IN_KERNEL_MEMORY, (__u64)data, &demand);
	judge_demand(&demand);
	return 0;
}

#endif
