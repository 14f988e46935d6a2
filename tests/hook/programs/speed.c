// SPDX-License-Identifier: Apache-2.0
/*
 * `speed`: nanoseconds per call, the best of several rounds, a line each:
 * `malloc-free` of 64 KiB, `malloc-free-4m` of 4 MiB, `get-device`, `mem-info`, `packet`: a
 * barrier put into a stream's queue, the way a kernel launch takes.
 */
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 15

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void malloc_free(size_t size)
{
	void *pointer;

	if (!hipMalloc(&pointer, size))
		(void)hipFree(pointer);
}

static void small(void)
{
	malloc_free(64 << 10);
}

static void large(void)
{
	malloc_free(4 << 20);
}

static void get_device(void)
{
	int device;

	hipGetDevice(&device);
}

static void mem_info(void)
{
	size_t available, total;

	hipMemGetInfo(&available, &total);
}

static void packet(void)
{
	static hipStream_t stream;
	static hipEvent_t event;

	if (!stream && (hipStreamCreate(&stream) || hipEventCreate(&event)))
		exit(3);
	hipEventRecord(event, stream);
	hipStreamSynchronize(stream);
}

static void measure(const char *name, void (*call)(void), int calls)
{
	double best = 1e18;

	call();
	for (int round = 0; round < ROUNDS; round++) {
		double start = now(), each;

		for (int i = 0; i < calls; i++)
			call();
		each = (now() - start) / calls;
		best = each < best ? each : best;
	}
	printf("%s %.1f\n", name, best);
}

int main(void)
{
	void *keep;

	/* Keeps ROCr's block alive, so that the small ones are cut from it as in a real program. */
	hipMalloc(&keep, 64 << 10);
	measure("malloc-free", small, 20000);
	measure("malloc-free-4m", large, 2000);
	measure("get-device", get_device, 200000);
	measure("mem-info", mem_info, 2000);
	measure("packet", packet, 20);
	return 0;
}
