// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Leading digits. Not strtoull(): compiled with newer headers it needs glibc 2.38. */
static uint64_t leading_number(const char *text)
{
	uint64_t value = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		value = value * 10 + (uint64_t)(*text - '0');
	return value;
}

struct stat_line {
	char state;
	uint64_t start;
	char command[16];
};

/* `pid (comm) state ...`: comm may hold any byte, so fields are counted from the last `)`. */
static bool read_stat(const char *path, struct stat_line *ret)
{
	const char *first, *at;
	char text[1024];
	ssize_t size;
	size_t length;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (size <= 0)
		return false;
	text[size] = '\0';
	first = strchr(text, '(');
	at = strrchr(text, ')');
	if (!first || !at || at < first || at[1] != ' ')
		return false;
	length = (size_t)(at - first) - 1;
	memset(ret->command, 0, sizeof(ret->command));
	memcpy(ret->command, first + 1,
	       length < sizeof(ret->command) - 1 ? length : sizeof(ret->command) - 1);
	ret->state = at[2];
	/* The state is field 3, the start time field 22. */
	for (int field = 2; field < 22; field++) {
		at = strchr(at + 1, ' ');
		if (!at)
			return false;
	}
	ret->start = leading_number(at + 1);
	return ret->start != 0;
}

static uint64_t own_pid_namespace(void)
{
	char link[64];
	ssize_t size = readlink("/proc/self/ns/pid", link, sizeof(link) - 1);
	const char *bracket;

	if (size <= 0)
		return 0;
	link[size] = '\0';
	bracket = strchr(link, '[');
	return bracket ? leading_number(bracket + 1) : 0;
}

void rf_process_self(struct rf_process *ret)
{
	struct stat_line line;

	memset(ret, 0, sizeof(*ret));
	ret->pid = getpid();
	ret->pid_namespace = own_pid_namespace();
	if (read_stat("/proc/self/stat", &line)) {
		ret->start = line.start;
		memcpy(ret->command, line.command, sizeof(ret->command));
	}
}

enum rf_alive rf_process_alive(pid_t pid, uint64_t start)
{
	struct stat_line line;
	char path[32];

	if (pid <= 0)
		return RF_DEAD;
	if (kill(pid, 0) < 0 && errno == ESRCH)
		return RF_DEAD;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (!start || !read_stat(path, &line))
		return RF_CANNOT_TELL;
	if (line.start != start)
		return RF_DEAD;
	/* A zombie's number lives on; its other threads may too, which only the lock tells. */
	return line.state == 'Z' || line.state == 'X' ? RF_CANNOT_TELL : RF_ALIVE;
}

bool rf_process_maps(pid_t pid, dev_t device, ino_t inode)
{
	/* `start-end perms offset major:minor inode path` */
	char wanted[64], path[32], text[4096 + 1];
	size_t have = 0;
	bool found = false;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	snprintf(wanted, sizeof(wanted), " %02x:%02x %llu ", major(device), minor(device),
		 (unsigned long long)inode);
	while (!found && (got = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
		have += (size_t)got;
		text[have] = '\0';
		found = strstr(text, wanted) != NULL;
		/* What is wanted may straddle two reads. */
		if (have >= sizeof(wanted)) {
			memmove(text, text + have - sizeof(wanted), sizeof(wanted));
			have = sizeof(wanted);
		}
	}
	close(fd);
	return found;
}
