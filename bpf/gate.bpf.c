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
#include "above.h"
#include "cu_gate.h"
#include "demand.h"
#include "passed.h"
#include "pending.h"
#include "reserve.h"

char LICENSE[] SEC("license") = "GPL";

/* An ioctl no driver has: answered with EUCLEAN to whoever knows the token, passed on otherwise. */
#define SELF_TEST_CMD 0x5246f5c5U

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
		if (!is_amdgpu(name))
			return FOREIGN;
	} else if (!bpf_map_lookup_elem(&builtin_majors, &major)) {
		return FOREIGN;
	}
	return major == DRM_MAJOR ? DRM : KFD;
}

/*
 * As both drivers do: so many bytes of the caller's as its command word says, zeros behind. KFD
 * takes its own word for the direction; DRM copies nothing in unless the caller's says "write".
 */
static __always_inline bool read_arguments(struct arguments *to, enum device device,
					   unsigned int cmd, unsigned long arg,
					   enum arguments_in where)
{
	__u32 size = device == KFD || cmd & IOCTL_WRITE ? IOCTL_SIZE(cmd) : 0;

	if (size > sizeof(*to))
		size = sizeof(*to);
	return read_from(where, to, size, arg);
}

static __always_inline bool may_take_vram(enum device device, __u32 nr)
{
	if (device == KFD)
		return nr == AMDKFD_IOC_ALLOC_MEMORY_OF_GPU_NR || nr == AMDKFD_IOC_SVM_NR;
	return nr == DRM_AMDGPU_GEM_CREATE_NR || nr == DRM_AMDGPU_GEM_OP_NR ||
	       nr == DRM_MODE_CREATE_DUMB_NR;
}

static __always_inline bool about_queues(enum device device, __u32 nr)
{
	return device == KFD &&
	       (nr == AMDKFD_IOC_CREATE_QUEUE_NR || nr == AMDKFD_IOC_SET_CU_MASK_NR);
}

static __always_inline bool imports(enum device device, __u32 nr)
{
	if (device == KFD)
		return nr == AMDKFD_IOC_IMPORT_DMABUF_NR || nr == AMDKFD_IOC_IPC_IMPORT_HANDLE_NR;
	return nr == DRM_PRIME_FD_TO_HANDLE_NR;
}

static __always_inline bool looks_at(enum device device, __u32 nr)
{
	return may_take_vram(device, nr) || imports(device, nr) || about_queues(device, nr);
}

static __always_inline void look(struct file *file, unsigned int cmd, unsigned long arg,
				 enum arguments_in where, struct demand *ret)
{
	__u32 rdev = file->f_inode->i_rdev;
	enum device device = rdev >> MINOR_BITS == DRM_MAJOR ? DRM : KFD;
	struct arguments args = {};

	if (!read_arguments(&args, device, cmd, arg, where))
		ret->refused = REFUSED_ARGUMENTS + 1;
	else if (device == KFD && ret->nr == AMDKFD_IOC_SVM_NR)
		svm_demand(&args, where, arg, ret);
	else if (device == DRM && ret->nr == DRM_AMDGPU_GEM_OP_NR)
		gem_op_demand(&args, file->private_data, ret);
	else
		find_demand(&args, device, ret);
	if (device == DRM && (ret->size || ret->refused))
		gpu_by(&gpus_by_minor, rdev & ((1U << MINOR_BITS) - 1), ret);
}

/* On a stack of their own: the arguments are not needed any more when the call is judged. */
static __noinline int look_at_once(struct file *file, unsigned int cmd, unsigned long arg,
				   struct demand *ret)
{
	look(file, cmd, arg, IN_USER_MEMORY, ret);
	return 0;
}

static __noinline int look_and_wait(struct file *file, unsigned int cmd, unsigned long arg,
				    struct demand *ret)
{
	look(file, cmd, arg, IN_USER_MEMORY_WAIT, ret);
	return 0;
}

