/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment the pod spec gave the container, as its first process was started with it.
 * Only read where there is no slice file: under a device plugin that speaks in variables alone.
 */
#ifndef RINGFENCE_PODENV_H
#define RINGFENCE_PODENV_H

#include "freestanding.h"

#define RF_POD_ENVIRON	   "/proc/1/environ"
#define RF_POD_ENVIRON_MAX (1 << 20)

struct rf_podenv {
	const char *block;
	size_t size;
};

/* An environment that cannot be read (another user's process) is an empty one. */
static inline void rf_podenv_load(struct rf_podenv *ret)
{
	char *block;
	long size;
	int fd;

	ret->block = NULL;
	ret->size = 0;
	fd = rf_open_readonly(RF_POD_ENVIRON);
	if (fd < 0)
		return;
	/* Pages that are not touched cost nothing, so ask for the most there can be. */
	block = rf_map_pages(RF_POD_ENVIRON_MAX);
	if (block) {
		size = rf_read_all(fd, block, RF_POD_ENVIRON_MAX - 1);
		if (size > 0) {
			block[size] = '\0';
			ret->block = block;
			ret->size = (size_t)size;
		}
	}
	rf_close(fd);
}

/* The value of a variable, or NULL. */
static inline const char *rf_podenv_get(const struct rf_podenv *env, const char *name)
{
	const char *at = env->block;
	size_t length = rf_strlen(name);

	while (at && at < env->block + env->size) {
		if (rf_starts_with(at, name) && at[length] == '=')
			return at + length + 1;
		at += rf_strlen(at) + 1;
	}
	return NULL;
}

#endif
