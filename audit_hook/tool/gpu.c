// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>

#include "log.h"

#define PCI_FORMAT "%04" PRIx64 ":%02x:%02x.%u"
#define PCI_PARTS(pci)                                                                   \
	(pci) >> 16, (unsigned int)((pci) >> 8 & 0xff), (unsigned int)((pci) >> 3 & 31), \
		(unsigned int)((pci)&7)

static void log_held(const struct rf_gpu *slice, enum rf_book book, const char *what,
		     uint64_t bytes)
{
	rf_log(RF_LOG_DEBUG, RF_LOG_ALL,
	       "GPU " PCI_FORMAT ": %s %" PRIu64 " bytes %s; the container holds %" PRIu64,
	       PCI_PARTS(slice->pci), what, bytes,
	       book == RF_BOOK_POOL ? "of a pool" : "of the driver", rf_ledger_used(slice->pci));
}

void rf_gpu_log_slice(const struct rf_limits *limits)
{
	for (uint32_t i = 0; i < limits->slice.gpu_count && rf_log_wanted(RF_LOG_INFO); i++) {
		const struct rf_gpu *gpu = &limits->slice.gpus[i];
		char vram[32] = "all", cus[32] = "all";
		unsigned int cu_count = 0;

		if (gpu->vram != RF_UNLIMITED)
			snprintf(vram, sizeof(vram), "%" PRIu64 " bytes", gpu->vram);
		for (int word = 0; gpu->masked && word < RF_MASK_WORDS; word++)
			cu_count += (unsigned int)__builtin_popcount(gpu->cus[word]);
		if (gpu->masked)
			snprintf(cus, sizeof(cus), "%u", cu_count);
		rf_log(RF_LOG_INFO, RF_LOG_ALL,
		       "GPU " PCI_FORMAT ": memory %s, compute units %s; %s refuses what is above",
		       PCI_PARTS(gpu->pci), vram, cus,
		       limits->slice.kernel_refuses ? "the kernel" : "this library");
	}
}

bool rf_gpu_reserve(const struct rf_limits *limits, int gpu, enum rf_book book, uint64_t bytes)
{
	struct rf_charge charge = { .book = book, .bytes = bytes };
	const struct rf_gpu *slice;
	uint64_t used;

	if (limits->source == RF_LIMIT_BROKEN)
		return false;
	if (gpu == RF_GPU_FOREIGN) {
		rf_log(RF_LOG_ERROR, RF_LOG_REFUSED,
		       "refused %" PRIu64
		       " bytes of a GPU that is not in this container's slice: use one that is",
		       bytes);
		return false;
	}
	slice = &limits->slice.gpus[gpu];
	charge.pci = slice->pci;
	charge.limit = limits->slice.kernel_refuses ? RF_UNLIMITED : slice->vram;
	switch (rf_ledger_charge(&charge, &used)) {
	case RF_GRANTED:
		if (rf_log_wanted(RF_LOG_DEBUG))
			log_held(slice, book, "took", bytes);
		return true;
	case RF_OVER_LIMIT:
		rf_log(RF_LOG_ERROR, RF_LOG_REFUSED,
		       "GPU " PCI_FORMAT ": refused %" PRIu64 " bytes: %" PRIu64
		       " of this container's %" PRIu64 " are in use; free some, or ask for more",
		       PCI_PARTS(slice->pci), bytes, used, slice->vram);
		return false;
	case RF_NO_LEDGER:
		break;
	}
	/* Whoever else refuses does not depend on these books. */
	return limits->slice.kernel_refuses || slice->vram == RF_UNLIMITED;
}

void rf_gpu_give_back(const struct rf_limits *limits, int gpu, enum rf_book book, uint64_t bytes)
{
	if (gpu == RF_GPU_FOREIGN)
		return;
	rf_ledger_give_back(limits->slice.gpus[gpu].pci, book, bytes);
	if (rf_log_wanted(RF_LOG_DEBUG))
		log_held(&limits->slice.gpus[gpu], book, "gave back", bytes);
}

uint64_t rf_gpu_left(const struct rf_limits *limits, int gpu)
{
	uint64_t limit, used;

	if (limits->source == RF_LIMIT_BROKEN || gpu == RF_GPU_FOREIGN)
		return 0;
	limit = limits->slice.gpus[gpu].vram;
	if (limit == RF_UNLIMITED)
		return RF_UNLIMITED;
	used = rf_ledger_used(limits->slice.gpus[gpu].pci);
	return used < limit ? limit - used : 0;
}
