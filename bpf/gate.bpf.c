// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gate: refuses, with ENOMEM, the call that would take a container or its pod beyond its
 * share of a GPU's VRAM. It stands where the kernel asks its security modules about an ioctl, so
 * it sees every process, whatever that is linked with. fmod_ret on security_* needs no lsm= entry.
 *
 * What it admits is reserved at once, in every limited cgroup the caller lies in; the ledger turns
 * the reservation into a buffer, or it goes back. Never EAGAIN or EINTR: ROCm and libdrm retry
 * those without end.
 */
#include "amdgpu_ioctl.h"
#include "pending.h"
#include "reserve.h"

char LICENSE[] SEC("license") = "GPL";

/* An ioctl no driver has: answered with EUCLEAN to whoever knows the token, passed on otherwise. */
#define SELF_TEST_CMD 0x5246f5c5U

enum device {
	FOREIGN,
	KFD,
	DRM,
};

/* What a call would take. */
struct demand {
	__u64 gpu;
	__u64 size;
	__u32 refused; /* a REFUSED_* + 1 */
	__u32 nr;
};

static __always_inline bool is_self_test(unsigned int cmd, unsigned long arg)
{
	struct self_test *test;
	__u32 zero = 0;

	if (cmd != SELF_TEST_CMD)
		return false;
	test = bpf_map_lookup_elem(&self_test, &zero);
	if (!test || !test->token || test->token != arg || test->generation != generation)
		return false;
	count(SELF_TESTS);
	return true;
}

/*
 * The driver's files are known by who owns their operations, not by number: kfd's major is
 * dynamic, and 226 is every DRM driver's. A driver that is built in has no module to name.
 */
static __always_inline enum device device_of(struct file *file)
{
	struct inode *inode = file->f_inode;
	__u32 major = inode->i_rdev >> MINOR_BITS;
	struct module *owner;
	__u64 name = 0;

	if ((inode->i_mode & S_IFMT) != S_IFCHR)
		return FOREIGN;
	owner = file->f_op->owner;
	if (owner) {
		if (bpf_probe_read_kernel(&name, sizeof(name), &owner->name))
			return FOREIGN;
		/* "amdgpu" and its terminator; little endian. */
		if ((name & 0x00ffffffffffffffULL) != 0x0000757067646d61ULL)
			return FOREIGN;
	} else if (!bpf_map_lookup_elem(&builtin_majors, &major)) {
		return FOREIGN;
	}
	return major == DRM_MAJOR ? DRM : KFD;
}

/* As both drivers do: so many bytes of the caller's as its command word says, zeros behind. */
static __always_inline bool read_arguments(void *to, __u32 room, __u32 size, unsigned long arg)
{
	if (size > room)
		size = room;
	return !bpf_probe_read_user(to, size, (const void *)arg);
}

/* DRM copies nothing in unless the command word says "write". */
static __always_inline __u32 drm_in_size(unsigned int cmd)
{
	return cmd & IOCTL_WRITE ? IOCTL_SIZE(cmd) : 0;
}

static __always_inline bool may_take_vram(enum device device, __u32 nr)
{
	if (device == KFD)
		return nr == AMDKFD_IOC_ALLOC_MEMORY_OF_GPU_NR;
	return nr == DRM_AMDGPU_GEM_CREATE_NR || nr == DRM_AMDGPU_GEM_OP_NR ||
	       nr == DRM_MODE_CREATE_DUMB_NR;
}

static __always_inline void gpu_by(void *map, __u32 id, struct demand *ret)
{
	__u64 *gpu = bpf_map_lookup_elem(map, &id);

	if (gpu)
		ret->gpu = *gpu;
	else if (!ret->refused)
		ret->refused = REFUSED_UNKNOWN_GPU + 1;
}

/* amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu(): AQL queues get half, mapped twice. */
static __noinline int kfd_alloc_demand(unsigned int cmd, unsigned long arg, struct demand *ret)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args = {};

	if (!read_arguments(&args, sizeof(args), IOCTL_SIZE(cmd), arg)) {
		ret->refused = REFUSED_ARGUMENTS + 1;
		return 0;
	}
	if (!(args.flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM))
		return 0;
	if (args.flags & KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)
		args.size >>= 1;
	ret->size = ALIGN_UP(args.size, PAGE_SIZE);
	if (ret->size)
		gpu_by(&gpus_by_kfd_id, args.gpu_id, ret);
	return 0;
}

