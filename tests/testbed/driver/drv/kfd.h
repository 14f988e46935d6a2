/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KFD: processes, their devices, queues, memory, topology. The layers are the
 * real driver's: kfd_* is the compute driver, amdgpu_amdkfd_* the memory part
 * it shares with graphics.
 */
#ifndef SIM_KFD_H
#define SIM_KFD_H

#include <linux/device.h>
#include <linux/dma-fence.h>
#include <linux/idr.h>
#include <linux/kfd_ioctl.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "amdgpu.h"

#define MAX_GPU_INSTANCE	64
#define MAX_KFD_NODES		8
#define MAX_SYSFS_FILENAME_LEN	15
#define KFD_CONTEXT_ID_PRIMARY	0xFFFF
#define PROCESS_RESTORE_TIME_MS 100
#define PROCESS_ACTIVE_TIME_MS	10
#define VRAM_AVAILABILITY_ALIGN (1 << 21)

struct kfd_process;

/* ---- devices (kfd_device.c) ---- */

struct kfd_node {
	unsigned int node_id;
	struct amdgpu_device *adev;
	unsigned int id; /* topology: the gpu_id */
	uint32_t xcc_mask;
	/* Clients watching SMI events */
	struct list_head smi_clients;
	spinlock_t smi_lock;
	uint32_t reset_seq_num;
	/* a reset began and did not end */
	bool sim_resetting;
	struct kfd_dev *kfd;
	struct list_head sim_list;
	/* The device, and every open SMI file. */
	struct kref sim_ref;
};

struct kfd_dev {
	struct amdgpu_device *adev;
	bool init_complete;
	struct kfd_node *nodes[MAX_KFD_NODES];
	unsigned int num_nodes;
};

int kfd_init(void);
void kfd_exit(void);
int amdgpu_amdkfd_device_init(struct amdgpu_device *adev);
void amdgpu_amdkfd_device_fini(struct amdgpu_device *adev);
/* A reference, or NULL. */
struct kfd_node *sim_kfd_node_get(struct kfd_node *node);
void sim_kfd_node_put(struct kfd_node *node);
/* True if this task may use the GPU's render node (device cgroup). */
bool sim_kfd_node_allowed(struct kfd_node *node);
unsigned int sim_kfd_node_count(void);
/* Calls @fn for every node, with the node list locked; stops on an error. */
int sim_kfd_for_each_node(int (*fn)(struct kfd_node *node, void *data), void *data);

/* ---- processes (kfd_process.c, kfd_procfs.c) ---- */

enum kfd_queue_type {
	KFD_QUEUE_TYPE_COMPUTE,
	KFD_QUEUE_TYPE_SDMA,
	KFD_QUEUE_TYPE_HIQ,
	KFD_QUEUE_TYPE_DIQ,
	KFD_QUEUE_TYPE_SDMA_XGMI,
	KFD_QUEUE_TYPE_SDMA_BY_ENG_ID,
};

struct queue_properties {
	enum kfd_queue_type type;
	unsigned int queue_id;
	uint64_t queue_address;
	uint64_t queue_size;
	uint32_t priority;
	uint32_t queue_percent;
	bool is_evicted;
};

struct mqd_update_info {
	union {
		struct {
			uint32_t count; /* Must be a multiple of 32 */
			uint32_t *ptr;
		} cu_mask;
	};
};

struct queue {
	struct list_head list;
	struct queue_properties properties;
	struct kfd_process *process;
	struct kfd_node *device;
	/* procfs; the queue is freed with it */
	struct kobject kobj;
	/* CUs the mask names; 0: no mask was set */
	uint32_t sim_cu_count;
};

struct process_queue_manager {
	struct kfd_process *process;
	struct list_head queues;
	struct ida sim_ids;
};

/* Ranges of shared virtual memory, by address; protected by the process's mutex. */
struct svm_range_list {
	struct list_head list;
};

