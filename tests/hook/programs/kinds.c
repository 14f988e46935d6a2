// SPDX-License-Identifier: Apache-2.0
/*
 * Every kind of allocation HIP has, of 256 MiB or nearly, one per argument, `KIND ERROR USED` a
 * line: USED is how many MiB of the slice hipMemGetInfo says are gone. What a version of HIP lacks
 * prints error -1. `wait` waits for a line on standard input.
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

/* Calls by name: HIP got them one after another. A missing one answers -1. */
#define CALL(name, types, ...)                                  \
	({                                                      \
		int(*call_) types = (int(*) types)symbol(name); \
		call_ ? call_(__VA_ARGS__) : -1;                \
	})

#define HANDLE_FILE "/tmp/ipc-handle"
#define POSIX_FD    1

static void *last, *handle, *imported, *mapped;
static hipArray *array;
static hipMipmappedArray_t mipmapped;

/* HIP 5.2 crashes on pools of the default stream. */
static hipStream_t stream(void)
{
	static hipStream_t made;

	if (!made && hipStreamCreate(&made))
		exit(3);
	return made;
}

static int create_for(int handle_type)
{
	struct allocation_property property = { .type = 1,
						.handle_type = handle_type,
						.location_type = 1 };

	return CALL("hipMemCreate",
		    (void **, size_t, const struct allocation_property *, unsigned long long),
		    &handle, SIZE, &property, 0);
}

static int create(void)
{
	return create_for(0);
}

static int create_shareable(void)
{
	return create_for(POSIX_FD);
}

static int release(void *of)
{
	return CALL("hipMemRelease", (void *), of);
}

static int map(void)
{
	int error =
		CALL("hipMemAddressReserve", (void **, size_t, size_t, void *, unsigned long long),
		     &mapped, SIZE, 0, NULL, 0);

	return error ? error :
		       CALL("hipMemMap", (void *, size_t, size_t, void *, unsigned long long),
			    mapped, SIZE, 0, handle, 0);
}

static int retain(void)
{
	return CALL("hipMemRetainAllocationHandle", (void **, void *), &imported, mapped);
}

/* The same memory, by way of a descriptor. */
static int import(void)
{
	int fd = -1;
	int error = CALL("hipMemExportToShareableHandle", (void *, void *, int, unsigned long long),
			 &fd, handle, POSIX_FD, 0);

	return error ? error :
		       CALL("hipMemImportFromShareableHandle", (void **, void *, int), &imported,
			    (void *)(intptr_t)fd, POSIX_FD);
}

static int share(void)
{
	hipIpcMemHandle_t shared;
	int error = hipIpcGetMemHandle(&shared, last);
	FILE *file = error ? NULL : fopen(HANDLE_FILE, "w");

	if (!file)
		return error;
	fwrite(&shared, sizeof(shared), 1, file);
	return fclose(file);
}

static int open_shared(void)
{
	hipIpcMemHandle_t shared;
	FILE *file = fopen(HANDLE_FILE, "r");

	if (!file || fread(&shared, sizeof(shared), 1, file) != 1)
		return -3;
	fclose(file);
	return hipIpcOpenMemHandle(&last, shared, hipIpcMemLazyEnablePeerAccess);
}

static int launch(hipGraph_t graph)
{
	hipGraphExec_t executable;
	int error = hipGraphInstantiate(&executable, graph, NULL, NULL, 0);

	if (!error)
		error = hipGraphLaunch(executable, NULL);
	return error ? error : (int)hipStreamSynchronize(NULL);
}

/* struct hipMemAllocNodeParams of HIP 5.5 and later. */
struct node_params {
	int type;
	int handle_type;
	int location_type;
	int location_id;
	unsigned char reserved[72];
	const void *access;
	size_t access_count;
	size_t size;
	void *pointer;
};

static int graph_node(void)
{
	struct node_params params = { .type = 1, .location_type = 1, .size = SIZE };
	hipGraphNode_t node;
	hipGraph_t graph;
	int error = hipGraphCreate(&graph, 0);

	if (!error)
		error = CALL("hipGraphAddMemAllocNode",
			     (hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t,
			      struct node_params *),
			     &node, graph, NULL, 0, &params);
	return error ? error : launch(graph);
}

