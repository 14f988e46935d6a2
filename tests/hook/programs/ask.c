// SPDX-License-Identifier: Apache-2.0
/*
 * `ask LIBRARY NAME...`: what the library reads of each variable, a line each; `-` where it is
 * unset. `ask dlmopen:LIBRARY` loads it into a namespace of its own, `ask self` is the program.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef const char *(*ask_t)(const char *);

static const char *own(const char *name)
{
	return getenv(name);
}

static ask_t find(const char *library)
{
	void *loaded;

	if (!strcmp(library, "self"))
		return own;
	if (!strncmp(library, "dlmopen:", 8))
		loaded = dlmopen(LM_ID_NEWLM, library + 8, RTLD_NOW);
	else
		loaded = dlopen(library, RTLD_NOW);
	return loaded ? (ask_t)dlsym(loaded, "ask") : NULL;
}

int main(int count, char **arguments)
{
	ask_t ask = count > 1 ? find(arguments[1]) : NULL;

	if (!ask)
		return 3;
	for (int i = 2; i < count; i++) {
		const char *value = ask(arguments[i]);

		puts(value ? value : "-");
	}
	return 0;
}
