// SPDX-License-Identifier: Apache-2.0
/*
 * A stand-in for the driver behind ioctl, to be preloaded: it answers the calls that create and
 * free VRAM buffers on any descriptor, and logs them to KERNEL_LOG. All others reach the kernel.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TYPE(request) ((request) >> 8 & 0xff)
#define NR(request)   ((request)&0xff)

static void note(const char *what, uint64_t value)
{
	const char *path = getenv("KERNEL_LOG");
	FILE *file = path ? fopen(path, "ae") : NULL;

	if (!file)
		return;
	fprintf(file, "%s %llu\n", what, (unsigned long long)value);
	fclose(file);
}

int ioctl(int fd, unsigned long request, ...)
{
	static uint64_t last_handle;
	uint64_t *words;
	va_list arguments;

	va_start(arguments, request);
	words = va_arg(arguments, uint64_t *);
	va_end(arguments);
	if (TYPE(request) == 'K' && NR(request) == 0x16) {
		words[2] = __atomic_add_fetch(&last_handle, 1, __ATOMIC_RELAXED);
		note("kfd-alloc", words[1]);
		return 0;
	}
	if (TYPE(request) == 'K' && NR(request) == 0x17) {
		note("kfd-free", words[0]);
		return 0;
	}
	if (TYPE(request) == 'd' && NR(request) == 0x40) {
		note("gem-create", words[0]);
		words[0] = __atomic_add_fetch(&last_handle, 1, __ATOMIC_RELAXED);
		return 0;
	}
	if (TYPE(request) == 'd' && NR(request) == 0x09) {
		note("gem-close", words[0] & UINT32_MAX);
		return 0;
	}
	return (int)syscall(SYS_ioctl, fd, request, words);
}
