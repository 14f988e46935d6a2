// SPDX-License-Identifier: Apache-2.0
#include "slice.h"

#include "freestanding.h"

/* What is left of one line. */
struct cursor {
	const char *at;
	const char *end;
};

static bool take_char(struct cursor *cursor, char c)
{
	if (cursor->at == cursor->end || *cursor->at != c)
		return false;
	cursor->at++;
	return true;
}

static bool take_word(struct cursor *cursor, const char *word)
{
	const char *at = cursor->at;

	for (; *word; word++, at++)
		if (at == cursor->end || *at != *word)
			return false;
	cursor->at = at;
	return true;
}

static int digit(char c, unsigned int base)
{
	int value = -1;

	if (c >= '0' && c <= '9')
		value = c - '0';
	else if (c >= 'a' && c <= 'f')
		value = c - 'a' + 10;
	return value < (int)base ? value : -1;
}

/* At least min_digits and at most max; no sign, no blank, no overflow. */
static bool take_number(struct cursor *cursor, unsigned int base, unsigned int min_digits,
			uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;
	unsigned int digits = 0;
	int next;

	while (cursor->at != cursor->end && (next = digit(*cursor->at, base)) >= 0) {
		if ((uint64_t)next > max || value > (max - (uint64_t)next) / base)
			return false;
		value = value * base + (uint64_t)next;
		cursor->at++;
		digits++;
	}
	if (digits < min_digits)
		return false;
	*ret = value;
	return true;
}

static bool take_cu_list(struct cursor *cursor, uint32_t ret[RF_MASK_WORDS])
{
	for (int i = 0; i < RF_MASK_WORDS; i++)
		ret[i] = 0;
	do {
		uint64_t first, last;

		if (!take_number(cursor, 10, 1, RF_MAX_CUS - 1, &first))
			return false;
		last = first;
		if (take_char(cursor, '-') && !take_number(cursor, 10, 1, RF_MAX_CUS - 1, &last))
			return false;
		if (last < first)
			return false;
		for (uint64_t id = first; id <= last; id++) {
			uint32_t bit = UINT32_C(1) << (id % 32);

			if (ret[id / 32] & bit)
				return false;
			ret[id / 32] |= bit;
		}
	} while (take_char(cursor, ','));
	return true;
}

static bool take_pci(struct cursor *cursor, uint64_t *ret)
{
	uint64_t domain, bus, device, function;

	if (!take_number(cursor, 16, 4, UINT32_MAX, &domain) || !take_char(cursor, ':') ||
	    !take_number(cursor, 16, 2, 0xff, &bus) || !take_char(cursor, ':') ||
	    !take_number(cursor, 16, 2, 0x1f, &device) || !take_char(cursor, '.') ||
	    !take_number(cursor, 16, 1, 7, &function))
		return false;
	*ret = domain << 16 | bus << 8 | device << 3 | function;
	return true;
}

static bool take_u32(struct cursor *cursor, uint32_t *ret)
{
	uint64_t value;

	/* RF_UNKNOWN cannot be written: leaving the field out says it. */
	if (*ret != RF_UNKNOWN || !take_number(cursor, 10, 1, UINT32_MAX - 1, &value))
		return false;
	*ret = (uint32_t)value;
	return true;
}

static bool take_gpu(struct cursor *cursor, struct rf_gpu *gpu)
{
	bool has_vram = false;
	bool has_cus = false;

	gpu->kfd = gpu->render = gpu->card = RF_UNKNOWN;
	gpu->masked = false;
	gpu->cu_list = NULL;
	gpu->cu_list_length = 0;
	if (!take_pci(cursor, &gpu->pci))
		return false;
	while (take_char(cursor, ' ')) {
		if (take_word(cursor, "vram=")) {
			if (has_vram)
				return false;
			has_vram = true;
			if (take_word(cursor, "all"))
				gpu->vram = RF_UNLIMITED;
			else if (!take_number(cursor, 10, 1, RF_UNLIMITED - 1, &gpu->vram))
				return false;
		} else if (take_word(cursor, "cus=")) {
			if (has_cus)
				return false;
			has_cus = true;
			if (take_word(cursor, "all"))
				continue;
			gpu->cu_list = cursor->at;
			if (!take_cu_list(cursor, gpu->cus))
				return false;
			gpu->cu_list_length = (size_t)(cursor->at - gpu->cu_list);
			gpu->masked = true;
		} else if (take_word(cursor, "kfd=")) {
			if (!take_u32(cursor, &gpu->kfd))
				return false;
		} else if (take_word(cursor, "render=")) {
			if (!take_u32(cursor, &gpu->render))
				return false;
		} else if (take_word(cursor, "card=")) {
			if (!take_u32(cursor, &gpu->card))
				return false;
		} else {
			return false;
		}
	}
	return has_vram;
}

