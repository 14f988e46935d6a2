// SPDX-License-Identifier: GPL-2.0-only
/*
 * Command submission, as far as it moves memory: the listed buffers are placed
 * where they prefer to be. The commands themselves are not looked at.
 */
#include <linux/overflow.h>
#include <linux/slab.h>

#include "amdgpu.h"

#define SIM_BO_LIST_MAX (128 * 1024)
#define SIM_CHUNKS_MAX	4096

struct sim_bo_list {
	struct kref ref;
	u32 count;
	struct drm_gem_object *objects[] __counted_by(count);
};

static void sim_bo_list_release(struct kref *ref)
{
	struct sim_bo_list *list = container_of(ref, struct sim_bo_list, ref);
	u32 i;

	for (i = 0; i < list->count; i++) {
		if (list->objects[i])
			drm_gem_object_put(list->objects[i]);
	}
	kvfree(list);
}

static void sim_bo_list_put(struct sim_bo_list *list)
{
	if (list)
		kref_put(&list->ref, sim_bo_list_release);
}

/* The user's array may have entries of another size than ours. */
static struct sim_bo_list *sim_bo_list_create(struct drm_file *filp,
					      const struct drm_amdgpu_bo_list_in *in)
{
	struct drm_amdgpu_bo_list_entry entry;
	struct sim_bo_list *list;
	u32 i;

	if (in->bo_number > SIM_BO_LIST_MAX)
		return ERR_PTR(-EINVAL);
	list = kvzalloc(struct_size(list, objects, in->bo_number), GFP_KERNEL);
	if (!list)
		return ERR_PTR(-ENOMEM);
	kref_init(&list->ref);
	list->count = in->bo_number;
	for (i = 0; i < list->count; i++) {
		u64 address = in->bo_info_ptr + (u64)i * in->bo_info_size;

		memset(&entry, 0, sizeof(entry));
		if (copy_from_user(&entry, u64_to_user_ptr(address),
				   min_t(size_t, in->bo_info_size, sizeof(entry)))) {
			sim_bo_list_put(list);
			return ERR_PTR(-EFAULT);
		}
		list->objects[i] = drm_gem_object_lookup(filp, entry.bo_handle);
		if (!list->objects[i]) {
			sim_bo_list_put(list);
			return ERR_PTR(-ENOENT);
		}
	}
	return list;
}

static struct sim_bo_list *sim_bo_list_get(struct amdgpu_fpriv *fpriv, u32 id)
{
	struct sim_bo_list *list;

	xa_lock(&fpriv->bo_list_handles);
	list = xa_load(&fpriv->bo_list_handles, id);
	if (list)
		kref_get(&list->ref);
	xa_unlock(&fpriv->bo_list_handles);
	return list;
}

int amdgpu_bo_list_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	union drm_amdgpu_bo_list *args = data;
	struct sim_bo_list *list = NULL, *old;
	u32 id = args->in.list_handle;
	int r;

	if (args->in.operation != AMDGPU_BO_LIST_OP_DESTROY) {
		list = sim_bo_list_create(filp, &args->in);
		if (IS_ERR(list))
			return PTR_ERR(list);
	}
	switch (args->in.operation) {
	case AMDGPU_BO_LIST_OP_CREATE:
		r = xa_alloc(&fpriv->bo_list_handles, &id, list, xa_limit_31b, GFP_KERNEL);
		break;
	case AMDGPU_BO_LIST_OP_DESTROY:
		sim_bo_list_put(xa_erase(&fpriv->bo_list_handles, id));
		r = 0;
		break;
	case AMDGPU_BO_LIST_OP_UPDATE:
		old = sim_bo_list_get(fpriv, id);
		if (!old) {
			r = -ENOENT;
			break;
		}
		sim_bo_list_put(old);
		old = xa_store(&fpriv->bo_list_handles, id, list, GFP_KERNEL);
		r = xa_err(old);
		if (!r)
			sim_bo_list_put(old);
		break;
	default:
		r = -EINVAL;
	}
	if (r) {
		sim_bo_list_put(list);
		return r;
	}
	memset(args, 0, sizeof(*args));
	args->out.list_handle = id;
	return 0;
}

/* First where it prefers to be, then where it may be. */
static int sim_cs_bo_validate(struct amdgpu_bo *bo)
{
	int r;

	r = amdgpu_bo_reserve(bo, false);
	if (r)
		return r;
	if (bo->tbo.type == ttm_bo_type_device && !bo->sim_usermm) {
		r = sim_bo_validate(bo, bo->preferred_domains, true);
		if (r == -ENOMEM && bo->allowed_domains != bo->preferred_domains)
			r = sim_bo_validate(bo, bo->allowed_domains, true);
	}
	amdgpu_bo_unreserve(bo);
	return r;
}

static int sim_cs_validate_list(struct sim_bo_list *list)
{
	u32 i;
	int r;

	for (i = 0; list && i < list->count; i++) {
		r = sim_cs_bo_validate(gem_to_amdgpu_bo(list->objects[i]));
		if (r)
			return r;
	}
	return 0;
}

