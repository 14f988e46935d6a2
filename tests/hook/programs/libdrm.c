// SPDX-License-Identifier: Apache-2.0
/*
 * VRAM as Mesa's drivers take it: buffers of libdrm_amdgpu. `libdrm NODE ORDER...` with the orders
 * `alloc=MiB`, `gtt=MiB`, `free` (the last buffer). Prints the error number of each call, and how
 * large the heap in VRAM is.
 */
#include <fcntl.h>
#include <libdrm/amdgpu.h>
#include <libdrm/amdgpu_drm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUFFERS 64

static int alloc(amdgpu_device_handle device, const char *mib, uint32_t heap, amdgpu_bo_handle *bo)
{
	struct amdgpu_bo_alloc_request request;

	memset(&request, 0, sizeof(request));
	request.alloc_size = strtoull(mib, NULL, 10) << 20;
	request.preferred_heap = heap;
	return -amdgpu_bo_alloc(device, &request, bo);
}

int main(int count, char **orders)
{
	amdgpu_bo_handle buffers[MAX_BUFFERS];
	struct amdgpu_heap_info heap;
	amdgpu_device_handle device;
	uint32_t major, minor;
	int used = 0, error;

	if (count < 2 || count > MAX_BUFFERS)
		return 2;
	error = amdgpu_device_initialize(open(orders[1], O_RDWR), &major, &minor, &device);
	if (error) {
		fprintf(stderr, "%s: %s\n", orders[1], strerror(-error));
		return 3;
	}
	error = amdgpu_query_heap_info(device, AMDGPU_GEM_DOMAIN_VRAM, 0, &heap);
	printf("heap %d %llu\n", -error, (unsigned long long)heap.heap_size >> 20);
	for (orders += 2; *orders; orders++) {
		if (!strncmp(*orders, "alloc=", 6)) {
			error = alloc(device, *orders + 6, AMDGPU_GEM_DOMAIN_VRAM, &buffers[used]);
			used += !error;
			printf("alloc %d\n", error);
		} else if (!strncmp(*orders, "gtt=", 4)) {
			error = alloc(device, *orders + 4, AMDGPU_GEM_DOMAIN_GTT, &buffers[used]);
			used += !error;
			printf("gtt %d\n", error);
		} else if (!strcmp(*orders, "free") && used) {
			printf("free %d\n", -amdgpu_bo_free(buffers[--used]));
		} else {
			return 2;
		}
	}
	return 0;
}
