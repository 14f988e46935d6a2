// SPDX-License-Identifier: Apache-2.0
/* What a compiler may call for a structure copy even in freestanding code. */
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memset(void *to, int value, size_t size);

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	char *t = to;
	const char *f = from;

	while (size--)
		*t++ = *f++;
	return to;
}

void *memset(void *to, int value, size_t size)
{
	char *t = to;

	while (size--)
		*t++ = (char)value;
	return to;
}
