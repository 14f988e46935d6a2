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
#include "charge.h"
#include "demand.h"
#include "passed.h"

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

static __always_inline int begin_creating(struct amdgpu_device *adev, struct amdgpu_bo_param *bp)
{
	struct owners tenants_found = {}, to = {};
	struct caller *caller;

	if (!acts(PART_LEDGER) || !find_tenants(&tenants_found))
		return 0;
	if (!find_owners(&tenants_found, gpu_of(adev), &to))
		return 0;
	caller = current_caller(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!caller) {
		count(UNRECORDED_BUFFER);
		return 0;
	}
	caller->creating_for = to;
	caller->kind = bp->type == ttm_bo_type_kernel ? HOLDING_KERNEL : HOLDING_REQUESTED;
	caller->in_vram = !!(bp->domain & AMDGPU_GEM_DOMAIN_VRAM);
	caller->creating = 1;
	return 0;
}

/* A buffer that was asked for in VRAM: its reservation becomes its charge, at its true size. */
static __always_inline void settle(struct caller *caller, __u64 size)
{
	struct change by = { .requested = size };

	if (!caller->reserved) {
		/* Memory for SVM, or arguments switched after the gate had read them. */
		count(UNRESERVED);
	} else if (caller->reserved_for.gpu != caller->creating_for.gpu) {
		give_back(caller);
		count(UNRESERVED);
	} else {
		by.reserved = -(__s64)caller->reserved;
		by.requested -= caller->reserved;
		/* The very cgroups that were charged, should the task have moved since. */
		caller->creating_for = caller->reserved_for;
		caller->reserved = 0;
		if (by.requested > 0)
			count(SETTLED_UP);
		else if (by.requested < 0)
			count(SETTLED_DOWN);
	}
	by.buffers = 1;
	apply_change(&caller->creating_for, &by);
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
	struct holding holding = {};
	struct change by = { .buffers = 1 };
	struct caller *caller;
	struct amdgpu_bo *bo;
	__u64 key;

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
	if (caller->kind == HOLDING_REQUESTED && !caller->in_vram)
		return 0;
	key = bo_key(bo);
	holding.size = BPF_CORE_READ(bo, tbo.base.size);
	holding.kind = caller->kind;
	if (holding.kind == HOLDING_REQUESTED)
		settle(caller, holding.size);
	else
		apply_change(&caller->creating_for, &by);
	holding.owners = caller->creating_for;
	/* Without an entry nobody gives the bytes back: the tenant keeps the charge, we count it. */
	if (bpf_map_update_elem(&buffers, &key, &holding, BPF_NOEXIST))
		count(UNRECORDED_BUFFER);
	else
		populate(POPULATION_BUFFERS, 1);
	return 0;
}

/*
 * These come twice for the reason file_ioctl does (gate.bpf.c): what one copy has done, the other
 * finds done.
 */
SEC("fentry/amdgpu_bo_create")
int BPF_PROG(bo_create, struct amdgpu_device *adev, struct amdgpu_bo_param *bp)
{
	return begin_creating(adev, bp);
}

