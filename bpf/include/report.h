/* SPDX-License-Identifier: GPL-2.0-only */
/* Counters, events, and whether this generation of a part acts. */
#ifndef RINGFENCE_REPORT_H
#define RINGFENCE_REPORT_H

#include "maps.h"

/* The first 8 bytes of a module's name: "amdgpu" and its terminator, little endian. */
static __always_inline bool is_amdgpu(__u64 name)
{
	return (name & 0x00ffffffffffffffULL) == 0x0000757067646d61ULL;
}

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		(*value)++;
}

static __always_inline void populate(__u32 which, __s64 by)
{
	__s64 *value = bpf_map_lookup_elem(&population, &which);

	if (value)
		__sync_fetch_and_add(value, by);
}

static __always_inline __s64 populated(__u32 which)
{
	__s64 *value = bpf_map_lookup_elem(&population, &which);

	return value ? *(volatile __s64 *)value : 0;
}

/* A call that was refused or punished, and the numbers it was held against. */
struct refusal {
	__u64 cgroup;
	__u64 gpu;
	__u64 asked;
	__u64 used;
	__u64 limit;
	__u32 nr;
	__u32 reason;
};

/* To whoever reads `events`; what finds no room is counted. What a kill depends on finds room. */
static __always_inline void report(const struct refusal *why)
{
	bool crowded = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > EVENTS_BYTES - EVENTS_SPARE;
	struct event *event = NULL;

	if (!crowded || why->reason == SWITCHED_KILLED || why->reason == OVERRAN)
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(EVENTS_DROPPED);
		return;
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
}

/* Whether the administrator has switched it from what the program does by itself. */
static __always_inline bool switched(__u32 which)
{
	__u32 *value = bpf_map_lookup_elem(&policy, &which);

	return value && *(volatile __u32 *)value;
}

/* For what has been done already and cannot be refused any more. */
static __always_inline void punish(struct refusal *why)
{
	bool spared = switched(POLICY_SPARE_SWITCHED) || bpf_send_signal(SIGKILL);

	why->reason = spared ? SWITCHED_SPARED : SWITCHED_KILLED;
	count(why->reason);
	report(why);
}

/* The two words in one load, so that a hand-over is never seen half done. */
static __always_inline bool acts(__u32 part)
{
	__u64 *both = bpf_map_lookup_elem(&active, &part);
	__u64 word;

	if (!both)
		return false;
	word = *(volatile __u64 *)both;
	return (__u32)word <= generation && generation <= word >> 32;
}

static __always_inline bool present(__u32 part)
{
	__u64 *both = bpf_map_lookup_elem(&active, &part);

	return both && *(volatile __u64 *)both;
}

#endif
