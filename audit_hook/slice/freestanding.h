/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls and string functions for code that may not touch a libc: the auditor lives in a
 * link namespace of its own, where a second libc would cost every process a mapping, static TLS
 * and a private copy of environ.
 */
#ifndef RINGFENCE_FREESTANDING_H
#define RINGFENCE_FREESTANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <asm/unistd.h>

#define RF_AT_FDCWD  (-100)
#define RF_O_RDONLY  0
#define RF_O_CLOEXEC 02000000

static inline long rf_syscall6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#else
#error "no system call stub for this architecture"
#endif
}

static inline int rf_open_readonly(const char *path)
{
	return (int)rf_syscall6(__NR_openat, RF_AT_FDCWD, (long)path, RF_O_RDONLY | RF_O_CLOEXEC, 0,
				0, 0);
}

static inline void rf_close(int fd)
{
	rf_syscall6(__NR_close, fd, 0, 0, 0, 0, 0);
}

/* Reads up to size bytes, over short reads and EINTR; bytes read, or -errno. */
static inline long rf_read_all(int fd, char *buffer, size_t size)
{
	size_t have = 0;

	while (have < size) {
		long got = rf_syscall6(__NR_read, fd, (long)(buffer + have), (long)(size - have), 0,
				       0, 0);

		if (got == -4 /* EINTR */)
			continue;
		if (got < 0)
			return got;
		if (got == 0)
			break;
		have += (size_t)got;
	}
	return (long)have;
}

/* Anonymous memory that is never given back; NULL where there is none. */
static inline void *rf_map_pages(size_t size)
{
	long ret = rf_syscall6(__NR_mmap, 0, (long)size, 3 /* read, write */,
			       0x22 /* private, anonymous */, -1, 0);

	return ret < 0 && ret > -4096 ? NULL : (void *)ret;
}

static inline size_t rf_strlen(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

static inline bool rf_streq(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static inline bool rf_starts_with(const char *s, const char *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return false;
	return true;
}

static inline const char *rf_basename(const char *path)
{
	const char *base = path;

	for (; *path; path++)
		if (*path == '/')
			base = path + 1;
	return base;
}

#endif
