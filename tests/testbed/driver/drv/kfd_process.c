// SPDX-License-Identifier: GPL-2.0-only
/*
 * KFD processes: made at the first open of /dev/kfd, ended when the address
 * space goes (mmu notifier), freed by a work queue.
 */
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/mmu_notifier.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "kfd.h"

static DEFINE_HASHTABLE(kfd_processes_table, 5);
/* Also those that left the table and still have to be freed. */
static LIST_HEAD(sim_processes);
/* Creation and both of the above; the spinlock also for look-ups from fences. */
static DEFINE_MUTEX(kfd_processes_mutex);
static DEFINE_SPINLOCK(kfd_processes_lock);
static struct workqueue_struct *kfd_process_wq;
/* Ordered: restores must not fight each other for VRAM. */
static struct workqueue_struct *kfd_restore_wq;

int kfd_process_create_wq(void)
{
	kfd_process_wq = alloc_workqueue("kfd_process_wq", WQ_UNBOUND, 0);
	kfd_restore_wq = alloc_ordered_workqueue("kfd_restore_wq", WQ_FREEZABLE);
	if (!kfd_process_wq || !kfd_restore_wq) {
		kfd_process_destroy_wq();
		return -ENOMEM;
	}
	return 0;
}

void kfd_process_destroy_wq(void)
{
	if (kfd_process_wq)
		destroy_workqueue(kfd_process_wq);
	if (kfd_restore_wq)
		destroy_workqueue(kfd_restore_wq);
	kfd_process_wq = NULL;
	kfd_restore_wq = NULL;
}

/* With kfd_processes_lock held. No reference taken. */
static struct kfd_process *find_process_by_mm(const struct mm_struct *mm, u16 context_id)
{
	struct kfd_process *p;

	hash_for_each_possible(kfd_processes_table, p, kfd_processes, (uintptr_t)mm) {
		if (p->mm == mm && sim_context_id(p) == context_id)
			return p;
	}
	return NULL;
}

static struct kfd_process *kfd_lookup_process_by_mm(const struct mm_struct *mm)
{
	struct kfd_process *p;
	unsigned long flags;

	spin_lock_irqsave(&kfd_processes_lock, flags);
	p = find_process_by_mm(mm, KFD_CONTEXT_ID_PRIMARY);
	if (p)
		kref_get(&p->ref);
	spin_unlock_irqrestore(&kfd_processes_lock, flags);
	return p;
}

#ifdef SIM_HAS_SVM
struct kfd_process *sim_lookup_process_by_pasid(u32 pasid)
{
	struct kfd_process *p, *found = NULL;
	u32 i;

	mutex_lock(&kfd_processes_mutex);
	list_for_each_entry(p, &sim_processes, sim_list) {
		for (i = 0; !p->sim_released && i < p->n_pdds; i++) {
			if (p->pdds[i]->pasid == pasid)
				found = p;
		}
	}
	if (found)
		kref_get(&found->ref);
	mutex_unlock(&kfd_processes_mutex);
	return found;
}

u32 sim_pasid_of(pid_t pid, struct amdgpu_device *adev)
{
	struct kfd_process *p;
	u32 i, pasid = 0;

	mutex_lock(&kfd_processes_mutex);
	list_for_each_entry(p, &sim_processes, sim_list) {
		if (p->lead_thread->pid != pid || sim_context_id(p) != KFD_CONTEXT_ID_PRIMARY)
			continue;
		for (i = 0; i < p->n_pdds; i++) {
			if (p->pdds[i]->dev->adev == adev)
				pasid = p->pdds[i]->pasid;
		}
	}
	mutex_unlock(&kfd_processes_mutex);
	return pasid;
}
#endif

/* Someone wants a buffer of the process moved: called under the fence's lock. */
int kgd2kfd_schedule_evict_and_restore_process(struct mm_struct *mm, u16 context_id,
					       struct dma_fence *fence)
{
	unsigned long delay = msecs_to_jiffies(PROCESS_ACTIVE_TIME_MS);
	struct kfd_process *p;
	unsigned long flags, active;

