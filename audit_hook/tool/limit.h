/* SPDX-License-Identifier: Apache-2.0 */
/* What this container may use, from the slice file or, without one, from HAMi's variables. */
#ifndef RINGFENCE_LIMIT_H
#define RINGFENCE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "../slice/slice.h"

enum rf_limit_source {
	RF_LIMIT_NONE, /* nobody limits this container here */
	RF_LIMIT_FILE,
	RF_LIMIT_VARIABLES,
	RF_LIMIT_BROKEN, /* what should say it cannot be read: nothing is given out */
};

struct rf_limits {
	enum rf_limit_source source;
	struct rf_slice slice;
};

/*
 * Reads the limits once and keeps them; a file that does not follow its grammar is reported on
 * stderr and yields RF_LIMIT_BROKEN.
 */
struct rf_limits *rf_limits_get(void);

/* The GPU of a PCI address in the slice, or -1. */
int rf_limits_find(const struct rf_limits *limits, uint64_t pci);

/*
 * With RF_LIMIT_VARIABLES: takes up the next GPU in ROCr's order and reads what the variables say
 * of it. Returns its place, or -1 where there is no more room.
 */
int rf_limits_add_by_order(struct rf_limits *limits, uint64_t pci);

#endif
