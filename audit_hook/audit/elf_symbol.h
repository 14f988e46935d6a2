/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RINGFENCE_ELF_SYMBOL_H
#define RINGFENCE_ELF_SYMBOL_H

#include <link.h>

/*
 * The address of a function that a loaded object defines, or NULL: dlsym would need a libc, and
 * would look from the auditor's own namespace. Any version of the symbol will do.
 */
void *rf_elf_symbol(const struct link_map *map, const char *name);

#endif
