// SPDX-License-Identifier: GPL-2.0-only
/*
 * The same ledger for a driver without type information, as one is that was built outside the
 * kernel's tree (amdgpu-dkms, whose TTM is called amdttm): by kprobes on the driver's symbols.
 *
 * Nothing tells where members are, so only those are read that have been at the front of their
 * structure since Linux 5.10; and nothing is taken from return values, because return probes are
 * too few for many callers at once. A buffer is on record from the entry of TTM's initialisation,
 * which ends in amdgpu_bo_destroy() should it fail.
 */
#include <linux/ptrace.h>

#include "demand.h"
#include "follow.h"
#include "judge.h"
#include "passed.h"
#include "placement.h"
#include "svm.h"

char LICENSE[] SEC("license") = "GPL";

/* drivers/gpu/drm/amd/amdgpu/amdgpu.h: dev, pdev, ddev ... */
#define AMDGPU_DEVICE_PDEV 8
/* amdgpu_object.h: size, byte_align, bo_ptr_size, domain, preferred_domain, flags, type ... */
struct bo_param {
	__u64 size;
	__u32 byte_align;
	__u32 bo_ptr_size;
	__u32 domain;
	__u32 preferred_domain;
	__u64 flags;
	__u32 type;
};

static __always_inline __u64 gpu_at(__u64 adev)
{
	struct pci_dev *pdev = NULL;
	struct pci_sysdata *host;

	if (bpf_probe_read_kernel(&pdev, sizeof(pdev), (const void *)(adev + AMDGPU_DEVICE_PDEV)))
		return 0;
	host = BPF_CORE_READ(pdev, bus, sysdata);
	return (__u64)BPF_CORE_READ(host, domain) << 16 |
	       (__u64)BPF_CORE_READ(pdev, bus, number) << 8 | (BPF_CORE_READ(pdev, devfn) & 0xff);
}

/* amdgpu_bo_create(): GDS, GWS and OA count units of one page each. */
static __always_inline __u64 buffer_size(const struct bo_param *bp)
{
	if (bp->domain & (AMDGPU_GEM_DOMAIN_GWS | AMDGPU_GEM_DOMAIN_OA))
		return bp->size << PAGE_SHIFT;
	if (bp->domain & AMDGPU_GEM_DOMAIN_GDS)
		return ALIGN_UP(bp->size, 4) << PAGE_SHIFT;
	return ALIGN_UP(bp->size, PAGE_SIZE);
}

SEC("kprobe/amdgpu_bo_create")
int BPF_KPROBE(bo_create, __u64 adev, void *param)
{
	struct bo_param bp = {};
	struct caller *caller;

	if (!acts(PART_LEDGER) || bpf_probe_read_kernel(&bp, sizeof(bp), param))
		return 0;
	begin_buffer(gpu_at(adev), bp.type, bp.domain, false);
	caller = current_caller(0);
	if (caller && caller->creating)
		caller->size = buffer_size(&bp);
	return 0;
}

/* More than the gate let pass, by the driver's own copy: see judge_demand(). */
static __always_inline void judge_buffer(struct caller *caller)
{
	struct refusal why = { .asked = caller->size, .used = caller->reserved };

	if (!(caller->asked & CALL_ASKED) || caller->asked & (CALL_SVM | CALL_JUDGED) ||
	    caller->kind != HOLDING_REQUESTED || !caller->in_vram || !present(PART_GATE))
		return;
	caller->asked |= CALL_JUDGED;
	why.gpu = caller->creating_for.gpu;
	if (caller->size <= caller->reserved && why.gpu == caller->reserved_for.gpu)
		return;
	why.cgroup = limited_by(why.gpu);
	if (!why.cgroup)
		return;
	caller->asked |= CALL_PUNISHED;
	limit_to_nothing(why.cgroup, why.gpu);
	punish(&why);
}

static __noinline int made(__u64 tbo)
{
	struct caller *caller;

	if (!acts(PART_LEDGER))
		return 0;
	caller = current_caller(0);
	if (!caller || !caller->creating)
		return 0;
	caller->creating = 0;
	judge_buffer(caller);
	record_buffer(caller, tbo, caller->size);
	return 0;
}

SEC("kprobe/ttm_bo_init_reserved")
int BPF_KPROBE(bo_init, void *device, __u64 tbo)
{
	return made(tbo);
}

SEC("kprobe/amdttm_bo_init_reserved")
int BPF_KPROBE(bo_init_dkms, void *device, __u64 tbo)
{
	return made(tbo);
}

SEC("kprobe/amdgpu_bo_destroy")
int BPF_KPROBE(bo_destroy, __u64 tbo)
{
	if (acts(PART_LEDGER))
		end_buffer(tbo);
	return 0;
}

/*
 * Nothing says here which process a kernel thread makes a buffer for: that is counted, and not
 * charged. In a call, what is made from here to its end is shared virtual memory.
 */
SEC("kprobe/svm_range_vram_node_new")
int BPF_KPROBE(svm_create)
{
	if (acts(PART_LEDGER))
		begin_svm(NULL);
	return 0;
}

