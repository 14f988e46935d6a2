// SPDX-License-Identifier: Apache-2.0
/*
 * The tools library ROCr loads: it puts itself into ROCr's API table, through which every exported
 * hsa_* function goes, whoever calls it and however it was bound.
 */
#include "hsa_abi.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cumask.h"
#include "gpu.h"
#include "limit.h"
#include "log.h"
#include "managed.h"
#include "object.h"
#include "table.h"

#define EXPORT __attribute__((visibility("default")))
#define PAGE   4096

/* What an allocation that is not a GPU's is charged to. */
#define NOT_A_GPU (-2)

#define MAX_AGENTS 256
#define MAX_POOLS  1024

/* ROCr loads the tools it finds in this order: before profilers, so that they see our answers. */
EXPORT const uint32_t HSA_AMD_TOOL_PRIORITY = 1;

struct agent {
	uint64_t handle;
	int gpu; /* place in the slice, RF_GPU_FOREIGN or NOT_A_GPU */
	bool masked;
	bool no_cu; /* the mask names none that this GPU has */
	uint32_t mask_words;
	uint32_t mask[RF_MASK_WORDS];
};

/*
 * A pool is also a region, under the same handle; the regions of a GPU agent are no list of its own
 * memory, because the host's are among them.
 */
struct pool {
	uint64_t handle;
	int gpu;
	struct hsa_handle agent;
};

struct originals {
	hsa_iterate_agents_t iterate_agents;
	hsa_get_info_t agent_get_info;
	hsa_get_info_t region_get_info;
	hsa_agent_iterate_t agent_iterate_pools;
	hsa_get_info_t pool_get_info;
	hsa_memory_allocate_t memory_allocate;
	hsa_memory_free_t memory_free;
	hsa_pool_allocate_t pool_allocate;
	hsa_memory_free_t pool_free;
	hsa_queue_create_t queue_create;
	hsa_queue_create_t queue_intercept_create;
	hsa_queue_destroy_t queue_destroy;
	hsa_queue_cu_set_mask_t queue_cu_set_mask;
	hsa_queue_set_priority_t queue_set_priority;
	hsa_vmem_create_t vmem_create;
	hsa_vmem_release_t vmem_release;
	hsa_vmem_retain_t vmem_retain;
	hsa_system_get_info_t system_get_info;
	hsa_svm_attributes_set_t svm_attributes_set;
	hsa_agents_allow_access_t agents_allow_access;
};

static bool loaded;
static struct rf_limits *limits;
static struct originals rocr;
static size_t agent_count;
static struct agent agents[MAX_AGENTS];
static size_t pool_count;
static struct pool pools[MAX_POOLS];
static struct rf_table allocations = RF_TABLE_INIT;
static struct rf_table managed = RF_TABLE_INIT; /* of oversubscription */
static struct rf_table physical = RF_TABLE_INIT; /* vmem handles */
static struct rf_table queues = RF_TABLE_INIT; /* gpu: place in agents */

static const struct pool *find_pool(uint64_t handle)
{
	for (size_t i = 0; i < pool_count; i++)
		if (pools[i].handle == handle)
			return &pools[i];
	return NULL;
}

static int gpu_of_pool(uint64_t handle)
{
	const struct pool *pool = find_pool(handle);

	return pool ? pool->gpu : NOT_A_GPU;
}

static const struct agent *find_agent(uint64_t handle)
{
	for (size_t i = 0; i < agent_count; i++)
		if (agents[i].handle == handle)
			return &agents[i];
	return NULL;
}

/* Memory: reserve, let ROCr do it, and keep the books of what came of it. */

static uint64_t whole_pages(size_t size)
{
	return size > UINT64_MAX - (PAGE - 1) ? UINT64_MAX :
						((uint64_t)size + PAGE - 1) & ~(PAGE - 1);
}

static hsa_status record(void *pointer, int gpu, uint64_t bytes)
{
	struct rf_entry entry = { .key = (uintptr_t)pointer, .bytes = bytes, .gpu = gpu };

	if (rf_table_put(&allocations, &entry))
		return HSA_SUCCESS;
	/* What the books cannot hold is not given out. */
	rocr.memory_free(pointer);
	rf_gpu_give_back(limits, gpu, RF_BOOK_POOL, bytes);
	return HSA_ERROR_OUT_OF_RESOURCES;
}

