/* SPDX-License-Identifier: Apache-2.0 */
/* What ROCr is told when it reads its environment. */
#ifndef RINGFENCE_PIN_H
#define RINGFENCE_PIN_H

typedef char *(*rf_getenv_t)(const char *name);

/*
 * The value ROCr gets for a variable, given how the process itself would be answered: ours for
 * the few that decide whether the slice holds, the process's own for all others.
 */
char *rf_pinned_getenv(const char *name, rf_getenv_t process);

#endif