SEC("kprobe/svm_range_bo_destroy")
int BPF_KPROBE(svm_destroy, __u64 tbo)
{
	if (acts(PART_LEDGER))
		end_buffer(tbo);
	return 0;
}

SEC("kprobe/kfd_ioctl_svm")
int BPF_KPROBE(kfd_svm_copy, void *filep, void *process, const void *data)
{
	return judge_svm(data);
}

/* Only VRAM comes from here; what TTM begins next for this buffer is its resource. */
SEC("kprobe/amdgpu_vram_mgr_new")
int BPF_KPROBE(vram_new, void *manager, __u64 tbo)
{
	struct caller *caller;

	if (!acts(PART_LEDGER) || !bpf_map_lookup_elem(&buffers, &tbo))
		return 0;
	/* Moves run in kernel threads as well. */
	caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (caller)
		caller->placing = tbo;
	else
		count(UNRECORDED_RESOURCE);
	return 0;
}

static __noinline int placed(__u64 tbo, __u64 resource)
{
	struct holding *buffer;
	struct caller *caller;

	if (!acts(PART_LEDGER))
		return 0;
	caller = current_caller(0);
	if (!caller || caller->placing != tbo)
		return 0;
	caller->placing = 0;
	buffer = bpf_map_lookup_elem(&buffers, &tbo);
	if (buffer)
		enter_vram(resource, tbo, buffer->size);
	return 0;
}

SEC("kprobe/ttm_resource_init")
int BPF_KPROBE(resource_init, __u64 tbo, const void *place, __u64 resource)
{
	return placed(tbo, resource);
}

SEC("kprobe/amdttm_resource_init")
int BPF_KPROBE(resource_init_dkms, __u64 tbo, const void *place, __u64 resource)
{
	return placed(tbo, resource);
}

SEC("kprobe/ttm_resource_fini")
int BPF_KPROBE(resource_fini, void *manager, __u64 resource)
{
	if (acts(PART_LEDGER))
		leave_vram(resource);
	return 0;
}

SEC("kprobe/amdttm_resource_fini")
int BPF_KPROBE(resource_fini_dkms, void *manager, __u64 resource)
{
	if (acts(PART_LEDGER))
		leave_vram(resource);
	return 0;
}

/* Before it is known whether the call succeeds: else it stays charged to the buffer's end. */
SEC("kprobe/amdgpu_gem_op_ioctl")
int BPF_KPROBE(gem_op_done, void *dev, const void *data, struct drm_file *file)
{
	judge_placement(file, data);
	return await_object(data);
}

/* Of drm itself, which has type information also beside a driver that has none. */
SEC("fexit/drm_gem_object_lookup")
int BPF_PROG(object_lookup, struct drm_file *file, __u32 handle, struct drm_gem_object *object)
{
	return object_found(file, object);
}

SEC("kprobe/kfd_ioctl_import_dmabuf")
int BPF_KPROBE(kfd_import_copy, void *filep, void *process, const void *data)
{
	return judge_kfd_import(data);
}

SEC("kprobe/amdgpu_gem_prime_import")
int BPF_KPROBE(prime_import, void *dev, struct dma_buf *shared)
{
	return judge_imported((__u64)BPF_CORE_READ(shared, priv), DRM_PRIME_FD_TO_HANDLE_NR);
}

SEC("kprobe/amdgpu_driver_open_kms")
int BPF_KPROBE(drm_opened, void *dev, __u64 file)
{
	if (acts(PART_LEDGER))
		record_client(file);
	return 0;
}

SEC("kprobe/amdgpu_driver_postclose_kms")
int BPF_KPROBE(drm_closed, void *dev, __u64 file)
{
	if (acts(PART_LEDGER))
		forget_client(file);
	return 0;
}

/*
 * Probes do not keep a module from being unloaded, and are not back when it is: without this the
 * gate would go on reserving for a ledger that sees nothing. With no ledger acting, it refuses.
 */
SEC("tp_btf/module_free")
int BPF_PROG(driver_gone, struct module *module)
{
	__u32 part = PART_LEDGER;
	__u64 name = 0, *both;

	if (!acts(PART_LEDGER) || bpf_probe_read_kernel(&name, sizeof(name), &module->name) ||
	    !is_amdgpu(name))
		return 0;
	both = bpf_map_lookup_elem(&active, &part);
	if (both)
		*(volatile __u64 *)both = 0;
	return 0;
}

/* Where every call the gate looked at ends, and all others too: they find nothing to give back. */
static __always_inline int ended(void *ctx)
{
	struct caller *caller;

	if (!acts(PART_LEDGER))
		return 0;
	/* What was begun and is not on record has failed before TTM was asked. */
	caller = current_caller(0);
	if (caller)
		caller->creating = 0;
	return call_ended(ctx);
}

SEC("fexit/__x64_sys_ioctl")
int ioctl_end(void *ctx)
{
	return ended(ctx);
}

SEC("fexit/__ia32_compat_sys_ioctl")
int ioctl_compat_end(void *ctx)
{
	return ended(ctx);
}

SEC("raw_tp/forget")
int forget(struct bpf_raw_tracepoint_args *ctx)
{
	return forget_cgroup(ctx->args[0], ctx->args[1]);
}
