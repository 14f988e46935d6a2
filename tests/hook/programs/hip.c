// SPDX-License-Identifier: Apache-2.0
/*
 * A HIP program under orders, one per argument; each prints a line. It is built once for each way
 * a program can bind HIP.
 *
 *   count         hipGetDeviceCount: `count ERROR N`
 *   info          hipMemGetInfo: `info ERROR free-MiB total-MiB`
 *   info-null     hipMemGetInfo without room for an answer, or for half of one: `info-null ERROR...`
 *   total         hipGetDeviceProperties: `total ERROR MiB`
 *   malloc=MiB    `malloc ERROR`; what it got is freed by `free`, last first
 *   free          `free ERROR`
 *   device=N      hipSetDevice
 *   fork          the rest of the orders runs in a child that the parent waits for
 *   exec=PROGRAM  becomes PROGRAM with the rest of the orders
 *   raise=N       kills itself with signal N
 *   say=WORD      prints it
 *   wait          until a line comes on standard input
 */
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB	 20
#define MAX_HELD 4096

struct gpu_calls {
	int (*malloc)(void **, size_t);
	int (*free)(void *);
	int (*info)(size_t *, size_t *);
	int (*total)(size_t *);
	int (*set_device)(int);
	int (*count)(int *);
};

#if defined(BIND_HSA)

#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa.h>

static hsa_agent_t agent;
static hsa_amd_memory_pool_t pool;

static hsa_status_t visit_pool(hsa_amd_memory_pool_t found, void *data)
{
	hsa_amd_segment_t segment;

	(void)data;
	hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
	if (segment == HSA_AMD_SEGMENT_GLOBAL && !pool.handle)
		pool = found;
	return HSA_STATUS_SUCCESS;
}

static hsa_status_t visit_agent(hsa_agent_t found, void *data)
{
	hsa_device_type_t type;

	(void)data;
	hsa_agent_get_info(found, HSA_AGENT_INFO_DEVICE, &type);
	if (type == HSA_DEVICE_TYPE_GPU && !agent.handle) {
		agent = found;
		hsa_amd_agent_iterate_memory_pools(found, visit_pool, NULL);
	}
	return HSA_STATUS_SUCCESS;
}

static int start(void)
{
	return !agent.handle && (hsa_init() || hsa_iterate_agents(visit_agent, NULL));
}

/* As HIP would answer. */
static int hsa_malloc(void **ret, size_t size)
{
	if (start())
		return 3;
	return hsa_amd_memory_pool_allocate(pool, size, 0, ret) ? 2 : 0;
}

static int hsa_free(void *pointer)
{
	return (int)hsa_amd_memory_pool_free(pointer);
}

static int hsa_total(size_t *ret)
{
	if (start())
		return 3;
	return (int)hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SIZE, ret);
}

static int hsa_info(size_t *available, size_t *total)
{
	*available = 0;
	return hsa_total(total);
}

static int hsa_set_device(int device)
{
	return device;
}

static int hsa_count(int *ret)
{
	*ret = !start() && agent.handle;
	return *ret ? 0 : 100;
}

static struct gpu_calls bind_calls(void)
{
	return (struct gpu_calls){ hsa_malloc, hsa_free,       hsa_info,
				   hsa_total,  hsa_set_device, hsa_count };
}

#else

static int (*properties)(hipDeviceProp_t *, int);

static int hip_total(size_t *ret)
{
	static hipDeviceProp_t found;
	int error = properties(&found, 0);

	*ret = found.totalGlobalMem;
	return error;
}

#if defined(BIND_DLSYM) || defined(BIND_DLMOPEN)

static void *library;

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
	return found;
}

static struct gpu_calls bind_calls(void)
{
#if defined(BIND_DLMOPEN)
	library = dlmopen(LM_ID_NEWLM, "libamdhip64.so.5", RTLD_NOW);
#else
	library = dlopen("libamdhip64.so.5", RTLD_NOW);
#endif
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
	properties = (int (*)(hipDeviceProp_t *, int))symbol("hipGetDeviceProperties");
	return (struct gpu_calls){ (int (*)(void **, size_t))symbol("hipMalloc"),
				   (int (*)(void *))symbol("hipFree"),
				   (int (*)(size_t *, size_t *))symbol("hipMemGetInfo"),
				   hip_total,
				   (int (*)(int))symbol("hipSetDevice"),
				   (int (*)(int *))symbol("hipGetDeviceCount") };
}

