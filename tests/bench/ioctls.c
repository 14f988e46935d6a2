// SPDX-License-Identifier: Apache-2.0
/*
 * ioctls RENDER-NODE CALLS ROUNDS
 *
 * Times three kinds of calls, ROUNDS times CALLS of each, and prints for each the fastest round in
 * nanoseconds a call: "foreign N" (an unknown call on /dev/null), "query N" (a GPU call that makes
 * no VRAM) and "allocation N" (a page of VRAM made and freed). The fastest, because whatever else
 * runs on the machine only makes a round slower.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#define GEM_CREATE  0xc0206440UL
#define GEM_CLOSE   0x40086409UL
#define AMDGPU_INFO 0x40206445UL
#define DOMAIN_VRAM 4

struct info {
	uint64_t return_pointer;
	uint32_t return_size;
	uint32_t query;
	uint64_t rest[2];
};

static void foreign(int file)
{
	ioctl(file, 0x5246, 0);
}

static void query(int file)
{
	uint64_t used;
	struct info info = { .return_pointer = (uintptr_t)&used, .return_size = 8, .query = 0x10 };

	if (ioctl(file, AMDGPU_INFO, &info)) {
		perror("AMDGPU_INFO");
		exit(1);
	}
}

static void allocation(int file)
{
	uint64_t args[4] = { 4096, 0, DOMAIN_VRAM, 0 };
	uint32_t handle[2] = { 0 };

	if (ioctl(file, GEM_CREATE, args)) {
		perror("GEM_CREATE");
		exit(1);
	}
	memcpy(handle, args, sizeof(handle[0]));
	if (ioctl(file, GEM_CLOSE, handle)) {
		perror("GEM_CLOSE");
		exit(1);
	}
}

static double nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static void measure(const char *name, void (*call)(int file), int file, long calls, long rounds)
{
	double fastest = 0, took;
	long round, i;

	for (round = 0; round < rounds; round++) {
		took = nanoseconds();
		for (i = 0; i < calls; i++)
			call(file);
		took = (nanoseconds() - took) / calls;
		if (!round || took < fastest)
			fastest = took;
	}
	printf("%s %.1f\n", name, fastest);
}

int main(int argc, char **argv)
{
	int null = open("/dev/null", O_RDWR), render;
	long calls, rounds;

	if (argc != 4) {
		fprintf(stderr, "usage: ioctls RENDER-NODE CALLS ROUNDS\n");
		return 2;
	}
	render = open(argv[1], O_RDWR);
	calls = atol(argv[2]);
	rounds = atol(argv[3]);
	if (null < 0 || render < 0) {
		perror(null < 0 ? "/dev/null" : argv[1]);
		return 1;
	}
	measure("foreign", foreign, null, calls, rounds);
	measure("query", query, render, calls, rounds);
	measure("allocation", allocation, render, calls, rounds);
	return 0;
}
