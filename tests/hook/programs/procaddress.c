// SPDX-License-Identifier: Apache-2.0
/*
 * `procaddress MiB...`: hipMalloc as HIP itself hands it out. HIP before 6 leaves that to dlsym, and
 * then `by` says so.
 */
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*get_proc_address_t)(const char *, void **, int, unsigned long, int *);

int main(int count, char **arguments)
{
	get_proc_address_t get = (get_proc_address_t)dlsym(RTLD_DEFAULT, "hipGetProcAddress");
	int (*allocate)(void **, size_t) = NULL;
	void *found = NULL;
	int status = 0;

	if (!get || get("hipMalloc", &found, 601, 0, &status)) {
		found = dlsym(RTLD_DEFAULT, "hipMalloc");
		fputs("by dlsym\n", stderr);
	}
	allocate = (int (*)(void **, size_t))found;
	for (int i = 1; i < count; i++) {
		void *pointer;

		printf("malloc %d\n", allocate(&pointer, strtoull(arguments[i], NULL, 10) << 20));
	}
	/* Keeps HIP among what the program needs. */
	return hipGetLastError() == hipErrorUnknown;
}
