// SPDX-License-Identifier: Apache-2.0
/*
 * Every kind of allocation HIP has, one per argument, `KIND ERROR USED` a line: USED is how many
 * MiB of the slice hipMemGetInfo says are gone. What a version of HIP lacks prints error -1.
 */
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB  (UINT64_C(1) << 20)
#define SIZE (256 * MIB)

static void *symbol(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

/* struct hipMemAllocationProp, the same since HIP 5.2. */
struct allocation_property {
	int type;
	int handle_type;
	int location_type;
	int location_id;
	void *win32;
	unsigned char flags[8];
};

typedef int (*mem_create_t)(void **, size_t, const struct allocation_property *,
			    unsigned long long);
typedef int (*mem_release_t)(void *);

static int create(void **handle)
{
	struct allocation_property property = { .type = 1, .location_type = 1 };
	mem_create_t mem_create = (mem_create_t)symbol("hipMemCreate");

	return mem_create ? mem_create(handle, SIZE, &property, 0) : -1;
}

static int release(void *handle)
{
	mem_release_t mem_release = (mem_release_t)symbol("hipMemRelease");

	return mem_release ? mem_release(handle) : -1;
}

static int allocate(const char *kind)
{
	static void *last, *handle;
	hipPitchedPtr pitched;
	hipArray *array;
	size_t pitch;

	if (!strcmp(kind, "malloc"))
		return hipMalloc(&last, SIZE);
	if (!strcmp(kind, "free"))
		return hipFree(last);
	if (!strcmp(kind, "fine"))
		return hipExtMallocWithFlags(&last, SIZE, hipDeviceMallocFinegrained);
	if (!strcmp(kind, "pitch"))
		return hipMallocPitch(&last, &pitch, 1024 * 1024, 256);
	if (!strcmp(kind, "3d"))
		return hipMalloc3D(&pitched, make_hipExtent(1024, 1024, 256));
	if (!strcmp(kind, "host"))
		return hipHostMalloc(&last, SIZE, 0);
	if (!strcmp(kind, "managed"))
		return hipMallocManaged(&last, SIZE, hipMemAttachGlobal);
	if (!strcmp(kind, "async"))
		return hipMallocAsync(&last, SIZE, NULL);
	if (!strcmp(kind, "free-async"))
		return hipFreeAsync(last, NULL);
	if (!strcmp(kind, "sync"))
		return hipDeviceSynchronize();
	if (!strcmp(kind, "array")) {
		hipChannelFormatDesc format =
			hipCreateChannelDesc(32, 0, 0, 0, hipChannelFormatKindFloat);

		return hipMallocArray(&array, &format, 8192, 8192, 0);
	}
	if (!strcmp(kind, "create"))
		return create(&handle);
	if (!strcmp(kind, "release"))
		return release(handle);
	return -2;
}

int main(int count, char **kinds)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < count; i++) {
		int error = allocate(kinds[i]);
		size_t available = 0, total = 0;

		(void)hipMemGetInfo(&available, &total);
		printf("%s %d %zu\n", kinds[i], error, (size_t)((total - available) / MIB));
	}
	return 0;
}
