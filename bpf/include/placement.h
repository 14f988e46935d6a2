/* SPDX-License-Identifier: GPL-2.0-only */
/* System buffers that are given a place in VRAM after they were made (GEM_OP). */
#ifndef RINGFENCE_PLACEMENT_H
#define RINGFENCE_PLACEMENT_H

#include "follow.h"
#include "gem.h"
#include "judge.h"

/*
 * The reservation becomes the buffer's charge. Of two calls for one buffer the second finds it on
 * record, and what it had reserved goes back.
 */
static __noinline int place_in_vram(struct caller *caller, __u64 key, __u64 size)
{
	struct holding holding = { .size = size, .kind = HOLDING_REQUESTED }, *entered;

	holding.owners = caller->creating_for;
	if (caller->reserved && caller->reserved_for.gpu == holding.owners.gpu)
		holding.owners = caller->reserved_for;
	if (bpf_map_update_elem(&buffers, &key, &holding, BPF_NOEXIST)) {
		if (!bpf_map_lookup_elem(&buffers, &key))
			count(UNRECORDED_BUFFER);
		else
			caller->asked |= CALL_MAY_COST_LESS;
		return 0;
	}
	populate(POPULATION_BUFFERS, 1);
	if (settle(caller, size)) {
		entered = bpf_map_lookup_elem(&buffers, &key);
		if (entered)
			entered->flags |= HOLDING_OVERRAN;
	}
	return 0;
}

static __noinline int judge_placement(struct drm_file *file, const void *data)
{
	struct demand demand = { .nr = DRM_AMDGPU_GEM_OP_NR };
	struct drm_amdgpu_gem_op args = {};
	struct drm_gem_object *object;
	struct caller *caller;
	__u32 minor;

	if (!acts(PART_LEDGER) || !knows_handles() ||
	    bpf_probe_read_kernel(&args, sizeof(args), data))
		return 0;
	if (args.op != AMDGPU_GEM_OP_SET_PLACEMENT || !(args.value & AMDGPU_GEM_DOMAIN_VRAM))
		return 0;
	object = find_object(file, args.handle);
	minor = BPF_CORE_READ(file, minor, index);
	gpu_by(&gpus_by_minor, minor, &demand);
	if (!object || demand.refused)
		return 0;
	begin_buffer(demand.gpu, ttm_bo_type_device, AMDGPU_GEM_DOMAIN_VRAM, false);
	caller = current_caller(0);
	if (!caller || !caller->creating)
		return 0;
	caller->creating = 0;
	demand.size = BPF_CORE_READ(object, size);
	if (!bpf_map_lookup_elem(&buffers, &object))
		judge_demand(&demand);
	place_in_vram(caller, (__u64)object, demand.size);
	return 0;
}

#endif
