// SPDX-License-Identifier: Apache-2.0
/*
 * Nanoseconds of a call through the PLT, the best of several rounds: what an auditor could make
 * slow. Compiled with -fno-builtin, or there would be no call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 20
#define CALLS  200000

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void)
{
	double best = 1e18;
	long sum = 0;

	for (int round = 0; round < ROUNDS; round++) {
		double start = now(), each;

		for (int i = 0; i < CALLS; i++)
			sum += labs(i);
		each = (now() - start) / CALLS;
		best = each < best ? each : best;
	}
	printf("%.3f\n", best);
	return sum == 0;
}
