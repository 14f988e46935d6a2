// SPDX-License-Identifier: GPL-2.0-only
/*
 * For BCC, which compiles it where it runs. Offsets come from the kernel's own type information, as
 * macros named STRUCTURE_MEMBER.
 */
#include <uapi/linux/ptrace.h>

struct charge {
	s64 size; /* negative: given back */
	u64 cgroup;
	u32 pid;
	s32 error;
	char region[40];
	char comm[16];
};

BPF_TABLE("lru_hash", u64, struct charge, charges, 8192);
BPF_RINGBUF_OUTPUT(events, 64);
BPF_ARRAY(lost, u64, 1);

static u64 pointer_at(u64 at)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)at);
	return value;
}

static void name(struct charge *charge, u64 region)
{
	bpf_probe_read_kernel_str(charge->region, sizeof(charge->region),
				  (void *)pointer_at(region + DMEM_CGROUP_REGION_NAME));
}

static void tell(struct charge *charge)
{
	if (events.ringbuf_output(charge, sizeof(*charge), 0))
		lost.increment(0);
}

int charge_enter(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid();
	struct charge charge = {};

	charge.size = PT_REGS_PARM2(ctx);
	charge.cgroup = bpf_get_current_cgroup_id();
	charge.pid = task >> 32;
	bpf_get_current_comm(charge.comm, sizeof(charge.comm));
	name(&charge, PT_REGS_PARM1(ctx));
	charges.update(&task, &charge);
	return 0;
}

int charge_return(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid();
	struct charge *found = charges.lookup(&task), charge;

	if (!found)
		return 0;
	charge = *found;
	charges.delete(&task);
	charge.error = PT_REGS_RC(ctx);
	tell(&charge);
	return 0;
}

/* Whoever frees, it is given back to whom it was charged. */
int uncharge_enter(struct pt_regs *ctx)
{
	u64 pool = PT_REGS_PARM1(ctx), css, kn;
	struct charge charge = {};

	if (!pool)
		return 0;
	charge.size = -(s64)PT_REGS_PARM2(ctx);
	css = pointer_at(pool + DMEM_CGROUP_POOL_STATE_CS) + DMEMCG_STATE_CSS;
	kn = pointer_at(pointer_at(css + CGROUP_SUBSYS_STATE_CGROUP) + CGROUP_KN);
	charge.cgroup = pointer_at(kn + KERNFS_NODE_ID);
	charge.pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(charge.comm, sizeof(charge.comm));
	name(&charge, pointer_at(pool + DMEM_CGROUP_POOL_STATE_REGION));
	tell(&charge);
	return 0;
}
