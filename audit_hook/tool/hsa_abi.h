/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of ROCr's binary interface the hook stands on, declared here because ROCr's own table
 * header is C++ only and differs between the versions one binary has to serve.
 * tests/hook/abi.cc holds every number here against the headers themselves.
 */
#ifndef RINGFENCE_HSA_ABI_H
#define RINGFENCE_HSA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Every table begins with this; minor is the byte size of the table. */
struct hsa_table_version {
	uint32_t major;
	uint32_t minor;
	uint32_t step;
	uint32_t reserved;
};

typedef void (*hsa_function_t)(void);

/* After the version a table is an array of function pointers. */
struct hsa_table {
	struct hsa_table_version version;
	hsa_function_t functions[];
};

struct hsa_api_table {
	struct hsa_table_version version;
	struct hsa_table *core;
	struct hsa_table *amd;
};

#define HSA_TABLE_SIZE(count) (sizeof(struct hsa_table) + (count) * sizeof(hsa_function_t))

/* Positions in the core table: the same since ROCr 5. */
enum {
	CORE_SYSTEM_GET_INFO = 2,
	CORE_ITERATE_AGENTS = 5,
	CORE_AGENT_GET_INFO = 6,
	CORE_QUEUE_CREATE = 7,
	CORE_QUEUE_DESTROY = 9,
	CORE_REGION_GET_INFO = 28,
	CORE_MEMORY_ALLOCATE = 33,
	CORE_MEMORY_FREE = 34,
	CORE_NEEDED = 35,
};

/* Positions in the AMD table that hold in every version. */
enum {
	AMD_QUEUE_CU_SET_MASK = 10,
	AMD_MEMORY_POOL_GET_INFO = 11,
	AMD_AGENT_ITERATE_MEMORY_POOLS = 12,
	AMD_MEMORY_POOL_ALLOCATE = 13,
	AMD_MEMORY_POOL_FREE = 14,
	AMD_NEEDED = 15,
};

/* Positions behind the two members that ROCr 5.3 put in the middle of the AMD table. */
enum {
	AMD1_SIZE = 400,
	AMD1_AGENTS_ALLOW_ACCESS = 17,
	AMD1_QUEUE_INTERCEPT_CREATE = 35,
	AMD1_QUEUE_SET_PRIORITY = 37,
	AMD1_SVM_ATTRIBUTES_SET = 44,

	AMD2_SIZE = 560,
	AMD2_AGENTS_ALLOW_ACCESS = 19,
	AMD2_QUEUE_INTERCEPT_CREATE = 37,
	AMD2_QUEUE_SET_PRIORITY = 39,
	AMD2_SVM_ATTRIBUTES_SET = 46,
	AMD2_VMEM_HANDLE_CREATE = 57,
	AMD2_VMEM_HANDLE_RELEASE = 58,
	AMD2_VMEM_RETAIN_ALLOC_HANDLE = 65,
};

typedef uint32_t hsa_status;

enum {
	HSA_SUCCESS = 0,
	HSA_INFO_BREAK = 1,
	HSA_CU_MASK_REDUCED = 44,
	HSA_ERROR = 0x1000,
	HSA_ERROR_INVALID_ARGUMENT = 0x1001,
	HSA_ERROR_OUT_OF_RESOURCES = 0x1008,
};

enum {
	HSA_AGENT_NAME = 0, /* 64 bytes */
	HSA_AGENT_DEVICE = 17, /* 0 CPU, 1 GPU */
	HSA_AGENT_COMPUTE_UNITS = 0xa002,
	HSA_AGENT_BDFID = 0xa006,
	HSA_AGENT_DOMAIN = 0xa00f,
	HSA_AGENT_MEMORY_AVAIL = 0xa015,
	HSA_DEVICE_GPU = 1,

	HSA_POOL_SEGMENT = 0,
	HSA_POOL_SIZE = 2,
	HSA_POOL_ALLOC_MAX_SIZE = 16,

	HSA_REGION_SIZE = 2,
	HSA_REGION_ALLOC_MAX_SIZE = 4,

	HSA_SEGMENT_GLOBAL = 0,

	HSA_QUEUE_PRIORITY_LOW = 0,
	HSA_QUEUE_PRIORITY_HIGH = 2,

	HSA_SYSTEM_XNACK_ENABLED = 0x206, /* one byte; since ROCr 5.7 */

	HSA_SVM_PREFERRED_LOCATION = 4,
	HSA_SVM_AGENT_ACCESSIBLE = 0x200,
};

/* Agents, pools, regions and vmem handles are all passed as one 64-bit word in a structure. */
struct hsa_handle {
	uint64_t handle;
};

typedef hsa_status (*hsa_visit_t)(struct hsa_handle visited, void *data);
typedef hsa_status (*hsa_iterate_agents_t)(hsa_visit_t visit, void *data);
typedef hsa_status (*hsa_agent_iterate_t)(struct hsa_handle agent, hsa_visit_t visit, void *data);
typedef hsa_status (*hsa_get_info_t)(struct hsa_handle of, uint32_t attribute, void *ret);
typedef hsa_status (*hsa_system_get_info_t)(uint32_t attribute, void *ret);
typedef hsa_status (*hsa_queue_create_t)(struct hsa_handle agent, uint32_t size, uint32_t type,
					 void *callback, void *data, uint32_t private_segment,
					 uint32_t group_segment, void **ret);
typedef hsa_status (*hsa_queue_destroy_t)(void *queue);
typedef hsa_status (*hsa_memory_allocate_t)(struct hsa_handle region, size_t size, void **ret);
typedef hsa_status (*hsa_pool_allocate_t)(struct hsa_handle pool, size_t size, uint32_t flags,
					  void **ret);
typedef hsa_status (*hsa_memory_free_t)(void *pointer);
typedef hsa_status (*hsa_queue_cu_set_mask_t)(const void *queue, uint32_t bits,
					      const uint32_t *mask);
typedef hsa_status (*hsa_queue_set_priority_t)(void *queue, uint32_t priority);
typedef hsa_status (*hsa_vmem_create_t)(struct hsa_handle pool, size_t size, uint32_t type,
					uint64_t flags, struct hsa_handle *ret);
typedef hsa_status (*hsa_vmem_release_t)(struct hsa_handle memory);
struct hsa_svm_attribute {
	uint64_t attribute;
	uint64_t value;
};
typedef hsa_status (*hsa_svm_attributes_set_t)(void *start, size_t size,
					       struct hsa_svm_attribute *attributes, size_t count);
typedef hsa_status (*hsa_agents_allow_access_t)(uint32_t count, const struct hsa_handle *agents,
						const uint32_t *flags, const void *pointer);
typedef hsa_status (*hsa_vmem_retain_t)(struct hsa_handle *ret, void *address);

#endif