/* Buffers that are part of the address space itself come along unlisted. */
static int sim_cs_validate_always_valid(struct amdgpu_vm *vm)
{
	struct amdgpu_bo_va *bo_va;
	int r = 0;

	mutex_lock(&vm->sim_lock);
	list_for_each_entry(bo_va, &vm->sim_bo_vas, sim_vm_node) {
		if (!(bo_va->base.bo->flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID))
			continue;
		r = sim_cs_bo_validate(bo_va->base.bo);
		if (r)
			break;
	}
	mutex_unlock(&vm->sim_lock);
	return r;
}

static int sim_cs_chunk(struct drm_file *filp, u64 chunk_ptr, struct sim_bo_list **list)
{
	struct drm_amdgpu_bo_list_in in;
	struct drm_amdgpu_cs_chunk chunk;
	struct sim_bo_list *created;

	if (copy_from_user(&chunk, u64_to_user_ptr(chunk_ptr), sizeof(chunk)))
		return -EFAULT;
	if (chunk.chunk_id != AMDGPU_CHUNK_ID_BO_HANDLES)
		return 0;
	if (chunk.length_dw < sizeof(in) / 4 || *list)
		return -EINVAL;
	if (copy_from_user(&in, u64_to_user_ptr(chunk.chunk_data), sizeof(in)))
		return -EFAULT;
	created = sim_bo_list_create(filp, &in);
	if (IS_ERR(created))
		return PTR_ERR(created);
	*list = created;
	return 0;
}

int amdgpu_cs_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	union drm_amdgpu_cs *args = data;
	struct sim_bo_list *list = NULL;
	u64 *chunks;
	u32 i, n = args->in.num_chunks;
	int r = 0;

	if (!xa_load(&fpriv->sim_contexts, args->in.ctx_id))
		return -EINVAL;
	if (!n || n > SIM_CHUNKS_MAX)
		return -EINVAL;
	chunks = kvmalloc_array(n, sizeof(*chunks), GFP_KERNEL);
	if (!chunks)
		return -ENOMEM;
	if (copy_from_user(chunks, u64_to_user_ptr(args->in.chunks), n * sizeof(*chunks))) {
		r = -EFAULT;
		goto out;
	}
	if (args->in.bo_list_handle) {
		list = sim_bo_list_get(fpriv, args->in.bo_list_handle);
		if (!list) {
			r = -ENOENT;
			goto out;
		}
	}
	for (i = 0; i < n && !r; i++)
		r = sim_cs_chunk(filp, chunks[i], &list);
	if (!r)
		r = sim_cs_validate_always_valid(&fpriv->vm);
	if (!r)
		r = sim_cs_validate_list(list);
	if (!r) {
		memset(args, 0, sizeof(*args));
		args->out.handle = atomic64_inc_return(&fpriv->sim_fence_seq);
	}
out:
	sim_bo_list_put(list);
	kvfree(chunks);
	return r;
}

/* Work is done the moment it is submitted. */
int amdgpu_cs_wait_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	union drm_amdgpu_wait_cs *args = data;

	if (!xa_load(&fpriv->sim_contexts, args->in.ctx_id))
		return -EINVAL;
	memset(args, 0, sizeof(*args));
	return 0;
}

int amdgpu_ctx_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	struct amdgpu_fpriv *fpriv = filp->driver_priv;
	union drm_amdgpu_ctx *args = data;
	u32 id = args->in.ctx_id;
	int r;

	switch (args->in.op) {
	case AMDGPU_CTX_OP_ALLOC_CTX:
		r = xa_alloc(&fpriv->sim_contexts, &id, xa_mk_value(1), XA_LIMIT(1, 4096),
			     GFP_KERNEL);
		if (r)
			return r;
		memset(args, 0, sizeof(*args));
		args->out.alloc.ctx_id = id;
		return 0;
	case AMDGPU_CTX_OP_FREE_CTX:
		return xa_erase(&fpriv->sim_contexts, id) ? 0 : -EINVAL;
	case AMDGPU_CTX_OP_QUERY_STATE:
	case AMDGPU_CTX_OP_QUERY_STATE2:
		if (!xa_load(&fpriv->sim_contexts, id))
			return -EINVAL;
		memset(args, 0, sizeof(*args));
		return 0;
	default:
		return -EINVAL;
	}
}

/* There are no VMIDs to reserve: asking for one always works. */
int amdgpu_vm_ioctl(struct drm_device *dev, void *data, struct drm_file *filp)
{
	union drm_amdgpu_vm *args = data;

	if (args->in.flags || (args->in.op != AMDGPU_VM_OP_RESERVE_VMID &&
			       args->in.op != AMDGPU_VM_OP_UNRESERVE_VMID))
		return -EINVAL;
	return 0;
}

void sim_cs_file_fini(struct amdgpu_fpriv *fpriv)
{
	struct sim_bo_list *list;
	unsigned long id;

	xa_for_each(&fpriv->bo_list_handles, id, list)
		sim_bo_list_put(list);
	xa_destroy(&fpriv->bo_list_handles);
	xa_destroy(&fpriv->sim_contexts);
}
