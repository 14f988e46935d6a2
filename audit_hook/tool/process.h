/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is, so that a later one with the same number is not taken for it. */
#ifndef RINGFENCE_PROCESS_H
#define RINGFENCE_PROCESS_H

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

#endif