	spin_lock_irqsave(&kfd_processes_lock, flags);
	p = find_process_by_mm(mm, context_id);
	if (p && fence->seqno != p->last_eviction_seqno) {
		p->last_eviction_seqno = fence->seqno;
		/* A process that was just restored may run for a moment. */
		active = jiffies - p->last_restore_timestamp;
		schedule_delayed_work(&p->eviction_work, delay > active ? delay - active : 0);
	}
	spin_unlock_irqrestore(&kfd_processes_lock, flags);
	return p ? 0 : -ENODEV;
}

noinline int kfd_process_evict_queues(struct kfd_process *p, uint32_t trigger)
{
	u32 i;

	mutex_lock(&p->sim_queue_lock);
	if (!p->sim_evicted++) {
		sim_pqm_set_evicted(&p->pqm, true);
		for (i = 0; i < p->n_pdds; i++) {
			p->pdds[i]->last_evict_timestamp = get_jiffies_64();
			kfd_smi_event_queue_eviction(p->pdds[i]->dev, p->lead_thread, trigger);
		}
	}
	mutex_unlock(&p->sim_queue_lock);
	return 0;
}

noinline int kfd_process_restore_queues(struct kfd_process *p)
{
	u32 i;

	mutex_lock(&p->sim_queue_lock);
	if (p->sim_evicted && !--p->sim_evicted) {
		sim_pqm_set_evicted(&p->pqm, false);
		for (i = 0; i < p->n_pdds; i++) {
			atomic64_add(get_jiffies_64() - p->pdds[i]->last_evict_timestamp,
				     &p->pdds[i]->evict_duration_counter);
			kfd_smi_event_queue_restore(p->pdds[i]->dev, p->lead_thread);
		}
	}
	mutex_unlock(&p->sim_queue_lock);
	return 0;
}

/* -EINVAL or the like if somebody else signalled it already. */
static int signal_eviction_fence(struct kfd_process *p)
{
	struct dma_fence *ef;
	int r = -EINVAL;

	rcu_read_lock();
	ef = dma_fence_get_rcu_safe(&p->ef);
	rcu_read_unlock();
	if (ef && !dma_fence_is_signaled(ef)) {
		dma_fence_signal(ef);
		r = 0;
	}
	dma_fence_put(ef);
	return r;
}

static noinline void evict_process_worker(struct work_struct *work)
{
	struct kfd_process *p =
		container_of(to_delayed_work(work), struct kfd_process, eviction_work);

	kfd_process_evict_queues(p, KFD_QUEUE_EVICTION_TRIGGER_TTM);
	/* A restore already pending will start the queues once, not twice. */
	if (signal_eviction_fence(p) || mod_delayed_work(kfd_restore_wq, &p->restore_work,
							 msecs_to_jiffies(PROCESS_RESTORE_TIME_MS)))
		kfd_process_restore_queues(p);
}

static noinline void restore_process_worker(struct work_struct *work)
{
	struct kfd_process *p =
		container_of(to_delayed_work(work), struct kfd_process, restore_work);

	p->last_restore_timestamp = jiffies;
	if (p->kgd_process_info &&
	    amdgpu_amdkfd_gpuvm_restore_process_bos(p->kgd_process_info, &p->ef)) {
		if (mod_delayed_work(kfd_restore_wq, &p->restore_work,
				     msecs_to_jiffies(PROCESS_RESTORE_TIME_MS)))
			kfd_process_restore_queues(p);
		return;
	}
	kfd_process_restore_queues(p);
}

/* ---- devices of a process ---- */

struct kfd_process_device *kfd_process_device_data_by_id(struct kfd_process *p, uint32_t gpu_id)
{
	u32 i;

	for (i = 0; gpu_id && i < p->n_pdds; i++) {
		if (p->pdds[i]->user_gpu_id == gpu_id)
			return p->pdds[i];
	}
	return NULL;
}

