// SPDX-License-Identifier: Apache-2.0
/* In ROCr's place: says what ROCr would read of a variable. */
#include <stdlib.h>

const char *ask(const char *name);

const char *ask(const char *name)
{
	return getenv(name);
}
