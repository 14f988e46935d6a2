// SPDX-License-Identifier: GPL-2.0-only
/*
 * For BCC, which compiles it where it runs. Offsets come from the kernel's own type information, as
 * macros named STRUCTURE_MEMBER; KFD_MAJOR is the character major of /dev/kfd.
 */
#include <uapi/linux/ptrace.h>

#define DRM_MAJOR 226

#define KFD_ALLOC	  0x16
#define KFD_IMPORT	  0x1d
#define KFD_SVM		  0x20
#define DRM_PRIME_IMPORT  0x2e
#define AMDGPU_GEM_CREATE 0x40
#define AMDGPU_GEM_OP	  0x50
#define DRM_DUMB_CREATE	  0xb2

struct call {
	u64 arg;
	u32 cmd;
	u32 dev;
};

struct refusal {
	u64 size; /* 0: the call does not say */
	u64 cgroup;
	u32 pid;
	u32 dev;
	u32 kfd_id;
	u32 cmd;
	s32 error;
	u32 pad;
	char comm[16];
};

BPF_TABLE("lru_hash", u64, struct call, calls, 8192);
BPF_RINGBUF_OUTPUT(events, 64);
BPF_ARRAY(lost, u64, 1);

int enter(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid(), inode = 0;
	struct call call = {};

	bpf_probe_read_kernel(&inode, sizeof(inode), (void *)PT_REGS_PARM1(ctx) + FILE_F_INODE);
	bpf_probe_read_kernel(&call.dev, sizeof(call.dev), (void *)inode + INODE_I_RDEV);
	if (call.dev >> 20 != DRM_MAJOR && call.dev >> 20 != KFD_MAJOR)
		return 0;
	call.cmd = PT_REGS_PARM2(ctx);
	call.arg = PT_REGS_PARM3(ctx);
	calls.update(&task, &call);
	return 0;
}

static void arguments(struct call *call, struct refusal *refusal)
{
	u64 words[5] = {};
	u32 nr = call->cmd & 0xff;

	if (bpf_probe_read_user(words, sizeof(words), (void *)call->arg))
		bpf_probe_read_user(words, 16, (void *)call->arg);
	if (call->dev >> 20 == DRM_MAJOR) {
		if (nr == AMDGPU_GEM_CREATE)
			refusal->size = words[0];
		if (nr == DRM_DUMB_CREATE) /* height, width; bits per pixel */
			refusal->size = (words[0] & 0xffffffff) * (words[0] >> 32) *
					((words[1] & 0xffffffff) / 8);
		return;
	}
	if (nr == KFD_ALLOC || nr == KFD_SVM)
		refusal->size = words[1];
	if (nr == KFD_ALLOC)
		refusal->kfd_id = words[4];
	if (nr == KFD_IMPORT)
		refusal->kfd_id = words[2];
}

int leave(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid();
	struct call *found = calls.lookup(&task), call;
	struct refusal refusal = {};

	if (!found)
		return 0;
	call = *found;
	calls.delete(&task);
	refusal.error = PT_REGS_RC(ctx);
	if (!refusal.error)
		return 0;
	arguments(&call, &refusal);
	refusal.cgroup = bpf_get_current_cgroup_id();
	refusal.pid = task >> 32;
	refusal.dev = call.dev;
	refusal.cmd = call.cmd;
	bpf_get_current_comm(refusal.comm, sizeof(refusal.comm));
	if (events.ringbuf_output(&refusal, sizeof(refusal), 0))
		lost.increment(0);
	return 0;
}
