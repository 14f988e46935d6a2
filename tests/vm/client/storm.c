// SPDX-License-Identifier: Apache-2.0
/*
 * Random use by many processes at once. What a process does follows from its seed alone, but for
 * what its peers hand it and for what it is refused.
 *
 *   storm-join ME PEERS MINOR GPU [MINOR GPU ...]   open the files of these GPUs; be
 *                         known to the others, 0 to PEERS - 1, as ME
 *   storm SEED OPERATIONS create, free, map, share and take buffers, fork children
 *                         that do so and exit or kill themselves
 *                         done refused taken held=BYTES,BYTES... (by GPU, own ones)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define MOST_GPUS	 8
#define MOST_BUFFERS	 48
#define CHILD_OPERATIONS 12

struct buffer {
	enum {
		NONE,
		BY_KFD,
		BY_GEM
	} by;
	bool own; /* made here, not taken from a peer */
	int gpu;
	uint64_t handle, bytes;
};

static struct storm {
	struct client c;
	uint64_t state;
	int gpus, drm[MOST_GPUS], minor[MOST_GPUS];
	uint64_t kfd_id[MOST_GPUS];
	uint64_t me, peers;
	int post; /* the socket peers send to */
	struct buffer buffers[MOST_BUFFERS];
	uint64_t done, refused, taken;
} storm;

static bool is_known(const struct storm *s, const struct buffer *made)
{
	int i;

	for (i = 0; i < MOST_BUFFERS; i++) {
		const struct buffer *b = &s->buffers[i];

		if (b != made && b->by == made->by && b->gpu == made->gpu &&
		    b->handle == made->handle)
			return true;
	}
	return false;
}

/* 0 to @below - 1. */
static uint64_t dice(struct storm *s, uint64_t below)
{
	return (next_random(&s->state) >> 16) % below;
}

static int open_files(struct storm *s)
{
	struct kfd_ioctl_acquire_vm_args vm;
	char path[64];
	int i;

	s->c.kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	for (i = 0; i < s->gpus; i++) {
		snprintf(path, sizeof(path), "/dev/dri/renderD%d", s->minor[i]);
		s->drm[i] = open(path, O_RDWR | O_CLOEXEC);
		vm = (struct kfd_ioctl_acquire_vm_args){ .drm_fd = (uint32_t)s->drm[i],
							 .gpu_id = (uint32_t)s->kfd_id[i] };
		if (s->c.kfd < 0 || s->drm[i] < 0 || call(s->c.kfd, AMDKFD_IOC_ACQUIRE_VM, &vm))
			return -1;
	}
	return 0;
}

static socklen_t address_of(uint64_t peer, struct sockaddr_un *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1, "storm-%" PRIu64,
				    peer));
}

static struct buffer *any_buffer(struct storm *s, bool taken)
{
	uint64_t first = dice(s, MOST_BUFFERS), i;

	for (i = 0; i < MOST_BUFFERS; i++) {
		struct buffer *b = &s->buffers[(first + i) % MOST_BUFFERS];

		if ((b->by != NONE) == taken)
			return b;
	}
	return NULL;
}

/* Refused for want of room is an answer; anything else is a fault of somebody's. */
static int accounted(struct storm *s, int r)
{
	if (!r)
		return 0;
	s->refused++;
	return errno == ENOMEM ? 0 : -1;
}

static int create(struct storm *s)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	struct buffer made = { .own = true, .gpu = (int)dice(s, (uint64_t)s->gpus) };
	struct buffer *b = any_buffer(s, false);
	uint64_t domain = dice(s, 8) ? AMDGPU_GEM_DOMAIN_VRAM : AMDGPU_GEM_DOMAIN_GTT;
	bool by_kfd = dice(s, 2);
	uint32_t handle = 0;
	int r;

	made.bytes = 4096ULL << dice(s, 10);
	if (!b)
		return 0;
	if (by_kfd) {
		made.by = BY_KFD;
		r = kfd_alloc(&s->c, s->kfd_id[made.gpu], made.bytes, DEFAULT_KFD_FLAGS, 0, &args);
		made.handle = args.handle;
	} else {
		made.by = BY_GEM;
		made.own = domain == AMDGPU_GEM_DOMAIN_VRAM;
		s->c.drm = s->drm[made.gpu];
		r = gem_create(&s->c, made.bytes, domain, 0, &handle);
		made.handle = handle;
	}
	if (!r)
		*b = made;
	return accounted(s, r);
}