struct kfd_process_device {
	/* The device that owns this data. */
	struct kfd_node *dev;
	/* The process that owns this kfd_process_device. */
	struct kfd_process *process;
	/* VM context for GPUVM allocations */
	struct file *drm_file;
	void *drm_priv;
	/* GPUVM allocations storage */
	struct idr alloc_idr;
	/* VRAM usage */
	atomic64_t vram_usage;
	struct attribute attr_vram;
	char vram_filename[MAX_SYSFS_FILENAME_LEN];
	struct attribute attr_sdma;
	char sdma_filename[MAX_SYSFS_FILENAME_LEN];
	/* Eviction activity tracking */
	uint64_t last_evict_timestamp;
	atomic64_t evict_duration_counter;
	struct attribute attr_evict;
	struct kobject *kobj_stats;
	struct attribute attr_cu_occupancy;
	uint32_t user_gpu_id;
#ifndef SIM_KFD_PROCESS_PASID
	u32 pasid;
#endif
};

struct kfd_process {
	struct hlist_node kfd_processes;
	/* Only to look the process up; NULL once it is gone. */
	void *mm;
	struct kref ref;
	struct work_struct release_work;
	/* Protects everything below but what the workers use. */
	struct mutex mutex;
	struct task_struct *lead_thread;
	struct mmu_notifier mmu_notifier;
#ifdef SIM_KFD_PROCESS_PASID
	u32 pasid;
#endif
	struct kfd_process_device *pdds[MAX_GPU_INSTANCE];
	uint32_t n_pdds;
	struct process_queue_manager pqm;
	/* Information used for memory eviction */
	void *kgd_process_info;
	struct dma_fence __rcu *ef;
	struct delayed_work eviction_work;
	struct delayed_work restore_work;
	u64 last_eviction_seqno;
	unsigned long last_restore_timestamp;
	struct kobject *kobj;
	struct kobject *kobj_queues;
	struct attribute attr_pasid;
	/* shared virtual memory registered by this process */
	struct svm_range_list svms;
#ifdef SIM_KFD_CONTEXTS
	u16 context_id;
	struct ida id_table;
#endif
	/* Times its queues were stopped and not yet started again. */
	unsigned int sim_evicted;
	/* Queues and eviction state, also taken by the workers. */
	struct mutex sim_queue_lock;
	/* Files of /dev/kfd; only counted where there is no mmu notifier. */
	unsigned int sim_files;
	bool sim_released;
	struct list_head sim_list;
};

static inline u16 sim_context_id(const struct kfd_process *p)
{
#ifdef SIM_KFD_CONTEXTS
	return p->context_id;
#else
	return KFD_CONTEXT_ID_PRIMARY;
#endif
}

int kfd_process_create_wq(void);
void kfd_process_destroy_wq(void);
struct kfd_process *kfd_create_process(struct task_struct *thread);
struct kfd_process *sim_create_secondary(struct file *filep, struct kfd_process *primary);
void kfd_unref_process(struct kfd_process *p);
void sim_process_file_closed(struct kfd_process *p);
/* End every process: their memory is freed when this returns. */
void kfd_cleanup_processes(void);
/* Take @node away from every process that has it. */
void sim_process_remove_node(struct kfd_node *node);
struct kfd_process_device *kfd_process_device_data_by_id(struct kfd_process *p, uint32_t gpu_id);
struct kfd_process_device *kfd_bind_process_to_device(struct kfd_node *dev, struct kfd_process *p);
int kfd_process_device_init_vm(struct kfd_process_device *pdd, struct file *drm_file);
int kfd_process_evict_queues(struct kfd_process *p, uint32_t trigger);
int kfd_process_restore_queues(struct kfd_process *p);
int kgd2kfd_schedule_evict_and_restore_process(struct mm_struct *mm, u16 context_id,
					       struct dma_fence *fence);

#ifdef SIM_HAS_SVM
/* A reference, or NULL. */
struct kfd_process *sim_lookup_process_by_pasid(u32 pasid);
/* That of the GPU in the process; 0: none. */
u32 sim_pasid_of(pid_t pid, struct amdgpu_device *adev);
#endif