static int captured(void)
{
	hipGraph_t graph = NULL;
	int error = hipStreamBeginCapture(stream(), hipStreamCaptureModeGlobal);

	if (!error)
		error = hipMallocAsync(&last, SIZE, stream());
	/* A capture that went wrong has to be ended all the same. */
	if (hipStreamEndCapture(stream(), &graph) && !error)
		error = -3;
	return error ? error : launch(graph);
}

static hipChannelFormatDesc format(void)
{
	return hipCreateChannelDesc(32, 0, 0, 0, hipChannelFormatKindFloat);
}

static int plain(void)
{
	return hipMalloc(&last, SIZE);
}

static int fine(void)
{
	return hipExtMallocWithFlags(&last, SIZE, hipDeviceMallocFinegrained);
}

static int pitch(void)
{
	size_t bytes;

	return hipMallocPitch(&last, &bytes, 1024 * 1024, 256);
}

static int three_dimensional(void)
{
	hipPitchedPtr pitched;

	return hipMalloc3D(&pitched, make_hipExtent(1024, 1024, 256));
}

static int host(void)
{
	return hipHostMalloc(&last, SIZE, 0);
}

static int host_free(void)
{
	return hipHostFree(last);
}

static int managed(void)
{
	return hipMallocManaged(&last, SIZE, hipMemAttachGlobal);
}

static int async(void)
{
	return hipMallocAsync(&last, SIZE, stream());
}

static int pool(void)
{
	hipMemPool_t of;
	int error = hipDeviceGetDefaultMemPool(&of, 0);

	return error ? error : (int)hipMallocFromPoolAsync(&last, SIZE, of, stream());
}

static int free_async(void)
{
	return hipFreeAsync(last, stream());
}

static int free_last(void)
{
	return hipFree(last);
}

static int array_2d(void)
{
	hipChannelFormatDesc of = format();

	return hipMallocArray(&array, &of, 8192, 8192, 0);
}

static int array_3d(void)
{
	hipChannelFormatDesc of = format();

	return hipMalloc3DArray(&array, &of, make_hipExtent(1024, 1024, 64), 0);
}

static int free_array(void)
{
	return hipFreeArray(array);
}

static int mipmap(void)
{
	hipChannelFormatDesc of = format();

	return hipMallocMipmappedArray(&mipmapped, &of, make_hipExtent(8192, 6144, 0), 3, 0);
}

static int free_mipmap(void)
{
	return hipFreeMipmappedArray(mipmapped);
}

static int synchronize(void)
{
	return hipStreamSynchronize(stream());
}

static int release_handle(void)
{
	return release(handle);
}

static int release_import(void)
{
	return release(imported);
}

static int unmap(void)
{
	return CALL("hipMemUnmap", (void *, size_t), mapped, SIZE);
}

static int close_shared(void)
{
	return hipIpcCloseMemHandle(last);
}

static int wait_for_line(void)
{
	return getchar() == EOF;
}

static const struct {
	const char *name;
	int (*call)(void);
} kinds[] = {
	{ "malloc", plain },
	{ "free", free_last },
	{ "fine", fine },
	{ "pitch", pitch },
	{ "3d", three_dimensional },
	{ "host", host },
	{ "host-free", host_free },
	{ "managed", managed },
	{ "async", async },
	{ "pool", pool },
	{ "free-async", free_async },
	{ "sync", synchronize },
	{ "array", array_2d },
	{ "array-3d", array_3d },
	{ "free-array", free_array },
	{ "mipmap", mipmap },
	{ "free-mipmap", free_mipmap },
	{ "graph", graph_node },
	{ "capture", captured },
	{ "create", create },
	{ "create-shareable", create_shareable },
	{ "map", map },
	{ "retain", retain },
	{ "import", import },
	{ "unmap", unmap },
	{ "release", release_handle },
	{ "release-import", release_import },
	{ "share", share },
	{ "open", open_shared },
	{ "close", close_shared },
	{ "wait", wait_for_line },
};

static int allocate(const char *kind)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kind, kinds[i].name))
			return kinds[i].call();
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
