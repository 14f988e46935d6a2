// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fences of buffer moves. A real copy engine would wait for what the buffer's
 * users still do (KFD: until its queues are stopped), copy, and signal. Here
 * an ordered work queue waits, sleeps for the debugfs knob's time, signals.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "amdgpu.h"

struct sim_move_fence {
	struct dma_fence base;
	spinlock_t lock;
	struct work_struct work;
	struct dma_fence *dependency;
	u32 delay_ms;
};

static const char *sim_move_fence_driver_name(struct dma_fence *f)
{
	return "amdgpu";
}

static const char *sim_move_fence_timeline_name(struct dma_fence *f)
{
	return "move";
}

static const struct dma_fence_ops sim_move_fence_ops = {
	.get_driver_name = sim_move_fence_driver_name,
	.get_timeline_name = sim_move_fence_timeline_name,
};

static void sim_move_worker(struct work_struct *work)
{
	struct sim_move_fence *fence = container_of(work, struct sim_move_fence, work);

	if (fence->dependency) {
		dma_fence_wait(fence->dependency, false);
		dma_fence_put(fence->dependency);
	}
	if (fence->delay_ms)
		msleep(fence->delay_ms);
	dma_fence_signal(&fence->base);
	dma_fence_put(&fence->base);
}

/*
 * A fence for a move of the buffer that owns @resv (held). Asking the fences
 * already there for their signal is what starts the eviction of a KFD process.
 * Returns a reference or an ERR_PTR.
 */
struct dma_fence *sim_move_fence_create(struct amdgpu_device *adev, struct dma_resv *resv)
{
	u32 delay_ms = READ_ONCE(adev->sim_move_delay_ms);
	struct dma_fence *dependency = NULL;
	struct sim_move_fence *fence;
	int r;

	r = dma_resv_get_singleton(resv, DMA_RESV_USAGE_BOOKKEEP, &dependency);
	if (r)
		return ERR_PTR(r);
	if (dependency && dma_fence_is_signaled(dependency)) {
		dma_fence_put(dependency);
		dependency = NULL;
	}
	if (!dependency && !delay_ms)
		return dma_fence_get_stub();

	fence = kzalloc(sizeof(*fence), GFP_KERNEL);
	if (!fence) {
		dma_fence_put(dependency);
		return ERR_PTR(-ENOMEM);
	}
	if (dependency)
		sim_fence_enable_signaling(dependency);
	spin_lock_init(&fence->lock);
	INIT_WORK(&fence->work, sim_move_worker);
	fence->dependency = dependency;
	fence->delay_ms = delay_ms;
	/* Numbered and queued in one step: fences of a context signal in order. */
	spin_lock(&adev->sim_move_lock);
	dma_fence_init(&fence->base, &sim_move_fence_ops, &fence->lock, adev->sim_move_context,
		       ++adev->sim_move_seqno);
	dma_fence_get(&fence->base);
	queue_work(adev->sim_move_wq, &fence->work);
	spin_unlock(&adev->sim_move_lock);
	return &fence->base;
}
