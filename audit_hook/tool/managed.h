/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver moves between the card and the host as it is used: what oversubscription
 * gives out in place of VRAM. It needs a GPU that can wait for a page (XNACK), switched on.
 */
#ifndef RINGFENCE_MANAGED_H
#define RINGFENCE_MANAGED_H

#include "hsa_abi.h"

/* Smaller allocations stay in VRAM: they are a program's bookkeeping, and never worth moving. */
#define RF_MANAGED_LEAST (UINT64_C(2) << 20)

/* A range of bytes (whole pages) an agent may use and should hold; NULL where there is none. */
void *rf_managed_allocate(hsa_svm_attributes_set_t set, struct hsa_handle agent, uint64_t bytes);
void rf_managed_free(void *pointer, uint64_t bytes);

#endif
