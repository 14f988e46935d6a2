/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books of one container: what each of its processes holds of each GPU, in a file that all of
 * them map. docs/hook-files.md says why no process can block another by dying.
 */
#ifndef RINGFENCE_LEDGER_H
#define RINGFENCE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "../slice/slice.h"

#define RF_LEDGER_DIR  "/run/ringfence/ledger"
#define RF_LEDGER_NAME "usage.v1"
/* Where no directory was mounted, as under a device plugin that is not ours. */
#define RF_LEDGER_FALLBACK "/tmp/ringfence-usage.v1"
#define RF_LEDGER_MAGIC	   UINT64_C(0x3152454744454c52) /* "RLEDGER1" */
#define RF_LEDGER_SLOTS	   1024
#define RF_LEDGER_KEY_USED (UINT64_C(1) << 63)

struct rf_ledger_header {
	uint64_t magic;
	uint32_t slots;
	uint32_t gpus;
	uint32_t high_water; /* slots below this one have been used */
	uint32_t pad;
	uint64_t tampered; /* times a process found its own entry changed by another */
	uint64_t reserved[4];
	uint64_t gpu_keys[RF_MAX_GPUS]; /* pci | RF_LEDGER_KEY_USED; 0: free column */
	uint8_t unused[4096 - 64 - RF_MAX_GPUS * 8];
};

struct rf_ledger_slot {
	uint64_t owner; /* generation << 32 | pid; 0: free */
	uint64_t start; /* of the process, clock ticks since boot */
	uint64_t pid_namespace; /* inode; 0: unknown */
	uint64_t refusals;
	char command[16]; /* NUL-padded */
	uint64_t reserved[2];
};

struct rf_ledger_count {
	uint64_t pool; /* bytes asked of ROCr's pools, in whole pages */
	uint64_t driver; /* bytes of VRAM buffers asked of the driver */
};

struct rf_ledger_file {
	struct rf_ledger_header header;
	struct rf_ledger_slot slots[RF_LEDGER_SLOTS];
	struct rf_ledger_count counts[RF_MAX_GPUS][RF_LEDGER_SLOTS];
};

enum rf_book {
	RF_BOOK_POOL,
	RF_BOOK_DRIVER
};

enum rf_verdict {
	RF_GRANTED,
	RF_OVER_LIMIT,
	RF_NO_LEDGER, /* the books cannot be kept; a line on stderr says why */
};

struct rf_charge {
	uint64_t pci;
	enum rf_book book;
	uint64_t bytes;
	uint64_t limit; /* RF_UNLIMITED: only counted */
};

/*
 * required: with no usable file the books cannot be kept. Otherwise each process then keeps its
 * own, and says so.
 */
void rf_ledger_configure(bool required);

/* False where the books are required and cannot be kept; a line on stderr has said why. */
bool rf_ledger_usable(void);

/* Adds to this process's entry if the container stays within the limit; *used is what was held. */
enum rf_verdict rf_ledger_charge(const struct rf_charge *charge, uint64_t *used);
void rf_ledger_give_back(uint64_t pci, enum rf_book book, uint64_t bytes);

/* Bytes of one GPU that the container's living processes hold; 0 where there are no books. */
uint64_t rf_ledger_used(uint64_t pci);

/* ROCr has shut down in this process, and with it all that came from its pools is free. */
void rf_ledger_forget_pools(void);

#endif
