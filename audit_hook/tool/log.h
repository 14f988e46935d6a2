/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error, for the tenant: few, and each says what to do next. */
#ifndef RINGFENCE_LOG_H
#define RINGFENCE_LOG_H

enum rf_log_kind {
	RF_LOG_REFUSED,
	RF_LOG_BROKEN,
	RF_LOG_LEDGER,
	RF_LOG_TAMPERED,
	RF_LOG_MASK,
	RF_LOG_ABI,
	RF_LOG_OVERSUBSCRIBE,
	RF_LOG_KINDS,
};

enum rf_log_level {
	RF_LOG_ERROR = 1,
	RF_LOG_WARNING = 2
};

/*
 * Prints one line, at most once a second for each kind, and says how many it left out. Errno is
 * kept. LIBHIP_LOG_LEVEL=1 leaves warnings out; errors always print.
 */
void rf_log(enum rf_log_level level, enum rf_log_kind kind, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
