// SPDX-License-Identifier: Apache-2.0
#include "managed.h"

#include <sys/mman.h>

/* The driver moves ranges of this alignment in one piece. */
#define ALIGNMENT (UINT64_C(2) << 20)

/* Address space, without a promise of memory behind it. */
static char *reserve(uint64_t bytes)
{
	char *start, *aligned, *end;

	if (bytes > UINT64_MAX - ALIGNMENT)
		return NULL;
	start = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		return NULL;
	end = start + bytes + ALIGNMENT;
	aligned = (char *)(((uintptr_t)start + ALIGNMENT - 1) & ~(ALIGNMENT - 1));
	if (aligned != start)
		munmap(start, (size_t)(aligned - start));
	if (aligned + bytes != end)
		munmap(aligned + bytes, (size_t)(end - (aligned + bytes)));
	return aligned;
}

void *rf_managed_allocate(hsa_svm_attributes_set_t set, struct hsa_handle agent, uint64_t bytes)
{
	struct hsa_svm_attribute attributes[] = {
		{ HSA_SVM_AGENT_ACCESSIBLE, agent.handle },
		{ HSA_SVM_PREFERRED_LOCATION, agent.handle },
	};
	void *start = reserve(bytes);

	if (start && set(start, bytes, attributes, 2) != HSA_SUCCESS) {
		rf_managed_free(start, bytes);
		start = NULL;
	}
	return start;
}

void rf_managed_free(void *pointer, uint64_t bytes)
{
	munmap(pointer, bytes);
}
