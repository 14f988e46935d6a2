/* SPDX-License-Identifier: GPL-2.0-only */
/* What the driver read, held against what the gate let pass. */
#ifndef RINGFENCE_JUDGE_H
#define RINGFENCE_JUDGE_H

#include "charge.h"
#include "demand.h"

/*
 * Who has got by a switch at a GPU of which it has no share has a limit there from now on, of no
 * byte. It tells the daemon, should an accomplice keep what was made.
 */
static __noinline int limit_to_nothing(__u64 cgroup, __u64 gpu)
{
	struct ledger_key key = { .cgroup = cgroup, .gpu = gpu };
	struct limit nothing = {};

	return bpf_map_update_elem(&limits, &key, &nothing, BPF_NOEXIST);
}

/*
 * The driver's own copy of the arguments asks for more than the gate let pass: they were switched
 * between the two looks. Nothing can refuse here any more. The buffer is charged as it is made,
 * and the process, killed, gives it back.
 */
static __noinline int judge_demand(const struct demand *demand)
{
	struct refusal why = { .nr = demand->nr };
	struct caller *caller = current_caller(0);

	if (!caller || !(caller->asked & CALL_ASKED) || !demand->size || !present(PART_GATE))
		return 0;
	if (demand->size <= caller->reserved && demand->gpu == caller->reserved_for.gpu)
		return 0;
	why.cgroup = limited_by(demand->gpu);
	if (!why.cgroup)
		return 0;
	why.gpu = demand->gpu;
	why.asked = demand->size;
	why.used = caller->reserved;
	caller->asked |= CALL_PUNISHED;
	limit_to_nothing(why.cgroup, why.gpu);
	punish(&why);
	return 0;
}

#endif
