// SPDX-License-Identifier: GPL-2.0-only
/* /dev/kfd: open, and the ioctls with the real driver's way of reading them. */
#include <linux/compat.h>
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <drm/drm_drv.h>

#include "kfd.h"

#define MAKE_HANDLE(gpu_id, idr_handle) ((u64)(gpu_id) << 32 | (idr_handle))
#define GET_GPU_ID(handle)		((u32)((handle) >> 32))
#define GET_IDR_HANDLE(handle)		((handle)&0xFFFFFFFF)
#define KFD_MMAP_TYPE_DOORBELL		(0x3ULL << 62)
#define KFD_MMAP_GPU_ID(gpu_id)		((u64)((gpu_id)&0xffff) << 46)
#define KFD_MAX_QUEUE_PERCENTAGE	100
#define KFD_MAX_QUEUE_PRIORITY		15
#define KFD_MIN_QUEUE_RING_SIZE		1024
#define SIM_MAX_CUS			1024
#define SIM_MAX_MAP_DEVICES		4096

typedef int amdkfd_ioctl_t(struct file *filep, struct kfd_process *p, void *data);

struct amdkfd_ioctl_desc {
	unsigned int cmd;
	amdkfd_ioctl_t *func;
	int (*validate)(void *kdata, unsigned int usize);
};

struct device *kfd_device;
static int kfd_char_dev_major = -1;

static int sim_node_resetting(struct kfd_node *node, void *data)
{
	return READ_ONCE(node->sim_resetting);
}

static noinline int kfd_open(struct inode *inode, struct file *filep)
{
	struct kfd_process *process;

	if (iminor(inode))
		return -ENODEV;
	if (in_compat_syscall()) {
		dev_warn(kfd_device, "32-bit process %d: not supported\n", current->pid);
		return -EPERM;
	}
	/* The real KFD is locked as a whole while a GPU is reset. */
	if (sim_kfd_for_each_node(sim_node_resetting, NULL))
		return -EAGAIN;
	process = kfd_create_process(current);
	if (IS_ERR(process))
		return PTR_ERR(process);
	filep->private_data = process;
	return 0;
}

static noinline int kfd_release(struct inode *inode, struct file *filep)
{
	if (filep->private_data)
		sim_process_file_closed(filep->private_data);
	return 0;
}

/* Doorbells and events would be mapped here. */
static int kfd_mmap(struct file *filep, struct vm_area_struct *vma)
{
	return -EINVAL;
}

static int kfd_ioctl_get_version(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_get_version_args *args = data;

	args->major_version = KFD_IOCTL_MAJOR_VERSION;
	args->minor_version = KFD_IOCTL_MINOR_VERSION;
	return 0;
}

static noinline int kfd_ioctl_create_queue(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_create_queue_args *args = data;
	struct queue_properties props = {
		.queue_address = args->ring_base_address,
		.queue_percent = args->queue_percentage & 0xff,
		.priority = args->queue_priority,
	};
	struct kfd_process_device *pdd;
	unsigned int qid;
	int r;

	if (props.queue_percent > KFD_MAX_QUEUE_PERCENTAGE ||
	    props.priority > KFD_MAX_QUEUE_PRIORITY)
		return -EINVAL;
	if (args->ring_size && !is_power_of_2(args->ring_size))
		return -EINVAL;
	args->ring_size = max(args->ring_size, (u32)KFD_MIN_QUEUE_RING_SIZE);
	props.queue_size = args->ring_size;
	switch (args->queue_type) {
	case KFD_IOC_QUEUE_TYPE_COMPUTE:
	case KFD_IOC_QUEUE_TYPE_COMPUTE_AQL:
		props.type = KFD_QUEUE_TYPE_COMPUTE;
		break;
	case KFD_IOC_QUEUE_TYPE_SDMA:
		props.type = KFD_QUEUE_TYPE_SDMA;
		break;
	case KFD_IOC_QUEUE_TYPE_SDMA_XGMI:
		props.type = KFD_QUEUE_TYPE_SDMA_XGMI;
		break;
	case KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID:
		props.type = KFD_QUEUE_TYPE_SDMA_BY_ENG_ID;
		break;
	default:
		return -EOPNOTSUPP;
	}

	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpu_id);
	if (!pdd)
		r = -EINVAL;
	else if (IS_ERR(kfd_bind_process_to_device(pdd->dev, p)))
		r = -ESRCH;
	else
		r = pqm_create_queue(&p->pqm, pdd->dev, &props, &qid);
	mutex_unlock(&p->mutex);
	if (r)
		return r;
	args->queue_id = qid;
	args->doorbell_offset =
		KFD_MMAP_TYPE_DOORBELL | KFD_MMAP_GPU_ID(args->gpu_id) | (u64)qid * sizeof(u64);
	return 0;
}

