// SPDX-License-Identifier: GPL-2.0-only
/* GEM: buffers of one open drm file, and their place in its address space. */
#include <linux/overflow.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <drm/drm_drv.h>
#include <drm/drm_ioctl.h>
#include <drm/drm_mode.h>
#include <drm/drm_utils.h>
#include <drm/drm_vma_manager.h>

#include "amdgpu.h"

/* VRAM_CONTIGUOUS is not for user space to ask for, as in the real driver. */
#define SIM_GEM_SETTABLE                                                                           \
	(AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED | AMDGPU_GEM_CREATE_NO_CPU_ACCESS |                 \
	 AMDGPU_GEM_CREATE_CPU_GTT_USWC | AMDGPU_GEM_CREATE_VRAM_CLEARED |                         \
	 AMDGPU_GEM_CREATE_VM_ALWAYS_VALID | AMDGPU_GEM_CREATE_EXPLICIT_SYNC |                     \
	 AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE | AMDGPU_GEM_CREATE_GFX12_DCC |                    \
	 AMDGPU_GEM_CREATE_DISCARDABLE | AMDGPU_GEM_CREATE_COHERENT | AMDGPU_GEM_CREATE_UNCACHED | \
	 AMDGPU_GEM_CREATE_EXT_COHERENT)
#define SIM_GEM_MEMORY_DOMAINS \
	(AMDGPU_GEM_DOMAIN_CPU | AMDGPU_GEM_DOMAIN_GTT | AMDGPU_GEM_DOMAIN_VRAM)
#define SIM_METADATA_MAX 256

static noinline void amdgpu_gem_object_free(struct drm_gem_object *gobj)
{
	sim_ttm_bo_fini(&gem_to_amdgpu_bo(gobj)->tbo);
}

/* A handle for @obj is being made in @file_priv. */
static noinline int amdgpu_gem_object_open(struct drm_gem_object *obj, struct drm_file *file_priv)
{
	struct amdgpu_bo *abo = gem_to_amdgpu_bo(obj);
	struct amdgpu_device *adev = amdgpu_ttm_adev(abo->tbo.bdev);
	struct amdgpu_fpriv *fpriv = file_priv->driver_priv;
	struct amdgpu_vm *vm = &fpriv->vm;
	struct amdgpu_bo_va *bo_va;
	int r = 0;

	if (abo->sim_usermm && abo->sim_usermm != current->mm)
		return -EPERM;
	if (abo->flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID && abo->parent != vm->root.bo)
		return -EPERM;

	mutex_lock(&vm->sim_lock);
	bo_va = amdgpu_vm_bo_find(vm, abo);
	if (bo_va)
		bo_va->ref_count++;
	else if (!amdgpu_vm_bo_add(adev, vm, abo))
		r = -ENOMEM;
	mutex_unlock(&vm->sim_lock);
	return r;
}

static noinline void amdgpu_gem_object_close(struct drm_gem_object *obj, struct drm_file *file_priv)
{
	struct amdgpu_bo *abo = gem_to_amdgpu_bo(obj);
	struct amdgpu_device *adev = amdgpu_ttm_adev(abo->tbo.bdev);
	struct amdgpu_fpriv *fpriv = file_priv->driver_priv;
	struct amdgpu_vm *vm = &fpriv->vm;
	struct amdgpu_bo_va *bo_va;

	mutex_lock(&vm->sim_lock);
	bo_va = amdgpu_vm_bo_find(vm, abo);
	if (bo_va && !--bo_va->ref_count)
		amdgpu_vm_bo_del(adev, bo_va);
	mutex_unlock(&vm->sim_lock);
}

const struct drm_gem_object_funcs amdgpu_gem_object_funcs = {
	.free = amdgpu_gem_object_free,
	.open = amdgpu_gem_object_open,
	.close = amdgpu_gem_object_close,
	.export = amdgpu_gem_prime_export,
};