/* ROCr before 5.7 cannot say, and then it is off. */
static bool pages_can_fault(void)
{
	bool enabled = false;

	return rocr.svm_attributes_set && rocr.system_get_info &&
	       rocr.system_get_info(HSA_SYSTEM_XNACK_ENABLED, &enabled) == HSA_SUCCESS && enabled;
}

/* In the books like any other; what they cannot hold, or the driver, is not given out. */
static hsa_status allocate_managed(const struct pool *pool, uint64_t bytes, void **ret)
{
	struct rf_entry entry = { .bytes = bytes, .gpu = pool->gpu };
	void *pointer = NULL;

	if (pages_can_fault())
		pointer = rf_managed_allocate(rocr.svm_attributes_set, pool->agent, bytes);
	else
		rf_log(RF_LOG_ERROR, RF_LOG_OVERSUBSCRIBE,
		       "refused %llu bytes: oversubscription is on for this container, and XNACK, "
		       "which it needs, is not; set HSA_XNACK=1 on a GPU that has it, or turn "
		       "oversubscription off",
		       (unsigned long long)bytes);
	entry.key = (uintptr_t)pointer;
	if (pointer && rf_table_put(&managed, &entry)) {
		*ret = pointer;
		return HSA_SUCCESS;
	}
	if (pointer)
		rf_managed_free(pointer, bytes);
	rf_gpu_give_back(limits, pool->gpu, RF_BOOK_POOL, bytes);
	return HSA_ERROR_OUT_OF_RESOURCES;
}

/* HIP asks for more agents' access to what it got; the driver gives it at the first fault. */
static hsa_status agents_allow_access(uint32_t count, const struct hsa_handle *to,
				      const uint32_t *flags, const void *pointer)
{
	struct rf_entry entry;

	if (rf_table_get(&managed, (uintptr_t)pointer, &entry))
		return HSA_SUCCESS;
	return rocr.agents_allow_access(count, to, flags, pointer);
}

static hsa_status pool_allocate(struct hsa_handle pool, size_t size, uint32_t flags, void **ret)
{
	int gpu = gpu_of_pool(pool.handle);
	uint64_t bytes = whole_pages(size);
	hsa_status status;

	if (gpu == NOT_A_GPU || !size || !ret)
		return rocr.pool_allocate(pool, size, flags, ret);
	if (!rf_gpu_reserve(limits, gpu, RF_BOOK_POOL, bytes))
		return HSA_ERROR_OUT_OF_RESOURCES;
	if (limits->slice.oversubscribe && bytes >= RF_MANAGED_LEAST)
		return allocate_managed(find_pool(pool.handle), bytes, ret);
	status = rocr.pool_allocate(pool, size, flags, ret);
	if (status == HSA_SUCCESS)
		return record(*ret, gpu, bytes);
	rf_gpu_give_back(limits, gpu, RF_BOOK_POOL, bytes);
	return status;
}

static hsa_status memory_allocate(struct hsa_handle region, size_t size, void **ret)
{
	int gpu = gpu_of_pool(region.handle);
	uint64_t bytes = whole_pages(size);
	hsa_status status;

	if (gpu == NOT_A_GPU || !size || !ret)
		return rocr.memory_allocate(region, size, ret);
	if (!rf_gpu_reserve(limits, gpu, RF_BOOK_POOL, bytes))
		return HSA_ERROR_OUT_OF_RESOURCES;
	status = rocr.memory_allocate(region, size, ret);
	if (status == HSA_SUCCESS)
		return record(*ret, gpu, bytes);
	rf_gpu_give_back(limits, gpu, RF_BOOK_POOL, bytes);
	return status;
}

