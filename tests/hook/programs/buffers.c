// SPDX-License-Identifier: Apache-2.0
/*
 * VRAM without ROCr, as Vulkan and VA-API take it: buffers through libdrm's ioctl wrapper on a
 * render node. Orders: `create=MiB`, `gtt=MiB`, `close` (the last buffer), `huge`. Prints the error
 * number of each call.
 */
#include <errno.h>
#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xf86drm.h>

#define MAX_BUFFERS 256

static int create(int fd, uint64_t bytes, uint64_t domain, uint32_t *handle)
{
	union drm_amdgpu_gem_create request;
	int failed;

	memset(&request, 0, sizeof(request));
	request.in.bo_size = bytes;
	request.in.domains = domain;
	failed = drmIoctl(fd, DRM_IOCTL_AMDGPU_GEM_CREATE, &request);
	*handle = request.out.handle;
	return failed ? errno : 0;
}

int main(int count, char **orders)
{
	uint32_t handles[MAX_BUFFERS];
	int used = 0, fd, error;

	if (count < 2)
		return 2;
	fd = open(orders[1], O_RDWR);
	/* A node without a driver still has its number, which is all the stand-in driver needs. */
	if (fd < 0 && errno == ENXIO)
		fd = open(orders[1], O_PATH);
	if (fd < 0) {
		perror(orders[1]);
		return 3;
	}
	for (orders += 2; *orders; orders++) {
		const char *value = strchr(*orders, '=');
		uint64_t bytes = value ? strtoull(value + 1, NULL, 10) << 20 : 0;

		if (!strncmp(*orders, "create=", 7)) {
			error = create(fd, bytes, AMDGPU_GEM_DOMAIN_VRAM, &handles[used]);
			used += !error;
			printf("create %d\n", error);
		} else if (!strncmp(*orders, "gtt=", 4)) {
			error = create(fd, bytes, AMDGPU_GEM_DOMAIN_GTT, &handles[used]);
			used += !error;
			printf("gtt %d\n", error);
		} else if (!strcmp(*orders, "huge")) {
			error = create(fd, UINT64_MAX - 1, AMDGPU_GEM_DOMAIN_VRAM, &handles[used]);
			printf("huge %d\n", error);
		} else if (!strcmp(*orders, "close")) {
			struct drm_gem_close request = { .handle = handles[--used] };

			printf("close %d\n", drmIoctl(fd, DRM_IOCTL_GEM_CLOSE, &request));
		}
	}
	return 0;
}
