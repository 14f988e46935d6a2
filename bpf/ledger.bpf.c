// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ledger (source "bo"): follows each buffer object of a tenant from its making to its end,
 * whoever ends it and wherever. Owner and size are taken where the tenant itself is running, at
 * the entry of amdgpu_bo_create: frees, evictions and restores run in kernel threads.
 *
 * `requested` follows the buffer, and stays as asked when the driver falls back to system memory:
 * the share is a promise about what may be asked for. `resident` and `page_tables` follow TTM's
 * resources, which is what lies in VRAM at the moment. They are kept by ttm_resource, because a
 * move hands the old resource to a ghost buffer and the free then comes with another buffer.
 */
#include "cu_ledger.h"
#include "demand.h"
#include "follow.h"
#include "judge.h"
#include "passed.h"
#include "placement.h"
#include "svm.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline __u64 gpu_of(struct amdgpu_device *adev)
{
	struct pci_dev *pdev = adev->pdev;
	struct pci_bus *bus = pdev->bus;
	struct pci_sysdata *host = bus->sysdata;
	__u64 domain = BPF_CORE_READ(host, domain);

	return domain << 16 | (__u64)bus->number << 8 | (pdev->devfn & 0xff);
}

/* The verifier lets nobody step from a member to what it lies in: read, not followed. */
static __always_inline __u64 gpu_behind(struct drm_device *dev)
{
	struct amdgpu_device *adev =
		(void *)dev - bpf_core_field_offset(struct amdgpu_device, ddev);
	struct pci_dev *pdev = BPF_CORE_READ(adev, pdev);
	struct pci_sysdata *host = BPF_CORE_READ(pdev, bus, sysdata);

	return (__u64)BPF_CORE_READ(host, domain) << 16 |
	       (__u64)BPF_CORE_READ(pdev, bus, number) << 8 | (BPF_CORE_READ(pdev, devfn) & 0xff);
}

static __always_inline __u64 bo_key(struct amdgpu_bo *bo)
{
	return (__u64)__builtin_preserve_access_index(&bo->tbo);
}

static __always_inline int begin_creating(struct amdgpu_device *adev, struct amdgpu_bo_param *bp,
					  bool again)
{
	if (acts(PART_LEDGER))
		begin_buffer(gpu_of(adev), bp->type, bp->domain, again);
	return 0;
}

/*
 * The verifier lets no program load an argument that is a pointer to a pointer from its context;
 * asking for it by number is allowed. 0 if there is nothing behind it.
 */
static __always_inline __u64 behind_argument(void *ctx, __u32 n)
{
	__u64 argument = 0, value = 0;

	if (bpf_get_func_arg(ctx, n, &argument) ||
	    bpf_probe_read_kernel(&value, sizeof(value), (const void *)argument))
		return 0;
	return value;
}

/* Parameter counts differ between kernels: the return value is asked for, not counted to. */
static __always_inline bool failed(void *ctx)
{
	__u64 ret = 0;

	return bpf_get_func_ret(ctx, &ret) || (int)ret;
}

static __always_inline int end_creating(void *ctx)
{
	struct caller *caller;
	struct amdgpu_bo *bo;

	if (!acts(PART_LEDGER))
		return 0;
	caller = current_caller(0);
	if (!caller || !caller->creating)
		return 0;
	caller->creating = 0;
	if (failed(ctx))
		return 0;
	bo = (struct amdgpu_bo *)behind_argument(ctx, 2);
	if (!bo)
		return 0;
	record_buffer(caller, bo_key(bo), BPF_CORE_READ(bo, tbo.base.size));
	return 0;
}

/*
 * These come twice for the reason file_ioctl does (gate.bpf.c): what one copy has done, the other
 * finds done.
 */
SEC("fentry/amdgpu_bo_create")
int BPF_PROG(bo_create, struct amdgpu_device *adev, struct amdgpu_bo_param *bp)
{
	return begin_creating(adev, bp, false);
}

SEC("fentry/amdgpu_bo_create")
int BPF_PROG(bo_create_again, struct amdgpu_device *adev, struct amdgpu_bo_param *bp)
{
	return begin_creating(adev, bp, true);
}

