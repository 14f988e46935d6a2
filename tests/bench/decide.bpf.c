// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gate's decision and the ledger's entries by themselves, called in a loop from a program type
 * that every kernel lets us run (BPF_PROG_TEST_RUN of a raw tracepoint): the machine's own
 * processor instead of an emulated one, without what it costs the kernel to get to the program.
 */
#include <linux/version.h>
#include "../../bpf/gate.bpf.c"
#include "follow.h"

/* Open-coded iteration, since Linux 6.4. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));
#endif

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
/* A pointer that may be read through, since Linux 6.2. */
extern void *bpf_rdonly_cast(const void *at, __u32 type) __ksym;

/* An address no buffer has. */
#define KEY 0x1000ULL

struct timing {
	__u64 ns;
	__u64 refused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct timing);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} timing SEC(".maps");

#define TIMED(rounds, body)                                    \
	({                                                     \
		struct bpf_iter_num it;                        \
		__u64 begin = bpf_ktime_get_ns(), refused = 0; \
		__u32 zero = 0;                                \
		struct timing *to;                             \
                                                               \
		bpf_iter_num_new(&it, 0, rounds);              \
		while (bpf_iter_num_next(&it)) {               \
			body;                                  \
		}                                              \
		bpf_iter_num_destroy(&it);                     \
		to = bpf_map_lookup_elem(&timing, &zero);      \
		if (to) {                                      \
			to->ns = bpf_ktime_get_ns() - begin;   \
			to->refused = refused;                 \
		}                                              \
	})

SEC("raw_tp/sys_enter")
int BPF_PROG(time_nothing, __u64 fd, __u64 cmd, __u64 arg, __u64 rounds)
{
	TIMED(rounds, refused += !file_at(fd));
	return 0;
}

/* Judged by the verifier once, and not in every round anew. */
APART int decide_once(__u64 fd, __u64 cmd, __u64 arg)
{
	struct file *file = file_at(fd);

	if (!file)
		return -EINVAL;
	file = bpf_rdonly_cast(file, bpf_core_type_id_kernel(struct file));
	return decide(file, cmd, arg, HOOK_FMOD_RET);
}

SEC("raw_tp/sys_enter")
int BPF_PROG(time_decision, __u64 fd, __u64 cmd, __u64 arg, __u64 rounds)
{
	TIMED(rounds, refused += !!decide_once(fd, cmd, arg));
	return 0;
}

APART int fail_once(void)
{
	give_back_current();
	return 0;
}

/* As above, and the call fails in the driver. */
SEC("raw_tp/sys_enter")
int BPF_PROG(time_reservation, __u64 fd, __u64 cmd, __u64 arg, __u64 rounds)
{
	TIMED(rounds, refused += !!decide_once(fd, cmd, arg); fail_once());
	return 0;
}

/* A buffer made and freed; the answer is whether it was on the books. */
APART int entries_once(__u64 gpu, __u64 size)
{
	struct caller *caller;

	begin_buffer(gpu, ttm_bo_type_device, AMDGPU_GEM_DOMAIN_VRAM, false);
	enter_vram(KEY + 1, KEY, size);
	caller = current_caller(0);
	if (caller) {
		caller->creating = 0;
		record_buffer(caller, KEY, size);
	}
	leave_vram(KEY + 1);
	return end_buffer(KEY);
}

SEC("raw_tp/sys_enter")
int BPF_PROG(time_entries, __u64 gpu, __u64 size, __u64 unused, __u64 rounds)
{
	TIMED(rounds, refused += !entries_once(gpu, size));
	return 0;
}
