/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel types the programs look into. Only the members we read are declared: libbpf finds
 * where they are in the running kernel (CO-RE), so one object serves every kernel.
 */
#ifndef RINGFENCE_KERNEL_H
#define RINGFENCE_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#ifndef NULL
#define NULL ((void *)0)
#endif
typedef _Bool bool;
#define false 0
#define true 1

/*
 * A function the verifier checks once, on its own, and not again on every path to every call of it,
 * which is most of the loading time. The price: pointers come in as "may be NULL", and are tested.
 */
#define APART __attribute__((noinline))

#define SIGKILL 9

#define ENOMEM	12
#define EACCES	13
#define EFAULT	14
#define EINVAL	22
#define EUCLEAN 117

#define PAGE_SHIFT 12
#define PAGE_SIZE  (1ULL << PAGE_SHIFT)
/* Wraps to 0 near the end of the range exactly as the kernel's own macro does. */
#define ALIGN_UP(x, to) (((x) + (to)-1) & ~((__u64)(to)-1))

/* include/uapi/linux/magic.h */
#define DMA_BUF_MAGIC 0x444d4142

#define S_IFMT	0170000
#define S_IFCHR 0020000

/* dev_t inside the kernel: 12 bits of major above 20 bits of minor (include/linux/kdev_t.h). */
#define MINOR_BITS 20
#define DRM_MAJOR  226

/* include/uapi/drm and TTM: the placement that is VRAM (include/drm/ttm/ttm_placement.h). */
#define TTM_PL_VRAM 2

enum ttm_bo_type {
	ttm_bo_type_device,
	ttm_bo_type_kernel,
	ttm_bo_type_sg,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct module {
	char name[56];
};

struct file_operations {
	struct module *owner;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	__u16 i_mode;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct file {
	const struct file_operations *f_op;
	struct inode *f_inode;
	void *private_data;
};

struct dma_buf {
	void *priv;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
	int level;
	struct cgroup *ancestors[1]; /* by level, itself included; since Linux 6.1 */
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

struct task_struct {
	unsigned int flags;
	struct files_struct *files;
	struct css_set *cgroups;
};

struct pci_sysdata {
	int domain;
};

struct pci_bus {
	void *sysdata;
	unsigned char number;
};

struct pci_dev {
	struct pci_bus *bus;
	unsigned int devfn;
};

struct drm_gem_object {
	unsigned long size;
};

struct xarray {
	void *xa_head;
};

struct idr {
	struct xarray idr_rt;
	unsigned int idr_base;
};

/* lib/xarray.c, lib/radix-tree.c: XA_CHUNK_SIZE slots. */
struct xa_node {
	unsigned char shift;
	void *slots[64];
};

struct drm_minor {
	int index;
};

struct drm_file {
	struct drm_minor *minor;
	struct idr object_idr;
};

struct ttm_buffer_object {
	struct drm_gem_object base;
	enum ttm_bo_type type;
};

struct ttm_resource {
	__u32 mem_type;
};

struct drm_device {
	void *dev;
};

struct amdgpu_device {
	struct pci_dev *pdev;
	struct drm_device ddev;
};

struct amdgpu_bo_param {
	__u32 domain;
	enum ttm_bo_type type;
};

struct amdgpu_bo {
	struct ttm_buffer_object tbo;
};

struct process_queue_manager {
	void *process;
};

struct cu_mask_info {
	__u32 count;
	__u32 *ptr;
};

struct mqd_update_info {
	struct cu_mask_info cu_mask;
};

struct svm_range_list {
};

struct svm_range {
	struct svm_range_list *svms;
};

struct kfd_process {
	struct task_struct *lead_thread;
	struct svm_range_list svms;
};

#pragma clang attribute pop

#endif