noinline int amdgpu_gem_object_create(struct amdgpu_device *adev, unsigned long size, int alignment,
				      u32 initial_domain, u64 flags, enum ttm_bo_type type,
				      struct dma_resv *resv, struct drm_gem_object **obj,
				      int8_t xcp_id_plus1)
{
	struct amdgpu_bo_param bp = {
		.size = size,
		.byte_align = alignment,
		.domain = initial_domain,
		.preferred_domain = initial_domain,
		.flags = flags | AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE,
		.type = type,
		.resv = resv,
		.xcp_id_plus1 = xcp_id_plus1,
	};
	struct amdgpu_bo_user *ubo;
	int r;

	*obj = NULL;
	r = amdgpu_bo_create_user(adev, &bp, &ubo);
	if (r)
		return r;
	*obj = &ubo->bo.tbo.base;
	return 0;
}

noinline int amdgpu_gem_create_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	struct amdgpu_vm *vm = &fpriv->vm;
	union drm_amdgpu_gem_create *args = data;
	u64 size = args->in.bo_size;
	u64 flags = args->in.domain_flags;
	u32 domain = (u32)args->in.domains;
	bool always_valid = flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID;
	struct dma_resv *resv = NULL;
	struct drm_gem_object *gobj;
	u32 handle;
	int r;

	if (flags & ~(u64)SIM_GEM_SETTABLE || args->in.domains & ~(u64)SIM_GEM_MEMORY_DOMAINS ||
	    args->in.alignment > SZ_1G)
		return -EINVAL;

	if (always_valid) {
		r = amdgpu_bo_reserve(vm->root.bo, false);
		if (r)
			return r;
		resv = vm->root.bo->tbo.base.resv;
	}
	flags |= AMDGPU_GEM_CREATE_VRAM_CLEARED;
retry:
	r = amdgpu_gem_object_create(adev, size, args->in.alignment, domain, flags,
				     ttm_bo_type_device, resv, &gobj, fpriv->xcp_id + 1);
	if (r && r != -ERESTARTSYS) {
		if (flags & AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED) {
			flags &= ~AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED;
			goto retry;
		}
		/* The card or the cgroup is full: system memory will do. */
		if (domain == AMDGPU_GEM_DOMAIN_VRAM) {
			domain |= AMDGPU_GEM_DOMAIN_GTT;
			goto retry;
		}
	}
	if (always_valid) {
		if (!r)
			gem_to_amdgpu_bo(gobj)->parent = amdgpu_bo_ref(vm->root.bo);
		amdgpu_bo_unreserve(vm->root.bo);
	}
	if (r)
		return r;

	r = drm_gem_handle_create(filp, gobj, &handle);
	/* The handle holds it now. */
	drm_gem_object_put(gobj);
	if (r)
		return r;
	memset(args, 0, sizeof(*args));
	args->out.handle = handle;
	return 0;
}

/* The user's pages are not pinned: nothing reads them. */
noinline int amdgpu_gem_userptr_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	struct drm_amdgpu_gem_userptr *args = data;
	struct drm_gem_object *gobj;
	struct amdgpu_bo *bo;
	u32 handle;
	int r;

	if ((args->addr | args->size) & ~PAGE_MASK || !args->size)
		return -EINVAL;
	if (args->flags & ~(AMDGPU_GEM_USERPTR_READONLY | AMDGPU_GEM_USERPTR_ANONONLY |
			    AMDGPU_GEM_USERPTR_VALIDATE | AMDGPU_GEM_USERPTR_REGISTER))
		return -EINVAL;
	/* Without an mmu notifier the pages could change unseen. */
	if (!(args->flags & AMDGPU_GEM_USERPTR_READONLY) &&
	    !(args->flags & AMDGPU_GEM_USERPTR_REGISTER))
		return -EACCES;
	if (!current->mm || !access_ok((void __user *)(uintptr_t)args->addr, args->size))
		return -EFAULT;

	r = amdgpu_gem_object_create(adev, args->size, 0, AMDGPU_GEM_DOMAIN_CPU, 0,
				     ttm_bo_type_device, NULL, &gobj, fpriv->xcp_id + 1);
	if (r)
		return r;
	bo = gem_to_amdgpu_bo(gobj);
	bo->preferred_domains = AMDGPU_GEM_DOMAIN_GTT;
	bo->allowed_domains = AMDGPU_GEM_DOMAIN_GTT;
	bo->sim_userptr = args->addr;
	bo->sim_usermm = current->mm;
	mmgrab(bo->sim_usermm);

	r = drm_gem_handle_create(filp, gobj, &handle);
	drm_gem_object_put(gobj);
	if (r)
		return r;
	args->handle = handle;
	return 0;
}