/*
 * amdgpu_bo_create(): GDS, GWS and OA count units of one page each. VRAM among several domains is
 * taken as VRAM: the driver tries it first.
 */
static __noinline int gem_create_demand(unsigned int cmd, unsigned long arg, struct demand *ret)
{
	struct drm_amdgpu_gem_create_in args = {};

	if (!read_arguments(&args, sizeof(args), drm_in_size(cmd), arg)) {
		ret->refused = REFUSED_ARGUMENTS + 1;
		return 0;
	}
	if (!(args.domains & AMDGPU_GEM_DOMAIN_VRAM))
		return 0;
	if (args.domains & (AMDGPU_GEM_DOMAIN_GWS | AMDGPU_GEM_DOMAIN_OA))
		ret->size = args.bo_size << PAGE_SHIFT;
	else if (args.domains & AMDGPU_GEM_DOMAIN_GDS)
		ret->size = ALIGN_UP(args.bo_size, 4) << PAGE_SHIFT;
	else
		ret->size = ALIGN_UP(args.bo_size, PAGE_SIZE);
	return 0;
}

/*
 * Turning a system buffer into a VRAM one names it by handle, whose size is not in the arguments:
 * refused. No user-space driver of the last years does it.
 */
static __noinline int gem_op_demand(unsigned int cmd, unsigned long arg, struct demand *ret)
{
	struct drm_amdgpu_gem_op args = {};

	if (!read_arguments(&args, sizeof(args), drm_in_size(cmd), arg))
		ret->refused = REFUSED_ARGUMENTS + 1;
	else if (args.op == AMDGPU_GEM_OP_SET_PLACEMENT && args.value & AMDGPU_GEM_DOMAIN_VRAM)
		ret->refused = REFUSED_PLACEMENT + 1;
	return 0;
}

/* amdgpu_mode_dumb_create() and amdgpu_gem_align_pitch(). */
static __noinline int dumb_create_demand(unsigned int cmd, unsigned long arg, struct demand *ret)
{
	struct drm_mode_create_dumb args = {};
	__u32 bytes_per_pixel, mask = 0;

	if (!read_arguments(&args, sizeof(args), drm_in_size(cmd), arg)) {
		ret->refused = REFUSED_ARGUMENTS + 1;
		return 0;
	}
	bytes_per_pixel = args.bpp / 8 + (args.bpp % 8 != 0);
	if (bytes_per_pixel == 1)
		mask = 255;
	else if (bytes_per_pixel == 2)
		mask = 127;
	else if (bytes_per_pixel == 3 || bytes_per_pixel == 4)
		mask = 63;
	/* 32-bit, as the driver's pitch is. */
	args.pitch = ((args.width + mask) & ~mask) * bytes_per_pixel;
	ret->size = ALIGN_UP((__u64)args.pitch * args.height, PAGE_SIZE);
	return 0;
}

APART int find_demand(unsigned int cmd, unsigned long arg, __u32 rdev, struct demand *ret)
{
	if (!ret)
		return -EINVAL;
	if (rdev >> MINOR_BITS != DRM_MAJOR)
		return kfd_alloc_demand(cmd, arg, ret);
	if (ret->nr == DRM_AMDGPU_GEM_CREATE_NR)
		gem_create_demand(cmd, arg, ret);
	else if (ret->nr == DRM_AMDGPU_GEM_OP_NR)
		gem_op_demand(cmd, arg, ret);
	else
		dumb_create_demand(cmd, arg, ret);
	if (ret->size || ret->refused)
		gpu_by(&gpus_by_minor, rdev & ((1U << MINOR_BITS) - 1), ret);
	return 0;
}

APART int refuse(const struct refusal *why)
{
	struct ledger_key key = {};
	struct event *event;
	struct usage *of;

	if (!why)
		return -ENOMEM;
	key.cgroup = why->cgroup;
	key.gpu = why->gpu;
	of = bpf_map_lookup_elem(&usage, &key);
	count(why->reason);
	if (of) {
		__sync_fetch_and_add(&of->refusals, 1);
		of->refused_bytes = why->asked;
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(EVENTS_DROPPED);
		return -ENOMEM;
	}
	event->time = bpf_ktime_get_ns();
	event->cgroup = why->cgroup;
	event->gpu = why->gpu;
	event->asked = why->asked;
	event->used = why->used;
	event->limit = why->limit;
	event->pid = bpf_get_current_pid_tgid() >> 32;
	event->reason = why->reason;
	event->nr = why->nr;
	event->pad = 0;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	bpf_ringbuf_submit(event, 0);
	return -ENOMEM;
}