static int kfd_create_process_device_data(struct kfd_node *dev, void *data)
{
	struct kfd_process *p = data;
	struct kfd_process_device *pdd;

	if (!sim_kfd_node_allowed(dev))
		return 0;
	if (p->n_pdds >= MAX_GPU_INSTANCE)
		return -ENOSPC;
	pdd = kzalloc(sizeof(*pdd), GFP_KERNEL);
	if (!pdd)
		return -ENOMEM;
	pdd->dev = sim_kfd_node_get(dev);
	pdd->process = p;
	pdd->user_gpu_id = dev->id;
	idr_init(&pdd->alloc_idr);
	p->pdds[p->n_pdds++] = pdd;
	return 0;
}

struct kfd_process_device *kfd_bind_process_to_device(struct kfd_node *dev, struct kfd_process *p)
{
	struct kfd_process_device *pdd = kfd_process_device_data_by_id(p, dev->id);

	if (!pdd)
		return ERR_PTR(-ENOMEM);
	/* ACQUIRE_VM comes first. */
	return pdd->drm_priv ? pdd : ERR_PTR(-ENODEV);
}

/* On success the device holds a reference on @drm_file. */
int kfd_process_device_init_vm(struct kfd_process_device *pdd, struct file *drm_file)
{
	struct amdgpu_device *adev = pdd->dev->adev;
	struct amdgpu_fpriv *fpriv;
	struct drm_file *file;
	int r;

	if (pdd->drm_priv)
		return -EBUSY;
	r = amdgpu_file_to_fpriv(drm_file, &fpriv);
	if (r)
		return r;
	file = drm_file->private_data;
	if (file->minor->dev != adev_to_drm(adev))
		return -EINVAL;
	r = amdgpu_amdkfd_gpuvm_acquire_process_vm(adev, &fpriv->vm, pdd->process);
	if (r)
		return r;
	pdd->drm_priv = file;
	pdd->drm_file = get_file(drm_file);
#ifdef SIM_KFD_PROCESS_PASID
	if (!pdd->process->pasid)
		pdd->process->pasid = fpriv->vm.pasid;
#else
	pdd->pasid = fpriv->vm.pasid;
#endif
	kfd_smi_event_process(pdd, true);
	return 0;
}

/* Unmap @mem from every GPU of the process, then free it. */
static void sim_free_mem(struct kfd_process *p, struct kfd_process_device *pdd, int id,
			 struct kgd_mem *mem)
{
	u32 i;

	for (i = 0; i < p->n_pdds; i++) {
		if (p->pdds[i]->drm_priv)
			amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu(p->pdds[i]->dev->adev, mem,
								  p->pdds[i]->drm_priv);
	}
	idr_remove(&pdd->alloc_idr, id);
	amdgpu_amdkfd_gpuvm_free_memory_of_gpu(pdd->dev->adev, mem, pdd->drm_priv, NULL);
}

static void kfd_process_device_free_bos(struct kfd_process *p, struct kfd_process_device *pdd)
{
	struct kgd_mem *mem;
	int id;

	idr_for_each_entry(&pdd->alloc_idr, mem, id)
		sim_free_mem(p, pdd, id, mem);
}

static void sim_pdd_destroy(struct kfd_process_device *pdd)
{
	if (pdd->drm_file) {
		kfd_smi_event_process(pdd, false);
		fput(pdd->drm_file);
	}
	idr_destroy(&pdd->alloc_idr);
	sim_kfd_node_put(pdd->dev);
	kfree(pdd);
}

/* ---- life and death ---- */

static void kfd_process_ref_release(struct kref *ref);

void kfd_unref_process(struct kfd_process *p)
{
	kref_put(&p->ref, kfd_process_ref_release);
}

