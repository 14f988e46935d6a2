/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Map schema 1: what the gate, the ledger and the daemon share. All of it is pinned by name below
 * /sys/fs/bpf/ringfence/1/ and outlives every process. A change to any layout here is a new schema
 * (a new directory); a further map is none: what was built before does not look at it.
 * bpf/decode.py holds the same layouts for user space.
 *
 * No map grows: each has its size below, with the kernel memory it costs when full. A hash element
 * is 48 bytes, its key and its value, rounded up; a bucket is 16 bytes and there from the start.
 * "On demand": only the buckets are there while the map is empty.
 */
#ifndef RINGFENCE_MAPS_H
#define RINGFENCE_MAPS_H

#include "kernel.h"

/* 1.5 MiB: 512 pods, each with a container, on 16 GPUs. */
#define MAX_LIMITS 16384
/* 4.5 MiB, on demand (0.5 MiB): twice the limits, for what outlives its container. */
#define MAX_USAGES 32768
/* 0.6 MiB: 512 pods on 16 GPUs. */
#define MAX_PENDING 8192
/* 0.3 MiB: pods and containers that hold a share. */
#define MAX_TENANTS 4096
/* 0.1 MiB: 8 GPUs of 64 partitions, a card and a render node each. */
#define MAX_GPUS 1024
/* 144 MiB each, on demand (16 MiB): live buffers of tenants, and their TTM resources. */
#define MAX_BUFFERS   1048576
#define MAX_RESOURCES 1048576
/* 5 MiB, on demand (1 MiB): open files of DRM nodes. */
#define MAX_CLIENTS 65536
/* 0.9 MiB, on demand (0.1 MiB): who uses shared virtual memory. */
#define MAX_SVM_USAGES 8192
/* 0.9 MiB, on demand (64 KiB): containers whose compute units are known. */
#define MAX_CU_MASKS 4096
/* 2 MiB, on demand (0.3 MiB): compute queues of tenants. */
#define MAX_QUEUES 16384
/* 1 MiB, on demand (0.1 MiB): tenants that have had queues. */
#define MAX_COMPUTE  8192
#define EVENTS_BYTES 262144
/* Kept free by refusals, of which a tenant can make as many as it likes. */
#define EVENTS_SPARE 16384
/* Room for counters to come, so that one more is no new schema. */
#define MAX_COUNTERS 64
#define MAX_POLICIES 16

/*
 * One tenant may hold this many buffers on a GPU, the driver's own for it included, and all of them
 * this many less than the map takes: neither a million tiny buffers nor many creations at once
 * find the map full. The driver's own, page tables before all, are refused to nobody: they go
 * unrecorded where they would take more than half of either.
 */
#define MAX_BUFFERS_PER_TENANT (MAX_BUFFERS / 4)
#define BUFFERS_SPARE	       4096

/* A pod and its container; two more for nested nodes. */
#define MAX_OWNERS 4
/* Ancestors looked at, from the root down: a limited cgroup must not lie deeper. */
#define MAX_CGROUP_DEPTH 16

#define NO_LIMIT (~0ULL)

struct ledger_key {
	__u64 cgroup;
	__u64 gpu; /* domain << 16 | bus << 8 | devfn */
};

struct limit {
	__u64 bytes; /* NO_LIMIT: accounted, never refused */
	__u32 flags;
	__u32 pad;
};

/* limit.flags: entered by the kernel when the cgroup was made, not yet confirmed by the daemon. */
#define LIMIT_FROM_PENDING 1U

/* It came to be above a limit by what nothing had let pass. Stays until the cgroup is gone. */
#define TENANT_OVERRAN 2U

struct usage {
	__s64 requested; /* live buffers plus reservations: what the limit is held against */
	__s64 reserved; /* of these, not yet a buffer */
	__s64 resident; /* tenant's buffers that are in VRAM now */
	__s64 page_tables; /* the driver's own buffers made on its behalf, in VRAM now */
	__s64 buffers; /* number of live buffers, the driver's own included */
	__u64 peak; /* highest `requested` */
	__u64 refusals;
	__u64 refused_bytes; /* size of the last refused call */
};

/* Of a cgroup's charge on a GPU, what is shared virtual memory. Not shown where the map is full. */
struct svm_usage {
	__s64 requested; /* live buffers, part of usage.requested */
	__u64 faulted; /* bytes of all that kernel threads have made, whom nobody can refuse */
};

#define CU_MASK_WORDS 32 /* the driver takes no more bits of a mask: 1024 */

/* The compute units of a container's slice. */
struct cu_mask {
	__u32 words[CU_MASK_WORDS];
	__u32 enforced; /* 0: what goes beyond it is counted */
	__u32 pad;
};

/* Of a cgroup on a GPU. */
struct compute {
	__s64 queues; /* live, those that compute */
	__s64 masked; /* of these, with a mask within the slice */
	__u64 unmasked_since; /* CLOCK_MONOTONIC, ns: since then not all of them were masked */
	__u64 wider; /* masks that went beyond the slice, let pass or not */
	__u64 refused; /* calls refused for either */
};