static int free_one(struct storm *s, struct buffer *b)
{
	struct kfd_ioctl_free_memory_of_gpu_args args = { 0 };
	struct drm_gem_close closed = { 0 };
	struct buffer gone;

	if (!b)
		return 0;
	gone = *b;
	b->by = NONE;
	if (gone.by == BY_KFD) {
		args.handle = gone.handle;
		return call(s->c.kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &args);
	}
	closed.handle = (uint32_t)gone.handle;
	return call(s->drm[gone.gpu], DRM_IOCTL_GEM_CLOSE, &closed);
}

/* Takes page tables; unmapped again, because KFD frees nothing that is mapped. */
static int map_and_unmap(struct storm *s)
{
	struct kfd_ioctl_map_memory_to_gpu_args args = { .n_devices = 1 };
	struct buffer *b = any_buffer(s, true);
	uint32_t gpu;
	int r;

	if (!b || b->by != BY_KFD)
		return 0;
	gpu = (uint32_t)s->kfd_id[b->gpu];
	args.handle = b->handle;
	args.device_ids_array_ptr = (uintptr_t)&gpu;
	r = call(s->c.kfd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, &args);
	args.n_success = 0;
	return r ?: call(s->c.kfd, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, &args);
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static int share(struct storm *s)
{
	struct kfd_ioctl_export_dmabuf_args by_kfd = { .flags = O_CLOEXEC };
	struct drm_prime_handle by_gem = { .flags = O_CLOEXEC | O_RDWR };
	struct buffer *b = any_buffer(s, true);
	struct sockaddr_un address;
	union control control = { 0 };
	uint64_t gpu;
	struct iovec which = { &gpu, sizeof(gpu) };
	struct msghdr message = { .msg_name = &address,
				  .msg_iov = &which,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd;

	if (!b)
		return 0;
	gpu = (uint64_t)b->gpu;
	if (b->by == BY_KFD) {
		by_kfd.handle = b->handle;
		if (call(s->c.kfd, AMDKFD_IOC_EXPORT_DMABUF, &by_kfd))
			return -1;
		fd = (int)by_kfd.dmabuf_fd;
	} else {
		by_gem.handle = (uint32_t)b->handle;
		if (call(s->drm[b->gpu], DRM_IOCTL_PRIME_HANDLE_TO_FD, &by_gem))
			return -1;
		fd = by_gem.fd;
	}
	message.msg_namelen = address_of(dice(s, s->peers), &address);
	CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(fd));
	/* A peer that is dead, or slow, does not get it. */
	sendmsg(s->post, &message, MSG_DONTWAIT);
	return close(fd);
}

static int take(struct storm *s)
{
	struct kfd_ioctl_import_dmabuf_args by_kfd = { 0 };
	struct drm_prime_handle by_gem = { 0 };
	struct buffer *b = any_buffer(s, false);
	union control control = { 0 };
	uint64_t gpu;
	struct iovec which = { &gpu, sizeof(gpu) };
	struct msghdr message = { .msg_iov = &which,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd, r;

	if (!b || recvmsg(s->post, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(gpu))
		return 0;
	if (message.msg_controllen < CMSG_LEN(sizeof(int)))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	*b = (struct buffer){ .gpu = (int)gpu, .by = dice(s, 2) ? BY_KFD : BY_GEM };
	if (b->by == BY_KFD) {
		by_kfd.va_addr = take_va(&s->c, 8ULL << 20);
		by_kfd.gpu_id = (uint32_t)s->kfd_id[gpu];
		by_kfd.dmabuf_fd = (uint32_t)fd;
		r = call(s->c.kfd, AMDKFD_IOC_IMPORT_DMABUF, &by_kfd);
		b->handle = by_kfd.handle;
	} else {
		by_gem.fd = fd;
		r = call(s->drm[gpu], DRM_IOCTL_PRIME_FD_TO_HANDLE, &by_gem);
		b->handle = by_gem.handle;
	}
	s->taken += !r;
	/* GEM has one handle for one buffer, however often it is taken. */
	if (r || is_known(s, b))
		b->by = NONE;
	return close(fd);
}

static int operate(struct storm *s, uint64_t operations, bool may_fork);

/* With files of its own: KFD knows a process by its memory. */
static int fork_one(struct storm *s)
{
	bool dies = dice(s, 2);
	int status;
	pid_t child = fork();

	if (!child) {
		memset(s->buffers, 0, sizeof(s->buffers));
		if (open_files(s) || operate(s, CHILD_OPERATIONS, false))
			_exit(1);
		if (dies)
			raise(SIGKILL);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	if (WIFEXITED(status) && WEXITSTATUS(status)) {
		errno = ECHILD;
		return -1;
	}
	return 0;
}

static int operate(struct storm *s, uint64_t operations, bool may_fork)
{
	uint64_t i, which;
	int r;

	for (i = 0; i < operations; i++) {
		which = dice(s, 100);
		if (which < 48)
			r = create(s);
		else if (which < 74)
			r = free_one(s, any_buffer(s, true));
		else if (which < 79)
			r = map_and_unmap(s);
		else if (which < 88)
			r = share(s);
		else if (which < 96)
			r = take(s);
		else
			r = may_fork ? fork_one(s) : 0;
		if (r) {
			say(" operation=%" PRIu64 " of=%" PRIu64, i, which);
			return -1;
		}
		s->done++;
	}
	return 0;
}

static int do_storm_join(struct client *c, int n, char **w)
{
	struct sockaddr_un address;
	socklen_t length;
	uint64_t minor;
	int i;

	storm.c = *c;
	if (n % 2 || bad_number(w[0], &storm.me) || bad_number(w[1], &storm.peers)) {
		errno = EINVAL;
		return -1;
	}
	for (i = 2; i < n; i += 2) {
		if (bad_number(w[i], &minor) || bad_number(w[i + 1], &storm.kfd_id[storm.gpus]))
			return -1;
		storm.minor[storm.gpus++] = (int)minor;
	}
	storm.post = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	length = address_of(storm.me, &address);
	if (storm.post < 0 || bind(storm.post, (struct sockaddr *)&address, length))
		return -1;
	return open_files(&storm);
}

static int do_storm(struct client *c, int n, char **w)
{
	uint64_t operations, held[MOST_GPUS] = { 0 };
	int i;

	(void)c;
	(void)n;
	if (bad_number(w[0], &storm.state) || bad_number(w[1], &operations))
		return -1;
	storm.state = storm.state * 2654435761U + 1;
	storm.done = storm.refused = storm.taken = 0;
	if (operate(&storm, operations, true))
		return -1;
	say(" done=%" PRIu64 " refused=%" PRIu64 " taken=%" PRIu64, storm.done, storm.refused,
	    storm.taken);
	for (i = 0; i < MOST_BUFFERS; i++)
		if (storm.buffers[i].by != NONE && storm.buffers[i].own)
			held[storm.buffers[i].gpu] += storm.buffers[i].bytes;
	for (i = 0; i < storm.gpus; i++)
		say("%s%" PRIu64, i ? "," : " held=", held[i]);
	return 0;
}

const struct command storm_commands[] = {
	{ "storm-join", "ME PEERS MINOR GPU [MINOR GPU ...]", 4, 2 + 2 * MOST_GPUS, do_storm_join },
	{ "storm", "SEED OPERATIONS", 2, 2, do_storm },
	{ 0 },
};