/* Gives an offset, as libdrm expects; mapping it fails (no memory behind). */
noinline int amdgpu_gem_mmap_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	union drm_amdgpu_gem_mmap *args = data;
	struct drm_gem_object *gobj;
	struct amdgpu_bo *bo;
	int r = 0;

	gobj = drm_gem_object_lookup(filp, args->in.handle);
	if (!gobj)
		return -ENOENT;
	bo = gem_to_amdgpu_bo(gobj);
	if (bo->sim_usermm || bo->flags & AMDGPU_GEM_CREATE_NO_CPU_ACCESS) {
		r = -EPERM;
	} else {
		memset(args, 0, sizeof(*args));
		args->out.addr_ptr = drm_vma_node_offset_addr(&gobj->vma_node);
	}
	drm_gem_object_put(gobj);
	return r;
}

static int sim_gem_create_info(struct amdgpu_bo *bo, u64 pointer)
{
	struct drm_amdgpu_gem_create_in info = {
		.bo_size = bo->tbo.base.size,
		.alignment = (u64)bo->tbo.page_alignment << PAGE_SHIFT,
		.domains = bo->preferred_domains,
		.domain_flags = bo->flags,
	};

	return copy_to_user(u64_to_user_ptr(pointer), &info, sizeof(info)) ? -EFAULT : 0;
}

static int sim_gem_set_placement(struct amdgpu_bo *bo, u64 domains)
{
	int r;

	/* As where another call has the buffer locked. */
	r = sim_wait_held(amdgpu_ttm_adev(bo->tbo.bdev));
	if (r)
		return r;
	r = amdgpu_bo_reserve(bo, false);
	if (r)
		return r;
	if (drm_gem_is_imported(&bo->tbo.base) && domains & AMDGPU_GEM_DOMAIN_VRAM) {
		r = -EINVAL;
	} else if (bo->sim_usermm) {
		r = -EPERM;
	} else {
		bo->preferred_domains = domains & SIM_GEM_MEMORY_DOMAINS;
		bo->allowed_domains = bo->preferred_domains;
		if (bo->allowed_domains == AMDGPU_GEM_DOMAIN_VRAM)
			bo->allowed_domains |= AMDGPU_GEM_DOMAIN_GTT;
	}
	amdgpu_bo_unreserve(bo);
	return r;
}

#ifdef AMDGPU_GEM_OP_GET_MAPPING_INFO
static int sim_gem_mapping_info(struct amdgpu_fpriv *fpriv, struct amdgpu_bo *bo,
				struct drm_amdgpu_gem_op *args)
{
	struct drm_amdgpu_gem_vm_entry *entries;
	struct amdgpu_bo_va_mapping *mapping;
	struct amdgpu_bo_va *bo_va;
	u32 n = 0;
	int r = 0;

	if (args->num_entries > SZ_1M)
		return -EINVAL;
	entries = kvcalloc(max(args->num_entries, 1U), sizeof(*entries), GFP_KERNEL);
	if (!entries)
		return -ENOMEM;
	mutex_lock(&fpriv->vm.sim_lock);
	bo_va = amdgpu_vm_bo_find(&fpriv->vm, bo);
	if (bo_va) {
		list_for_each_entry(mapping, &bo_va->valids, list) {
			if (n < args->num_entries) {
				entries[n].addr = mapping->start << PAGE_SHIFT;
				entries[n].size = (mapping->last - mapping->start + 1)
						  << PAGE_SHIFT;
				entries[n].offset = mapping->offset;
				entries[n].flags = mapping->flags;
			}
			n++;
		}
	} else {
		r = -ENOENT;
	}
	mutex_unlock(&fpriv->vm.sim_lock);
	if (!r && n && n <= args->num_entries &&
	    copy_to_user(u64_to_user_ptr(args->value), entries, n * sizeof(*entries)))
		r = -EFAULT;
	args->num_entries = n;
	kvfree(entries);
	return r;
}
#endif

