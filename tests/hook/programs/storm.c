// SPDX-License-Identifier: Apache-2.0
/*
 * `storm PROCESSES THREADS SECONDS`: every thread of every process allocates and frees at random
 * near the limit, and processes are killed at random and replaced. `peak MiB` is the most that was
 * held at once, by a counter that grows after an allocation and shrinks before a free: it may show
 * less than what was held, never more.
 */
#include <hip/hip_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_PROCESSES 64
#define HELD	      16

struct shared {
	int64_t total; /* MiB */
	int64_t peak;
	int64_t of_process[MAX_PROCESSES]; /* never less than its part of the total */
};

static struct shared *shared;
static int place, process_count;

static void took(int64_t mib)
{
	int64_t total, peak;

	__atomic_fetch_add(&shared->of_process[place], mib, __ATOMIC_SEQ_CST);
	total = __atomic_add_fetch(&shared->total, mib, __ATOMIC_SEQ_CST);
	peak = __atomic_load_n(&shared->peak, __ATOMIC_SEQ_CST);
	while (total > peak && !__atomic_compare_exchange_n(&shared->peak, &peak, total, 0,
							    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

static void gives(int64_t mib)
{
	__atomic_fetch_sub(&shared->total, mib, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&shared->of_process[place], mib, __ATOMIC_SEQ_CST);
}

static void *allocate_and_free(void *number)
{
	unsigned int seed = (unsigned int)getpid() * 31 + (unsigned int)(uintptr_t)number;
	void *blocks[HELD] = { 0 };
	int64_t mib[HELD] = { 0 };

	for (;;) {
		int i = rand_r(&seed) % HELD;

		if (blocks[i]) {
			gives(mib[i]);
			hipFree(blocks[i]);
			blocks[i] = NULL;
			continue;
		}
		mib[i] = 1 + rand_r(&seed) % 64;
		if (hipMalloc(&blocks[i], (size_t)mib[i] << 20)) {
			blocks[i] = NULL;
			continue;
		}
		took(mib[i]);
	}
	return NULL;
}

static pid_t start(int where, int threads)
{
	pid_t child = fork();

	if (child)
		return child;
	place = where;
	for (int i = 1; i < threads; i++) {
		pthread_t thread;

		pthread_create(&thread, NULL, allocate_and_free, (void *)(uintptr_t)i);
	}
	allocate_and_free(NULL);
	_exit(0);
}

int main(int count, char **arguments)
{
	pid_t children[MAX_PROCESSES];
	unsigned int seed = 1;
	time_t end;

	if (count < 4)
		return 2;
	process_count = atoi(arguments[1]);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (process_count > MAX_PROCESSES || shared == MAP_FAILED)
		return 2;
	for (int i = 0; i < process_count; i++)
		children[i] = start(i, atoi(arguments[2]));
	end = time(NULL) + atoi(arguments[3]);
	while (time(NULL) < end) {
		int i = rand_r(&seed) % process_count;

		usleep(100000);
		/* Out of the counter before it is out of the books, and still in between. */
		kill(children[i], SIGSTOP);
		waitpid(children[i], NULL, WUNTRACED);
		__atomic_fetch_sub(&shared->total, shared->of_process[i], __ATOMIC_SEQ_CST);
		shared->of_process[i] = 0;
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
		children[i] = start(i, atoi(arguments[2]));
	}
	/* All are stopped before the first is gone, or the last ones would take what it leaves. */
	for (int i = 0; i < process_count; i++) {
		kill(children[i], SIGSTOP);
		waitpid(children[i], NULL, WUNTRACED);
	}
	for (int i = 0; i < process_count; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	printf("peak %lld\n", (long long)shared->peak);
	return 0;
}
