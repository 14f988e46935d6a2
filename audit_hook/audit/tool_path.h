/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RINGFENCE_TOOL_PATH_H
#define RINGFENCE_TOOL_PATH_H

#define RF_TOOL_NAME "libringfence-hsa.so"

/*
 * Path of the tools library that belongs to this auditor: the one beside it, so that two versions
 * can be installed side by side.
 */
const char *rf_tool_path(void);

#endif