int sim_procfs_init(struct kobject *parent);
void sim_procfs_exit(void);
int kfd_create_process_sysfs(struct kfd_process *process, struct kfd_process *primary);
void kfd_process_remove_sysfs(struct kfd_process *p);
void sim_procfs_remove_pdd(struct kfd_process *p, struct kfd_process_device *pdd);

/* ---- queues (kfd_queue.c) ---- */

void pqm_init(struct process_queue_manager *pqm, struct kfd_process *p);
void pqm_uninit(struct process_queue_manager *pqm);
int pqm_create_queue(struct process_queue_manager *pqm, struct kfd_node *dev,
		     const struct queue_properties *properties, unsigned int *qid);
int pqm_destroy_queue(struct process_queue_manager *pqm, unsigned int qid);
int sim_pqm_update(struct process_queue_manager *pqm, unsigned int qid,
		   const struct queue_properties *properties);
int pqm_update_mqd(struct process_queue_manager *pqm, unsigned int qid,
		   struct mqd_update_info *minfo);
void sim_pqm_set_evicted(struct process_queue_manager *pqm, bool evicted);
void sim_pqm_remove_node(struct process_queue_manager *pqm, struct kfd_node *node);
u32 sim_pqm_cu_occupancy(struct process_queue_manager *pqm, struct kfd_node *node);

/* ---- shared virtual memory (kfd_svm.c) ---- */

#ifdef SIM_HAS_SVM
struct svm_range;

void svm_range_list_init(struct kfd_process *p);
/* Also frees what lies in VRAM. */
void svm_range_list_fini(struct kfd_process *p);
int svm_ioctl(struct kfd_process *p, enum kfd_ioctl_svm_op op, uint64_t start, uint64_t size,
	      uint32_t nattrs, struct kfd_ioctl_svm_attribute *attrs);
int svm_range_vram_node_new(struct kfd_node *node, struct svm_range *prange, bool clear);
int svm_range_restore_pages(struct amdgpu_device *adev, unsigned int pasid, uint32_t vmid,
			    uint32_t node_id, uint64_t addr, uint64_t ts, bool write_fault);
void svm_range_bo_destroy(struct ttm_buffer_object *tbo);
/* With p->mutex held: nothing of it lies on @node any more. */
void sim_svm_drop_node(struct kfd_process *p, struct kfd_node *node);
/* The GPU touches @address of the process: a kernel thread moves it there. */
int sim_svm_fault(struct amdgpu_device *adev, pid_t pid, u64 address);
#else
static inline void svm_range_list_init(struct kfd_process *p)
{
}

static inline void svm_range_list_fini(struct kfd_process *p)
{
}

static inline void sim_svm_drop_node(struct kfd_process *p, struct kfd_node *node)
{
}
#endif

/* ---- character device (kfd_chardev.c), topology, events ---- */

extern struct device *kfd_device;
int kfd_chardev_init(void);
void kfd_chardev_exit(void);

int kfd_topology_init(void);
void kfd_topology_shutdown(void);
int kfd_topology_add_device(struct kfd_node *gpu);
void kfd_topology_remove_device(struct kfd_node *gpu);
u32 sim_topology_gpu_id(struct kfd_node *gpu);

int kfd_smi_event_open(struct kfd_node *dev, uint32_t *fd);
void kfd_smi_event_update_gpu_reset(struct kfd_node *dev, bool post_reset,
				    struct amdgpu_reset_context *reset_context);
void kfd_smi_event_update_vmfault(struct kfd_node *dev, uint16_t pasid);
void kfd_smi_event_queue_eviction(struct kfd_node *node, struct task_struct *task, u32 trigger);
void kfd_smi_event_queue_restore(struct kfd_node *node, struct task_struct *task);
void kfd_smi_event_process(struct kfd_process_device *pdd, bool start);

/* ---- GPU memory of KFD (gpuvm.c), eviction fences (kfd_fence.c) ---- */

