// SPDX-License-Identifier: GPL-2.0-only
/*
 * PRIME: dma-bufs of our buffers, and buffers made from dma-bufs. Nobody can
 * map what has no memory; who holds a reference and who is charged is real.
 */
#include <linux/dma-buf.h>

#include <drm/drm_prime.h>

#include "amdgpu.h"

MODULE_IMPORT_NS(SIM_NS_DMA_BUF);

static int amdgpu_dma_buf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	return 0;
}

static void amdgpu_dma_buf_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
}

static int amdgpu_dma_buf_pin(struct dma_buf_attachment *attach)
{
	return 0;
}

static void amdgpu_dma_buf_unpin(struct dma_buf_attachment *attach)
{
}

static struct sg_table *amdgpu_dma_buf_map(struct dma_buf_attachment *attach,
					   enum dma_data_direction dir)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void amdgpu_dma_buf_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
				 enum dma_data_direction dir)
{
}

static const struct dma_buf_ops amdgpu_dmabuf_ops = {
	.attach = amdgpu_dma_buf_attach,
	.detach = amdgpu_dma_buf_detach,
	.pin = amdgpu_dma_buf_pin,
	.unpin = amdgpu_dma_buf_unpin,
	.map_dma_buf = amdgpu_dma_buf_map,
	.unmap_dma_buf = amdgpu_dma_buf_unmap,
	.release = drm_gem_dmabuf_release,
};

bool sim_is_amdgpu_dmabuf(struct dma_buf *dma_buf)
{
	return dma_buf->ops == &amdgpu_dmabuf_ops;
}

noinline struct dma_buf *amdgpu_gem_prime_export(struct drm_gem_object *gobj, int flags)
{
	struct amdgpu_bo *bo = gem_to_amdgpu_bo(gobj);
	struct dma_buf *buf;

	if (bo->sim_usermm || bo->flags & AMDGPU_GEM_CREATE_VM_ALWAYS_VALID)
		return ERR_PTR(-EPERM);
	buf = drm_gem_prime_export(gobj, flags);
	if (!IS_ERR(buf))
		buf->ops = &amdgpu_dmabuf_ops;
	return buf;
}

/* The exporter moved its buffer: a real importer would drop its mappings. */
static void amdgpu_dma_buf_move_notify(struct dma_buf_attachment *attach)
{
}

static const struct dma_buf_attach_ops amdgpu_dma_buf_attach_ops = {
	.allow_peer2peer = true,
	SIM_ATTACH_MOVE_NOTIFY = amdgpu_dma_buf_move_notify,
};

/* A buffer of another device's memory: no VRAM of ours, nothing charged. */
static struct drm_gem_object *amdgpu_dma_buf_create_obj(struct drm_device *dev,
							struct dma_buf *dma_buf)
{
	struct drm_gem_object *gobj;
	struct amdgpu_bo *bo;
	int r;

	dma_resv_lock(dma_buf->resv, NULL);
	r = amdgpu_gem_object_create(drm_to_adev(dev), dma_buf->size, PAGE_SIZE,
				     AMDGPU_GEM_DOMAIN_CPU, 0, ttm_bo_type_sg, dma_buf->resv, &gobj,
				     0);
	if (!r) {
		bo = gem_to_amdgpu_bo(gobj);
		bo->allowed_domains = AMDGPU_GEM_DOMAIN_GTT;
		bo->preferred_domains = AMDGPU_GEM_DOMAIN_GTT;
	}
	dma_resv_unlock(dma_buf->resv);
	return r ? ERR_PTR(r) : gobj;
}

noinline struct drm_gem_object *amdgpu_gem_prime_import(struct drm_device *dev,
							struct dma_buf *dma_buf)
{
	struct dma_buf_attachment *attach;
	struct drm_gem_object *obj;

	if (sim_is_amdgpu_dmabuf(dma_buf)) {
		obj = dma_buf->priv;
		/* Our own: one more reference on the very same buffer. */
		if (obj->dev == dev) {
			drm_gem_object_get(obj);
			return obj;
		}
	}

	obj = amdgpu_dma_buf_create_obj(dev, dma_buf);
	if (IS_ERR(obj))
		return obj;
	attach = dma_buf_dynamic_attach(dma_buf, dev->dev, &amdgpu_dma_buf_attach_ops, obj);
	if (IS_ERR(attach)) {
		drm_gem_object_put(obj);
		return ERR_CAST(attach);
	}
	get_dma_buf(dma_buf);
	obj->import_attach = attach;
	return obj;
}
