// SPDX-License-Identifier: Apache-2.0
/*
 * The third way in: a node may name this library in the container's /etc/ld.so.preload, which holds
 * for processes with an empty environment and for set-uid programs. ROCr finds a preloaded tools
 * library by itself since 5.4; before that it only reads its variable, so that is put right here,
 * while the process is still starting.
 */
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRELOAD_FILE "/etc/ld.so.preload"
#define FILE_BYTES   4096
#define TOOLS	     "HSA_TOOLS_LIB"

/* dladdr() lived in libdl before glibc 2.34. */
static int find_self(struct dl_phdr_info *info, size_t size, void *ret)
{
	uintptr_t self = (uintptr_t)find_self;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && self >= start &&
		    self - start < segment->p_memsz) {
			*(const char **)ret = info->dlpi_name;
			return 1;
		}
	}
	return 0;
}

static bool preloaded(const char *path)
{
	size_t length = strlen(path);
	char text[FILE_BYTES];
	ssize_t size;
	int fd;

	fd = open(PRELOAD_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (size <= 0)
		return false;
	text[size] = '\0';
	for (const char *at = text; (at = strstr(at, path)); at += length)
		if ((at == text || strchr(" :\t\n", at[-1])) && strchr(" :\t\n", at[length]))
			return true;
	return false;
}

__attribute__((constructor)) static void name_ourselves_to_rocr(void)
{
	const char *own_list = getenv(TOOLS);
	const char *path = NULL;
	size_t length, size;
	char *list;

	dl_iterate_phdr(find_self, &path);
	if (!path || !*path)
		return;
	length = strlen(path);
	if (own_list && !strncmp(own_list, path, length) &&
	    (own_list[length] == '\0' || own_list[length] == ' '))
		return;
	/* Loaded later, by ROCr: then it knows, and the environment may be in use by other threads. */
	if (!preloaded(path))
		return;
	if (!own_list || !*own_list) {
		setenv(TOOLS, path, 1);
		return;
	}
	size = length + strlen(own_list) + 2;
	list = malloc(size);
	if (!list)
		return;
	snprintf(list, size, "%s %s", path, own_list);
	setenv(TOOLS, list, 1);
	free(list);
}