/* Out of the books before ROCr frees it: the address may be another thread's straight after. */
static hsa_status free_with(hsa_memory_free_t original, void *pointer)
{
	struct rf_entry entry;
	hsa_status status;
	bool known;

	if (rf_table_take(&managed, (uintptr_t)pointer, &entry)) {
		rf_managed_free(pointer, entry.bytes);
		rf_gpu_give_back(limits, entry.gpu, RF_BOOK_POOL, entry.bytes);
		return HSA_SUCCESS;
	}
	known = rf_table_take(&allocations, (uintptr_t)pointer, &entry);
	status = original(pointer);
	if (!known)
		return status;
	if (status == HSA_SUCCESS)
		rf_gpu_give_back(limits, entry.gpu, RF_BOOK_POOL, entry.bytes);
	else
		rf_table_put(&allocations, &entry);
	return status;
}

static hsa_status pool_free(void *pointer)
{
	return free_with(rocr.pool_free, pointer);
}

static hsa_status memory_free(void *pointer)
{
	return free_with(rocr.memory_free, pointer);
}

static hsa_status vmem_create(struct hsa_handle pool, size_t size, uint32_t type, uint64_t flags,
			      struct hsa_handle *ret)
{
	int gpu = gpu_of_pool(pool.handle);
	uint64_t bytes = whole_pages(size);
	struct rf_entry entry;
	hsa_status status;

	if (gpu == NOT_A_GPU || !size || !ret)
		return rocr.vmem_create(pool, size, type, flags, ret);
	if (!rf_gpu_reserve(limits, gpu, RF_BOOK_POOL, bytes))
		return HSA_ERROR_OUT_OF_RESOURCES;
	status = rocr.vmem_create(pool, size, type, flags, ret);
	if (status == HSA_SUCCESS) {
		entry = (struct rf_entry){
			.key = ret->handle, .bytes = bytes, .gpu = gpu, .references = 1
		};
		if (rf_table_put(&physical, &entry))
			return status;
		rocr.vmem_release(*ret);
		status = HSA_ERROR_OUT_OF_RESOURCES;
	}
	rf_gpu_give_back(limits, gpu, RF_BOOK_POOL, bytes);
	return status;
}

/* An imported handle is its exporter's memory: it is in no book here, and comes by unknown. */
static hsa_status vmem_release(struct hsa_handle memory)
{
	hsa_status status = rocr.vmem_release(memory);
	struct rf_entry entry;

	if (status != HSA_SUCCESS || rf_table_reference(&physical, memory.handle, -1) != 0)
		return status;
	if (rf_table_take(&physical, memory.handle, &entry))
		rf_gpu_give_back(limits, entry.gpu, RF_BOOK_POOL, entry.bytes);
	return status;
}

static hsa_status vmem_retain(struct hsa_handle *ret, void *address)
{
	hsa_status status = rocr.vmem_retain(ret, address);

	if (status == HSA_SUCCESS)
		rf_table_reference(&physical, ret->handle, 1);
	return status;
}

/* Queries: a slice looks like a GPU of its size. */

static void clamp(size_t *value, uint64_t most)
{
	if (*value > most)
		*value = (size_t)most;
}

static uint64_t size_of(int gpu)
{
	if (limits->source == RF_LIMIT_BROKEN || gpu == RF_GPU_FOREIGN)
		return 0;
	return limits->slice.gpus[gpu].vram;
}

static hsa_status pool_get_info(struct hsa_handle pool, uint32_t attribute, void *ret)
{
	hsa_status status = rocr.pool_get_info(pool, attribute, ret);
	int gpu;

	if (status != HSA_SUCCESS || !ret ||
	    (attribute != HSA_POOL_SIZE && attribute != HSA_POOL_ALLOC_MAX_SIZE))
		return status;
	gpu = gpu_of_pool(pool.handle);
	if (gpu != NOT_A_GPU)
		clamp(ret, size_of(gpu));
	return status;
}

static hsa_status region_get_info(struct hsa_handle region, uint32_t attribute, void *ret)
{
	hsa_status status = rocr.region_get_info(region, attribute, ret);
	int gpu;

	if (status != HSA_SUCCESS || !ret ||
	    (attribute != HSA_REGION_SIZE && attribute != HSA_REGION_ALLOC_MAX_SIZE))
		return status;
	gpu = gpu_of_pool(region.handle);
	if (gpu != NOT_A_GPU)
		clamp(ret, size_of(gpu));
	return status;
}

/*
 * What a process may not use it is not shown: HIP takes a GPU it sees but cannot allocate on for a
 * reason to crash, and one it does not see for "no device".
 */