static int kfd_ioctl_destroy_queue(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_destroy_queue_args *args = data;
	int r;

	mutex_lock(&p->mutex);
	r = pqm_destroy_queue(&p->pqm, args->queue_id);
	mutex_unlock(&p->mutex);
	return r;
}

static int kfd_ioctl_update_queue(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_update_queue_args *args = data;
	struct queue_properties props = {
		.queue_address = args->ring_base_address,
		.queue_size = max(args->ring_size, (u32)KFD_MIN_QUEUE_RING_SIZE),
		.queue_percent = args->queue_percentage & 0xff,
		.priority = args->queue_priority,
	};
	int r;

	if (props.queue_percent > KFD_MAX_QUEUE_PERCENTAGE ||
	    props.priority > KFD_MAX_QUEUE_PRIORITY ||
	    (args->ring_size && !is_power_of_2(args->ring_size)))
		return -EINVAL;
	mutex_lock(&p->mutex);
	r = sim_pqm_update(&p->pqm, args->queue_id, &props);
	mutex_unlock(&p->mutex);
	return r;
}

static noinline int kfd_ioctl_set_cu_mask(struct file *filp, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_set_cu_mask_args *args = data;
	struct mqd_update_info minfo = {
		.cu_mask.count = min(args->num_cu_mask, (u32)SIM_MAX_CUS),
	};
	int r;

	if (!args->num_cu_mask || args->num_cu_mask % 32)
		return -EINVAL;
	minfo.cu_mask.ptr =
		memdup_user(u64_to_user_ptr(args->cu_mask_ptr), minfo.cu_mask.count / 8);
	if (IS_ERR(minfo.cu_mask.ptr))
		return PTR_ERR(minfo.cu_mask.ptr);
	mutex_lock(&p->mutex);
	r = pqm_update_mqd(&p->pqm, args->queue_id, &minfo);
	mutex_unlock(&p->mutex);
	kfree(minfo.cu_mask.ptr);
	return r;
}

static int kfd_ioctl_get_clock_counters(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_get_clock_counters_args *args = data;

	args->gpu_clock_counter = ktime_get_raw_ns() / 10;
	args->cpu_clock_counter = ktime_get_raw_ns();
	args->system_clock_counter = ktime_get_boottime_ns();
	args->system_clock_freq = 1000000000;
	return 0;
}

/* Nothing is executed: a policy, a trap handler, a scratch address are just taken. */
static int sim_ioctl_accept_for_gpu(struct kfd_process *p, u32 gpu_id)
{
	bool known;

	mutex_lock(&p->mutex);
	known = kfd_process_device_data_by_id(p, gpu_id);
	mutex_unlock(&p->mutex);
	return known ? 0 : -EINVAL;
}

static int kfd_ioctl_set_memory_policy(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_set_memory_policy_args *args = data;

	if (args->default_policy > KFD_IOC_CACHE_POLICY_NONCOHERENT ||
	    args->alternate_policy > KFD_IOC_CACHE_POLICY_NONCOHERENT)
		return -EINVAL;
	return sim_ioctl_accept_for_gpu(p, args->gpu_id);
}

static int kfd_ioctl_set_trap_handler(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_set_trap_handler_args *args = data;

	return sim_ioctl_accept_for_gpu(p, args->gpu_id);
}

static int kfd_ioctl_set_scratch_backing_va(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_set_scratch_backing_va_args *args = data;

	return sim_ioctl_accept_for_gpu(p, args->gpu_id);
}

