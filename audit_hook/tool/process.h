/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is, so that a later one with the same number is not taken for it. */
#ifndef RINGFENCE_PROCESS_H
#define RINGFENCE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct rf_process {
	pid_t pid;
	uint64_t start; /* clock ticks since boot; 0: unknown */
	uint64_t pid_namespace; /* inode; 0: unknown */
	char command[16];
};

enum rf_alive {
	RF_ALIVE,
	RF_DEAD,
	RF_CANNOT_TELL
};

void rf_process_self(struct rf_process *ret);

/* Whether the process with this number is still the one that started then, in our namespace. */
enum rf_alive rf_process_alive(pid_t pid, uint64_t start);

/*
 * Whether a process still maps this file: after an exec it does not. True where its mappings may
 * not be read.
 */
bool rf_process_maps(pid_t pid, dev_t device, ino_t inode);

#endif