static bool shown(const struct agent *agent)
{
	return agent->gpu != RF_GPU_FOREIGN && limits->source != RF_LIMIT_BROKEN;
}

struct visitor {
	hsa_visit_t visit;
	void *data;
};

static hsa_status visit_if_shown(struct hsa_handle handle, void *data)
{
	const struct visitor *visitor = data;
	const struct agent *agent = find_agent(handle.handle);

	return agent && !shown(agent) ? HSA_SUCCESS : visitor->visit(handle, visitor->data);
}

static hsa_status iterate_agents(hsa_visit_t visit, void *data)
{
	struct visitor visitor = { visit, data };

	return visit ? rocr.iterate_agents(visit_if_shown, &visitor) :
		       rocr.iterate_agents(visit, data);
}

static hsa_status agent_get_info(struct hsa_handle handle, uint32_t attribute, void *ret)
{
	hsa_status status = rocr.agent_get_info(handle, attribute, ret);
	const struct agent *agent;

	if (attribute != HSA_AGENT_MEMORY_AVAIL || status != HSA_SUCCESS || !ret)
		return status;
	agent = find_agent(handle.handle);
	if (agent && agent->gpu != NOT_A_GPU) {
		uint64_t available;

		memcpy(&available, ret, sizeof(available));
		clamp(&available, rf_gpu_left(limits, agent->gpu));
		memcpy(ret, &available, sizeof(available));
	}
	return status;
}

/* Queues: born with the slice's mask, and never wider. */

static hsa_status set_mask(const void *queue, const struct agent *agent, const uint32_t *mask)
{
	hsa_status status = rocr.queue_cu_set_mask(queue, agent->mask_words * 32, mask);

	/*
	 * REDUCED says that HSA_CU_MASK took some away, as it does whenever both say the same of a
	 * wider request; HIP takes it for a failure and gives the stream up.
	 */
	return status == HSA_CU_MASK_REDUCED ? HSA_SUCCESS : status;
}

static hsa_status created(hsa_status status, const struct agent *agent, void **ret)
{
	struct rf_entry entry;

	if (status != HSA_SUCCESS || !agent || !ret)
		return status;
	if (agent->masked) {
		entry = (struct rf_entry){ .key = (uintptr_t)*ret, .gpu = (int)(agent - agents) };
		if (!rf_table_put(&queues, &entry))
			status = HSA_ERROR_OUT_OF_RESOURCES;
		else
			status = set_mask(*ret, agent, agent->mask);
		if (status != HSA_SUCCESS) {
			rf_log(RF_LOG_ERROR, RF_LOG_MASK,
			       "a queue was refused: the compute units of this container's slice "
			       "could not be set on it (HSA status %u)",
			       status);
			rf_table_take(&queues, entry.key, &entry);
			rocr.queue_destroy(*ret);
			*ret = NULL;
			return HSA_ERROR_OUT_OF_RESOURCES;
		}
	}
	/* A driver that has no priorities still runs the queue. */
	if (limits->slice.priority >= 0 && rocr.queue_set_priority)
		rocr.queue_set_priority(*ret, limits->slice.priority ? HSA_QUEUE_PRIORITY_LOW :
								       HSA_QUEUE_PRIORITY_HIGH);
	return status;
}

static const struct agent *gpu_agent(struct hsa_handle handle)
{
	const struct agent *agent = find_agent(handle.handle);

	return agent && agent->gpu != NOT_A_GPU ? agent : NULL;
}

static hsa_status queue_create_with(hsa_queue_create_t original, struct hsa_handle handle,
				    uint32_t size, uint32_t type, void *callback, void *data,
				    uint32_t private_segment, uint32_t group_segment, void **ret)
{
	const struct agent *agent = gpu_agent(handle);

	/* Without the slice nobody can say which CUs are this container's. */
	if (agent && (agent->no_cu || limits->source == RF_LIMIT_BROKEN))
		return HSA_ERROR_OUT_OF_RESOURCES;
	return created(original(handle, size, type, callback, data, private_segment, group_segment,
				ret),
		       agent, ret);
}

