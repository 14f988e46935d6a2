// SPDX-License-Identifier: Apache-2.0
/*
 * `tables TOOL CORE-MAJOR CORE-BYTES AMD-MAJOR AMD-BYTES`: hands the tools library API tables of
 * that version and size, as ROCr would, and prints what OnLoad returns and which members of either
 * table it replaced. The bytes behind a table are out of bounds: they cannot be touched.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096

struct table {
	uint32_t major, minor, step, reserved;
	void *functions[];
};

static int answer(void)
{
	return 0;
}

/* Ends at the end of a page, and the next one faults. */
static struct table *make(uint32_t major, uint32_t bytes)
{
	char *pages =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct table *table;

	if (pages == MAP_FAILED || bytes > PAGE || mprotect(pages + PAGE, PAGE, PROT_NONE))
		exit(3);
	table = (struct table *)(pages + PAGE - bytes);
	table->major = major;
	table->minor = bytes;
	for (size_t i = 0; 16 + (i + 1) * 8 <= bytes; i++)
		table->functions[i] = (void *)answer;
	return table;
}

static void show(const char *name, const struct table *table)
{
	printf("%s", name);
	for (size_t i = 0; 16 + (i + 1) * 8 <= table->minor; i++)
		if (table->functions[i] != (void *)answer)
			printf(" %zu", i);
	printf("\n");
}

int main(int count, char **arguments)
{
	bool (*on_load)(void *, uint64_t, uint64_t, const char *const *);
	struct {
		uint32_t major, minor, step, reserved;
		struct table *core, *amd;
	} api = { .major = 1, .minor = sizeof(api) };
	void *tool;

	if (count < 6)
		return 2;
	tool = dlopen(arguments[1], RTLD_NOW);
	if (!tool) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	on_load = (bool (*)(void *, uint64_t, uint64_t, const char *const *))dlsym(tool, "OnLoad");
	api.core = make((uint32_t)atoi(arguments[2]), (uint32_t)atoi(arguments[3]));
	api.amd = make((uint32_t)atoi(arguments[4]), (uint32_t)atoi(arguments[5]));
	printf("loaded %d\n", on_load(&api, 3, 0, NULL));
	show("core", api.core);
	show("amd", api.amd);
	return 0;
}
