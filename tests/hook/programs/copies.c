// SPDX-License-Identifier: Apache-2.0
/*
 * `copies MiB MiB...`: the first size from the HIP the program is linked with, the others from a
 * second copy, in a link namespace of its own: `malloc ERROR` a line.
 */
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
	int (*allocate)(void **, size_t);
	void *pointer, *copy;

	if (count < 3)
		return 2;
	printf("malloc %d\n", (int)hipMalloc(&pointer, strtoull(arguments[1], NULL, 10) << 20));
	copy = dlmopen(LM_ID_NEWLM, "libamdhip64.so.5", RTLD_NOW);
	allocate = copy ? (int (*)(void **, size_t))dlsym(copy, "hipMalloc") : NULL;
	if (!allocate)
		return 3;
	for (int i = 2; i < count; i++)
		printf("malloc %d\n", allocate(&pointer, strtoull(arguments[i], NULL, 10) << 20));
	return 0;
}