static hsa_status queue_create(struct hsa_handle handle, uint32_t size, uint32_t type,
			       void *callback, void *data, uint32_t private_segment,
			       uint32_t group_segment, void **ret)
{
	return queue_create_with(rocr.queue_create, handle, size, type, callback, data,
				 private_segment, group_segment, ret);
}

static hsa_status queue_intercept_create(struct hsa_handle handle, uint32_t size, uint32_t type,
					 void *callback, void *data, uint32_t private_segment,
					 uint32_t group_segment, void **ret)
{
	return queue_create_with(rocr.queue_intercept_create, handle, size, type, callback, data,
				 private_segment, group_segment, ret);
}

static hsa_status queue_destroy(void *queue)
{
	struct rf_entry entry;

	rf_table_take(&queues, (uintptr_t)queue, &entry);
	return rocr.queue_destroy(queue);
}

static hsa_status queue_cu_set_mask(const void *queue, uint32_t bits, const uint32_t *mask)
{
	uint32_t narrowed[RF_MASK_WORDS];
	const struct agent *agent;
	struct rf_entry entry;

	/* What ROCr refuses by itself is its to refuse. */
	if (!rf_table_get(&queues, (uintptr_t)queue, &entry) || bits % 32 || (bits && !mask))
		return rocr.queue_cu_set_mask(queue, bits, mask);
	agent = &agents[entry.gpu];
	rf_cumask_narrow(agent->mask, agent->mask_words, mask, bits / 32, narrowed);
	return set_mask(queue, agent, narrowed);
}

/* What the process can see. */

static bool has_pairs(const char *name)
{
	/* gfx10 to gfx12 have work-group processors; gfx1250 has none any more. */
	return !strncmp(name, "gfx1", 4) && strlen(name) == 7 && strncmp(name, "gfx125", 6) != 0;
}

static void read_mask(struct agent *agent, struct hsa_handle handle)
{
	const struct rf_gpu *gpu = &limits->slice.gpus[agent->gpu];
	char name[64] = "";
	uint32_t cu_count = 0;

	if (!gpu->masked)
		return;
	rocr.agent_get_info(handle, HSA_AGENT_NAME, name);
	rocr.agent_get_info(handle, HSA_AGENT_COMPUTE_UNITS, &cu_count);
	name[sizeof(name) - 1] = '\0';
	agent->masked = true;
	agent->mask_words = (cu_count + 31) / 32;
	if (agent->mask_words > RF_MASK_WORDS)
		agent->mask_words = RF_MASK_WORDS;
	memcpy(agent->mask, gpu->cus, sizeof(agent->mask));
	agent->no_cu = !rf_cumask_fit(agent->mask, cu_count, has_pairs(name));
	if (!agent->no_cu)
		return;
	/* No CU at all is no mask for ROCr to set: every queue is refused, and this says why. */
	rf_log(RF_LOG_ERROR, RF_LOG_MASK,
	       "the slice's compute units are none that this %s with %u has: no queue is made; ask "
	       "the administrator to restart the pod",
	       name, cu_count);
}

static hsa_status visit_pool(struct hsa_handle handle, void *data)
{
	const struct agent *owner = data;
	uint32_t segment = UINT32_MAX;

	rocr.pool_get_info(handle, HSA_POOL_SEGMENT, &segment);
	if (segment == HSA_SEGMENT_GLOBAL && pool_count < MAX_POOLS)
		pools[pool_count++] = (struct pool){ handle.handle, owner->gpu, { owner->handle } };
	return HSA_SUCCESS;
}

static hsa_status visit_agent(struct hsa_handle handle, void *data)
{
	struct agent *agent = &agents[agent_count];
	uint32_t device = UINT32_MAX, bdf = 0, domain = 0;

	(void)data;
	rocr.agent_get_info(handle, HSA_AGENT_DEVICE, &device);
	if (device != HSA_DEVICE_GPU || agent_count == MAX_AGENTS)
		return HSA_SUCCESS;
	rocr.agent_get_info(handle, HSA_AGENT_BDFID, &bdf);
	rocr.agent_get_info(handle, HSA_AGENT_DOMAIN, &domain);
	*agent = (struct agent){ .handle = handle.handle, .gpu = RF_GPU_FOREIGN };
	if (limits->source == RF_LIMIT_FILE)
		agent->gpu = rf_limits_find(limits, (uint64_t)domain << 16 | (bdf & 0xffff));
	else if (limits->source == RF_LIMIT_VARIABLES)
		agent->gpu =
			rf_limits_add_by_order(limits, (uint64_t)domain << 16 | (bdf & 0xffff));
	if (agent->gpu >= 0)
		read_mask(agent, handle);
	agent_count++;
	rocr.agent_iterate_pools(handle, visit_pool, agent);
	return HSA_SUCCESS;
}