SEC("fentry/amdgpu_bo_create")
int BPF_PROG(bo_create_again, struct amdgpu_device *adev, struct amdgpu_bo_param *bp)
{
	return begin_creating(adev, bp);
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

static __always_inline int end_buffer(struct ttm_buffer_object *tbo)
{
	struct change by = { .buffers = -1 };
	__u64 key = (__u64)tbo;
	struct holding *found, holding;

	if (!acts(PART_LEDGER))
		return 0;
	found = bpf_map_lookup_elem(&buffers, &key);
	if (!found)
		return 0;
	holding = *found;
	if (bpf_map_delete_elem(&buffers, &key))
		return 0;
	populate(POPULATION_BUFFERS, -1);
	if (holding.kind == HOLDING_REQUESTED)
		by.requested = -(__s64)holding.size;
	apply_change(&holding.owners, &by);
	return 0;
}

SEC("fentry/amdgpu_bo_destroy")
int BPF_PROG(bo_destroy, struct ttm_buffer_object *tbo)
{
	return end_buffer(tbo);
}

SEC("fentry/amdgpu_bo_destroy")
int BPF_PROG(bo_destroy_again, struct ttm_buffer_object *tbo)
{
	return end_buffer(tbo);
}

static __always_inline void change_residence(const struct holding *of, __s64 size)
{
	struct change by = {};

	if (of->kind == HOLDING_KERNEL)
		by.page_tables = size;
	else
		by.resident = size;
	apply_change(&of->owners, &by);
}

static __noinline int leave_vram(__u64 key)
{
	struct holding *found = bpf_map_lookup_elem(&resources, &key), holding;

	if (!found)
		return 0;
	holding = *found;
	if (bpf_map_delete_elem(&resources, &key))
		return 0;
	populate(POPULATION_RESOURCES, -1);
	change_residence(&holding, -(__s64)holding.size);
	return 1;
}

SEC("fexit/ttm_resource_alloc")
int BPF_PROG(resource_alloc, struct ttm_buffer_object *tbo)
{
	struct holding holding = {}, *buffer;
	struct ttm_resource *resource;
	__u64 key, bo = (__u64)tbo;
	struct caller *caller;

	if (!acts(PART_LEDGER) || failed(ctx))
		return 0;
	resource = (struct ttm_resource *)behind_argument(ctx, 2);
	if (!resource || BPF_CORE_READ(resource, mem_type) != TTM_PL_VRAM)
		return 0;
	buffer = bpf_map_lookup_elem(&buffers, &bo);
	if (buffer) {
		holding.owners = buffer->owners;
		holding.kind = buffer->kind;
	} else {
		/* Its first resource, inside amdgpu_bo_create: not on record before the exit. */
		caller = current_caller(0);
		if (!caller || !caller->creating)
			return 0;
		holding.owners = caller->creating_for;
		holding.kind = caller->kind;
	}
	holding.size = tbo->base.size;
	key = (__u64)resource;
	/* Left over from a free nobody saw, while no ledger was attached. */
	if (leave_vram(key))
		count(STALE_HOLDING);
	if (bpf_map_update_elem(&resources, &key, &holding, BPF_NOEXIST)) {
		count(UNRECORDED_RESOURCE);
		return 0;
	}
	populate(POPULATION_RESOURCES, 1);
	change_residence(&holding, holding.size);
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

/* Of the caller's cgroups with a share of this GPU, the innermost that is limited; 0: none. */
static __always_inline __u64 limited_by(__u64 gpu)
{
	struct owners tenants_found = {}, owners = {};
	__u64 innermost = 0;
	__u32 i;

	find_tenants(&tenants_found);
	find_owners(&tenants_found, gpu, &owners);
	for (i = 0; i < MAX_OWNERS && i < owners.count; i++) {
		struct ledger_key key = { .cgroup = owners.cgroup[i], .gpu = gpu };
		struct limit *limit = bpf_map_lookup_elem(&limits, &key);

		if (limit && limit->bytes != NO_LIMIT)
			innermost = key.cgroup;
	}
	return innermost;
}

static __always_inline void punish(struct refusal *why)
{
	bool spared = switched(POLICY_SPARE_SWITCHED) || bpf_send_signal(SIGKILL);

	why->reason = spared ? SWITCHED_SPARED : SWITCHED_KILLED;
	count(why->reason);
	report(why);
}

/*
 * The driver's own copy of the arguments asks for more than the gate let pass: they were switched
 * between the two looks. Nothing can refuse here any more. The buffer is charged as it is made,
 * and the process, killed, gives it back.
 */
static __noinline int judge_copy(const struct arguments *args, enum device device,
				 struct drm_device *dev, __u32 nr)
{
	struct demand demand = { .nr = nr };
	struct refusal why = { .nr = nr };
	struct caller *caller;

	if (!acts(PART_LEDGER) || !present(PART_GATE))
		return 0;
	caller = current_caller(0);
	if (!caller || !caller->asked)
		return 0;
	find_demand(args, device, &demand);
	if (device == DRM)
		demand.gpu = gpu_behind(dev);
	if (!demand.size)
		return 0;
	if (demand.size <= caller->reserved && demand.gpu == caller->reserved_for.gpu)
		return 0;
	why.cgroup = limited_by(demand.gpu);
	if (!why.cgroup)
		return 0;
	why.gpu = demand.gpu;
	why.asked = demand.size;
	why.used = caller->reserved;
	punish(&why);
	return 0;
}

/* The import that the gate let pass is of another container's buffer after all. */
static __noinline int judge_imported(__u64 key, __u32 nr)
{
	struct refusal why = { .nr = nr };
	struct owners tenants_found = {};
	struct holding *buffer;
	struct caller *caller;

	if (!switched(POLICY_REFUSE_IMPORTS) || !acts(PART_LEDGER) || !present(PART_GATE))
		return 0;
	caller = current_caller(0);
	if (!caller || !caller->asked)
		return 0;
	find_tenants(&tenants_found);
	buffer = foreign_buffer(key, &tenants_found);
	if (!buffer)
		return 0;
	why.cgroup = innermost_tenant(&tenants_found);
	why.gpu = buffer->owners.gpu;
	why.asked = buffer->size;
	punish(&why);
	return 0;
}

SEC("fentry/kfd_ioctl_import_dmabuf")
int BPF_PROG(kfd_import_copy, struct file *filep, void *process, void *data)
{
	struct kfd_ioctl_import_dmabuf_args args = {};
	struct file *file;

	if (bpf_probe_read_kernel(&args, sizeof(args), data))
		return 0;
	file = file_at(args.dmabuf_fd);
	return file ? judge_imported(buffer_key(file), AMDKFD_IOC_IMPORT_DMABUF_NR) : 0;
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

SEC("fentry/amdgpu_gem_create_ioctl")
int BPF_PROG(gem_create_copy, struct drm_device *dev, void *data)
{
	struct arguments args = {};

	if (bpf_probe_read_kernel(&args, sizeof(struct drm_amdgpu_gem_create_in), data))
		return 0;
	return judge_copy(&args, DRM, dev, DRM_AMDGPU_GEM_CREATE_NR);
}

SEC("fentry/amdgpu_mode_dumb_create")
int BPF_PROG(dumb_create_copy, void *file, struct drm_device *dev, void *data)
{
	struct arguments args = {};

	if (bpf_probe_read_kernel(&args, sizeof(struct drm_mode_create_dumb), data))
		return 0;
	return judge_copy(&args, DRM, dev, DRM_MODE_CREATE_DUMB_NR);
}

/*
 * Who opened a DRM file, for the gate to know it by when it is passed on. The address of one that
 * was closed while no ledger was attached is written anew, or cleared, by its next user.
 */
SEC("fexit/amdgpu_driver_open_kms")
int BPF_PROG(drm_opened, struct drm_device *dev, void *file, int ret)
{
	struct owners tenants_found = {};
	__u64 client = (__u64)file, opener;

	if (ret || !acts(PART_LEDGER))
		return 0;
	find_tenants(&tenants_found);
	opener = innermost_tenant(&tenants_found);
	if (!opener)
		bpf_map_delete_elem(&clients, &client);
	else if (bpf_map_update_elem(&clients, &client, &opener, BPF_ANY))
		count(UNRECORDED_CLIENT);
	return 0;
}

SEC("fentry/amdgpu_driver_postclose_kms")
int BPF_PROG(drm_closed, struct drm_device *dev, void *file)
{
	__u64 client = (__u64)file;

	if (acts(PART_LEDGER))
		bpf_map_delete_elem(&clients, &client);
	return 0;
}

/* The calls the gate looked at end here; what became no buffer goes back. */
SEC("fexit/kfd_ioctl")
int BPF_PROG(kfd_ioctl_end)
{
	if (acts(PART_LEDGER))
		give_back_current();
	return 0;
}

SEC("fexit/amdgpu_drm_ioctl")
int BPF_PROG(drm_ioctl_end)
{
	if (acts(PART_LEDGER))
		give_back_current();
	return 0;
}

SEC("fexit/amdgpu_kms_compat_ioctl")
int BPF_PROG(drm_compat_ioctl_end)
{
	if (acts(PART_LEDGER))
		give_back_current();
	return 0;
}