static bool known_gpu(const struct rf_slice *slice, uint64_t pci)
{
	for (uint32_t i = 0; i < slice->gpu_count; i++)
		if (slice->gpus[i].pci == pci)
			return true;
	return false;
}

/* One line between the first and `end`. */
static bool take_line(struct cursor *cursor, bool *has_refuse, struct rf_slice *ret)
{
	if (take_word(cursor, "gpu ")) {
		struct rf_gpu *gpu = &ret->gpus[ret->gpu_count];

		if (ret->gpu_count == RF_MAX_GPUS || !take_gpu(cursor, gpu) ||
		    known_gpu(ret, gpu->pci))
			return false;
		ret->gpu_count++;
		return true;
	}
	if (take_word(cursor, "refuse ")) {
		if (*has_refuse)
			return false;
		*has_refuse = true;
		ret->kernel_refuses = take_word(cursor, "kernel");
		return ret->kernel_refuses || take_word(cursor, "hook");
	}
	if (take_word(cursor, "priority ")) {
		uint64_t value;

		if (ret->priority >= 0 || !take_number(cursor, 10, 1, 1, &value))
			return false;
		ret->priority = (int)value;
		return true;
	}
	if (take_word(cursor, "oversubscribe")) {
		if (ret->oversubscribe)
			return false;
		ret->oversubscribe = true;
		return true;
	}
	return false;
}

int rf_slice_parse(const char *text, size_t size, struct rf_slice *ret)
{
	const char *end = text + size;
	bool has_refuse = false;
	bool ended = false;
	int line = 0;

	ret->kernel_refuses = ret->oversubscribe = false;
	ret->priority = -1;
	ret->gpu_count = 0;
	while (text != end) {
		struct cursor cursor = { text, text };

		line++;
		while (cursor.end != end && *cursor.end != '\n')
			cursor.end++;
		/* A line without its newline is a file cut short. */
		if (cursor.end == end || ended)
			return line;
		text = cursor.end + 1;
		if (line == 1) {
			if (!take_word(&cursor, "ringfence-slice 1"))
				return line;
		} else if (take_word(&cursor, "end")) {
			if (!has_refuse || !ret->gpu_count)
				return line;
			ended = true;
		} else if (!take_line(&cursor, &has_refuse, ret)) {
			return line;
		}
		if (cursor.at != cursor.end)
			return line;
	}
	return ended ? 0 : line + 1;
}

bool rf_parse_size(const char *text, size_t length, uint64_t *ret)
{
	struct cursor cursor = { text, text + length };
	unsigned int shift = 0;
	uint64_t value;

	if (!take_number(&cursor, 10, 1, UINT64_MAX, &value))
		return false;
	if (cursor.at != cursor.end) {
		switch (*cursor.at | 0x20) {
		case 'k':
			shift = 10;
			break;
		case 'm':
			shift = 20;
			break;
		case 'g':
			shift = 30;
			break;
		case 't':
			shift = 40;
			break;
		default:
			return false;
		}
		cursor.at++;
	}
	if (cursor.at != cursor.end || value > UINT64_MAX >> shift)
		return false;
	*ret = value << shift;
	return true;
}

bool rf_parse_cu_list(const char *text, size_t length, uint32_t ret[RF_MASK_WORDS])
{
	struct cursor cursor = { text, text + length };

	return take_cu_list(&cursor, ret) && cursor.at == cursor.end;
}
