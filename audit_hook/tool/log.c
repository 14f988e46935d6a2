// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 512

static struct {
	int64_t printed_at; /* seconds; 0: never */
	uint32_t left_out;
} kinds[RF_LOG_KINDS];

static int64_t now(void)
{
	struct timespec time = { 0 };

	/* Not clock_gettime(): it lived in librt before glibc 2.17. */
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
	return time.tv_sec + 1;
}

bool rf_log_wanted(enum rf_log_level level)
{
	static int known;
	int limit = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!limit) {
		const char *wanted = getenv("LIBHIP_LOG_LEVEL");

		limit = RF_LOG_WARNING;
		if (wanted && wanted[0] >= '1' && wanted[0] <= '4' && !wanted[1])
			limit = wanted[0] - '0';
		__atomic_store_n(&known, limit, __ATOMIC_RELAXED);
	}
	return (int)level <= limit;
}

/* False where one of its kind was printed within the second; *left_out is how many since then. */
static bool in_turn(enum rf_log_kind kind, uint32_t *left_out)
{
	int64_t time = now();
	int64_t last = __atomic_load_n(&kinds[kind].printed_at, __ATOMIC_RELAXED);

	if ((last && time - last < 1) ||
	    !__atomic_compare_exchange_n(&kinds[kind].printed_at, &last, time, 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&kinds[kind].left_out, 1, __ATOMIC_RELAXED);
		return false;
	}
	*left_out = __atomic_exchange_n(&kinds[kind].left_out, 0, __ATOMIC_RELAXED);
	return true;
}

void rf_log(enum rf_log_level level, enum rf_log_kind kind, const char *format, ...)
{
	int saved = errno;
	uint32_t left_out = 0;
	char line[LINE_BYTES];
	va_list arguments;
	int length, text;

	if (!rf_log_wanted(level) || (kind != RF_LOG_ALL && !in_turn(kind, &left_out)))
		goto out;
	length = snprintf(line, sizeof(line), "ringfence: ");
	va_start(arguments, format);
	text = vsnprintf(line + length, sizeof(line) - (size_t)length - 64, format, arguments);
	va_end(arguments);
	if (text < 0)
		goto out;
	length += text < LINE_BYTES - 64 - length ? text : LINE_BYTES - 65 - length;
	if (left_out)
		length += snprintf(line + length, sizeof(line) - (size_t)length,
				   " (and %u more like it)", left_out);
	line[length++] = '\n';
	/* One write: lines of several processes do not mix. Nobody is there to hear of a failure. */
	if (write(STDERR_FILENO, line, (size_t)length) < 0)
		errno = saved;
out:
	errno = saved;
}
