// SPDX-License-Identifier: Apache-2.0
/*
 * Streams and what masks and priorities they get.
 *
 *   streams default            one stream
 *   streams mask HEX[,HEX...]  a stream with this CU mask, 32 CUs to a word
 *
 * Prints the error of each call.
 */
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 32

int main(int count, char **arguments)
{
	uint32_t words[WORDS];
	hipStream_t stream;
	uint32_t used = 0;

	if (count < 2)
		return 2;
	if (!strcmp(arguments[1], "default")) {
		printf("stream %d\n", (int)hipStreamCreate(&stream));
	} else {
		for (char *word = strtok(arguments[2], ","); word && used < WORDS;
		     word = strtok(NULL, ","))
			words[used++] = (uint32_t)strtoul(word, NULL, 16);
		printf("stream %d\n", (int)hipExtStreamCreateWithCUMask(&stream, used, words));
	}
	printf("sync %d\n", (int)hipStreamSynchronize(stream));
	return 0;
}
