// SPDX-License-Identifier: Apache-2.0
#include "cumask.h"

#include <ctype.h>
#include <string.h>

#define SET_BYTES 4096

static bool hex_mask(const char *digits, uint32_t ret[RF_MASK_WORDS])
{
	size_t length = strlen(digits);
	bool any = false;

	memset(ret, 0, RF_MASK_WORDS * sizeof(*ret));
	if (!length)
		return false;
	/* From the least significant digit: four CUs each. */
	for (size_t i = 0; i < length; i++) {
		char c = digits[length - 1 - i];
		uint32_t value;

		if (!isxdigit((unsigned char)c))
			return false;
		value = c <= '9' ? (uint32_t)(c - '0') : (uint32_t)(c - 'a') + 10;
		any |= value != 0;
		if (i / 8 < RF_MASK_WORDS)
			ret[i / 8] |= value << (i % 8 * 4);
	}
	return any;
}

/* Blanks mean nothing to ROCr, and letters are taken in either case. */
static bool next_set(const char **text, char ret[SET_BYTES])
{
	size_t length = 0;

	for (; **text && **text != ';'; ++*text) {
		if (isspace((unsigned char)**text))
			continue;
		if (length == SET_BYTES - 1)
			return false;
		ret[length++] = (char)tolower((unsigned char)**text);
	}
	ret[length] = '\0';
	return true;
}

int rf_cumask_from_variable(const char *text, uint32_t gpu_index, uint32_t ret[RF_MASK_WORDS])
{
	uint32_t seen[RF_MASK_WORDS] = { 0 };
	bool found = false;

	for (;;) {
		uint32_t gpus[RF_MASK_WORDS];
		uint32_t cus[RF_MASK_WORDS];
		char set[SET_BYTES];
		char *colon;

		if (!next_set(&text, set))
			return -1;
		colon = strchr(set, ':');
		if (!colon || !rf_parse_cu_list(set, (size_t)(colon - set), gpus))
			return -1;
		if (!strncmp(colon + 1, "0x", 2)) {
			if (!hex_mask(colon + 3, cus))
				return -1;
		} else if (!rf_parse_cu_list(colon + 1, strlen(colon + 1), cus)) {
			return -1;
		}
		for (int i = 0; i < RF_MASK_WORDS; i++) {
			if (seen[i] & gpus[i])
				return -1;
			seen[i] |= gpus[i];
		}
		if (gpu_index < RF_MAX_CUS && gpus[gpu_index / 32] >> (gpu_index % 32) & 1) {
			memcpy(ret, cus, sizeof(cus));
			found = true;
		}
		if (!*text)
			return found;
		text++;
	}
}

bool rf_cumask_fit(uint32_t mask[RF_MASK_WORDS], uint32_t cu_count, bool pairs)
{
	uint32_t any = 0;

	for (uint32_t i = 0; i < RF_MASK_WORDS; i++) {
		uint32_t first = i * 32;

		if (cu_count <= first)
			mask[i] = 0;
		else if (cu_count - first < 32)
			mask[i] &= (UINT32_C(1) << (cu_count - first)) - 1;
		if (pairs) {
			uint32_t both = mask[i] & mask[i] >> 1 & 0x55555555;

			mask[i] = both | both << 1;
		}
		any |= mask[i];
	}
	return any != 0;
}

void rf_cumask_narrow(const uint32_t slice[RF_MASK_WORDS], uint32_t words, const uint32_t *asked,
		      uint32_t asked_words, uint32_t ret[RF_MASK_WORDS])
{
	uint32_t any = 0;

	for (uint32_t i = 0; i < words; i++) {
		ret[i] = i < asked_words ? slice[i] & asked[i] : 0;
		any |= ret[i];
	}
	if (!any)
		memcpy(ret, slice, words * sizeof(*ret));
}