struct queue_key {
	__u64 process; /* kfd_process */
	__u32 queue;
	__u32 pad;
};

struct owners {
	__u64 gpu;
	__u64 cgroup[MAX_OWNERS];
	__u32 count;
	__u32 pad;
};

/* A buffer object (key: its ttm_buffer_object) or a TTM resource (key: the ttm_resource). */
struct holding {
	struct owners owners;
	__u64 size;
	__u32 kind;
	__u32 flags;
};

enum holding_kind {
	HOLDING_REQUESTED, /* the tenant's: charged to `requested`, resident in `resident` */
	HOLDING_KERNEL, /* the driver's: resident in `page_tables` */
};

/* holding.flags: a call's reservation that no buffer is known for, under a key no object has. */
#define HOLDING_UNFOLLOWED 1U
/* holding.flags: shared virtual memory. */
#define HOLDING_SVM 2U
/* holding.flags: nothing let it pass, and with it a cgroup came to be above its limit. */
#define HOLDING_OVERRAN 4U

struct queue {
	struct owners owners;
	__u32 masked;
	__u32 pad;
};

/* What a task is in the middle of. */
struct caller {
	struct owners reserved_for;
	__u64 reserved; /* bytes; 0: nothing reserved */
	struct owners creating_for;
	__u32 creating; /* inside amdgpu_bo_create */
	__u32 kind;
	__u32 in_vram; /* the buffer being made was asked to lie in VRAM */
	__u64 size; /* of the buffer being made, where only its beginning tells */
	__u64 placing; /* a buffer that is getting a place in VRAM */
	__u32 asked; /* CALL_*; 0: the gate was not asked about the call under way */
};

/* Asked, and let pass for what is reserved and no more. */
#define CALL_ASKED 1U
/* It may well succeed and cost less than is reserved, or nothing. */
#define CALL_MAY_COST_LESS 2U
/* The buffers being made are shared virtual memory. */
#define CALL_SVM 4U
/* By a kernel thread, for the cgroups in `reserved_for`, of whichever GPU. */
#define CALL_ON_BEHALF 8U
/* More is made than was let pass: the process is killed for it, or reported. */
#define CALL_PUNISHED 16U
/* Its first buffer has been held against what was let pass. */
#define CALL_JUDGED 32U
/* Of a tenant without a limit, let pass although it could not be booked. */
#define CALL_WAIVED 64U
/* A buffer is to be placed in VRAM; which one the driver takes its handle for is not known yet. */
#define CALL_PLACES 128U

/*
 * Which generations of a part act: both at once for the moment of a hand-over. Every action is
 * harmless when done twice for one event, none when done by nobody.
 */
struct acting {
	__u32 oldest;
	__u32 newest;
};

enum part {
	PART_GATE,
	PART_LEDGER,
	PART_LSM, /* generations of the gate whose lsm program stands in for their fmod_ret ones */
	PARTS,
};

/* Where the gate is asked; two that do the same are told apart for the sake of the self-test. */
enum hook {
	HOOK_FMOD_RET,
	HOOK_FMOD_RET_AGAIN,
	HOOK_LSM,
	HOOK_COMPAT,
	HOOK_COMPAT_AGAIN,
};

/* Indices of `policy`; 0 is what the name does not say. */
enum policy_switch {
	POLICY_SPARE_SWITCHED, /* report switched arguments, do not kill */
	POLICY_REFUSE_IMPORTS, /* of another container's buffers */
	POLICY_REFUSE_PASSED, /* another container's buffers and opened GPUs, over a socket */
	POLICIES,
};

enum population_of {
	POPULATION_BUFFERS,
	POPULATION_RESOURCES,
	POPULATIONS,
};

/* No number is ever given another meaning: the map outlives what was built with it. */
enum counter {
	REFUSED_LIMIT,
	REFUSED_UNKNOWN_GPU,
	REFUSED_NO_SHARE,
	REFUSED_ARGUMENTS,
	REFUSED_CONTENDED,
	REFUSED_USAGE_FULL,
	REFUSED_BUFFERS_FULL,
	REFUSED_TASK_STORAGE,
	REFUSED_NO_LEDGER,
	REFUSED_PLACEMENT,
	REFUSED_DEPTH,
	REFUSED_IMPORT,
	REFUSED_PASSED,
	SWITCHED_KILLED,
	SWITCHED_SPARED,
	SETTLED_UP,
	SETTLED_DOWN,
	UNRESERVED,
	GIVEN_BACK,
	UNRECORDED_BUFFER,
	UNRECORDED_RESOURCE,
	STALE_HOLDING,
	EVENTS_DROPPED,
	SELF_TESTS,
	ENTERED,
	NOT_ENTERED,
	IMPORTED,
	UNRECORDED_CLIENT,
	UNFOLLOWED,
	FORGOTTEN,
	SVM_FAULTED,
	SVM_UNOWNED,
	REFUSED_CU_MASK,
	REFUSED_UNMASKED,
	CU_MASK_WIDER,
	UNRECORDED_QUEUE,
	IMPORTED_BY_NAME,
	OVERRAN,
	WAIVED,
	REFUSED_QUEUES_FULL,
	UNRECORDED_PAGE_TABLE,
	COUNTERS,
};