static noinline void kfd_process_wq_release(struct work_struct *work)
{
	struct kfd_process *p = container_of(work, struct kfd_process, release_work);
	struct dma_fence *ef = rcu_dereference_protected(p->ef, true);
	u32 i;

	mutex_lock(&kfd_processes_mutex);
	list_del(&p->sim_list);
	mutex_unlock(&kfd_processes_mutex);
	/* Its buffers may go without anyone being evicted for them. */
	if (ef)
		dma_fence_signal(ef);
	kfd_process_remove_sysfs(p);
	svm_range_list_fini(p);
	for (i = 0; i < p->n_pdds; i++)
		kfd_process_device_free_bos(p, p->pdds[i]);
	for (i = 0; i < p->n_pdds; i++)
		sim_pdd_destroy(p->pdds[i]);
	sim_process_info_put(p->kgd_process_info);
	dma_fence_put(ef);
#ifdef SIM_KFD_CONTEXTS
	ida_destroy(&p->id_table);
#endif
	mutex_destroy(&p->sim_queue_lock);
	mutex_destroy(&p->mutex);
	put_task_struct(p->lead_thread);
	kfree(p);
}

static void kfd_process_ref_release(struct kref *ref)
{
	struct kfd_process *p = container_of(ref, struct kfd_process, ref);

	INIT_WORK(&p->release_work, kfd_process_wq_release);
	queue_work(kfd_process_wq, &p->release_work);
}

/* The process must not be found, evicted or restored any more. Once only. */
static void kfd_process_notifier_release_internal(struct kfd_process *p)
{
	unsigned long flags;

	mutex_lock(&kfd_processes_mutex);
	if (p->sim_released) {
		mutex_unlock(&kfd_processes_mutex);
		return;
	}
	p->sim_released = true;
	spin_lock_irqsave(&kfd_processes_lock, flags);
	hash_del(&p->kfd_processes);
	spin_unlock_irqrestore(&kfd_processes_lock, flags);
	mutex_unlock(&kfd_processes_mutex);

	/* Evicting may schedule a restore, never the other way round. */
	cancel_delayed_work_sync(&p->eviction_work);
	cancel_delayed_work_sync(&p->restore_work);
	mutex_lock(&p->mutex);
	pqm_uninit(&p->pqm);
	mutex_unlock(&p->mutex);
	/* No queue runs: who waits to move a buffer need not wait for our end. */
	signal_eviction_fence(p);
	p->mm = NULL;
	if (sim_context_id(p) != KFD_CONTEXT_ID_PRIMARY)
		return;
#ifdef CONFIG_MMU_NOTIFIER
	mmu_notifier_put(&p->mmu_notifier);
#else
	kfd_unref_process(p);
#endif
}

static noinline void kfd_process_notifier_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct kfd_process *p = container_of(mn, struct kfd_process, mmu_notifier);

	kfd_process_notifier_release_internal(p);
}

#ifdef CONFIG_MMU_NOTIFIER
static struct mmu_notifier *kfd_process_alloc_notifier(struct mm_struct *mm)
{
	/* This reference is the notifier's. */
	struct kfd_process *p = kfd_lookup_process_by_mm(mm);

	return p ? &p->mmu_notifier : ERR_PTR(-ESRCH);
}

static void kfd_process_free_notifier(struct mmu_notifier *mn)
{
	kfd_unref_process(container_of(mn, struct kfd_process, mmu_notifier));
}

static const struct mmu_notifier_ops kfd_process_mmu_notifier_ops = {
	.release = kfd_process_notifier_release,
	.alloc_notifier = kfd_process_alloc_notifier,
	.free_notifier = kfd_process_free_notifier,
};

static int sim_watch_mm(struct kfd_process *p, struct mm_struct *mm)
{
	return PTR_ERR_OR_ZERO(mmu_notifier_get(&kfd_process_mmu_notifier_ops, mm));
}
#else
/* The last close of /dev/kfd must do for the end of the address space. */
static int sim_watch_mm(struct kfd_process *p, struct mm_struct *mm)
{
	kref_get(&p->ref);
	return 0;
}
#endif

