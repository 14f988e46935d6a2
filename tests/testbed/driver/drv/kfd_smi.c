// SPDX-License-Identifier: GPL-2.0-only
/* SMI events: lines of text about one GPU, for whoever asked for them. */
#include <linux/anon_inodes.h>
#include <linux/kfifo.h>
#include <linux/poll.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "kfd.h"

#define KFD_MAX_KFIFO_SIZE 8192

struct kfd_smi_client {
	struct list_head list;
	struct kfifo fifo;
	wait_queue_head_t wait_queue;
	/* events enabled */
	u64 events;
	struct kfd_node *dev;
	pid_t tgid;
	bool suser;
};

static __poll_t kfd_smi_ev_poll(struct file *filep, struct poll_table_struct *wait)
{
	struct kfd_smi_client *client = filep->private_data;
	__poll_t mask = 0;

	poll_wait(filep, &client->wait_queue, wait);
	spin_lock(&client->dev->smi_lock);
	if (!kfifo_is_empty(&client->fifo))
		mask = EPOLLIN | EPOLLRDNORM;
	spin_unlock(&client->dev->smi_lock);
	return mask;
}

/* Never blocks: -EAGAIN when there is nothing. */
static ssize_t kfd_smi_ev_read(struct file *filep, char __user *user, size_t size, loff_t *offset)
{
	struct kfd_smi_client *client = filep->private_data;
	unsigned int n;
	char *buf;
	ssize_t r;

	size = min_t(size_t, size, KFD_MAX_KFIFO_SIZE);
	buf = kmalloc(max_t(size_t, size, 1), GFP_KERNEL);
	if (!buf)
		return -ENOMEM;
	spin_lock(&client->dev->smi_lock);
	n = kfifo_out(&client->fifo, buf, size);
	spin_unlock(&client->dev->smi_lock);
	if (!n)
		r = -EAGAIN;
	else
		r = copy_to_user(user, buf, n) ? -EFAULT : n;
	kfree(buf);
	return r;
}

static ssize_t kfd_smi_ev_write(struct file *filep, const char __user *user, size_t size,
				loff_t *offset)
{
	struct kfd_smi_client *client = filep->private_data;
	u64 events;

	if (size < sizeof(events) || copy_from_user(&events, user, sizeof(events)))
		return -EFAULT;
	WRITE_ONCE(client->events, events);
	return sizeof(events);
}

static int kfd_smi_ev_release(struct inode *inode, struct file *filep)
{
	struct kfd_smi_client *client = filep->private_data;
	struct kfd_node *dev = client->dev;

	spin_lock(&dev->smi_lock);
	list_del(&client->list);
	spin_unlock(&dev->smi_lock);
	kfifo_free(&client->fifo);
	kfree(client);
	sim_kfd_node_put(dev);
	return 0;
}

static const struct file_operations kfd_smi_ev_fops = {
	.owner = THIS_MODULE,
	.poll = kfd_smi_ev_poll,
	.read = kfd_smi_ev_read,
	.write = kfd_smi_ev_write,
	.release = kfd_smi_ev_release,
};

int kfd_smi_event_open(struct kfd_node *dev, uint32_t *fd)
{
	struct kfd_smi_client *client;
	int r;

	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return -ENOMEM;
	r = kfifo_alloc(&client->fifo, KFD_MAX_KFIFO_SIZE, GFP_KERNEL);
	if (r) {
		kfree(client);
		return r;
	}
	init_waitqueue_head(&client->wait_queue);
	client->dev = sim_kfd_node_get(dev);
	client->tgid = current->tgid;
	client->suser = capable(CAP_SYS_ADMIN);
	spin_lock(&dev->smi_lock);
	list_add(&client->list, &dev->smi_clients);
	spin_unlock(&dev->smi_lock);

	r = anon_inode_getfd("kfd_smi_ev", &kfd_smi_ev_fops, client, O_RDWR);
	if (r < 0) {
		spin_lock(&dev->smi_lock);
		list_del(&client->list);
		spin_unlock(&dev->smi_lock);
		kfifo_free(&client->fifo);
		kfree(client);
		sim_kfd_node_put(dev);
		return r;
	}
	*fd = r;
	return 0;
}

/* @tgid 0: for everyone. Others see only their own, unless they ask as root for all. */
__printf(4, 5) static void kfd_smi_event_add(pid_t tgid, struct kfd_node *dev, unsigned int event,
					     const char *fmt, ...)
{
	struct kfd_smi_client *client;
	char line[KFD_SMI_EVENT_MSG_SIZE];
	va_list args;
	u64 events;
	int len;

	len = scnprintf(line, sizeof(line), "%x ", event);
	va_start(args, fmt);
	len += vscnprintf(line + len, sizeof(line) - len, fmt, args);
	va_end(args);

	spin_lock(&dev->smi_lock);
	list_for_each_entry(client, &dev->smi_clients, list) {
		events = READ_ONCE(client->events);
		if (!(events & KFD_SMI_EVENT_MASK_FROM_INDEX(event)))
			continue;
		if (tgid && client->tgid != tgid &&
		    !(client->suser &&
		      events & KFD_SMI_EVENT_MASK_FROM_INDEX(KFD_SMI_EVENT_ALL_PROCESS)))
			continue;
		if (kfifo_avail(&client->fifo) >= len) {
			kfifo_in(&client->fifo, line, len);
			wake_up_all(&client->wait_queue);
		}
	}
	spin_unlock(&dev->smi_lock);
}

noinline void kfd_smi_event_update_gpu_reset(struct kfd_node *dev, bool post_reset,
					     struct amdgpu_reset_context *reset_context)
{
	if (!post_reset)
		dev->reset_seq_num++;
	kfd_smi_event_add(0, dev,
			  post_reset ? KFD_SMI_EVENT_GPU_POST_RESET : KFD_SMI_EVENT_GPU_PRE_RESET,
			  KFD_EVENT_FMT_UPDATE_GPU_RESET(dev->reset_seq_num, "user trigger"));
}

void kfd_smi_event_update_vmfault(struct kfd_node *dev, uint16_t pasid)
{
	if (dev)
		kfd_smi_event_add(0, dev, KFD_SMI_EVENT_VMFAULT,
				  KFD_EVENT_FMT_VMFAULT((int)pasid, current->comm));
}

void kfd_smi_event_queue_eviction(struct kfd_node *node, struct task_struct *task, u32 trigger)
{
	kfd_smi_event_add(task_tgid_nr(task), node, KFD_SMI_EVENT_QUEUE_EVICTION,
			  KFD_EVENT_FMT_QUEUE_EVICTION(ktime_get_boottime_ns(), task_tgid_nr(task),
						       node->id, trigger));
}

void kfd_smi_event_queue_restore(struct kfd_node *node, struct task_struct *task)
{
	kfd_smi_event_add(task_tgid_nr(task), node, KFD_SMI_EVENT_QUEUE_RESTORE,
			  KFD_EVENT_FMT_QUEUE_RESTORE(ktime_get_boottime_ns(), task_tgid_nr(task),
						      node->id, '0'));
}

void kfd_smi_event_process(struct kfd_process_device *pdd, bool start)
{
#ifdef KFD_EVENT_FMT_PROCESS
	struct task_struct *task = pdd->process->lead_thread;

	kfd_smi_event_add(task_tgid_nr(task), pdd->dev,
			  start ? KFD_SMI_EVENT_PROCESS_START : KFD_SMI_EVENT_PROCESS_END,
			  KFD_EVENT_FMT_PROCESS(task_tgid_nr(task), task->comm));
#endif
}
