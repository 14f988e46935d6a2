// SPDX-License-Identifier: Apache-2.0
// Every number of audit_hook/tool/hsa_abi.h against ROCr's own headers. It is compiled against each
// version's; nothing of it runs.
#include <cstdbool>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <hsa_api_trace.h>

#include "hsa_abi.h"

static_assert(sizeof(ApiTableVersion) == sizeof(hsa_table_version), "version words");
static_assert(offsetof(ApiTableVersion, major_id) == offsetof(hsa_table_version, major), "");
static_assert(offsetof(ApiTableVersion, minor_id) == offsetof(hsa_table_version, minor), "");
static_assert(offsetof(HsaApiTable, core_) == offsetof(hsa_api_table, core), "root table");
static_assert(offsetof(HsaApiTable, amd_ext_) == offsetof(hsa_api_table, amd), "root table");

#define AT(table, function, position) \
	static_assert(offsetof(table, function##_fn) == HSA_TABLE_SIZE(position), #function)
// A call through our type must be a call through theirs: as many arguments, each as wide.
template <typename T> struct arguments;
template <typename R, typename... A> struct arguments<R(A...)> {
	static constexpr size_t count = sizeof...(A);
	static constexpr size_t bytes = (size_t{ 0 } + ... + ((sizeof(A) + 7) / 8 * 8));
	static constexpr bool returns_status = sizeof(R) == sizeof(hsa_status);
};
#define LIKE(function, ours)                                                           \
	static_assert(arguments<decltype(function)>::count ==                          \
				      arguments<std::remove_pointer_t<ours>>::count && \
			      arguments<decltype(function)>::bytes ==                  \
				      arguments<std::remove_pointer_t<ours>>::bytes && \
			      arguments<decltype(function)>::returns_status,           \
		      #function)

AT(CoreApiTable, hsa_system_get_info, CORE_SYSTEM_GET_INFO);
AT(CoreApiTable, hsa_iterate_agents, CORE_ITERATE_AGENTS);
AT(CoreApiTable, hsa_agent_get_info, CORE_AGENT_GET_INFO);
AT(CoreApiTable, hsa_queue_create, CORE_QUEUE_CREATE);
AT(CoreApiTable, hsa_queue_destroy, CORE_QUEUE_DESTROY);
AT(CoreApiTable, hsa_region_get_info, CORE_REGION_GET_INFO);
AT(CoreApiTable, hsa_memory_allocate, CORE_MEMORY_ALLOCATE);
AT(CoreApiTable, hsa_memory_free, CORE_MEMORY_FREE);
static_assert(sizeof(CoreApiTable) >= HSA_TABLE_SIZE(CORE_NEEDED), "core table");

AT(AmdExtTable, hsa_amd_queue_cu_set_mask, AMD_QUEUE_CU_SET_MASK);
AT(AmdExtTable, hsa_amd_memory_pool_get_info, AMD_MEMORY_POOL_GET_INFO);
AT(AmdExtTable, hsa_amd_agent_iterate_memory_pools, AMD_AGENT_ITERATE_MEMORY_POOLS);
AT(AmdExtTable, hsa_amd_memory_pool_allocate, AMD_MEMORY_POOL_ALLOCATE);
AT(AmdExtTable, hsa_amd_memory_pool_free, AMD_MEMORY_POOL_FREE);
#if defined(HSA_AMD_INTERFACE_VERSION_MAJOR) && HSA_AMD_EXT_API_TABLE_MAJOR_VERSION >= 2
static_assert(sizeof(AmdExtTable) >= AMD2_SIZE, "AMD table");
AT(AmdExtTable, hsa_amd_agents_allow_access, AMD2_AGENTS_ALLOW_ACCESS);
AT(AmdExtTable, hsa_amd_queue_intercept_create, AMD2_QUEUE_INTERCEPT_CREATE);
AT(AmdExtTable, hsa_amd_queue_set_priority, AMD2_QUEUE_SET_PRIORITY);
AT(AmdExtTable, hsa_amd_svm_attributes_set, AMD2_SVM_ATTRIBUTES_SET);
AT(AmdExtTable, hsa_amd_vmem_handle_create, AMD2_VMEM_HANDLE_CREATE);
AT(AmdExtTable, hsa_amd_vmem_handle_release, AMD2_VMEM_HANDLE_RELEASE);
AT(AmdExtTable, hsa_amd_vmem_retain_alloc_handle, AMD2_VMEM_RETAIN_ALLOC_HANDLE);
LIKE(hsa_amd_vmem_handle_create, hsa_vmem_create_t);
LIKE(hsa_amd_vmem_handle_release, hsa_vmem_release_t);
LIKE(hsa_amd_vmem_retain_alloc_handle, hsa_vmem_retain_t);
static_assert(HSA_AMD_SYSTEM_INFO_XNACK_ENABLED == static_cast<int>(HSA_SYSTEM_XNACK_ENABLED), "");
static_assert(HSA_AMD_AGENT_INFO_MEMORY_AVAIL == HSA_AGENT_MEMORY_AVAIL, "");
#else
static_assert(HSA_AMD_EXT_API_TABLE_MAJOR_VERSION == 1, "a table version without a layout here");
static_assert(sizeof(AmdExtTable) == AMD1_SIZE, "AMD table");
AT(AmdExtTable, hsa_amd_agents_allow_access, AMD1_AGENTS_ALLOW_ACCESS);
AT(AmdExtTable, hsa_amd_queue_intercept_create, AMD1_QUEUE_INTERCEPT_CREATE);
AT(AmdExtTable, hsa_amd_queue_set_priority, AMD1_QUEUE_SET_PRIORITY);
AT(AmdExtTable, hsa_amd_svm_attributes_set, AMD1_SVM_ATTRIBUTES_SET);
#endif

LIKE(hsa_amd_svm_attributes_set, hsa_svm_attributes_set_t);
LIKE(hsa_amd_agents_allow_access, hsa_agents_allow_access_t);
LIKE(hsa_system_get_info, hsa_system_get_info_t);
LIKE(hsa_iterate_agents, hsa_iterate_agents_t);
LIKE(hsa_agent_get_info, hsa_get_info_t);
LIKE(hsa_region_get_info, hsa_get_info_t);
LIKE(hsa_amd_memory_pool_get_info, hsa_get_info_t);
LIKE(hsa_amd_agent_iterate_memory_pools, hsa_agent_iterate_t);
LIKE(hsa_memory_allocate, hsa_memory_allocate_t);
LIKE(hsa_amd_memory_pool_allocate, hsa_pool_allocate_t);
LIKE(hsa_memory_free, hsa_memory_free_t);
LIKE(hsa_amd_memory_pool_free, hsa_memory_free_t);
LIKE(hsa_queue_create, hsa_queue_create_t);
LIKE(hsa_amd_queue_intercept_create, hsa_queue_create_t);
LIKE(hsa_queue_destroy, hsa_queue_destroy_t);
LIKE(hsa_amd_queue_cu_set_mask, hsa_queue_cu_set_mask_t);
LIKE(hsa_amd_queue_set_priority, hsa_queue_set_priority_t);

static_assert(sizeof(hsa_amd_svm_attribute_pair_t) == sizeof(hsa_svm_attribute), "");
static_assert(HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION == static_cast<int>(HSA_SVM_PREFERRED_LOCATION),
	      "");
static_assert(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE == static_cast<int>(HSA_SVM_AGENT_ACCESSIBLE),
	      "");

static_assert(sizeof(hsa_agent_t) == sizeof(hsa_handle), "");
static_assert(sizeof(hsa_amd_memory_pool_t) == sizeof(hsa_handle), "");
static_assert(sizeof(hsa_region_t) == sizeof(hsa_handle), "");

static_assert(HSA_STATUS_SUCCESS == static_cast<int>(HSA_SUCCESS), "");
static_assert(HSA_STATUS_INFO_BREAK == static_cast<int>(HSA_INFO_BREAK), "");
static_assert(HSA_STATUS_CU_MASK_REDUCED == static_cast<int>(HSA_CU_MASK_REDUCED), "");
static_assert(HSA_STATUS_ERROR == static_cast<int>(HSA_ERROR), "");
static_assert(HSA_STATUS_ERROR_INVALID_ARGUMENT == static_cast<int>(HSA_ERROR_INVALID_ARGUMENT),
	      "");
static_assert(HSA_STATUS_ERROR_OUT_OF_RESOURCES == static_cast<int>(HSA_ERROR_OUT_OF_RESOURCES),
	      "");

static_assert(HSA_AGENT_INFO_NAME == static_cast<int>(HSA_AGENT_NAME), "");
static_assert(HSA_AGENT_INFO_DEVICE == static_cast<int>(HSA_AGENT_DEVICE), "");
static_assert(HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT == static_cast<int>(HSA_AGENT_COMPUTE_UNITS),
	      "");
static_assert(HSA_AMD_AGENT_INFO_BDFID == static_cast<int>(HSA_AGENT_BDFID), "");
static_assert(HSA_AMD_AGENT_INFO_DOMAIN == static_cast<int>(HSA_AGENT_DOMAIN), "");
static_assert(HSA_DEVICE_TYPE_GPU == static_cast<int>(HSA_DEVICE_GPU), "");
static_assert(HSA_AMD_MEMORY_POOL_INFO_SEGMENT == static_cast<int>(HSA_POOL_SEGMENT), "");
static_assert(HSA_AMD_MEMORY_POOL_INFO_SIZE == static_cast<int>(HSA_POOL_SIZE), "");
static_assert(HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE == static_cast<int>(HSA_POOL_ALLOC_MAX_SIZE),
	      "");
static_assert(HSA_REGION_INFO_SIZE == static_cast<int>(HSA_REGION_SIZE), "");
static_assert(HSA_REGION_INFO_ALLOC_MAX_SIZE == static_cast<int>(HSA_REGION_ALLOC_MAX_SIZE), "");
static_assert(HSA_AMD_SEGMENT_GLOBAL == static_cast<int>(HSA_SEGMENT_GLOBAL), "");
static_assert(HSA_AMD_QUEUE_PRIORITY_LOW == static_cast<int>(HSA_QUEUE_PRIORITY_LOW), "");
static_assert(HSA_AMD_QUEUE_PRIORITY_HIGH == static_cast<int>(HSA_QUEUE_PRIORITY_HIGH), "");
