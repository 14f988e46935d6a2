/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the client share: its state, its answers, the calls that others build on. */
#ifndef GPUCLIENT_CLIENT_H
#define GPUCLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "abi.h"

#define MAX_WORDS  1100
#define MAX_LINE   65536
#define MAX_LISTED 1024
#define HUGE_BYTES (2ULL << 20)
#define DEFAULT_KFD_FLAGS                                                  \
	(KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | \
	 KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE)

struct client {
	int drm;
	int kfd;
	/* The next GPU address nobody uses; a gap of 2 MiB after each buffer. */
	uint64_t next_va;
	bool misunderstood;
	/* Another process has printed the answer. */
	bool answered;
};

struct command {
	const char *name;
	/* What the arguments must be; shown when they are not. */
	const char *usage;
	int least, most;
	/* 0, or -1 with errno set. May have said "ok" fields through say(). */
	int (*run)(struct client *c, int n, char **words);
};

/* Each list ends with an entry without a name. */
extern const struct command escape_commands[];
extern const struct command storm_commands[];
extern const struct command supervise_commands[];

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
const char *errno_name(int number);
int bad_number(const char *word, uint64_t *ret);
uint64_t take_va(struct client *c, uint64_t bytes);
/* An interrupted call is made again; no other error is. */
int call(int fd, unsigned long cmd, void *args);
int which_file(struct client *c, const char *word, int *ret);
/* At most so many bytes of hexadecimal digits; -1 if they are none. */
int read_hex(const char *word, unsigned char *ret, size_t most);
uint64_t next_random(uint64_t *state);
int kfd_alloc(struct client *c, uint64_t gpu, uint64_t bytes, uint64_t flags, uint64_t address,
	      struct kfd_ioctl_alloc_memory_of_gpu_args *ret);
int gem_create(struct client *c, uint64_t bytes, uint64_t domain, uint64_t flags, uint32_t *ret);
/* Runs one command and prints its answer. */
void run_words(struct client *c, int n, char **words);
/* Runs what standard input says, to its end. */
void run_input(struct client *c);

#endif