static void sim_process_free_new(struct kfd_process *p)
{
	u32 i;

	for (i = 0; i < p->n_pdds; i++)
		sim_pdd_destroy(p->pdds[i]);
	mutex_destroy(&p->sim_queue_lock);
	mutex_destroy(&p->mutex);
	kfree(p);
}

/* With kfd_processes_mutex held. The caller gets the one reference. */
static struct kfd_process *create_process(struct task_struct *thread, struct kfd_process *primary)
{
	struct kfd_process *p;
	unsigned long flags;
	int r;

	p = kzalloc(sizeof(*p), GFP_KERNEL);
	if (!p)
		return ERR_PTR(-ENOMEM);
	kref_init(&p->ref);
	mutex_init(&p->mutex);
	mutex_init(&p->sim_queue_lock);
	p->mm = thread->mm;
	p->lead_thread = thread->group_leader;
	INIT_DELAYED_WORK(&p->eviction_work, evict_process_worker);
	INIT_DELAYED_WORK(&p->restore_work, restore_process_worker);
	p->last_restore_timestamp = jiffies;
	pqm_init(&p->pqm, p);
	svm_range_list_init(p);
#ifdef SIM_KFD_CONTEXTS
	ida_init(&p->id_table);
	p->context_id = KFD_CONTEXT_ID_PRIMARY;
	if (primary) {
		r = ida_alloc_range(&primary->id_table, 1, KFD_CONTEXT_ID_PRIMARY - 1, GFP_KERNEL);
		if (r < 0)
			goto err;
		p->context_id = r;
	}
#endif
	r = sim_kfd_for_each_node(kfd_create_process_device_data, p);
	if (r)
		goto err;

	get_task_struct(p->lead_thread);
	list_add_tail(&p->sim_list, &sim_processes);
	spin_lock_irqsave(&kfd_processes_lock, flags);
	hash_add(kfd_processes_table, &p->kfd_processes, (uintptr_t)p->mm);
	spin_unlock_irqrestore(&kfd_processes_lock, flags);
	if (!primary) {
		r = sim_watch_mm(p, thread->mm);
		if (r) {
			spin_lock_irqsave(&kfd_processes_lock, flags);
			hash_del(&p->kfd_processes);
			spin_unlock_irqrestore(&kfd_processes_lock, flags);
			list_del(&p->sim_list);
			put_task_struct(p->lead_thread);
			goto err;
		}
	}
	return p;

err:
	sim_process_free_new(p);
	return ERR_PTR(r);
}

noinline struct kfd_process *kfd_create_process(struct task_struct *thread)
{
	struct kfd_process *p;

	if (!thread->mm || !mmget_not_zero(thread->mm))
		return ERR_PTR(-EINVAL);
	/* After exec() the former image's buffers go first. */
	flush_workqueue(kfd_process_wq);
	mutex_lock(&kfd_processes_mutex);
	p = kfd_lookup_process_by_mm(thread->mm);
	if (!p && !sim_kfd_node_count()) {
		p = ERR_PTR(-EINVAL);
	} else if (!p) {
		p = create_process(thread, NULL);
		if (!IS_ERR(p) && kfd_create_process_sysfs(p, NULL))
			pr_warn("amdgpu: no sysfs entries for KFD process %d\n",
				p->lead_thread->pid);
	}
	if (!IS_ERR(p))
		p->sim_files++;
	mutex_unlock(&kfd_processes_mutex);
	mmput(thread->mm);
	return p;
}

#ifdef SIM_KFD_CONTEXTS
/* The file's process becomes a further context of @primary. */
struct kfd_process *sim_create_secondary(struct file *filep, struct kfd_process *primary)
{
	struct kfd_process *p;

	mutex_lock(&kfd_processes_mutex);
	if (sim_context_id(primary) != KFD_CONTEXT_ID_PRIMARY || filep->private_data != primary ||
	    primary->sim_released) {
		mutex_unlock(&kfd_processes_mutex);
		return ERR_PTR(-EINVAL);
	}
	p = create_process(current, primary);
	if (!IS_ERR(p)) {
		p->sim_files++;
		filep->private_data = p;
		if (kfd_create_process_sysfs(p, primary))
			pr_warn("amdgpu: no sysfs entries for KFD context %u of process %d\n",
				sim_context_id(p), p->lead_thread->pid);
	}
	mutex_unlock(&kfd_processes_mutex);
	if (!IS_ERR(p))
		sim_process_file_closed(primary);
	return p;
}
#endif