static int kfd_ioctl_get_process_apertures_new(struct file *filp, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_get_process_apertures_new_args *args = data;
	struct kfd_process_device_apertures *pa;
	u32 i, n = args->num_of_nodes;
	int r;

	if (!n) {
		mutex_lock(&p->mutex);
		args->num_of_nodes = p->n_pdds;
		mutex_unlock(&p->mutex);
		return 0;
	}
	if (n > MAX_GPU_INSTANCE)
		return -EINVAL;
	pa = kcalloc(n, sizeof(*pa), GFP_KERNEL);
	if (!pa)
		return -ENOMEM;
	mutex_lock(&p->mutex);
	n = min(n, p->n_pdds);
	for (i = 0; i < n; i++) {
		pa[i].gpu_id = p->pdds[i]->dev->id;
		/* Where gfx9 and later have them. */
		pa[i].lds_base = 1ULL << 48;
		pa[i].lds_limit = pa[i].lds_base | 0xffffffff;
		pa[i].scratch_base = 2ULL << 48;
		pa[i].scratch_limit = pa[i].scratch_base | 0xffffffff;
		pa[i].gpuvm_base = max(SZ_16K, PAGE_SIZE);
		pa[i].gpuvm_limit = (p->pdds[i]->dev->adev->vm_manager.max_pfn << PAGE_SHIFT) - 1;
	}
	mutex_unlock(&p->mutex);
	args->num_of_nodes = n;
	r = copy_to_user(u64_to_user_ptr(args->kfd_process_device_apertures_ptr), pa,
			 n * sizeof(*pa));
	kfree(pa);
	return r ? -EFAULT : 0;
}

static noinline int kfd_ioctl_acquire_vm(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_acquire_vm_args *args = data;
	struct kfd_process_device *pdd;
	struct file *drm_file;
	int r;

	drm_file = fget(args->drm_fd);
	if (!drm_file)
		return -EINVAL;
	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpu_id);
	if (!pdd)
		r = -EINVAL;
	else if (pdd->drm_file)
		r = pdd->drm_file == drm_file ? 0 : -EBUSY;
	else
		r = kfd_process_device_init_vm(pdd, drm_file);
	mutex_unlock(&p->mutex);
	/* On success the device of the process took a reference of its own. */
	fput(drm_file);
	return r;
}

static int kfd_ioctl_get_available_memory(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_get_available_memory_args *args = data;
	struct kfd_process_device *pdd;
	int r = -EINVAL;

	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpu_id);
	if (pdd) {
		args->available = ALIGN_DOWN(amdgpu_amdkfd_get_available_memory(pdd->dev->adev, 0),
					     VRAM_AVAILABILITY_ALIGN);
		r = 0;
	}
	mutex_unlock(&p->mutex);
	return r;
}

static noinline int kfd_ioctl_alloc_memory_of_gpu(struct file *filep, struct kfd_process *p,
						  void *data)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args *args = data;
	struct kfd_process_device *pdd;
	u64 offset = args->mmap_offset;
	struct kgd_mem *mem;
	int id, r;

	if (!args->size)
		return -EINVAL;
	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpu_id);
	if (!pdd) {
		r = -EINVAL;
		goto out;
	}
	pdd = kfd_bind_process_to_device(pdd->dev, p);
	if (IS_ERR(pdd)) {
		r = PTR_ERR(pdd);
		goto out;
	}
	r = amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu(pdd->dev->adev, args->va_addr, args->size,
						    pdd->drm_priv, &mem, &offset, args->flags,
						    false);
	if (r)
		goto out;
	id = idr_alloc(&pdd->alloc_idr, mem, 1, 0, GFP_KERNEL);
	if (id < 0) {
		amdgpu_amdkfd_gpuvm_free_memory_of_gpu(pdd->dev->adev, mem, pdd->drm_priv, NULL);
		r = -EFAULT;
		goto out;
	}
	if (args->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM)
		atomic64_add(amdgpu_bo_size(mem->bo), &pdd->vram_usage);
	args->handle = MAKE_HANDLE(args->gpu_id, id);
	args->mmap_offset = offset;
out:
	mutex_unlock(&p->mutex);
	return r;
}

/* With p->mutex held. */
static struct kgd_mem *sim_translate_handle(struct kfd_process *p, u64 handle,
					    struct kfd_process_device **pdd)
{
	*pdd = kfd_process_device_data_by_id(p, GET_GPU_ID(handle));
	if (!*pdd || GET_IDR_HANDLE(handle) > INT_MAX)
		return NULL;
	return idr_find(&(*pdd)->alloc_idr, GET_IDR_HANDLE(handle));
}

static noinline int kfd_ioctl_free_memory_of_gpu(struct file *filep, struct kfd_process *p,
						 void *data)
{
	struct kfd_ioctl_free_memory_of_gpu_args *args = data;
	struct kfd_process_device *pdd;
	struct kgd_mem *mem;
	u64 size = 0;
	int r = -EINVAL;

	mutex_lock(&p->mutex);
	mem = sim_translate_handle(p, args->handle, &pdd);
	if (mem) {
		r = amdgpu_amdkfd_gpuvm_free_memory_of_gpu(pdd->dev->adev, mem, pdd->drm_priv,
							   &size);
		/* Still mapped: the handle stays for the end of the process. */
		if (!r)
			idr_remove(&pdd->alloc_idr, GET_IDR_HANDLE(args->handle));
		atomic64_sub(size, &pdd->vram_usage);
	}
	mutex_unlock(&p->mutex);
	return r;
}

