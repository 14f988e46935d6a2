/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RINGFENCE_OBJECT_H
#define RINGFENCE_OBJECT_H

/*
 * Path of the loaded object that holds an address, or NULL: dladdr() lived in libdl before glibc
 * 2.34. It is the loader's own string.
 */
const char *rf_object_of(const void *address);

#endif