static void sim_context_id_free(struct kfd_process *p)
{
#ifdef SIM_KFD_CONTEXTS
	struct kfd_process *primary = kfd_lookup_process_by_mm(p->mm);

	if (primary) {
		ida_free(&primary->id_table, p->context_id);
		kfd_unref_process(primary);
	}
#endif
}

/* A file of /dev/kfd is gone, and its reference with it. */
void sim_process_file_closed(struct kfd_process *p)
{
	bool last;

	mutex_lock(&kfd_processes_mutex);
	last = !--p->sim_files;
	mutex_unlock(&kfd_processes_mutex);
	/* A further context lives as long as its file. */
	if (last && sim_context_id(p) != KFD_CONTEXT_ID_PRIMARY) {
		sim_context_id_free(p);
		kfd_process_notifier_release_internal(p);
	} else if (last && !IS_ENABLED(CONFIG_MMU_NOTIFIER)) {
		kfd_process_notifier_release(&p->mmu_notifier, p->mm);
	}
	kfd_unref_process(p);
}

void kfd_cleanup_processes(void)
{
	struct kfd_process *p, *found;
	unsigned long flags;
	int bucket;

	for (;;) {
		found = NULL;
		spin_lock_irqsave(&kfd_processes_lock, flags);
		hash_for_each(kfd_processes_table, bucket, p, kfd_processes) {
			found = p;
			kref_get(&p->ref);
			break;
		}
		spin_unlock_irqrestore(&kfd_processes_lock, flags);
		if (!found)
			break;
		kfd_process_notifier_release_internal(found);
		kfd_unref_process(found);
	}
#ifdef CONFIG_MMU_NOTIFIER
	mmu_notifier_synchronize();
#endif
	flush_workqueue(kfd_process_wq);
}

/* Buffers of other GPUs are mapped here, too. */
static void sim_detach_peers(struct kfd_process *p, struct kfd_process_device *pdd)
{
	struct kgd_mem *mem;
	int id;
	u32 i;

	for (i = 0; pdd->drm_priv && i < p->n_pdds; i++) {
		idr_for_each_entry(&p->pdds[i]->alloc_idr, mem, id)
			sim_amdkfd_detach(mem, pdd->drm_priv);
	}
}

static void sim_process_drop_node(struct kfd_process *p, struct kfd_node *node)
{
	struct kfd_process_device *pdd = NULL;
	u32 i;

	mutex_lock(&p->mutex);
	for (i = 0; i < p->n_pdds; i++) {
		if (p->pdds[i]->dev == node)
			pdd = p->pdds[i];
	}
	if (pdd) {
		sim_pqm_remove_node(&p->pqm, node);
		sim_svm_drop_node(p, node);
		kfd_process_device_free_bos(p, pdd);
		sim_detach_peers(p, pdd);
		sim_procfs_remove_pdd(p, pdd);
		mutex_lock(&p->sim_queue_lock);
		for (i = 0; p->pdds[i] != pdd; i++)
			;
		p->pdds[i] = p->pdds[--p->n_pdds];
		mutex_unlock(&p->sim_queue_lock);
	}
	mutex_unlock(&p->mutex);
	if (pdd)
		sim_pdd_destroy(pdd);
}

void sim_process_remove_node(struct kfd_node *node)
{
	struct kfd_process *p;

	mutex_lock(&kfd_processes_mutex);
	list_for_each_entry(p, &sim_processes, sim_list)
		sim_process_drop_node(p, node);
	mutex_unlock(&kfd_processes_mutex);
	/* Those on their way out still have it. */
	flush_workqueue(kfd_process_wq);
}
