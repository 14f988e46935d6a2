// SPDX-License-Identifier: Apache-2.0
/*
 * The third way in: a node may name this library in the container's /etc/ld.so.preload, which holds
 * for processes with an empty environment and for set-uid programs. ROCr finds a preloaded tools
 * library by itself since 5.4; before that it only reads its variable, so that is put right here,
 * while the process is still starting.
 */
#include "object.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRELOAD_FILE "/etc/ld.so.preload"
#define FILE_BYTES   4096
#define TOOLS	     "HSA_TOOLS_LIB"

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
	const char *path = rf_object_of((const void *)preloaded);
	size_t length, size;
	char *list;

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