/* What cannot be read is the driver's to answer: nothing is gained by it. */
static __always_inline int judge_queue_call(struct file *file, unsigned int cmd, unsigned long arg,
					    const struct owners *tenants_found,
					    enum arguments_in where, bool again)
{
	union {
		struct kfd_ioctl_create_queue_args queue;
		struct kfd_ioctl_set_cu_mask_args mask;
	} args = {};
	__u32 size = IOCTL_SIZE(cmd);

	if (size > sizeof(args))
		size = sizeof(args);
	if (!read_from(where, &args, size, arg))
		return 0;
	if (IOCTL_NR(cmd) == AMDKFD_IOC_CREATE_QUEUE_NR)
		return judge_queue(tenants_found, &args.queue);
	return judge_mask(tenants_found, (__u64)file->private_data, &args.mask, where, again);
}

static __noinline int look_at_queue(struct file *file, unsigned int cmd, unsigned long arg,
				    const struct owners *tenants_found, bool again)
{
	return judge_queue_call(file, cmd, arg, tenants_found, IN_USER_MEMORY, again);
}

static __noinline int look_at_queue_and_wait(struct file *file, unsigned int cmd, unsigned long arg,
					     const struct owners *tenants_found)
{
	return judge_queue_call(file, cmd, arg, tenants_found, IN_USER_MEMORY_WAIT, false);
}

APART int refuse(const struct refusal *why)
{
	struct ledger_key key = {};
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
	report(why);
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
	caller->asked = CALL_ASKED | (demand->may_cost_less ? CALL_MAY_COST_LESS : 0);
	return 0;
}

/* Asked, and about nothing: the driver must find nothing either. */
static __always_inline void reserve_nothing(void)
{
	struct caller *caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!caller)
		return;
	give_back(caller);
	caller->asked = CALL_ASKED;
}

/* Reasons that are nothing of the tenant's doing, but for what a limit takes to be held. */
static __always_inline bool our_trouble(__u32 reason)
{
	switch (reason) {
	case REFUSED_ARGUMENTS:
	case REFUSED_CONTENDED:
	case REFUSED_USAGE_FULL:
	case REFUSED_BUFFERS_FULL:
	case REFUSED_TASK_STORAGE:
	case REFUSED_NO_LEDGER:
	case REFUSED_PLACEMENT:
		return true;
	}
	return false;
}

struct limited {
	const struct owners *tenants_found;
	__u64 found;
};

static long find_limited(void *gpus, const __u32 *minor, const __u64 *gpu, struct limited *ret)
{
	__u32 i;

	for (i = 0; i < MAX_OWNERS && i < ret->tenants_found->count; i++) {
		struct ledger_key key = { .cgroup = ret->tenants_found->cgroup[i], .gpu = *gpu };
		struct limit *limit = bpf_map_lookup_elem(&limits, &key);

		if (limit && limit->bytes != NO_LIMIT) {
			ret->found = 1;
			return 1;
		}
	}
	return 0;
}

/* Whether the caller is limited on a GPU; 0, not known which: on any. */
static __noinline int limited_on(const struct owners *tenants_found, __u64 gpu)
{
	struct limited walk = { .tenants_found = tenants_found };

	if (gpu)
		return !!limited_by(gpu);
	bpf_for_each_map_elem(&gpus_by_minor, find_limited, &walk, 0);
	return walk.found;
}

/* Nothing is reserved; what is made is charged as far as there is room to follow it. */
static __always_inline void waive(bool again)
{
	struct caller *caller;

	reserve_nothing();
	caller = current_caller(0);
	if (caller)
		caller->asked |= CALL_WAIVED;
	if (!again)
		count(WAIVED);
}

static __always_inline bool is_self_test(unsigned int cmd, unsigned long arg, enum hook hook)
{
	struct self_test *test;
	__u32 zero = 0;

	if (cmd != SELF_TEST_CMD)
		return false;
	test = bpf_map_lookup_elem(&self_test, &zero);
	if (!test || !test->token || test->token != arg || test->generation != generation ||
	    test->hook != hook)
		return false;
	count(SELF_TESTS);
	return true;
}

