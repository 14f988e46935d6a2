// SPDX-License-Identifier: Apache-2.0
#include "tool_path.h"

#include "../slice/freestanding.h"

#ifndef RF_HOOK_DIR
#define RF_HOOK_DIR "/usr/local/ringfence"
#endif

#define PATH_BYTES 4096

static char path[PATH_BYTES + sizeof(RF_TOOL_NAME)];
static int path_known;

/*
 * The auditor is not among the objects the loader shows it, so it looks itself up in the process's
 * own mappings: `start-end perms offset dev inode path`.
 */
static size_t own_directory(char *ret, size_t size)
{
	static char line[PATH_BYTES + 128];
	uintptr_t self = (uintptr_t)own_directory; /* in the text: data has no path */
	size_t length = 0;
	size_t found = 0;
	char chunk[1024];
	long got;
	int fd;

	fd = rf_open_readonly("/proc/self/maps");
	if (fd < 0)
		return 0;
	while (!found && (got = rf_read_all(fd, chunk, sizeof(chunk))) > 0) {
		for (long i = 0; i < got && !found; i++) {
			uintptr_t bounds[2] = { 0, 0 };
			size_t at = 0;
			const char *name;

			if (chunk[i] != '\n') {
				if (length < sizeof(line) - 1)
					line[length++] = chunk[i];
				continue;
			}
			line[length] = '\0';
			length = 0;
			for (int k = 0; k < 2; k++, at++)
				for (; (line[at] >= '0' && line[at] <= '9') ||
				       (line[at] >= 'a' && line[at] <= 'f');
				     at++)
					bounds[k] =
						bounds[k] << 4 |
						(uintptr_t)(line[at] <= '9' ? line[at] - '0' :
									      line[at] - 'a' + 10);
			if (self < bounds[0] || self >= bounds[1])
				continue;
			for (name = line; *name && *name != '/'; name++)
				;
			found = (size_t)(rf_basename(name) - name);
			if (!found || found > size)
				break;
			for (size_t k = 0; k < found; k++)
				ret[k] = name[k];
		}
		if (!found && got < (long)sizeof(chunk))
			break;
	}
	rf_close(fd);
	return found <= size ? found : 0;
}

const char *rf_tool_path(void)
{
	static const char fallback[] = RF_HOOK_DIR "/" RF_TOOL_NAME;
	size_t length;

	if (__atomic_load_n(&path_known, __ATOMIC_ACQUIRE))
		return path[0] ? path : fallback;
	/* Two threads that come here at once write the same bytes. */
	length = own_directory(path, PATH_BYTES);
	if (length)
		for (size_t i = 0; i < sizeof(RF_TOOL_NAME); i++)
			path[length + i] = RF_TOOL_NAME[i];
	__atomic_store_n(&path_known, 1, __ATOMIC_RELEASE);
	return path[0] ? path : fallback;
}
