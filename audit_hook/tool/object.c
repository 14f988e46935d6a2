// SPDX-License-Identifier: Apache-2.0
#include "object.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct search {
	uintptr_t address;
	const char *name;
};

static int holds(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && search->address >= start &&
		    search->address - start < segment->p_memsz) {
			search->name = info->dlpi_name;
			return 1;
		}
	}
	return 0;
}

const char *rf_object_of(const void *address)
{
	struct search search = { .address = (uintptr_t)address };

	dl_iterate_phdr(holds, &search);
	return search.name;
}
