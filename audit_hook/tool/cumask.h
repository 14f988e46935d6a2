/* SPDX-License-Identifier: Apache-2.0 */
/* Compute-unit masks: bit i is CU i, 32 to a word, as ROCr counts them. */
#ifndef RINGFENCE_CUMASK_H
#define RINGFENCE_CUMASK_H

#include <stdbool.h>
#include <stdint.h>

#include "../slice/slice.h"

/*
 * The mask HSA_CU_MASK gives the GPU of one ROCr index: `set[;set]*`, set = `gpus:cus`, each a
 * list of ids and ranges, cus also as 0x and hexadecimal digits. Returns 1 with a mask, 0 where
 * the GPU is not named, -1 where the text does not follow the grammar: ROCr would then let every
 * CU be used.
 */
int rf_cumask_from_variable(const char *text, uint32_t gpu_index, uint32_t ret[RF_MASK_WORDS]);

/*
 * Makes a slice's mask one that ROCr takes: no CU the GPU lacks, and with pairs, no half of a
 * work-group processor (a mask with one is dropped whole). False where no CU is left.
 */
bool rf_cumask_fit(uint32_t mask[RF_MASK_WORDS], uint32_t cu_count, bool pairs);

/*
 * What a queue gets when a program asks for a mask of its own: the part within the slice, or the
 * slice where it asks for none (a reset) or only for CUs outside.
 */
void rf_cumask_narrow(const uint32_t slice[RF_MASK_WORDS], uint32_t words, const uint32_t *asked,
		      uint32_t asked_words, uint32_t ret[RF_MASK_WORDS]);

#endif