SEC("fexit/amdgpu_bo_create")
int bo_created(void *ctx)
{
	return end_creating(ctx);
}

SEC("fexit/amdgpu_bo_create")
int bo_created_again(void *ctx)
{
	return end_creating(ctx);
}

SEC("fentry/amdgpu_bo_destroy")
int BPF_PROG(bo_destroy, struct ttm_buffer_object *tbo)
{
	if (acts(PART_LEDGER))
		end_buffer((__u64)tbo);
	return 0;
}

SEC("fentry/amdgpu_bo_destroy")
int BPF_PROG(bo_destroy_again, struct ttm_buffer_object *tbo)
{
	if (acts(PART_LEDGER))
		end_buffer((__u64)tbo);
	return 0;
}

SEC("fexit/ttm_resource_alloc")
int BPF_PROG(resource_alloc, struct ttm_buffer_object *tbo)
{
	struct ttm_resource *resource;

	if (!acts(PART_LEDGER) || failed(ctx))
		return 0;
	resource = (struct ttm_resource *)behind_argument(ctx, 2);
	if (!resource || BPF_CORE_READ(resource, mem_type) != TTM_PL_VRAM)
		return 0;
	enter_vram((__u64)resource, (__u64)tbo, tbo->base.size);
	return 0;
}

SEC("fentry/ttm_resource_free")
int resource_free(void *ctx)
{
	__u64 key;

	if (!acts(PART_LEDGER))
		return 0;
	key = behind_argument(ctx, 1);
	if (key)
		leave_vram(key);
	return 0;
}

static __noinline int judge_copy(const struct arguments *args, enum device device,
				 struct drm_device *dev, __u32 nr)
{
	struct demand demand = { .nr = nr };

	if (!acts(PART_LEDGER))
		return 0;
	find_demand(args, device, &demand);
	if (device == DRM)
		demand.gpu = gpu_behind(dev);
	judge_demand(&demand);
	return 0;
}

SEC("fentry/kfd_ioctl_import_dmabuf")
int BPF_PROG(kfd_import_copy, struct file *filep, void *process, void *data)
{
	return judge_kfd_import(data);
}

SEC("fentry/amdgpu_gem_prime_import")
int BPF_PROG(prime_import, struct drm_device *dev, struct dma_buf *shared)
{
	return judge_imported((__u64)shared->priv, DRM_PRIME_FD_TO_HANDLE_NR);
}

SEC("fentry/kfd_ioctl_alloc_memory_of_gpu")
int BPF_PROG(kfd_alloc_copy, struct file *filep, void *process, void *data)
{
	struct arguments args = {};

	if (bpf_probe_read_kernel(&args, sizeof(struct kfd_ioctl_alloc_memory_of_gpu_args), data))
		return 0;
	return judge_copy(&args, KFD, NULL, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU_NR);
}

/* Into VRAM, from the call or from a kernel thread: what is made meanwhile is the process's. */
SEC("fentry/svm_range_vram_node_new")
int BPF_PROG(svm_create, void *node, struct svm_range *prange)
{
	struct kfd_process *process =
		(void *)prange->svms - bpf_core_field_offset(struct kfd_process, svms);

	if (acts(PART_LEDGER))
		begin_svm(BPF_CORE_READ(process, lead_thread));
	return 0;
}

SEC("fexit/svm_range_vram_node_new")
int BPF_PROG(svm_created)
{
	if (acts(PART_LEDGER))
		end_svm();
	return 0;
}

/* From Linux 7.2 or so such buffers have an end of their own. */
SEC("fentry/svm_range_bo_destroy")
int BPF_PROG(svm_destroy, struct ttm_buffer_object *tbo)
{
	if (acts(PART_LEDGER))
		end_buffer((__u64)tbo);
	return 0;
}

SEC("fentry/svm_range_bo_destroy")
int BPF_PROG(svm_destroy_again, struct ttm_buffer_object *tbo)
{
	if (acts(PART_LEDGER))
		end_buffer((__u64)tbo);
	return 0;
}