/*
 * Where the security module's program is in charge, the two before it leave the call to it. Which
 * it is cannot change under a generation, so a call is left to nobody by none of them.
 */
static __always_inline bool in_charge(enum hook hook)
{
	if (!acts(PART_GATE))
		return false;
	if (hook == HOOK_COMPAT || hook == HOOK_COMPAT_AGAIN)
		return true;
	return acts(PART_LSM) == (hook == HOOK_LSM);
}

/*
 * A buffer stays charged to who made it. Another container's is counted, or refused if so decided;
 * arguments that cannot be read are then refused as well. One that its maker got by a trick goes to
 * nobody else.
 */
static __noinline int judge_import(const struct owners *tenants_found, const struct demand *demand,
				   bool again)
{
	struct refusal why = { .nr = demand->nr, .gpu = demand->gpu };
	struct file *file = NULL;
	struct holding *buffer = NULL;

	if (!demand->refused)
		file = file_at(demand->fd);
	if (file)
		buffer = foreign_buffer(buffer_key(file), tenants_found);
	if (switched(POLICY_REFUSE_IMPORTS) ? !demand->refused && !buffer :
					      !buffer || !(buffer->flags & HOLDING_OVERRAN)) {
		/* Both copies are asked about what is let pass, and one about what is refused. */
		if (buffer && !again)
			count(IMPORTED);
		reserve_nothing();
		return 0;
	}
	why.cgroup = innermost_tenant(tenants_found);
	why.reason = buffer ? REFUSED_IMPORT : REFUSED_ARGUMENTS;
	if (buffer) {
		why.gpu = buffer->owners.gpu;
		why.asked = buffer->size;
	}
	return refuse(&why);
}

/* Whose buffer a name means only the driver knows: where imports are refused, all of these are. */
static __always_inline int judge_import_by_name(const struct owners *tenants_found, bool again)
{
	struct refusal why = { .nr = AMDKFD_IOC_IPC_IMPORT_HANDLE_NR, .reason = REFUSED_IMPORT };

	if (!switched(POLICY_REFUSE_IMPORTS)) {
		if (!again)
			count(IMPORTED_BY_NAME);
		return 0;
	}
	why.cgroup = innermost_tenant(tenants_found);
	return refuse(&why);
}

static __always_inline int decide(struct file *file, unsigned int cmd, unsigned long arg,
				  enum hook hook)
{
	bool again = hook == HOOK_FMOD_RET_AGAIN || hook == HOOK_COMPAT_AGAIN;
	struct demand demand = { .nr = IOCTL_NR(cmd) };
	struct owners tenants_found = {};
	struct refusal why = {};
	struct caller *caller;
	enum device device;
	int refused;

	if (is_self_test(cmd, arg, hook))
		return -EUCLEAN;
	/* The number first: nearly all calls of other drivers' files go no further. */
	if (!looks_at(KFD, demand.nr) && !looks_at(DRM, demand.nr))
		return 0;
	device = device_of(file);
	if (device == FOREIGN || !looks_at(device, demand.nr))
		return 0;
	if (!in_charge(hook))
		return 0;
	if (!find_tenants(&tenants_found))
		return 0;
	caller = current_caller(0);
	if (caller)
		end_earlier_call(caller);
	if (device == KFD && demand.nr == AMDKFD_IOC_IPC_IMPORT_HANDLE_NR)
		return judge_import_by_name(&tenants_found, again);
	if (about_queues(device, demand.nr))
		return hook == HOOK_LSM ? look_at_queue_and_wait(file, cmd, arg, &tenants_found) :
					  look_at_queue(file, cmd, arg, &tenants_found, again);
	if (hook == HOOK_LSM)
		look_and_wait(file, cmd, arg, &demand);
	else
		look_at_once(file, cmd, arg, &demand);
	if (imports(device, demand.nr))
		return judge_import(&tenants_found, &demand, again);
	refused = demand.refused;
	if (tenants_found.count > MAX_OWNERS)
		refused = REFUSED_DEPTH + 1;
	why.gpu = demand.gpu;
	why.asked = demand.size;
	why.nr = demand.nr;
	/* Until a limit is in the way, the innermost cgroup answers for the refusal. */
	why.cgroup = innermost_tenant(&tenants_found);
	/* With nothing asked for, too: it could be switched into something. */
	if (!refused && still_above(&tenants_found, &why))
		refused = REFUSED_LIMIT + 1;
	if (!refused && !demand.size) {
		reserve_nothing();
		return 0;
	}
	if (!refused)
		refused = reserve(&tenants_found, &demand, &why);
	if (!refused)
		return 0;
	if (our_trouble(refused - 1) && !limited_on(&tenants_found, demand.gpu)) {
		waive(again);
		return 0;
	}
	why.reason = refused - 1;
	return refuse(&why);
}