static int sim_map_or_unmap(struct kfd_process *p, u64 handle, u64 ids_ptr, u32 n, u32 *n_success,
			    bool map)
{
	struct kfd_process_device *pdd, *peer;
	struct kgd_mem *mem;
	u32 *ids;
	int r = 0;

	if (!n || n > SIM_MAX_MAP_DEVICES || *n_success > n)
		return -EINVAL;
	ids = memdup_user(u64_to_user_ptr(ids_ptr), n * sizeof(*ids));
	if (IS_ERR(ids))
		return PTR_ERR(ids);
	mutex_lock(&p->mutex);
	mem = sim_translate_handle(p, handle, &pdd);
	if (!pdd)
		r = -EINVAL;
	else if (!mem)
		r = -ENOMEM;
	for (; !r && *n_success < n; ++*n_success) {
		peer = kfd_process_device_data_by_id(p, ids[*n_success]);
		if (!peer) {
			r = -EINVAL;
			break;
		}
		peer = kfd_bind_process_to_device(peer->dev, p);
		if (IS_ERR(peer)) {
			r = PTR_ERR(peer);
			break;
		}
		if (map)
			r = amdgpu_amdkfd_gpuvm_map_memory_to_gpu(peer->dev->adev, mem,
								  peer->drm_priv);
		else
			r = amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu(peer->dev->adev, mem,
								      peer->drm_priv);
		if (r)
			break;
	}
	mutex_unlock(&p->mutex);
	kfree(ids);
	return r;
}

static int kfd_ioctl_map_memory_to_gpu(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_map_memory_to_gpu_args *args = data;

	return sim_map_or_unmap(p, args->handle, args->device_ids_array_ptr, args->n_devices,
				&args->n_success, true);
}

static int kfd_ioctl_unmap_memory_from_gpu(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_unmap_memory_from_gpu_args *args = data;

	return sim_map_or_unmap(p, args->handle, args->device_ids_array_ptr, args->n_devices,
				&args->n_success, false);
}

static int kfd_ioctl_get_dmabuf_info(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_get_dmabuf_info_args *args = data;
	struct amdgpu_device *adev;
	struct dma_buf *dma_buf;
	struct amdgpu_bo *bo;
	int r = 0;

	dma_buf = dma_buf_get(args->dmabuf_fd);
	if (IS_ERR(dma_buf))
		return PTR_ERR(dma_buf);
	if (!sim_is_amdgpu_dmabuf(dma_buf)) {
		r = -EINVAL;
		goto out;
	}
	bo = gem_to_amdgpu_bo(dma_buf->priv);
	adev = amdgpu_ttm_adev(bo->tbo.bdev);
	if (!(bo->preferred_domains & (AMDGPU_GEM_DOMAIN_VRAM | AMDGPU_GEM_DOMAIN_GTT)) ||
	    !READ_ONCE(adev->kfd.init_complete)) {
		r = -EINVAL;
		goto out;
	}
	args->size = amdgpu_bo_size(bo);
	args->metadata_size = 0;
	args->flags = bo->preferred_domains & AMDGPU_GEM_DOMAIN_VRAM ?
			      KFD_IOC_ALLOC_MEM_FLAGS_VRAM :
			      KFD_IOC_ALLOC_MEM_FLAGS_GTT;
	args->gpu_id = adev->kfd.sim_gpu_id;
out:
	dma_buf_put(dma_buf);
	return r;
}

static noinline int kfd_ioctl_import_dmabuf(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_import_dmabuf_args *args = data;
	struct kfd_process_device *pdd;
	struct kgd_mem *mem;
	u64 size;
	int id, r;

	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpu_id);
	if (!pdd) {
		r = -EINVAL;
		goto out;
	}
	pdd = kfd_bind_process_to_device(pdd->dev, p);
	if (IS_ERR(pdd)) {
		r = PTR_ERR(pdd);
		goto out;
	}
	r = amdgpu_amdkfd_gpuvm_import_dmabuf_fd(pdd->dev->adev, args->dmabuf_fd, args->va_addr,
						 pdd->drm_priv, &mem, &size, NULL);
	if (r)
		goto out;
	id = idr_alloc(&pdd->alloc_idr, mem, 1, 0, GFP_KERNEL);
	if (id < 0) {
		amdgpu_amdkfd_gpuvm_free_memory_of_gpu(pdd->dev->adev, mem, pdd->drm_priv, NULL);
		r = -EFAULT;
		goto out;
	}
	args->handle = MAKE_HANDLE(args->gpu_id, id);