/* Loading. */

struct layout {
	uint32_t agents_allow_access;
	uint32_t queue_intercept_create;
	uint32_t queue_set_priority;
	uint32_t svm_attributes_set;
	uint32_t vmem; /* 0: the version has no virtual memory calls */
};

/*
 * The members behind the prefix that never changed. Version 1 tables of other sizes (ROCr 5.3 to
 * 5.7) were laid out in more than one way: there the prefix is all that is used.
 */
static bool layout_of(const struct hsa_table *amd, struct layout *ret)
{
	*ret = (struct layout){ 0 };
	if (amd->version.major == 1 && amd->version.minor == AMD1_SIZE)
		*ret = (struct layout){ AMD1_AGENTS_ALLOW_ACCESS, AMD1_QUEUE_INTERCEPT_CREATE,
					AMD1_QUEUE_SET_PRIORITY, AMD1_SVM_ATTRIBUTES_SET, 0 };
	else if (amd->version.major == 2 && amd->version.minor >= AMD2_SIZE)
		*ret = (struct layout){ AMD2_AGENTS_ALLOW_ACCESS, AMD2_QUEUE_INTERCEPT_CREATE,
					AMD2_QUEUE_SET_PRIORITY, AMD2_SVM_ATTRIBUTES_SET,
					AMD2_VMEM_HANDLE_CREATE };
	return amd->version.major == 1 || amd->version.major == 2;
}

static bool usable(const struct hsa_api_table *table, struct layout *layout)
{
	const struct hsa_table *core, *amd;

	if (table->version.minor < sizeof(*table))
		return false;
	core = table->core;
	amd = table->amd;
	return core && amd && core->version.major <= 2 &&
	       core->version.minor >= HSA_TABLE_SIZE(CORE_NEEDED) &&
	       amd->version.minor >= HSA_TABLE_SIZE(AMD_NEEDED) && layout_of(amd, layout);
}

#define SWAP(table, index, member, ours)                                      \
	do {                                                                  \
		rocr.member = (typeof(rocr.member))(table)->functions[index]; \
		(table)->functions[index] = (hsa_function_t)(ours);           \
	} while (0)
#define KEEP(table, index, member) (rocr.member = (typeof(rocr.member))(table)->functions[index])

static void read_originals(struct hsa_table *core, struct hsa_table *amd)
{
	KEEP(core, CORE_ITERATE_AGENTS, iterate_agents);
	KEEP(core, CORE_AGENT_GET_INFO, agent_get_info);
	KEEP(amd, AMD_AGENT_ITERATE_MEMORY_POOLS, agent_iterate_pools);
	KEEP(amd, AMD_MEMORY_POOL_GET_INFO, pool_get_info);
}