/*
 * Twice, because the kernel passes over a tracing program that is already running on the same CPU:
 * a caller that preempts another one inside it would go unasked. The copy catches that call; to go
 * unasked by both, it would have to preempt two at once: then the ledger tells of it, if it is too
 * much. For all others the copy finds the work done.
 */
SEC("fmod_ret/security_file_ioctl")
int BPF_PROG(file_ioctl, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg, HOOK_FMOD_RET);
}

SEC("fmod_ret/security_file_ioctl")
int BPF_PROG(file_ioctl_again, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg, HOOK_FMOD_RET_AGAIN);
}

/*
 * As a security module, where "bpf" is an active one: it may sleep, so it waits for arguments that
 * are not in memory instead of refusing them, and the kernel passes it over for nobody.
 */
SEC("lsm.s/file_ioctl")
int BPF_PROG(file_ioctl_lsm, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg, HOOK_LSM);
}

/* 32-bit callers, in kernels that ask about them apart. Same structures, same numbers. */
SEC("fmod_ret/security_file_ioctl_compat")
int BPF_PROG(file_ioctl_compat, struct file *file, unsigned int cmd, unsigned long arg, int ret)
{
	return ret ? ret : decide(file, cmd, arg, HOOK_COMPAT);
}

SEC("fmod_ret/security_file_ioctl_compat")
int BPF_PROG(file_ioctl_compat_again, struct file *file, unsigned int cmd, unsigned long arg,
	     int ret)
{
	return ret ? ret : decide(file, cmd, arg, HOOK_COMPAT_AGAIN);
}

/* It may have in that file what it got by a trick. */
static __noinline bool opener_above(__u64 cgroup)
{
	struct owners opener = { .cgroup = { cgroup }, .count = 1 };
	struct refusal why = {};

	return still_above(&opener, &why);
}

/*
 * A file arrives over a socket, or is taken from another process (pidfd_getfd). The receiver gets
 * no descriptor; its own share stays as it is.
 */
SEC("fmod_ret/security_file_receive")
int BPF_PROG(file_receive, struct file *file, int ret)
{
	struct owners tenants_found = {};
	struct refusal why = { .reason = REFUSED_PASSED };
	bool all = switched(POLICY_REFUSE_PASSED);
	struct holding *buffer;
	__u64 *opener, client;

	if (ret || !acts(PART_GATE))
		return ret;
	if (!find_tenants(&tenants_found))
		return 0;
	buffer = foreign_buffer(buffer_key(file), &tenants_found);
	if (buffer) {
		if (!all && !(buffer->flags & HOLDING_OVERRAN))
			return 0;
		why.gpu = buffer->owners.gpu;
		why.asked = buffer->size;
	} else {
		if (device_of(file) != DRM)
			return 0;
		client = (__u64)file->private_data;
		opener = bpf_map_lookup_elem(&clients, &client);
		/* One that is not known could be anybody's. */
		if (opener && (!*opener || among(&tenants_found, *opener)))
			return 0;
		if (!all && !(opener && opener_above(*opener)))
			return 0;
	}
	why.cgroup = innermost_tenant(&tenants_found);
	refuse(&why);
	return -EACCES;
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

	if (!caller)
		return 0;
	end_earlier_call(caller);
	give_back(caller);
	return 0;
}