noinline int amdgpu_gem_op_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct drm_amdgpu_gem_op *args = data;
	struct drm_gem_object *gobj;
	struct amdgpu_bo *bo;
	int r;

#ifdef AMDGPU_GEM_OP_GET_MAPPING_INFO
	if (args->padding)
		return -EINVAL;
#endif
	gobj = drm_gem_object_lookup(filp, args->handle);
	if (!gobj)
		return -ENOENT;
	bo = gem_to_amdgpu_bo(gobj);

	switch (args->op) {
	case AMDGPU_GEM_OP_GET_GEM_CREATE_INFO:
		r = sim_gem_create_info(bo, args->value);
		break;
	case AMDGPU_GEM_OP_SET_PLACEMENT:
		r = sim_gem_set_placement(bo, args->value);
		break;
#ifdef AMDGPU_GEM_OP_GET_MAPPING_INFO
	case AMDGPU_GEM_OP_GET_MAPPING_INFO:
		r = sim_gem_mapping_info(filp->driver_priv, bo, args);
		break;
#endif
	default:
		r = -EINVAL;
	}
	drm_gem_object_put(gobj);
	return r;
}

noinline int amdgpu_gem_va_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	const u32 valid_flags = AMDGPU_VM_DELAY_UPDATE | AMDGPU_VM_PAGE_READABLE |
				AMDGPU_VM_PAGE_WRITEABLE | AMDGPU_VM_PAGE_EXECUTABLE |
				AMDGPU_VM_MTYPE_MASK | AMDGPU_VM_PAGE_NOALLOC;
	const u32 prt_flags = AMDGPU_VM_DELAY_UPDATE | AMDGPU_VM_PAGE_PRT;
	struct amdgpu_device *adev = drm_to_adev(dev);
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	struct amdgpu_vm *vm = &fpriv->vm;
	struct drm_amdgpu_gem_va *args = data;
	struct amdgpu_bo_va *bo_va = NULL;
	struct drm_gem_object *gobj = NULL;
	u64 va = args->va_address, vm_size, end;
	int r;

	if (va < AMDGPU_VA_RESERVED_BOTTOM ||
	    (va >= AMDGPU_GMC_HOLE_START && va < AMDGPU_GMC_HOLE_END))
		return -EINVAL;
	va &= AMDGPU_GMC_HOLE_MASK;
	vm_size = adev->vm_manager.max_pfn * AMDGPU_GPU_PAGE_SIZE - AMDGPU_VA_RESERVED_TOP;
	if (check_add_overflow(va, args->map_size, &end) || end > vm_size)
		return -EINVAL;
	if ((args->flags & ~valid_flags) && (args->flags & ~prt_flags))
		return -EINVAL;

	switch (args->operation) {
	case AMDGPU_VA_OP_MAP:
	case AMDGPU_VA_OP_UNMAP:
	case AMDGPU_VA_OP_REPLACE:
		/* A PRT mapping has no buffer and needs no memory. */
		if (args->flags & AMDGPU_VM_PAGE_PRT)
			return 0;
		gobj = drm_gem_object_lookup(filp, args->handle);
		if (!gobj)
			return -ENOENT;
		break;
	case AMDGPU_VA_OP_CLEAR:
		break;
	default:
		return -EINVAL;
	}

	mutex_lock(&vm->sim_lock);
	if (gobj) {
		bo_va = amdgpu_vm_bo_find(vm, gem_to_amdgpu_bo(gobj));
		if (!bo_va) {
			r = -ENOENT;
			goto out;
		}
	}
	switch (args->operation) {
	case AMDGPU_VA_OP_REPLACE:
		r = amdgpu_vm_bo_clear_mappings(adev, vm, va, args->map_size);
		if (r)
			break;
		fallthrough;
	case AMDGPU_VA_OP_MAP:
		r = amdgpu_vm_bo_map(adev, bo_va, va, args->offset_in_bo, args->map_size,
				     args->flags);
		break;
	case AMDGPU_VA_OP_UNMAP:
		r = amdgpu_vm_bo_unmap(adev, bo_va, va);
		break;
	default:
		r = amdgpu_vm_bo_clear_mappings(adev, vm, va, args->map_size);
	}
