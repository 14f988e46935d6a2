/* SPDX-License-Identifier: GPL-2.0-only */
/* The buffer behind a handle of an open DRM file. */
#ifndef RINGFENCE_GEM_H
#define RINGFENCE_GEM_H

#include "kernel.h"

/* A handle has 32 bits, a node takes 6 of them. */
#define XA_CHUNK_SHIFT 6
#define XA_CHUNK_MASK  63
#define XA_MOST_LEVELS 6
#define XA_KIND(entry) ((entry)&3)
#define XA_INTERNAL    2

/*
 * Whether the running kernel's type information told where to look: not while drm is neither built
 * in nor loaded yet.
 */
static __always_inline bool knows_handles(void)
{
	return bpf_core_field_exists(struct drm_file, object_idr) &&
	       bpf_core_field_exists(struct drm_gem_object, size);
}

/* As idr_find(), without its locks: what is read is only ever measured. NULL if there is none. */
static __noinline struct drm_gem_object *find_object(struct drm_file *file, __u32 handle)
{
	__u64 index = (__u64)handle - BPF_CORE_READ(file, object_idr.idr_base);
	__u64 entry = (__u64)BPF_CORE_READ(file, object_idr.idr_rt.xa_head);
	__u32 shift = 32, i;

	for (i = 0; i < XA_MOST_LEVELS && XA_KIND(entry) == XA_INTERNAL && shift; i++) {
		struct xa_node *node = (struct xa_node *)(entry - XA_INTERNAL);
		__u64 slot, at;

		shift = BPF_CORE_READ(node, shift) & 31;
		slot = index >> shift;
		/* Beyond what the tree reaches. */
		if (!i && slot > XA_CHUNK_MASK)
			return NULL;
		at = (__u64)__builtin_preserve_access_index(&node->slots[0]) +
		     (slot & XA_CHUNK_MASK) * sizeof(entry);
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (const void *)at))
			return NULL;
	}
	/* Without a node there is one entry, for the first index. */
	if (XA_KIND(entry) || (!i && index))
		return NULL;
	return (struct drm_gem_object *)entry;
}

#endif
