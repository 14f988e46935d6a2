// SPDX-License-Identifier: GPL-2.0-only
/* /sys/class/kfd/kfd/proc/<pid>: what a process uses, per GPU. */
#include <linux/slab.h>

#include "kfd.h"

static struct kobject *sim_proc;

static void kfd_procfs_kobj_release(struct kobject *kobj)
{
	kfree(kobj);
}

static ssize_t kfd_procfs_show(struct kobject *kobj, struct attribute *attr, char *buffer)
{
	struct kfd_process_device *pdd;

	if (!strcmp(attr->name, "pasid")) {
#ifdef SIM_KFD_PROCESS_PASID
		struct kfd_process *p = container_of(attr, struct kfd_process, attr_pasid);

		return sysfs_emit(buffer, "%d\n", p->pasid);
#else
		return sysfs_emit(buffer, "%d\n", 0);
#endif
	}
	if (!strncmp(attr->name, "vram_", 5)) {
		pdd = container_of(attr, struct kfd_process_device, attr_vram);
		return sysfs_emit(buffer, "%llu\n", (u64)atomic64_read(&pdd->vram_usage));
	}
	/* sdma_<gpuid>: microseconds of copy engines; none is ever used. */
	return sysfs_emit(buffer, "0\n");
}

static ssize_t kfd_procfs_stats_show(struct kobject *kobj, struct attribute *attr, char *buffer)
{
	struct kfd_process_device *pdd;

	if (!strcmp(attr->name, "evicted_ms")) {
		pdd = container_of(attr, struct kfd_process_device, attr_evict);
		return sysfs_emit(buffer, "%llu\n",
				  jiffies64_to_msecs(atomic64_read(&pdd->evict_duration_counter)));
	}
	pdd = container_of(attr, struct kfd_process_device, attr_cu_occupancy);
	return sysfs_emit(buffer, "%u\n", sim_pqm_cu_occupancy(&pdd->process->pqm, pdd->dev));
}

static const struct sysfs_ops kfd_procfs_ops = { .show = kfd_procfs_show };
static const struct sysfs_ops procfs_stats_ops = { .show = kfd_procfs_stats_show };

static const struct kobj_type procfs_type = {
	.release = kfd_procfs_kobj_release,
	.sysfs_ops = &kfd_procfs_ops,
};

static const struct kobj_type procfs_stats_type = {
	.release = kfd_procfs_kobj_release,
	.sysfs_ops = &procfs_stats_ops,
};

int sim_procfs_init(struct kobject *parent)
{
	sim_proc = kobject_create_and_add("proc", parent);
	return sim_proc ? 0 : -ENOMEM;
}

void sim_procfs_exit(void)
{
	kobject_put(sim_proc);
	sim_proc = NULL;
}

static int kfd_sysfs_create_file(struct kobject *kobj, struct attribute *attr, const char *name)
{
	sysfs_attr_init(attr);
	attr->name = name;
	attr->mode = 0444;
	return sysfs_create_file(kobj, attr);
}

static int sim_procfs_add_pdd(struct kfd_process *p, struct kfd_process_device *pdd)
{
	int r;

	snprintf(pdd->vram_filename, sizeof(pdd->vram_filename), "vram_%u", pdd->dev->id);
	snprintf(pdd->sdma_filename, sizeof(pdd->sdma_filename), "sdma_%u", pdd->dev->id);
	r = kfd_sysfs_create_file(p->kobj, &pdd->attr_vram, pdd->vram_filename);
	if (!r)
		r = kfd_sysfs_create_file(p->kobj, &pdd->attr_sdma, pdd->sdma_filename);
	if (r)
		return r;

	pdd->kobj_stats = kzalloc(sizeof(*pdd->kobj_stats), GFP_KERNEL);
	if (!pdd->kobj_stats)
		return -ENOMEM;
	r = kobject_init_and_add(pdd->kobj_stats, &procfs_stats_type, p->kobj, "stats_%u",
				 pdd->dev->id);
	if (r) {
		kobject_put(pdd->kobj_stats);
		pdd->kobj_stats = NULL;
		return r;
	}
	r = kfd_sysfs_create_file(pdd->kobj_stats, &pdd->attr_evict, "evicted_ms");
	if (!r)
		r = kfd_sysfs_create_file(pdd->kobj_stats, &pdd->attr_cu_occupancy, "cu_occupancy");
	return r;
}

int kfd_create_process_sysfs(struct kfd_process *p, struct kfd_process *primary)
{
	u32 i;
	int r;

	p->kobj = kzalloc(sizeof(*p->kobj), GFP_KERNEL);
	if (!p->kobj)
		return -ENOMEM;
	if (primary)
		r = kobject_init_and_add(p->kobj, &procfs_type, primary->kobj, "context_%u",
					 sim_context_id(p));
	else
		r = kobject_init_and_add(p->kobj, &procfs_type, sim_proc, "%d",
					 (int)p->lead_thread->pid);
	if (r) {
		kobject_put(p->kobj);
		p->kobj = NULL;
		return r;
	}
	r = kfd_sysfs_create_file(p->kobj, &p->attr_pasid, "pasid");
	if (r)
		return r;
	p->kobj_queues = kobject_create_and_add("queues", p->kobj);
	if (!p->kobj_queues)
		return -ENOMEM;
	for (i = 0; i < p->n_pdds && !r; i++)
		r = sim_procfs_add_pdd(p, p->pdds[i]);
	return r;
}

/* Returns when nobody reads any of its files. */
void sim_procfs_remove_pdd(struct kfd_process *p, struct kfd_process_device *pdd)
{
	if (pdd->kobj_stats) {
		kobject_del(pdd->kobj_stats);
		kobject_put(pdd->kobj_stats);
		pdd->kobj_stats = NULL;
	}
	if (p->kobj && pdd->attr_vram.name)
		sysfs_remove_file(p->kobj, &pdd->attr_vram);
	if (p->kobj && pdd->attr_sdma.name)
		sysfs_remove_file(p->kobj, &pdd->attr_sdma);
}

void kfd_process_remove_sysfs(struct kfd_process *p)
{
	u32 i;

	if (!p->kobj)
		return;
	for (i = 0; i < p->n_pdds; i++)
		sim_procfs_remove_pdd(p, p->pdds[i]);
	if (p->kobj_queues) {
		kobject_del(p->kobj_queues);
		kobject_put(p->kobj_queues);
		p->kobj_queues = NULL;
	}
	kobject_del(p->kobj);
	kobject_put(p->kobj);
	p->kobj = NULL;
}
