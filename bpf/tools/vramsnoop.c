// SPDX-License-Identifier: GPL-2.0-only
/*
 * For BCC, which compiles it where it runs. Offsets into the kernel's structures come from the
 * kernel's own type information, as macros named STRUCTURE_MEMBER.
 */
#include <uapi/linux/ptrace.h>

#define VRAM	       0x4
#define KERNEL_BUFFER  1
#define VIA_PAGE_TABLE 5

struct buffer {
	u64 size;
	u64 cgroup;
	u32 pid;
	u32 gpu;
	u32 via;
	u32 freed;
	char comm[16];
};

struct making {
	u64 bo_ptr;
	struct buffer buffer;
};

BPF_TABLE("lru_hash", u64, u32, callers, 8192);
BPF_TABLE("lru_hash", u64, struct making, makings, 8192);
BPF_HASH(buffers, u64, struct buffer, 262144);
#ifdef HISTOGRAM
struct size_class {
	u64 cgroup;
	u32 gpu;
	u32 log2;
};
BPF_HASH(sizes, struct size_class, u64, 16384);
#else
BPF_RINGBUF_OUTPUT(events, 64);
#endif
BPF_ARRAY(lost, u64, 1);

static u64 pointer_at(u64 at)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)at);
	return value;
}

static u32 word_at(u64 at)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)at);
	return value;
}

static u32 gpu_of(u64 adev)
{
	u64 pdev = pointer_at(adev + AMDGPU_DEVICE_PDEV);
	u64 bus = pointer_at(pdev + PCI_DEV_BUS);
	u32 domain = word_at(pointer_at(bus + PCI_BUS_SYSDATA) + PCI_SYSDATA_DOMAIN);

	return domain << 16 | (word_at(bus + PCI_BUS_NUMBER) & 0xff) << 8 |
	       (word_at(pdev + PCI_DEV_DEVFN) & 0xff);
}

#ifdef HISTOGRAM
static void tell(struct buffer *buffer)
{
	struct size_class class = { .cgroup = buffer->cgroup, .gpu = buffer->gpu };
	u64 one = 1, *count;

	if (buffer->freed || buffer->via == VIA_PAGE_TABLE)
		return;
	class.log2 = bpf_log2l(buffer->size) - 1;
	count = sizes.lookup_or_try_init(&class, &(u64){ 0 });
	if (count)
		lock_xadd(count, one);
	else
		lost.increment(0);
}
#else
static void tell(struct buffer *buffer)
{
	if (events.ringbuf_output(buffer, sizeof(*buffer), 0))
		lost.increment(0);
}
#endif

int create_enter(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid(), bp = PT_REGS_PARM2(ctx);
	struct making making = {};
	u32 *via;

#ifdef ONLY_PID
	if (task >> 32 != ONLY_PID)
		return 0;
#endif
	if (!(word_at(bp + AMDGPU_BO_PARAM_DOMAIN) & VRAM))
		return 0;
	making.bo_ptr = PT_REGS_PARM3(ctx);
	making.buffer.pid = task >> 32;
	making.buffer.cgroup = bpf_get_current_cgroup_id();
	making.buffer.gpu = gpu_of(PT_REGS_PARM1(ctx));
	bpf_get_current_comm(making.buffer.comm, sizeof(making.buffer.comm));
	via = callers.lookup(&task);
	if (word_at(bp + AMDGPU_BO_PARAM_TYPE) == KERNEL_BUFFER)
		making.buffer.via = VIA_PAGE_TABLE;
	else if (via)
		making.buffer.via = *via;
	makings.update(&task, &making);
	return 0;
}

int create_return(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid(), bo;
	struct making *making = makings.lookup(&task);
	struct buffer buffer;

	if (!making)
		return 0;
	bo = pointer_at(making->bo_ptr) + AMDGPU_BO_TBO;
	buffer = making->buffer;
	makings.delete(&task);
	if ((int)PT_REGS_RC(ctx))
		return 0;
	buffer.size = pointer_at(bo + TTM_BUFFER_OBJECT_BASE + DRM_GEM_OBJECT_SIZE);
	buffers.update(&bo, &buffer);
	tell(&buffer);
	return 0;
}

int destroy_enter(struct pt_regs *ctx)
{
	u64 bo = PT_REGS_PARM1(ctx);
	struct buffer *found = buffers.lookup(&bo), buffer;

	if (!found)
		return 0;
	buffer = *found;
	buffers.delete(&bo);
	buffer.freed = 1;
	tell(&buffer);
	return 0;
}

static int enter(u32 via)
{
	u64 task = bpf_get_current_pid_tgid();

	callers.update(&task, &via);
	return 0;
}

int enter_kfd(struct pt_regs *ctx)
{
	return enter(1);
}
int enter_gem(struct pt_regs *ctx)
{
	return enter(2);
}
int enter_dumb(struct pt_regs *ctx)
{
	return enter(3);
}
int enter_svm(struct pt_regs *ctx)
{
	return enter(4);
}

int leave(struct pt_regs *ctx)
{
	u64 task = bpf_get_current_pid_tgid();

	callers.delete(&task);
	return 0;
}
