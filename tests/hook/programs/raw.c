// SPDX-License-Identifier: Apache-2.0
/*
 * `raw MiB [syscall]`: asks the driver for VRAM by an ioctl of its own, as programs without ROCm's
 * libraries do, and those that carry ROCr inside; through libc, or not. Prints the error number.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct alloc {
	uint64_t va_addr, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

int main(int count, char **arguments)
{
	struct alloc request = { .gpu_id = 1001, .flags = 1 };
	const unsigned long number = _IOWR('K', 0x16, struct alloc);
	int failed;

	if (count < 2)
		return 2;
	request.size = strtoull(arguments[1], NULL, 10) << 20;
	failed = count > 2 ? (int)syscall(SYS_ioctl, -1, number, &request) :
			     ioctl(-1, number, &request);
	printf("alloc %d\n", failed ? errno : 0);
	return 0;
}
