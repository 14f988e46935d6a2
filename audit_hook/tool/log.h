/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error, for the tenant: few, and each says what to do next. */
#ifndef RINGFENCE_LOG_H
#define RINGFENCE_LOG_H

#include <stdbool.h>

enum rf_log_kind {
	RF_LOG_REFUSED,
	RF_LOG_BROKEN,
	RF_LOG_LEDGER,
	RF_LOG_TAMPERED,
	RF_LOG_MASK,
	RF_LOG_ABI,
	RF_LOG_OVERSUBSCRIBE,
	RF_LOG_KINDS,
	RF_LOG_ALL = RF_LOG_KINDS, /* of what is asked for: every line prints */
};

enum rf_log_level {
	RF_LOG_ERROR = 1,
	RF_LOG_WARNING = 2,
	RF_LOG_INFO = 3, /* once for each GPU of a process */
	RF_LOG_DEBUG = 4, /* each charge */
};

/* LIBHIP_LOG_LEVEL as the process started with it: 1 to 4, and 2 for anything else. */
bool rf_log_wanted(enum rf_log_level level);

/*
 * Prints one line if its level is wanted, at most once a second for each kind but RF_LOG_ALL, and
 * says how many it left out. Errno is kept.
 */
void rf_log(enum rf_log_level level, enum rf_log_kind kind, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
