// SPDX-License-Identifier: Apache-2.0
/*
 * Fuzz target: a process keeps its books while another of its container writes what it likes into
 * the ledger file. The input is a list of operations. Nothing may crash, hang or be granted above
 * the limit by the counts as they were. The ledger's source is part of this one, for its state.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../audit_hook/tool/ledger.h"

/* A directory of this run's. */
#undef RF_LEDGER_DIR
#define RF_LEDGER_DIR LEDGER_DIRECTORY
/* Waiting for others finds nothing here. */
#define nanosleep(time, rest) ((void)(time), 0)

#include "../../../audit_hook/tool/ledger.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EXPECT(condition)         \
	do {                      \
		if (!(condition)) \
			abort();  \
	} while (0)
#define GPUS 3

struct input {
	const uint8_t *at;
	const uint8_t *end;
};

static uint64_t take(struct input *input, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes && input->at != input->end; i++)
		value |= (uint64_t)*input->at++ << (i * 8);
	return value;
}

/* Mostly where something is: the header, a low slot, a low column. */
static size_t place(struct input *input)
{
	uint64_t where = take(input, 4);

	switch (where & 3) {
	case 0:
		return (where >> 2) % 640;
	case 1:
		return offsetof(struct rf_ledger_file, slots) +
		       (where >> 2) % (8 * sizeof(struct rf_ledger_slot));
	case 2:
		return offsetof(struct rf_ledger_file, counts) +
		       (where >> 8) % 4 * sizeof(ledger.file->counts[0]) +
		       (where >> 2) % (8 * sizeof(struct rf_ledger_count));
	default:
		return (where >> 2) % (sizeof(struct rf_ledger_file) - 8);
	}
}

static void charge(struct input *input)
{
	struct rf_charge asked = { .pci = 0x300 + take(input, 1) % GPUS };
	uint64_t used, before, others;
	struct account *account;
	enum rf_verdict verdict;

	asked.book = take(input, 1) & 1 ? RF_BOOK_DRIVER : RF_BOOK_POOL;
	asked.bytes = take(input, 8);
	asked.limit = take(input, 8);
	account = account_of(asked.pci);
	before = account ? held(&account->own) : 0;
	verdict = rf_ledger_charge(&asked, &used);
	if (!account)
		return;
	if (verdict != RF_GRANTED) {
		EXPECT(held(&account->own) == before);
		return;
	}
	others = held_by_others(account->column);
	EXPECT(asked.limit == RF_UNLIMITED || held(&account->own) <= before ||
	       add(held(&account->own), others) <= asked.limit);
}

static void operate(struct input *input)
{
	uint64_t value;
	size_t at;

	switch (take(input, 1) % 8) {
	case 0:
	case 1:
		at = place(input);
		value = take(input, 8);
		memcpy((char *)ledger.file + at, &value, sizeof(value));
		break;
	case 2:
		rf_ledger_give_back(0x300 + take(input, 1) % GPUS, take(input, 1) & 1,
				    take(input, 8));
		break;
	case 3:
		rf_ledger_used(0x300 + take(input, 1) % GPUS);
		break;
	case 4:
		rf_ledger_forget_pools();
		break;
	default:
		charge(input);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = { data, data + size };

	rf_ledger_configure(true);
	if (!rf_ledger_usable())
		return 0;
	while (input.at != input.end && ledger.slot != NO_SLOT)
		operate(&input);
	/* As a new process would find it, but for the file and the mapping. */
	if (ledger.slot != NO_SLOT)
		lock_slot(ledger.slot, F_UNLCK);
	memset(ledger.file, 0, sizeof(*ledger.file));
	ledger.slot = NO_SLOT;
	ledger.account_count = 0;
	ledger.failed = false;
	return 0;
}
