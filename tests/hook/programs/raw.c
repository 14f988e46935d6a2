// SPDX-License-Identifier: Apache-2.0
/*
 * `raw MiB`: asks the driver for VRAM by an ioctl of its own, as programs without ROCm's libraries
 * do, and prints the error number.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

struct alloc {
	uint64_t va_addr, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

int main(int count, char **arguments)
{
	struct alloc request = { .gpu_id = 1001, .flags = 1 };

	if (count < 2)
		return 2;
	request.size = strtoull(arguments[1], NULL, 10) << 20;
	printf("alloc %d\n", ioctl(-1, _IOWR('K', 0x16, struct alloc), &request) ? errno : 0);
	return 0;
}