out:
	mutex_unlock(&p->mutex);
	return r;
}

static noinline int kfd_ioctl_export_dmabuf(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_export_dmabuf_args *args = data;
	struct kfd_process_device *pdd;
	struct dma_buf *dma_buf;
	struct kgd_mem *mem;
	int r = -EINVAL;

	mutex_lock(&p->mutex);
	mem = sim_translate_handle(p, args->handle, &pdd);
	if (mem)
		r = amdgpu_amdkfd_gpuvm_export_dmabuf(mem, &dma_buf);
	mutex_unlock(&p->mutex);
	if (r)
		return r;
	r = dma_buf_fd(dma_buf, args->flags);
	if (r < 0) {
		dma_buf_put(dma_buf);
		return r;
	}
	args->dmabuf_fd = r;
	return 0;
}

static int kfd_ioctl_smi_events(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_smi_events_args *args = data;
	struct kfd_process_device *pdd;
	int r = -EINVAL;

	mutex_lock(&p->mutex);
	pdd = kfd_process_device_data_by_id(p, args->gpuid);
	if (pdd)
		r = kfd_smi_event_open(pdd->dev, &args->anon_fd);
	mutex_unlock(&p->mutex);
	return r;
}

static int kfd_ioctl_svm_validate(void *kdata, unsigned int usize)
{
	struct kfd_ioctl_svm_args *args = kdata;

	return usize < struct_size(args, attrs, args->nattr) ? -EINVAL : 0;
}

static noinline int kfd_ioctl_svm(struct file *filep, struct kfd_process *p, void *data)
{
#ifdef SIM_HAS_SVM
	struct kfd_ioctl_svm_args *args = data;

	if (sim_context_id(p) != KFD_CONTEXT_ID_PRIMARY)
		return -EOPNOTSUPP;
	if (!PAGE_ALIGNED(args->start_addr) || !PAGE_ALIGNED(args->size) || !args->start_addr ||
	    !args->size)
		return -EINVAL;
	return svm_ioctl(p, args->op, args->start_addr, args->size, args->nattr, args->attrs);
#else
	/* As a driver built without HSA_AMD_SVM, which is how Debian builds 6.12. */
	return -EPERM;
#endif
}

/* No model here retries page faults: XNACK is off and cannot be turned on. */
static int kfd_ioctl_set_xnack_mode(struct file *filep, struct kfd_process *p, void *data)
{
	struct kfd_ioctl_set_xnack_mode_args *args = data;

	if (args->xnack_enabled > 0)
		return -EPERM;
	args->xnack_enabled = 0;
	return 0;
}

static int kfd_ioctl_runtime_enable(struct file *filep, struct kfd_process *p, void *data)
{
	return 0;
}

#ifdef SIM_KFD_CONTEXTS
static noinline int kfd_ioctl_create_process(struct file *filep, struct kfd_process *p, void *data)
{
	return PTR_ERR_OR_ZERO(sim_create_secondary(filep, p));
}
#endif

#define AMDKFD_IOCTL_DEF(ioctl, _func) [_IOC_NR(ioctl)] = { .cmd = (ioctl), .func = (_func) }

