// SPDX-License-Identifier: GPL-2.0-only
/* User queues of a process. They never run; they can be counted and stopped. */
#include <linux/bitmap.h>
#include <linux/slab.h>

#include "kfd.h"

#define KFD_MAX_NUM_OF_QUEUES_PER_PROCESS 1024

static ssize_t kfd_procfs_queue_show(struct kobject *kobj, struct attribute *attr, char *buffer)
{
	struct queue *q = container_of(kobj, struct queue, kobj);

	/* No line ends here, as in the real files. */
	if (!strcmp(attr->name, "size"))
		return sysfs_emit(buffer, "%llu", q->properties.queue_size);
	if (!strcmp(attr->name, "type"))
		return sysfs_emit(buffer, "%d", q->properties.type);
	return sysfs_emit(buffer, "%u", q->device->id);
}

static struct attribute attr_queue_size = { .name = "size", .mode = 0444 };
static struct attribute attr_queue_type = { .name = "type", .mode = 0444 };
static struct attribute attr_queue_gpuid = { .name = "gpuid", .mode = 0444 };

static struct attribute *procfs_queue_attrs[] = {
	&attr_queue_size,
	&attr_queue_type,
	&attr_queue_gpuid,
	NULL,
};
ATTRIBUTE_GROUPS(procfs_queue);

static const struct sysfs_ops procfs_queue_ops = {
	.show = kfd_procfs_queue_show,
};

static void kfd_procfs_queue_release(struct kobject *kobj)
{
	struct queue *q = container_of(kobj, struct queue, kobj);

	sim_kfd_node_put(q->device);
	kfree(q);
}

static const struct kobj_type procfs_queue_type = {
	.release = kfd_procfs_queue_release,
	.sysfs_ops = &procfs_queue_ops,
	.default_groups = procfs_queue_groups,
};

void pqm_init(struct process_queue_manager *pqm, struct kfd_process *p)
{
	pqm->process = p;
	INIT_LIST_HEAD(&pqm->queues);
	ida_init(&pqm->sim_ids);
}

static struct queue *sim_find_queue(struct process_queue_manager *pqm, unsigned int qid)
{
	struct queue *q;

	list_for_each_entry(q, &pqm->queues, list) {
		if (q->properties.queue_id == qid)
			return q;
	}
	return NULL;
}

static void sim_queue_free(struct process_queue_manager *pqm, struct queue *q)
{
	mutex_lock(&pqm->process->sim_queue_lock);
	list_del(&q->list);
	mutex_unlock(&pqm->process->sim_queue_lock);
	ida_free(&pqm->sim_ids, q->properties.queue_id);
	kobject_del(&q->kobj);
	kobject_put(&q->kobj);
}

noinline void pqm_uninit(struct process_queue_manager *pqm)
{
	struct queue *q, *next;

	list_for_each_entry_safe(q, next, &pqm->queues, list)
		sim_queue_free(pqm, q);
	ida_destroy(&pqm->sim_ids);
}

int pqm_create_queue(struct process_queue_manager *pqm, struct kfd_node *dev,
		     const struct queue_properties *properties, unsigned int *qid)
{
	struct kfd_process *p = pqm->process;
	struct queue *q;
	int id, r;

	if (!p->kobj_queues)
		return -EFAULT;
	id = ida_alloc_max(&pqm->sim_ids, KFD_MAX_NUM_OF_QUEUES_PER_PROCESS - 1, GFP_KERNEL);
	if (id < 0)
		return -ENOMEM;
	q = kzalloc(sizeof(*q), GFP_KERNEL);
	if (!q) {
		ida_free(&pqm->sim_ids, id);
		return -ENOMEM;
	}
	q->properties = *properties;
	q->properties.queue_id = id;
	q->process = p;
	q->device = sim_kfd_node_get(dev);
	r = kobject_init_and_add(&q->kobj, &procfs_queue_type, p->kobj_queues, "%u", id);
	if (r) {
		kobject_put(&q->kobj);
		ida_free(&pqm->sim_ids, id);
		return r;
	}
	mutex_lock(&p->sim_queue_lock);
	q->properties.is_evicted = p->sim_evicted;
	list_add_tail(&q->list, &pqm->queues);
	mutex_unlock(&p->sim_queue_lock);
	*qid = id;
	return 0;
}

noinline int pqm_destroy_queue(struct process_queue_manager *pqm, unsigned int qid)
{
	struct queue *q = sim_find_queue(pqm, qid);

	if (!q)
		return -EINVAL;
	sim_queue_free(pqm, q);
	return 0;
}

int sim_pqm_update(struct process_queue_manager *pqm, unsigned int qid,
		   const struct queue_properties *properties)
{
	struct queue *q = sim_find_queue(pqm, qid);

	if (!q)
		return -EFAULT;
	q->properties.queue_address = properties->queue_address;
	q->properties.queue_size = properties->queue_size;
	q->properties.queue_percent = properties->queue_percent;
	q->properties.priority = properties->priority;
	return 0;
}

noinline int pqm_update_mqd(struct process_queue_manager *pqm, unsigned int qid,
			    struct mqd_update_info *minfo)
{
	struct queue *q = sim_find_queue(pqm, qid);
	u32 i, count = 0;

	if (!q)
		return -EFAULT;
	for (i = 0; i < minfo->cu_mask.count / 32; i++)
		count += hweight32(minfo->cu_mask.ptr[i]);
	q->sim_cu_count = min(count, q->device->adev->sim_asic->cu_count);
	return 0;
}

/* With sim_queue_lock held. */
void sim_pqm_set_evicted(struct process_queue_manager *pqm, bool evicted)
{
	struct queue *q;

	list_for_each_entry(q, &pqm->queues, list)
		q->properties.is_evicted = evicted;
}

void sim_pqm_remove_node(struct process_queue_manager *pqm, struct kfd_node *node)
{
	struct queue *q, *next;

	list_for_each_entry_safe(q, next, &pqm->queues, list) {
		if (q->device == node)
			sim_queue_free(pqm, q);
	}
}

/* As if every compute queue that is not stopped kept its CUs busy. */
u32 sim_pqm_cu_occupancy(struct process_queue_manager *pqm, struct kfd_node *node)
{
	u32 all = node->adev->sim_asic->cu_count, sum = 0;
	struct queue *q;

	mutex_lock(&pqm->process->sim_queue_lock);
	list_for_each_entry(q, &pqm->queues, list) {
		if (q->device == node && q->properties.type == KFD_QUEUE_TYPE_COMPUTE &&
		    !q->properties.is_evicted && q->properties.queue_percent)
			sum += q->sim_cu_count ?: all;
	}
	mutex_unlock(&pqm->process->sim_queue_lock);
	return min(sum, all);
}