#elif defined(BIND_ADDRESS)

/* Data relocations: no call ever goes through a PLT. */
static struct gpu_calls addresses = { (int (*)(void **, size_t))hipMalloc,
				      (int (*)(void *))hipFree,
				      (int (*)(size_t *, size_t *))hipMemGetInfo,
				      hip_total,
				      (int (*)(int))hipSetDevice,
				      (int (*)(int *))hipGetDeviceCount };

static struct gpu_calls bind_calls(void)
{
	properties = (int (*)(hipDeviceProp_t *, int))hipGetDeviceProperties;
	return addresses;
}

#else

static int call_malloc(void **ret, size_t size)
{
	return hipMalloc(ret, size);
}

static int call_free(void *pointer)
{
	return hipFree(pointer);
}

static int call_info(size_t *available, size_t *total)
{
	return hipMemGetInfo(available, total);
}

static int call_properties(hipDeviceProp_t *ret, int device)
{
	return hipGetDeviceProperties(ret, device);
}

static int call_set_device(int device)
{
	return hipSetDevice(device);
}

static int call_count(int *ret)
{
	return hipGetDeviceCount(ret);
}

static struct gpu_calls bind_calls(void)
{
	properties = call_properties;
	return (struct gpu_calls){ call_malloc, call_free,	 call_info,
				   hip_total,	call_set_device, call_count };
}

#endif
#endif

static void become(char *program, char **orders)
{
	/* What was `exec=PROGRAM` is the new program's name. */
	orders[0] = program;
	execv(program, orders);
	perror(program);
	exit(3);
}

int main(int count, char **orders)
{
	struct gpu_calls calls = bind_calls();
	void *held[MAX_HELD];
	int held_count = 0;

	(void)count;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (orders++; *orders; orders++) {
		const char *value = strchr(*orders, '=');
		size_t available = 0, total = 0;
		char line[16];
		int devices = 0;
		int error;

		value = value ? value + 1 : "";
		if (!strcmp(*orders, "count")) {
			error = calls.count(&devices);
			printf("count %d %d\n", error, devices);
		} else if (!strcmp(*orders, "info")) {
			error = calls.info(&available, &total);
			printf("info %d %zu %zu\n", error, available >> MIB, total >> MIB);
		} else if (!strcmp(*orders, "info-null")) {
			printf("info-null %d %d %d\n", calls.info(NULL, &total),
			       calls.info(&available, NULL), calls.info(NULL, NULL));
		} else if (!strcmp(*orders, "total")) {
			error = calls.total(&total);
			printf("total %d %zu\n", error, total >> MIB);
		} else if (!strncmp(*orders, "malloc=", 7)) {
			error = calls.malloc(&held[held_count], strtoull(value, NULL, 10) << MIB);
			held_count += !error;
			printf("malloc %d\n", error);
		} else if (!strcmp(*orders, "free")) {
			printf("free %d\n", calls.free(held[--held_count]));
		} else if (!strncmp(*orders, "device=", 7)) {
			printf("device %d\n", calls.set_device(atoi(value)));
		} else if (!strcmp(*orders, "fork")) {
			pid_t child = fork();

			if (child) {
				int status;

				waitpid(child, &status, 0);
				printf("child %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
				while (orders[1] && strcmp(*orders, "parent"))
					orders++;
			}
		} else if (!strcmp(*orders, "parent")) {
			/* Where a child's orders end. */
			return 0;
		} else if (!strncmp(*orders, "exec=", 5)) {
			become(strdup(value), orders);
		} else if (!strncmp(*orders, "raise=", 6)) {
			kill(getpid(), atoi(value));
		} else if (!strncmp(*orders, "say=", 4)) {
			puts(value);
		} else if (!strcmp(*orders, "wait")) {
			if (!fgets(line, sizeof(line), stdin))
				return 0;
		} else {
			fprintf(stderr, "%s: no such order\n", *orders);
			return 2;
		}
	}
	return 0;
}
