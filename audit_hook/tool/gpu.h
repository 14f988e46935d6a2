/* SPDX-License-Identifier: Apache-2.0 */
/* Reserving a GPU's memory against the limit: the one decision all ways in share. */
#ifndef RINGFENCE_GPU_H
#define RINGFENCE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"
#include "limit.h"

/* A GPU the process can see but the slice does not name. */
#define RF_GPU_FOREIGN (-1)

/* Takes bytes of a GPU of the slice into the books; false: refused, and said so. */
bool rf_gpu_reserve(const struct rf_limits *limits, int gpu, enum rf_book book, uint64_t bytes);
void rf_gpu_give_back(const struct rf_limits *limits, int gpu, enum rf_book book, uint64_t bytes);

/* With LIBHIP_LOG_LEVEL=3: a line for each GPU of the slice. */
void rf_gpu_log_slice(const struct rf_limits *limits);

/* What is left of the slice, never below 0; RF_UNLIMITED without a limit. */
uint64_t rf_gpu_left(const struct rf_limits *limits, int gpu);

#endif