static void replace(struct hsa_table *core, struct hsa_table *amd, const struct layout *layout)
{
	SWAP(core, CORE_ITERATE_AGENTS, iterate_agents, iterate_agents);
	SWAP(core, CORE_AGENT_GET_INFO, agent_get_info, agent_get_info);
	SWAP(core, CORE_REGION_GET_INFO, region_get_info, region_get_info);
	SWAP(core, CORE_MEMORY_ALLOCATE, memory_allocate, memory_allocate);
	SWAP(core, CORE_MEMORY_FREE, memory_free, memory_free);
	SWAP(core, CORE_QUEUE_CREATE, queue_create, queue_create);
	SWAP(core, CORE_QUEUE_DESTROY, queue_destroy, queue_destroy);
	SWAP(amd, AMD_MEMORY_POOL_GET_INFO, pool_get_info, pool_get_info);
	SWAP(amd, AMD_MEMORY_POOL_ALLOCATE, pool_allocate, pool_allocate);
	SWAP(amd, AMD_MEMORY_POOL_FREE, pool_free, pool_free);
	SWAP(amd, AMD_QUEUE_CU_SET_MASK, queue_cu_set_mask, queue_cu_set_mask);
	if (layout->queue_intercept_create)
		SWAP(amd, layout->queue_intercept_create, queue_intercept_create,
		     queue_intercept_create);
	if (layout->queue_set_priority)
		KEEP(amd, layout->queue_set_priority, queue_set_priority);
	if (layout->svm_attributes_set) {
		KEEP(core, CORE_SYSTEM_GET_INFO, system_get_info);
		KEEP(amd, layout->svm_attributes_set, svm_attributes_set);
		SWAP(amd, layout->agents_allow_access, agents_allow_access, agents_allow_access);
	}
	if (layout->vmem) {
		SWAP(amd, AMD2_VMEM_HANDLE_CREATE, vmem_create, vmem_create);
		SWAP(amd, AMD2_VMEM_HANDLE_RELEASE, vmem_release, vmem_release);
		SWAP(amd, AMD2_VMEM_RETAIN_ALLOC_HANDLE, vmem_retain, vmem_retain);
	}
}

/*
 * Another copy of this library, or another version of it, is in this table already: it keeps the
 * same books, and everything would be charged twice.
 */
static bool held_already(const struct hsa_api_table *api)
{
	static const char ours[] = "/libringfence-hsa.so";
	const char *path =
		rf_object_of((const void *)api->amd->functions[AMD_MEMORY_POOL_ALLOCATE]);
	size_t length = path ? strlen(path) : 0;

	return length >= sizeof(ours) - 1 && !strcmp(path + length - (sizeof(ours) - 1), ours);
}

static void after_fork(void)
{
	rf_table_reset_after_fork(&allocations);
	rf_table_reset_after_fork(&managed);
	rf_table_reset_after_fork(&physical);
	rf_table_reset_after_fork(&queues);
}

EXPORT bool OnLoad(void *table, uint64_t runtime_version, uint64_t failed_count,
		   const char *const *failed_names);
EXPORT void OnUnload(void);

EXPORT bool OnLoad(void *table, uint64_t runtime_version, uint64_t failed_count,
		   const char *const *failed_names)
{
	struct hsa_api_table *api = table;
	static bool registered;
	struct layout layout;

	(void)runtime_version;
	(void)failed_count;
	(void)failed_names;
	/* Named twice, by the pod and by its process. */
	if (loaded)
		return true;
	limits = rf_limits_get();
	if (limits->source == RF_LIMIT_NONE)
		return true;
	if (!usable(api, &layout)) {
		rf_log(RF_LOG_ERROR, RF_LOG_ABI,
		       "ROCr's API tables (core %u, %u bytes; AMD %u, %u bytes) are of no version "
		       "this library knows: GPU memory is not limited in this process; update "
		       "Ringfence on the node",
		       api->core ? api->core->version.major : 0,
		       api->core ? api->core->version.minor : 0,
		       api->amd ? api->amd->version.major : 0,
		       api->amd ? api->amd->version.minor : 0);
		return false;
	}
	if (held_already(api))
		return true;
	if (!registered)
		registered = pthread_atfork(NULL, NULL, after_fork) == 0;
	agent_count = pool_count = 0;
	if (limits->source == RF_LIMIT_VARIABLES)
		limits->slice.gpu_count = 0;
	rocr = (struct originals){ 0 };
	read_originals(api->core, api->amd);
	rocr.iterate_agents(visit_agent, NULL);
	if (!rf_ledger_usable())
		limits->source = RF_LIMIT_BROKEN;
	replace(api->core, api->amd, &layout);
	if (limits->source != RF_LIMIT_BROKEN)
		rf_gpu_log_slice(limits);
	loaded = true;
	return true;
}

EXPORT void OnUnload(void)
{
	if (!loaded)
		return;
	loaded = false;
	rf_table_clear(&allocations);
	rf_table_clear(&managed);
	rf_table_clear(&physical);
	rf_table_clear(&queues);
	rf_ledger_forget_pools();
}
