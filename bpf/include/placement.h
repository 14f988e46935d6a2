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

/* @data: the driver's copy of the arguments. True: for a place in VRAM. */
static __always_inline bool read_placement(const void *data, struct drm_amdgpu_gem_op *ret)
{
	return !bpf_probe_read_kernel(ret, sizeof(*ret), data) &&
	       ret->op == AMDGPU_GEM_OP_SET_PLACEMENT && ret->value & AMDGPU_GEM_DOMAIN_VRAM;
}

static __noinline int judge_object(struct drm_file *file, struct drm_gem_object *object)
{
	struct demand demand = { .nr = DRM_AMDGPU_GEM_OP_NR };
	struct caller *caller;
	__u32 minor;

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

static __noinline int judge_placement(struct drm_file *file, const void *data)
{
	struct drm_amdgpu_gem_op args = {};

	if (!acts(PART_LEDGER) || !knows_handles() || !read_placement(data, &args))
		return 0;
	return judge_object(file, find_object(file, args.handle));
}

/*
 * A handle can be given to another buffer at any moment, so neither what it means before the driver
 * looks nor what it means afterwards is certain to be what is placed. What the driver finds is.
 */
static __noinline int await_object(const void *data)
{
	struct owners tenants_found = {};
	struct drm_amdgpu_gem_op args = {};
	struct caller *caller;

	if (!acts(PART_LEDGER) || !read_placement(data, &args) || !find_tenants(&tenants_found))
		return 0;
	caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (caller)
		caller->asked |= CALL_PLACES;
	return 0;
}

/* The driver holds on to it until the call has ended. */
static __always_inline int object_found(struct drm_file *file, struct drm_gem_object *object)
{
	struct caller *caller;

	if (!acts(PART_LEDGER))
		return 0;
	caller = current_caller(0);
	if (!caller || !(caller->asked & CALL_PLACES))
		return 0;
	caller->asked &= ~CALL_PLACES;
	return judge_object(file, object);
}

#endif