/* 0, or a REFUSED_* + 1. */
static __noinline int reserve(const struct owners *tenants_found, const struct demand *demand,
			      struct refusal *why)
{
	struct caller *caller;
	struct owners to = {};
	int refused;

	if (!present(PART_LEDGER))
		return REFUSED_NO_LEDGER + 1;
	if (populated(POPULATION_BUFFERS) >= MAX_BUFFERS - BUFFERS_SPARE)
		return REFUSED_BUFFERS_FULL + 1;
	if (!find_owners(tenants_found, demand->gpu, &to))
		return REFUSED_NO_SHARE + 1;
	caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!caller)
		return REFUSED_TASK_STORAGE + 1;
	/* The other copy of this program has been here for this very call. */
	if (caller->reserved == demand->size && caller->reserved_for.gpu == demand->gpu)
		return 0;
	give_back(caller);
	refused = charge(&to, demand->size, why);
	if (refused)
		return refused;
	caller->reserved_for = to;
	caller->reserved = demand->size;
	return 0;
}

static __always_inline int decide(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct demand demand = { .nr = IOCTL_NR(cmd) };
	struct owners tenants_found = {};
	struct refusal why = {};
	enum device device;
	int refused;

	if (is_self_test(cmd, arg))
		return -EUCLEAN;
	device = device_of(file);
	if (device == FOREIGN || !may_take_vram(device, demand.nr) || !acts(PART_GATE))
		return 0;
	if (!find_tenants(&tenants_found))
		return 0;
	find_demand(cmd, arg, file->f_inode->i_rdev, &demand);
	refused = demand.refused;
	if (tenants_found.count > MAX_OWNERS)
		refused = REFUSED_DEPTH + 1;
	if (!refused && !demand.size)
		return 0;
	why.gpu = demand.gpu;
	why.asked = demand.size;
	why.nr = demand.nr;
	/* Until a limit is in the way, the innermost cgroup answers for the refusal. */
	why.cgroup = tenants_found.cgroup[(tenants_found.count - 1) & (MAX_OWNERS - 1)];
	if (!refused)
		refused = reserve(&tenants_found, &demand, &why);
	if (!refused)
		return 0;
	why.reason = refused - 1;
	return refuse(&why);
}

/*
 * Twice, because the kernel passes over a tracing program that is already running on the same CPU:
 * a caller that preempts another one inside it would go unasked. The copy catches that call; to go
 * unasked by both, it would have to preempt two at once. For all others it finds the work done.
 */
SEC("fmod_ret/security_file_ioctl")
int BPF_PROG(file_ioctl, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg);
}

SEC("fmod_ret/security_file_ioctl")
int BPF_PROG(file_ioctl_again, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg);
}

/* 32-bit callers, in kernels that ask about them apart. Same structures, same numbers. */
SEC("fmod_ret/security_file_ioctl_compat")
int BPF_PROG(file_ioctl_compat, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg);
}

SEC("fmod_ret/security_file_ioctl_compat")
int BPF_PROG(file_ioctl_compat_again, struct file *file, unsigned int cmd, unsigned long arg,
	     int ret)
{
	return ret ? ret : decide(file, cmd, arg);
}

/* A security module behind us said no: the call ends here, and no driver function is reached. */
SEC("fexit/security_file_ioctl")
int BPF_PROG(file_ioctl_refused, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	if (ret)
		give_back_current();
	return 0;
}

SEC("fexit/security_file_ioctl_compat")
int BPF_PROG(file_ioctl_compat_refused, struct file *file, unsigned int cmd, unsigned long arg,
	     int ret)
{
	if (ret)
		give_back_current();
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(task_exit, struct task_struct *task)
{
	struct caller *caller = bpf_task_storage_get(&callers, task, NULL, 0);

	if (caller)
		give_back(caller);
	return 0;
}