/* Numbers without an entry are known to the ABI and answered with -EINVAL. */
static const struct amdkfd_ioctl_desc amdkfd_ioctls[AMDKFD_COMMAND_END] = {
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_GET_VERSION, kfd_ioctl_get_version),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_CREATE_QUEUE, kfd_ioctl_create_queue),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_DESTROY_QUEUE, kfd_ioctl_destroy_queue),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SET_MEMORY_POLICY, kfd_ioctl_set_memory_policy),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_GET_CLOCK_COUNTERS, kfd_ioctl_get_clock_counters),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_UPDATE_QUEUE, kfd_ioctl_update_queue),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, kfd_ioctl_set_scratch_backing_va),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SET_TRAP_HANDLER, kfd_ioctl_set_trap_handler),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, kfd_ioctl_get_process_apertures_new),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_ACQUIRE_VM, kfd_ioctl_acquire_vm),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, kfd_ioctl_alloc_memory_of_gpu),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_FREE_MEMORY_OF_GPU, kfd_ioctl_free_memory_of_gpu),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_MAP_MEMORY_TO_GPU, kfd_ioctl_map_memory_to_gpu),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, kfd_ioctl_unmap_memory_from_gpu),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SET_CU_MASK, kfd_ioctl_set_cu_mask),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_GET_DMABUF_INFO, kfd_ioctl_get_dmabuf_info),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_IMPORT_DMABUF, kfd_ioctl_import_dmabuf),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SMI_EVENTS, kfd_ioctl_smi_events),
	[_IOC_NR(AMDKFD_IOC_SVM)] = {
		.cmd = AMDKFD_IOC_SVM,
		.func = kfd_ioctl_svm,
		.validate = kfd_ioctl_svm_validate,
	},
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_SET_XNACK_MODE, kfd_ioctl_set_xnack_mode),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_AVAILABLE_MEMORY, kfd_ioctl_get_available_memory),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_EXPORT_DMABUF, kfd_ioctl_export_dmabuf),
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_RUNTIME_ENABLE, kfd_ioctl_runtime_enable),
#ifdef SIM_KFD_CONTEXTS
	AMDKFD_IOCTL_DEF(AMDKFD_IOC_CREATE_PROCESS, kfd_ioctl_create_process),
#endif
};

/*
 * The number alone selects the call. Type, direction and size bits of the
 * user's command are not compared with anything: as many bytes as it says are
 * copied, the rest of our struct is zero, and our own direction bits count.
 */
static noinline long kfd_ioctl(struct file *filep, unsigned int cmd, unsigned long arg)
{
	const struct amdkfd_ioctl_desc *ioctl;
	struct kfd_process *process = filep->private_data;
	unsigned int nr = _IOC_NR(cmd), usize = _IOC_SIZE(cmd), asize;
	char stack_kdata[128];
	char *kdata = stack_kdata;
	long r;

	if (nr < AMDKFD_COMMAND_START || nr >= AMDKFD_COMMAND_END)
		return -ENOTTY;
	ioctl = &amdkfd_ioctls[nr];
	/* Only the process that opened the file. */
	if (process->lead_thread != current->group_leader)
		return -EBADF;
	if (!ioctl->func)
		return -EINVAL;

	asize = max(usize, (unsigned int)_IOC_SIZE(ioctl->cmd));
	if (asize > sizeof(stack_kdata)) {
		kdata = kmalloc(asize, GFP_KERNEL);
		if (!kdata)
			return -ENOMEM;
	}
	memset(kdata, 0, asize);
	if (ioctl->cmd & IOC_IN && copy_from_user(kdata, (void __user *)arg, usize)) {
		r = -EFAULT;
		goto out;
	}
	if (ioctl->validate) {
		r = ioctl->validate(kdata, usize);
		if (r)
			goto out;
	}
	r = ioctl->func(filep, process, kdata);
	if (ioctl->cmd & IOC_OUT && copy_to_user((void __user *)arg, kdata, usize))
		r = -EFAULT;
out:
	if (kdata != stack_kdata)
		kfree(kdata);
	return r;
}

static const struct file_operations kfd_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = kfd_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.open = kfd_open,
	.release = kfd_release,
	.mmap = kfd_mmap,
};

static char *kfd_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static const struct class kfd_class = {
	.name = "kfd",
	.devnode = kfd_devnode,
};

int kfd_chardev_init(void)
{
	int r;

	r = register_chrdev(0, "kfd", &kfd_fops);
	if (r < 0)
		return r;
	kfd_char_dev_major = r;
	r = class_register(&kfd_class);
	if (r)
		goto err_chrdev;
	kfd_device = device_create(&kfd_class, NULL, MKDEV(kfd_char_dev_major, 0), NULL, "kfd");
	if (IS_ERR(kfd_device)) {
		r = PTR_ERR(kfd_device);
		goto err_class;
	}
	return 0;

err_class:
	class_unregister(&kfd_class);
err_chrdev:
	unregister_chrdev(kfd_char_dev_major, "kfd");
	return r;
}

void kfd_chardev_exit(void)
{
	device_destroy(&kfd_class, MKDEV(kfd_char_dev_major, 0));
	class_unregister(&kfd_class);
	unregister_chrdev(kfd_char_dev_major, "kfd");
	kfd_device = NULL;
}
