// SPDX-License-Identifier: Apache-2.0
#include "elf_symbol.h"

#include "../slice/freestanding.h"

/* glibc relocates the pointers of a dynamic section in place, but not on every architecture. */
static const void *dynamic_pointer(const struct link_map *map, ElfW(Addr) value)
{
	return (const void *)(value < map->l_addr ? value + map->l_addr : value);
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

/* DT_GNU_HASH: four words, a Bloom filter, buckets, and the chains behind them. */
static const ElfW(Sym) * find_gnu(const uint32_t *table, const ElfW(Sym) * symbols,
				  const char *strings, const char *name)
{
	uint32_t bucket_count = table[0];
	uint32_t first = table[1];
	uint32_t bloom_words = table[2];
	const uint32_t *buckets = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + bloom_words);
	const uint32_t *chain = buckets + bucket_count;
	uint32_t hash = gnu_hash(name);
	uint32_t i;

	if (!bucket_count)
		return NULL;
	i = buckets[hash % bucket_count];
	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t entry = chain[i - first];

		if ((entry | 1) == (hash | 1) && symbols[i].st_shndx != SHN_UNDEF &&
		    rf_streq(strings + symbols[i].st_name, name))
			return &symbols[i];
		if (entry & 1)
			return NULL;
	}
}

void *rf_elf_symbol(const struct link_map *map, const char *name)
{
	const ElfW(Sym) *symbols = NULL;
	const ElfW(Sym) * symbol;
	const char *strings = NULL;
	const uint32_t *hash = NULL;

	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			symbols = dynamic_pointer(map, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			strings = dynamic_pointer(map, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_GNU_HASH)
			hash = dynamic_pointer(map, entry->d_un.d_ptr);
	}
	if (!symbols || !strings || !hash)
		return NULL;
	symbol = find_gnu(hash, symbols, strings, name);
	/* An IFUNC's value is its resolver, which is not what was asked for. */
	if (!symbol || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return NULL;
	return (void *)(map->l_addr + symbol->st_value);
}