struct amdgpu_amdkfd_fence {
	struct dma_fence base;
	struct mm_struct *mm;
	spinlock_t lock;
	char timeline_name[TASK_COMM_LEN];
	u16 context_id;
};

struct amdkfd_process_info {
	/* List head of all VMs that belong to a KFD process */
	struct list_head vm_list_head;
	/* List head for all KFD BOs that belong to a KFD process. */
	struct list_head kfd_bo_list;
	/* Lock to protect kfd_bo_list */
	struct mutex lock;
	unsigned int n_vms;
	struct amdgpu_amdkfd_fence *eviction_fence;
	struct pid *pid;
	/* The process, and every address space. */
	struct kref sim_ref;
};

struct kfd_mem_attachment {
	struct list_head list;
	bool is_mapped;
	struct amdgpu_bo_va *bo_va;
	struct amdgpu_device *adev;
	uint64_t va;
};

struct kgd_mem {
	struct mutex lock;
	struct amdgpu_bo *bo;
	struct dma_buf *dmabuf;
	struct list_head attachments;
	/* protected by amdkfd_process_info.lock */
	struct list_head validate_list;
	uint32_t domain;
	unsigned int mapped_to_gpu_memory;
	uint64_t va;
	uint32_t alloc_flags;
	struct amdkfd_process_info *process_info;
	bool aql_queue;
	bool is_imported;
};

struct amdgpu_vm *drm_priv_to_vm(void *drm_priv);
int amdgpu_amdkfd_gpuvm_acquire_process_vm(struct amdgpu_device *adev, struct amdgpu_vm *avm,
					   struct kfd_process *p);
void amdgpu_amdkfd_gpuvm_destroy_cb(struct amdgpu_device *adev, struct amdgpu_vm *vm);
void sim_process_info_put(struct amdkfd_process_info *info);
/* Take @mem out of one address space, mapped or not. */
void sim_amdkfd_detach(struct kgd_mem *mem, void *drm_priv);
int amdgpu_amdkfd_reserve_mem_limit(struct amdgpu_device *adev, uint64_t size, u32 alloc_flag,
				    int8_t xcp_id);
void amdgpu_amdkfd_unreserve_mem_limit(struct amdgpu_device *adev, uint64_t size, u32 alloc_flag,
				       int8_t xcp_id);
size_t amdgpu_amdkfd_get_available_memory(struct amdgpu_device *adev, uint8_t xcp_id);
void sim_amdkfd_total_mem_add(s64 bytes);
int amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu(struct amdgpu_device *adev, uint64_t va, uint64_t size,
					    void *drm_priv, struct kgd_mem **mem, uint64_t *offset,
					    uint32_t flags, bool criu_resume);
int amdgpu_amdkfd_gpuvm_free_memory_of_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
					   void *drm_priv, uint64_t *size);
int amdgpu_amdkfd_gpuvm_map_memory_to_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
					  void *drm_priv);
int amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu(struct amdgpu_device *adev, struct kgd_mem *mem,
					      void *drm_priv);
int amdgpu_amdkfd_gpuvm_import_dmabuf_fd(struct amdgpu_device *adev, int fd, uint64_t va,
					 void *drm_priv, struct kgd_mem **mem, uint64_t *size,
					 uint64_t *mmap_offset);
int amdgpu_amdkfd_gpuvm_export_dmabuf(struct kgd_mem *mem, struct dma_buf **dma_buf);
int amdgpu_amdkfd_gpuvm_restore_process_bos(void *info, struct dma_fence __rcu **ef);
void amdgpu_amdkfd_release_notify(struct amdgpu_bo *bo);

struct amdgpu_amdkfd_fence *amdgpu_amdkfd_fence_create(u64 context, struct mm_struct *mm,
						       u16 context_id);
bool amdkfd_fence_check_mm(struct dma_fence *f, struct mm_struct *mm);
void amdgpu_amdkfd_remove_all_eviction_fences(struct amdgpu_bo *bo);

#endif
