// SPDX-License-Identifier: Apache-2.0
// A second tools library, as rocprof is one: it counts allocations, and where PROFILER_INTERCEPT is
// set turns every queue into an intercept queue. It says on stderr what it saw.
#include <cstdbool>
#include <cstddef>
#include <hsa/hsa.h>
#include <hsa/hsa_api_trace.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace
{

decltype(hsa_amd_memory_pool_allocate) *pool_allocate;
decltype(hsa_amd_queue_intercept_create) *queue_intercept_create;

hsa_status_t Allocate(hsa_amd_memory_pool_t pool, size_t size, uint32_t flags, void **ret)
{
	hsa_status_t status = pool_allocate(pool, size, flags, ret);
	if (size >> 20)
		fprintf(stderr, "profiler: allocate %zu MiB status %d\n", size >> 20, status);
	return status;
}

hsa_status_t CreateQueue(hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type,
			 void (*callback)(hsa_status_t, hsa_queue_t *, void *), void *data,
			 uint32_t private_segment, uint32_t group_segment, hsa_queue_t **queue)
{
	hsa_status_t status = queue_intercept_create(agent, size, type, callback, data,
						     private_segment, group_segment, queue);
	fprintf(stderr, "profiler: intercept queue status %d\n", status);
	return status;
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) extern const uint32_t HSA_AMD_TOOL_PRIORITY = 50;

__attribute__((visibility("default"))) bool OnLoad(HsaApiTable *table, uint64_t, uint64_t,
						   const char *const *)
{
	pool_allocate = table->amd_ext_->hsa_amd_memory_pool_allocate_fn;
	table->amd_ext_->hsa_amd_memory_pool_allocate_fn = Allocate;
	queue_intercept_create = table->amd_ext_->hsa_amd_queue_intercept_create_fn;
	if (getenv("PROFILER_INTERCEPT"))
		table->core_->hsa_queue_create_fn = CreateQueue;
	return true;
}

__attribute__((visibility("default"))) void OnUnload()
{
}
}
