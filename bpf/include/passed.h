/* SPDX-License-Identifier: GPL-2.0-only */
/* Buffers and open files that one container hands to another. */
#ifndef RINGFENCE_PASSED_H
#define RINGFENCE_PASSED_H

#include "amdgpu_ioctl.h"
#include "charge.h"

/*
 * The key under which the ledger would have the buffer behind an open dma-buf; 0 for other files. A
 * DRM driver's dma-buf points to its GEM object, with which a ttm_buffer_object begins. What other
 * drivers point to is no key of ours.
 */
static __always_inline __u64 buffer_key(struct file *file)
{
	struct dma_buf *shared;

	if (BPF_CORE_READ(file, f_inode, i_sb, s_magic) != DMA_BUF_MAGIC)
		return 0;
	shared = BPF_CORE_READ(file, private_data);
	return (__u64)BPF_CORE_READ(shared, priv);
}

/* The caller's own, by number; NULL if there is none. */
static __always_inline struct file *file_at(__u32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *found = NULL;

	if (fd >= BPF_CORE_READ(table, max_fds) ||
	    bpf_probe_read_kernel(&found, sizeof(found), files + fd))
		return NULL;
	return found;
}

/* A buffer that was made in a container the caller is not in; NULL if it is no such buffer. */
static __always_inline struct holding *foreign_buffer(__u64 key, const struct owners *tenants_found)
{
	struct holding *buffer = key ? bpf_map_lookup_elem(&buffers, &key) : NULL;
	__u32 innermost;

	if (!buffer || !buffer->owners.count)
		return NULL;
	innermost = (buffer->owners.count - 1) & (MAX_OWNERS - 1);
	return among(tenants_found, buffer->owners.cgroup[innermost]) ? NULL : buffer;
}

/* The import that the gate let pass is of another container's buffer after all. */
static __always_inline int judge_imported(__u64 key, __u32 nr)
{
	struct refusal why = { .nr = nr };
	struct owners tenants_found = {};
	struct holding *buffer;
	struct caller *caller;

	if (!acts(PART_LEDGER) || !present(PART_GATE))
		return 0;
	caller = current_caller(0);
	if (!caller || !caller->asked)
		return 0;
	find_tenants(&tenants_found);
	buffer = foreign_buffer(key, &tenants_found);
	if (!buffer || !(switched(POLICY_REFUSE_IMPORTS) || buffer->flags & HOLDING_OVERRAN))
		return 0;
	why.cgroup = innermost_tenant(&tenants_found);
	why.gpu = buffer->owners.gpu;
	why.asked = buffer->size;
	punish(&why);
	return 0;
}

static __always_inline int judge_kfd_import(const void *data)
{
	struct kfd_ioctl_import_dmabuf_args args = {};
	struct file *file;

	if (bpf_probe_read_kernel(&args, sizeof(args), data))
		return 0;
	file = file_at(args.dmabuf_fd);
	return file ? judge_imported(buffer_key(file), AMDKFD_IOC_IMPORT_DMABUF_NR) : 0;
}

/*
 * Who opened a DRM file, for the gate to know it by when it is passed on; 0: no tenant. The address
 * of one that was closed while no ledger was attached is written anew by its next user.
 */
static __always_inline void record_client(__u64 client)
{
	struct owners tenants_found = {};
	__u64 opener;

	find_tenants(&tenants_found);
	opener = innermost_tenant(&tenants_found);
	if (bpf_map_update_elem(&clients, &client, &opener, BPF_ANY))
		count(UNRECORDED_CLIENT);
}

static __always_inline void forget_client(__u64 client)
{
	bpf_map_delete_elem(&clients, &client);
}

#endif
