// SPDX-License-Identifier: GPL-2.0-only
/* For BCC, which compiles it where it runs. Calls are numbered as in hipsnoop.py. */
#include <uapi/linux/ptrace.h>

struct key {
	u64 task;
	u64 call;
};

struct begun {
	u64 at;
	u64 size;
};

struct call {
	u64 size;
	u64 nanoseconds;
	u64 cgroup;
	u32 pid;
	u32 number;
	s32 result;
	u32 pad;
};

BPF_TABLE("lru_hash", struct key, struct begun, calls, 16384);
BPF_RINGBUF_OUTPUT(events, 256);
BPF_ARRAY(lost, u64, 1);

static int enter(u32 number, u64 size)
{
	struct key key = { .task = bpf_get_current_pid_tgid(), .call = number };
	struct begun begun = { .at = bpf_ktime_get_ns(), .size = size };

	calls.update(&key, &begun);
	return 0;
}

static int leave(u32 number, s32 result)
{
	struct key key = { .task = bpf_get_current_pid_tgid(), .call = number };
	struct begun *begun = calls.lookup(&key);
	struct call call = { .number = number, .result = result };

	if (!begun)
		return 0;
	call.nanoseconds = bpf_ktime_get_ns() - begun->at;
	call.size = begun->size;
	calls.delete(&key);
	call.cgroup = bpf_get_current_cgroup_id();
	call.pid = key.task >> 32;
	if (events.ringbuf_output(&call, sizeof(call), 0))
		lost.increment(0);
	return 0;
}

#define CALL(number, size)                             \
	int enter_##number(struct pt_regs *ctx)        \
	{                                              \
		return enter(number, size);            \
	}                                              \
	int leave_##number(struct pt_regs *ctx)        \
	{                                              \
		return leave(number, PT_REGS_RC(ctx)); \
	}

CALL(0, PT_REGS_PARM2(ctx))
CALL(1, PT_REGS_PARM2(ctx))
CALL(2, PT_REGS_PARM2(ctx))
CALL(3, PT_REGS_PARM2(ctx))
CALL(4, PT_REGS_PARM2(ctx))
CALL(5, 0)
CALL(6, 0)
CALL(7, 0)
CALL(8, PT_REGS_PARM3(ctx))
CALL(9, PT_REGS_PARM3(ctx))
CALL(10, PT_REGS_PARM3(ctx))
CALL(11, 0)
CALL(12, 0)
CALL(13, 0)
CALL(14, 0)
CALL(15, 0)