SEC("fentry/kfd_ioctl_svm")
int BPF_PROG(kfd_svm_copy, struct file *filep, void *process, void *data)
{
	return judge_svm(data);
}

SEC("fentry/amdgpu_gem_create_ioctl")
int BPF_PROG(gem_create_copy, struct drm_device *dev, void *data)
{
	struct arguments args = {};

	if (bpf_probe_read_kernel(&args, sizeof(struct drm_amdgpu_gem_create_in), data))
		return 0;
	return judge_copy(&args, DRM, dev, DRM_AMDGPU_GEM_CREATE_NR);
}

SEC("fentry/amdgpu_gem_op_ioctl")
int BPF_PROG(gem_op, struct drm_device *dev, void *data)
{
	return await_object(data);
}

/* On the way of most calls that name a buffer, also of other drivers: most end at the flag. */
SEC("fexit/drm_gem_object_lookup")
int BPF_PROG(object_lookup, struct drm_file *file, __u32 handle, struct drm_gem_object *object)
{
	return object_found(file, object);
}

/* Once more, should the kernel have passed over those two. */
SEC("fexit/amdgpu_gem_op_ioctl")
int BPF_PROG(gem_op_done, struct drm_device *dev, void *data, struct drm_file *file, int ret)
{
	return ret ? 0 : judge_placement(file, data);
}

SEC("fentry/amdgpu_mode_dumb_create")
int BPF_PROG(dumb_create_copy, void *file, struct drm_device *dev, void *data)
{
	struct arguments args = {};

	if (bpf_probe_read_kernel(&args, sizeof(struct drm_mode_create_dumb), data))
		return 0;
	return judge_copy(&args, DRM, dev, DRM_MODE_CREATE_DUMB_NR);
}

SEC("fexit/amdgpu_driver_open_kms")
int BPF_PROG(drm_opened, struct drm_device *dev, void *file, int ret)
{
	if (!ret && acts(PART_LEDGER))
		record_client((__u64)file);
	return 0;
}

SEC("fentry/amdgpu_driver_postclose_kms")
int BPF_PROG(drm_closed, struct drm_device *dev, void *file)
{
	if (acts(PART_LEDGER))
		forget_client((__u64)file);
	return 0;
}

SEC("fexit/kfd_ioctl_create_queue")
int BPF_PROG(queue_created, struct file *filep, void *process, void *data, int ret)
{
	return ret || !acts(PART_LEDGER) ? 0 : queue_made((__u64)process, data);
}

SEC("fexit/pqm_update_mqd")
int BPF_PROG(queue_updated, struct process_queue_manager *pqm, unsigned int qid,
	     struct mqd_update_info *info, int ret)
{
	struct queue_key key = { .process = (__u64)pqm->process, .queue = qid };

	return ret || !info || !acts(PART_LEDGER) ? 0 : queue_masked(&key, info);
}

SEC("fexit/pqm_destroy_queue")
int BPF_PROG(queue_destroyed, struct process_queue_manager *pqm, unsigned int qid, int ret)
{
	struct queue_key key = { .process = (__u64)pqm->process, .queue = qid };

	if (!ret && acts(PART_LEDGER))
		queue_gone(&key);
	return 0;
}

SEC("fentry/pqm_uninit")
int BPF_PROG(queues_ended, struct process_queue_manager *pqm)
{
	if (acts(PART_LEDGER))
		process_gone((__u64)pqm->process);
	return 0;
}

/* The calls the gate looked at end here; what became no buffer goes back. */
SEC("fexit/kfd_ioctl")
int kfd_ioctl_end(void *ctx)
{
	return call_ended(ctx);
}

SEC("fexit/amdgpu_drm_ioctl")
int drm_ioctl_end(void *ctx)
{
	return call_ended(ctx);
}

SEC("fexit/amdgpu_kms_compat_ioctl")
int drm_compat_ioctl_end(void *ctx)
{
	return call_ended(ctx);
}

SEC("raw_tp/forget")
int forget(struct bpf_raw_tracepoint_args *ctx)
{
	forget_queues(ctx->args[0], ctx->args[1]);
	return forget_cgroup(ctx->args[0], ctx->args[1]);
}