struct event {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u64 cgroup;
	__u64 gpu;
	__u64 asked;
	__u64 used;
	__u64 limit;
	__u32 pid;
	__u32 reason;
	__u32 nr;
	__u32 pad;
	char comm[16];
};

struct self_test {
	__u64 token;
	__u32 generation;
	__u32 hook;
};

_Static_assert(COUNTERS <= MAX_COUNTERS, "MAX_COUNTERS");
_Static_assert(sizeof(struct usage) == 64, "decode.py");
_Static_assert(sizeof(struct owners) == 48, "decode.py");
_Static_assert(sizeof(struct holding) == 64, "decode.py");
_Static_assert(sizeof(struct cu_mask) == 136, "decode.py");
_Static_assert(sizeof(struct compute) == 40, "decode.py");
_Static_assert(sizeof(struct event) == 80, "decode.py");

#define PINNED_MAP(name, map_type, map_key, map_value, entries, map_bits) \
	struct {                                                          \
		__uint(type, map_type);                                   \
		__type(key, map_key);                                     \
		__type(value, map_value);                                 \
		__uint(max_entries, entries);                             \
		__uint(map_flags, map_bits);                              \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                      \
	} name SEC(".maps")

PINNED_MAP(active, BPF_MAP_TYPE_ARRAY, __u32, struct acting, PARTS, 0);
PINNED_MAP(limits, BPF_MAP_TYPE_HASH, struct ledger_key, struct limit, MAX_LIMITS, 0);
/* What a cgroup made directly below this one may hold until the daemon knows better. */
PINNED_MAP(pending, BPF_MAP_TYPE_HASH, struct ledger_key, struct limit, MAX_PENDING, 0);
PINNED_MAP(usage, BPF_MAP_TYPE_HASH, struct ledger_key, struct usage, MAX_USAGES,
	   BPF_F_NO_PREALLOC);
/* A set of cgroups: "is the caller one of ours" without knowing a GPU. The value: TENANT_*. */
PINNED_MAP(tenants, BPF_MAP_TYPE_HASH, __u64, __u32, MAX_TENANTS, 0);
PINNED_MAP(gpus_by_kfd_id, BPF_MAP_TYPE_HASH, __u32, __u64, MAX_GPUS, 0);
PINNED_MAP(gpus_by_minor, BPF_MAP_TYPE_HASH, __u32, __u64, MAX_GPUS, 0);
/* Majors of device files to take for the driver's where it is built in and has no module. */
PINNED_MAP(builtin_majors, BPF_MAP_TYPE_HASH, __u32, __u32, 8, 0);
PINNED_MAP(buffers, BPF_MAP_TYPE_HASH, __u64, struct holding, MAX_BUFFERS, BPF_F_NO_PREALLOC);
PINNED_MAP(resources, BPF_MAP_TYPE_HASH, __u64, struct holding, MAX_RESOURCES, BPF_F_NO_PREALLOC);
/* An open DRM file (key: its drm_file) and the innermost cgroup of its opener; 0: no tenant. */
PINNED_MAP(clients, BPF_MAP_TYPE_HASH, __u64, __u64, MAX_CLIENTS, BPF_F_NO_PREALLOC);
PINNED_MAP(svm, BPF_MAP_TYPE_HASH, struct ledger_key, struct svm_usage, MAX_SVM_USAGES,
	   BPF_F_NO_PREALLOC);
PINNED_MAP(cu_masks, BPF_MAP_TYPE_HASH, struct ledger_key, struct cu_mask, MAX_CU_MASKS,
	   BPF_F_NO_PREALLOC);
PINNED_MAP(queues, BPF_MAP_TYPE_HASH, struct queue_key, struct queue, MAX_QUEUES,
	   BPF_F_NO_PREALLOC);
PINNED_MAP(compute, BPF_MAP_TYPE_HASH, struct ledger_key, struct compute, MAX_COMPUTE,
	   BPF_F_NO_PREALLOC);
PINNED_MAP(policy, BPF_MAP_TYPE_ARRAY, __u32, __u32, MAX_POLICIES, 0);
PINNED_MAP(population, BPF_MAP_TYPE_ARRAY, __u32, __s64, POPULATIONS, 0);
PINNED_MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, MAX_COUNTERS, 0);
PINNED_MAP(callers, BPF_MAP_TYPE_TASK_STORAGE, int, struct caller, 0, BPF_F_NO_PREALLOC);
PINNED_MAP(self_test, BPF_MAP_TYPE_ARRAY, __u32, struct self_test, 1, 0);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} events SEC(".maps");

/* In a section of its own, so that the loader can set it without knowing our other constants. */
const volatile __u32 generation SEC(".rodata.generation") = 0;

#endif