out:
	mutex_unlock(&vm->sim_lock);
	if (gobj)
		drm_gem_object_put(gobj);
	return r;
}

noinline int amdgpu_gem_wait_idle_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	union drm_amdgpu_gem_wait_idle *args = data;
	struct drm_gem_object *gobj;
	long left;

	gobj = drm_gem_object_lookup(filp, args->in.handle);
	if (!gobj)
		return -ENOENT;
	left = dma_resv_wait_timeout(gobj->resv, DMA_RESV_USAGE_READ, true,
				     drm_timeout_abs_to_jiffies(args->in.timeout));
	if (left >= 0) {
		memset(args, 0, sizeof(*args));
		args->out.status = left == 0;
	}
	drm_gem_object_put(gobj);
	return left < 0 ? left : 0;
}

noinline int amdgpu_gem_metadata_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct drm_amdgpu_gem_metadata *args = data;
	struct drm_gem_object *gobj;
	struct amdgpu_bo_user *ubo;
	struct amdgpu_bo *bo;
	void *copy = NULL;
	int r;

	gobj = drm_gem_object_lookup(filp, args->handle);
	if (!gobj)
		return -ENOENT;
	bo = gem_to_amdgpu_bo(gobj);
	r = amdgpu_bo_reserve(bo, false);
	if (r)
		goto out;
	/* Imported buffers are of another type and carry none. */
	if (bo->tbo.type != ttm_bo_type_device) {
		r = -EINVAL;
		goto unreserve;
	}
	ubo = to_amdgpu_bo_user(bo);
	if (args->op == AMDGPU_GEM_METADATA_OP_GET_METADATA) {
		args->data.tiling_info = ubo->tiling_flags;
		args->data.flags = ubo->metadata_flags;
		args->data.data_size_bytes = ubo->metadata_size;
		memcpy(args->data.data, ubo->metadata ?: "", ubo->metadata_size);
	} else if (args->op == AMDGPU_GEM_METADATA_OP_SET_METADATA) {
		if (args->data.data_size_bytes > SIM_METADATA_MAX) {
			r = -EINVAL;
			goto unreserve;
		}
		if (args->data.data_size_bytes) {
			copy = kmemdup(args->data.data, args->data.data_size_bytes, GFP_KERNEL);
			if (!copy) {
				r = -ENOMEM;
				goto unreserve;
			}
		}
		kfree(ubo->metadata);
		ubo->metadata = copy;
		ubo->metadata_size = args->data.data_size_bytes;
		ubo->metadata_flags = args->data.flags;
		ubo->tiling_flags = args->data.tiling_info;
	}
unreserve:
	amdgpu_bo_unreserve(bo);
out:
	drm_gem_object_put(gobj);
	return r;
}

noinline int amdgpu_mode_dumb_create(struct drm_file *file_priv, struct drm_device *dev,
				     struct drm_mode_create_dumb *args)
{
	struct amdgpu_fpriv *fpriv = file_priv->driver_priv;
	u64 flags = AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED | AMDGPU_GEM_CREATE_CPU_GTT_USWC |
		    AMDGPU_GEM_CREATE_VRAM_CONTIGUOUS | AMDGPU_GEM_CREATE_VRAM_CLEARED;
	u32 cpp = DIV_ROUND_UP(args->bpp, 8);
	struct drm_gem_object *gobj;
	u64 pitch;
	u32 handle;
	int r;

	pitch = ALIGN((u64)args->width * cpp, 256);
	if (!pitch || pitch > U32_MAX)
		return -EINVAL;
	args->pitch = pitch;
	args->size = PAGE_ALIGN(pitch * args->height);
	if (!args->size)
		return -EINVAL;
	r = amdgpu_gem_object_create(drm_to_adev(dev), args->size, 0, AMDGPU_GEM_DOMAIN_VRAM, flags,
				     ttm_bo_type_device, NULL, &gobj, fpriv->xcp_id + 1);
	if (r)
		return -ENOMEM;
	r = drm_gem_handle_create(file_priv, gobj, &handle);
	drm_gem_object_put(gobj);
	if (r)
		return r;
	args->handle = handle;
	return 0;
}
