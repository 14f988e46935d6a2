// SPDX-License-Identifier: Apache-2.0
/*
 * gpuclient: a GPU program that knows no library and none of our names. It
 * speaks to the kernel in raw ioctls, so it stands for every static, musl or
 * graphics program a container may hold.
 *
 * Commands come from the arguments ("gpuclient 'open kfd' 'sleep 1'") or, with
 * none, from standard input, one a line. Each is answered by one line:
 *
 *     ok <command> key=value ...
 *     err <command> errno=ENOMEM ...
 *
 * The end of the input, or "exit", ends the program and frees nothing by hand.
 * Status 0, or 2 if a command could not be understood (and the line says so:
 * "err <command> errno=EINVAL usage=<what>").
 * Numbers are decimal or 0x hexadecimal, sizes are bytes. GPU is a KFD gpu_id.
 * H is a handle: of KFD 64 bits (gpu_id in the upper half), of GEM 32 bits.
 *
 *   open render MINOR     /dev/dri/renderD<MINOR>; later DRM commands use it     fd
 *   open card MINOR       /dev/dri/card<MINOR>; later DRM commands use it        fd
 *   open kfd              /dev/kfd; later KFD commands use it                    fd
 *   use drm|kfd FD        later DRM or KFD commands use that open file
 *   close FD
 *   acquire GPU           join the current DRM file to KFD (ACQUIRE_VM)
 *   kfd-version                                                          major minor
 *   kfd-available GPU                                                         bytes
 *   kfd-alloc GPU BYTES [FLAGS]   FLAGS: default VRAM, writable, executable
 *                                                                      handle va
 *   kfd-userptr GPU BYTES         memory of this process                handle va
 *   kfd-free H
 *   map H [GPU ...]       into the address space of its GPU, or of these   mapped
 *   unmap H [GPU ...]                                                    unmapped
 *   kfd-export H                                                               fd
 *   kfd-import GPU FD                                                   handle va
 *   kfd-dmabuf-info FD                                            gpu bytes flags
 *   create-process        this file becomes a further KFD context (7.x)
 *   svm GPU BYTES         SVM range of this process's memory, prefetched to the GPU
 *   queue-create GPU [compute|sdma]                                         queue
 *   queue-destroy QUEUE
 *   cu-mask QUEUE WORD ...        32 CUs a word, lowest first
 *   smi-open GPU EVENTS   EVENTS: mask of 1 << (event - 1)                      fd
 *   smi-read FD SECONDS   waits for a line; blanks in it become commas       event
 *   gem-create BYTES vram|gtt|cpu [FLAGS]                                  handle
 *   gem-userptr BYTES                                                      handle
 *   gem-close H
 *   gem-info H                                               bytes domains flags
 *   gem-op-placement H vram|gtt|cpu
 *   gem-map H [BYTES]     at an address of the client's choice         va bytes
 *   gem-unmap H VA BYTES
 *   dumb-create WIDTH HEIGHT BPP  on a card node                   handle bytes
 *   cs H ...              submit nothing, with these buffers listed
 *   info                                             vram-total vram-used gtt-used
 *   prime-export H                                                             fd
 *   prime-import FD                                                        handle
 *   send NAME FD          pass an open file to whoever receives at abstract
 *                         socket NAME (waits up to 10 s for it)
 *   recv NAME             receive one                                          fd
 *   fill kfd GPU CHUNK    allocate CHUNK after CHUNK until refused
 *   fill gem CHUNK                                             bytes count errno
 *   race kfd GPU SMALL BIG TRIES  ask for SMALL while another thread writes BIG
 *                         into the arguments              small big refused other
 *   race gem SMALL BIG TRIES
 *   ioctl kfd|drm CMD [HEXBYTES]  any command word, any argument       data(hex)
 *   fuzz kfd|drm SEED COUNT       COUNT calls with random words and arguments
 *   fork COMMAND ...      run one command in a child; its answer line, prefixed
 *                         by nothing, is the answer
 *   pid                                                                       pid
 *   sleep SECONDS
 *   exit [STATUS]
 *
 * What hostile programs try is in escape.c and supervise.c, random use by many at once in storm.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

/* ---- answers ---- */

static char answer[MAX_LINE];
static size_t answer_length;

void say(const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(answer + answer_length, sizeof(answer) - answer_length, format, args);
	va_end(args);
	if (n > 0)
		answer_length += (size_t)n;
	if (answer_length >= sizeof(answer))
		answer_length = sizeof(answer) - 1;
}

const char *errno_name(int number)
{
	static char unknown[16];

#define NAME(e) \
	case e: \
		return #e
	switch (number) {
		NAME(EPERM);
		NAME(ENOENT);
		NAME(ESRCH);
		NAME(EINTR);
		NAME(EIO);
		NAME(ENXIO);
		NAME(E2BIG);
		NAME(EBADF);
		NAME(ECHILD);
		NAME(EAGAIN);
		NAME(ENOMEM);
		NAME(EACCES);
		NAME(EFAULT);
		NAME(EBUSY);
		NAME(EEXIST);
		NAME(ENODEV);
		NAME(ENOTDIR);
		NAME(EINVAL);
		NAME(ENFILE);
		NAME(EMFILE);
		NAME(ENOTTY);
		NAME(ENOSPC);
		NAME(EPIPE);
		NAME(ERANGE);
		NAME(EDEADLK);
		NAME(ENOSYS);
		NAME(EPROTO);
		NAME(EOVERFLOW);
		NAME(EOPNOTSUPP);
		NAME(EADDRINUSE);
		NAME(ECONNREFUSED);
		NAME(ETIMEDOUT);
		NAME(ECANCELED);
	}
#undef NAME
	snprintf(unknown, sizeof(unknown), "%d", number);
	return unknown;
}

/* ---- small parts ---- */

static bool is_number(const char *word, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(word, &end, 0);
	return !errno && *word && *word != '-' && !*end;
}

int bad_number(const char *word, uint64_t *ret)
{
	if (is_number(word, ret))
		return 0;
	say(" not-a-number=%s", word);
	errno = EINVAL;
	return -1;
}

static int bad_domain(const char *word, uint64_t *ret)
{
	if (!strcmp(word, "vram"))
		*ret = AMDGPU_GEM_DOMAIN_VRAM;
	else if (!strcmp(word, "gtt"))
		*ret = AMDGPU_GEM_DOMAIN_GTT;
	else if (!strcmp(word, "cpu"))
		*ret = AMDGPU_GEM_DOMAIN_CPU;
	else {
		say(" not-a-domain=%s", word);
		errno = EINVAL;
		return -1;
	}
	return 0;
}

int read_hex(const char *word, unsigned char *ret, size_t most)
{
	size_t i, length = strlen(word) / 2;
	unsigned int byte;

	for (i = 0; i < length && i < most; i++) {
		if (sscanf(word + 2 * i, "%2x", &byte) != 1) {
			errno = EINVAL;
			return -1;
		}
		ret[i] = (unsigned char)byte;
	}
	return (int)i;
}

uint64_t take_va(struct client *c, uint64_t bytes)
{
	uint64_t va = c->next_va;

	c->next_va += ((bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1)) + HUGE_BYTES;
	return va;
}

int call(int fd, unsigned long cmd, void *args)
{
	int r;

	do {
		r = ioctl(fd, cmd, args);
	} while (r < 0 && errno == EINTR);
	return r;
}

/* ---- files ---- */

static int do_open(struct client *c, int n, char **w)
{
	uint64_t minor;
	char path[64];
	int fd;

	if (n == 1 && !strcmp(w[0], "kfd")) {
		fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return -1;
		c->kfd = fd;
	} else if (n == 2 && (!strcmp(w[0], "render") || !strcmp(w[0], "card"))) {
		if (bad_number(w[1], &minor))
			return -1;
		snprintf(path, sizeof(path), "/dev/dri/%s%" PRIu64,
			 *w[0] == 'r' ? "renderD" : "card", minor);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return -1;
		c->drm = fd;
	} else {
		errno = EINVAL;
		return -1;
	}
	say(" fd=%d", fd);
	return 0;
}

static int do_use(struct client *c, int n, char **w)
{
	uint64_t fd;

	(void)n;
	if (bad_number(w[1], &fd))
		return -1;
	if (!strcmp(w[0], "drm"))
		c->drm = (int)fd;
	else if (!strcmp(w[0], "kfd"))
		c->kfd = (int)fd;
	else {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

static int do_close(struct client *c, int n, char **w)
{
	uint64_t fd;

	(void)c;
	(void)n;
	return bad_number(w[0], &fd) ?: close((int)fd);
}

static int socket_address(const char *name, struct sockaddr_un *ret, socklen_t *ret_length)
{
	size_t length = strlen(name);

	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	if (length + 1 > sizeof(ret->sun_path)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(ret->sun_path + 1, name, length);
	*ret_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
	return 0;
}

union fd_control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static int do_send(struct client *c, int n, char **w)
{
	struct sockaddr_un address;
	socklen_t length;
	union fd_control control = { 0 };
	struct iovec byte = { .iov_base = "f", .iov_len = 1 };
	struct msghdr message = { .msg_iov = &byte,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header;
	int sock, tries, fd, r, saved;
	uint64_t number;

	(void)c;
	(void)n;
	if (bad_number(w[1], &number) || socket_address(w[0], &address, &length))
		return -1;
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	for (tries = 0;; tries++) {
		r = connect(sock, (struct sockaddr *)&address, length);
		if (!r || errno != ECONNREFUSED || tries == 100)
			break;
		usleep(100000);
	}
	if (!r) {
		fd = (int)number;
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
		r = sendmsg(sock, &message, 0) == 1 ? 0 : -1;
	}
	saved = errno;
	close(sock);
	errno = saved;
	return r;
}

static int do_recv(struct client *c, int n, char **w)
{
	struct sockaddr_un address;
	socklen_t length;
	union fd_control control = { 0 };
	char byte;
	struct iovec into = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &into,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int sock, peer = -1, fd, r = -1, saved;

	(void)c;
	(void)n;
	if (socket_address(w[0], &address, &length))
		return -1;
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	if (!bind(sock, (struct sockaddr *)&address, length) && !listen(sock, 1))
		peer = accept(sock, NULL, NULL);
	if (peer >= 0 && recvmsg(peer, &message, MSG_CMSG_CLOEXEC) == 1) {
		/* The kernel may have kept the file back (a security module). */
		if (message.msg_controllen < CMSG_LEN(sizeof(int))) {
			errno = EACCES;
		} else {
			memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
			say(" fd=%d", fd);
			r = 0;
		}
	}
	saved = errno;
	if (peer >= 0)
		close(peer);
	close(sock);
	errno = saved;
	return r;
}

/* ---- KFD ---- */

static int do_acquire(struct client *c, int n, char **w)
{
	struct kfd_ioctl_acquire_vm_args args = { .drm_fd = (uint32_t)c->drm };
	uint64_t gpu;

	(void)n;
	if (bad_number(w[0], &gpu))
		return -1;
	args.gpu_id = (uint32_t)gpu;
	return call(c->kfd, AMDKFD_IOC_ACQUIRE_VM, &args);
}

static int do_kfd_version(struct client *c, int n, char **w)
{
	struct kfd_ioctl_get_version_args args = { 0 };

	(void)n;
	(void)w;
	if (call(c->kfd, AMDKFD_IOC_GET_VERSION, &args))
		return -1;
	say(" major=%u minor=%u", args.major_version, args.minor_version);
	return 0;
}

static int do_kfd_available(struct client *c, int n, char **w)
{
	struct kfd_ioctl_get_available_memory_args args = { 0 };
	uint64_t gpu;

	(void)n;
	if (bad_number(w[0], &gpu))
		return -1;
	args.gpu_id = (uint32_t)gpu;
	if (call(c->kfd, AMDKFD_IOC_AVAILABLE_MEMORY, &args))
		return -1;
	say(" bytes=%" PRIu64, (uint64_t)args.available);
	return 0;
}

int kfd_alloc(struct client *c, uint64_t gpu, uint64_t bytes, uint64_t flags, uint64_t address,
	      struct kfd_ioctl_alloc_memory_of_gpu_args *ret)
{
	*ret = (struct kfd_ioctl_alloc_memory_of_gpu_args){
		.va_addr = take_va(c, bytes),
		.size = bytes,
		.mmap_offset = address,
		.gpu_id = (uint32_t)gpu,
		.flags = (uint32_t)flags,
	};
	return call(c->kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, ret);
}

static int do_kfd_alloc(struct client *c, int n, char **w)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	uint64_t gpu, bytes, flags = DEFAULT_KFD_FLAGS;

	if (bad_number(w[0], &gpu) || bad_number(w[1], &bytes) ||
	    (n > 2 && bad_number(w[2], &flags)))
		return -1;
	if (kfd_alloc(c, gpu, bytes, flags, 0, &args))
		return -1;
	say(" handle=%" PRIu64 " va=%" PRIu64, (uint64_t)args.handle, (uint64_t)args.va_addr);
	return 0;
}

static int do_kfd_userptr(struct client *c, int n, char **w)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	uint64_t gpu, bytes;
	void *memory;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &bytes))
		return -1;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -1;
	if (kfd_alloc(c, gpu, bytes,
		      KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE,
		      (uintptr_t)memory, &args))
		return -1;
	say(" handle=%" PRIu64 " va=%" PRIu64, (uint64_t)args.handle, (uint64_t)args.va_addr);
	return 0;
}

static int do_kfd_free(struct client *c, int n, char **w)
{
	struct kfd_ioctl_free_memory_of_gpu_args args = { 0 };
	uint64_t handle;

	(void)n;
	if (bad_number(w[0], &handle))
		return -1;
	args.handle = handle;
	return call(c->kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &args);
}

/* The argument structs of map and unmap are alike. */
static int map_or_unmap(struct client *c, int n, char **w, unsigned long cmd, const char *done)
{
	struct kfd_ioctl_map_memory_to_gpu_args args = { 0 };
	uint32_t gpus[64];
	uint64_t number;
	int i, r;

	if (bad_number(w[0], &number))
		return -1;
	args.handle = number;
	gpus[0] = (uint32_t)(number >> 32);
	args.n_devices = 1;
	for (i = 1; i < n && i <= 64; i++) {
		if (bad_number(w[i], &number))
			return -1;
		gpus[i - 1] = (uint32_t)number;
		args.n_devices = (uint32_t)i;
	}
	args.device_ids_array_ptr = (uintptr_t)gpus;
	r = call(c->kfd, cmd, &args);
	say(" %s=%u", done, args.n_success);
	return r;
}

static int do_map(struct client *c, int n, char **w)
{
	return map_or_unmap(c, n, w, AMDKFD_IOC_MAP_MEMORY_TO_GPU, "mapped");
}

static int do_unmap(struct client *c, int n, char **w)
{
	return map_or_unmap(c, n, w, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, "unmapped");
}

static int do_kfd_export(struct client *c, int n, char **w)
{
	struct kfd_ioctl_export_dmabuf_args args = { .flags = O_CLOEXEC };
	uint64_t handle;

	(void)n;
	if (bad_number(w[0], &handle))
		return -1;
	args.handle = handle;
	if (call(c->kfd, AMDKFD_IOC_EXPORT_DMABUF, &args))
		return -1;
	say(" fd=%u", args.dmabuf_fd);
	return 0;
}

static int do_kfd_import(struct client *c, int n, char **w)
{
	struct kfd_ioctl_import_dmabuf_args args = { 0 };
	uint64_t gpu, fd;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &fd))
		return -1;
	args.gpu_id = (uint32_t)gpu;
	args.dmabuf_fd = (uint32_t)fd;
	/* Its size is not known here: enough for the largest. */
	args.va_addr = take_va(c, 64ULL << 30);
	if (call(c->kfd, AMDKFD_IOC_IMPORT_DMABUF, &args))
		return -1;
	say(" handle=%" PRIu64 " va=%" PRIu64, (uint64_t)args.handle, (uint64_t)args.va_addr);
	return 0;
}

static int do_kfd_dmabuf_info(struct client *c, int n, char **w)
{
	struct kfd_ioctl_get_dmabuf_info_args args = { 0 };
	uint64_t fd;

	(void)n;
	if (bad_number(w[0], &fd))
		return -1;
	args.dmabuf_fd = (uint32_t)fd;
	if (call(c->kfd, AMDKFD_IOC_GET_DMABUF_INFO, &args))
		return -1;
	say(" gpu=%u bytes=%" PRIu64 " flags=0x%x", args.gpu_id, (uint64_t)args.size, args.flags);
	return 0;
}

static int do_create_process(struct client *c, int n, char **w)
{
	(void)n;
	(void)w;
	return call(c->kfd, AMDKFD_IOC_CREATE_PROCESS, NULL);
}

static int do_svm(struct client *c, int n, char **w)
{
	struct {
		struct kfd_ioctl_svm_args head;
		struct kfd_ioctl_svm_attribute attribute;
	} args = { 0 };
	uint64_t gpu, bytes;
	void *memory;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &bytes))
		return -1;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -1;
	args.head.start_addr = (uintptr_t)memory;
	args.head.size = bytes;
	args.head.op = KFD_IOCTL_SVM_OP_SET_ATTR;
	args.head.nattr = 1;
	args.attribute.type = KFD_IOCTL_SVM_ATTR_PREFETCH_LOC;
	args.attribute.value = (uint32_t)gpu;
	return call(c->kfd, AMDKFD_IOC_SVM_WITH_ONE_ATTRIBUTE, &args);
}

static int do_queue_create(struct client *c, int n, char **w)
{
	static uint64_t ring[1024] __attribute__((aligned(4096)));
	struct kfd_ioctl_create_queue_args args = {
		.ring_base_address = (uintptr_t)ring,
		.ring_size = sizeof(ring),
		.write_pointer_address = (uintptr_t)&ring[0],
		.read_pointer_address = (uintptr_t)&ring[1],
		.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL,
		.queue_percentage = 100,
		.queue_priority = 7,
	};
	uint64_t gpu;

	if (bad_number(w[0], &gpu))
		return -1;
	if (n > 1 && !strcmp(w[1], "sdma"))
		args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
	args.gpu_id = (uint32_t)gpu;
	if (call(c->kfd, AMDKFD_IOC_CREATE_QUEUE, &args))
		return -1;
	say(" queue=%u", args.queue_id);
	return 0;
}

static int do_queue_destroy(struct client *c, int n, char **w)
{
	struct kfd_ioctl_destroy_queue_args args = { 0 };
	uint64_t queue;

	(void)n;
	if (bad_number(w[0], &queue))
		return -1;
	args.queue_id = (uint32_t)queue;
	return call(c->kfd, AMDKFD_IOC_DESTROY_QUEUE, &args);
}

static int do_cu_mask(struct client *c, int n, char **w)
{
	struct kfd_ioctl_set_cu_mask_args args = { 0 };
	uint32_t mask[64];
	uint64_t number;
	int i;

	if (bad_number(w[0], &number))
		return -1;
	args.queue_id = (uint32_t)number;
	for (i = 1; i < n && i <= 64; i++) {
		if (bad_number(w[i], &number))
			return -1;
		mask[i - 1] = (uint32_t)number;
		args.num_cu_mask = (uint32_t)i * 32;
	}
	args.cu_mask_ptr = (uintptr_t)mask;
	return call(c->kfd, AMDKFD_IOC_SET_CU_MASK, &args);
}

static int do_smi_open(struct client *c, int n, char **w)
{
	struct kfd_ioctl_smi_events_args args = { 0 };
	uint64_t gpu, events;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &events))
		return -1;
	args.gpuid = (uint32_t)gpu;
	if (call(c->kfd, AMDKFD_IOC_SMI_EVENTS, &args))
		return -1;
	if (write((int)args.anon_fd, &events, sizeof(events)) != sizeof(events))
		return -1;
	say(" fd=%u", args.anon_fd);
	return 0;
}

static int do_smi_read(struct client *c, int n, char **w)
{
	struct pollfd waiting = { .events = POLLIN };
	uint64_t fd, seconds;
	char line[256];
	ssize_t got;
	char *p;

	(void)c;
	(void)n;
	if (bad_number(w[0], &fd) || bad_number(w[1], &seconds))
		return -1;
	waiting.fd = (int)fd;
	if (poll(&waiting, 1, (int)seconds * 1000) <= 0) {
		errno = ETIMEDOUT;
		return -1;
	}
	got = read((int)fd, line, sizeof(line) - 1);
	if (got <= 0)
		return -1;
	line[got] = '\0';
	p = strchr(line, '\n');
	if (p)
		*p = '\0';
	for (p = line; *p; p++) {
		if (*p == ' ')
			*p = ',';
	}
	say(" event=%s", line);
	return 0;
}

/* ---- DRM ---- */

int gem_create(struct client *c, uint64_t bytes, uint64_t domain, uint64_t flags, uint32_t *ret)
{
	union drm_amdgpu_gem_create args = { 0 };

	args.in.bo_size = bytes;
	args.in.alignment = 4096;
	args.in.domains = domain;
	args.in.domain_flags = flags;
	if (call(c->drm, DRM_IOCTL_AMDGPU_GEM_CREATE, &args))
		return -1;
	*ret = args.out.handle;
	return 0;
}

static int do_gem_create(struct client *c, int n, char **w)
{
	uint64_t bytes, domain, flags = 0;
	uint32_t handle;

	if (bad_number(w[0], &bytes) || bad_domain(w[1], &domain) ||
	    (n > 2 && bad_number(w[2], &flags)))
		return -1;
	if (gem_create(c, bytes, domain, flags, &handle))
		return -1;
	say(" handle=%u", handle);
	return 0;
}

static int do_gem_userptr(struct client *c, int n, char **w)
{
	struct drm_amdgpu_gem_userptr args = { 0 };
	uint64_t bytes;
	void *memory;

	(void)n;
	if (bad_number(w[0], &bytes))
		return -1;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -1;
	args.addr = (uintptr_t)memory;
	args.size = bytes;
	args.flags = AMDGPU_GEM_USERPTR_ANONONLY | AMDGPU_GEM_USERPTR_REGISTER;
	if (call(c->drm, DRM_IOCTL_AMDGPU_GEM_USERPTR, &args))
		return -1;
	say(" handle=%u", args.handle);
	return 0;
}

static int do_gem_close(struct client *c, int n, char **w)
{
	struct drm_gem_close args = { 0 };
	uint64_t handle;

	(void)n;
	if (bad_number(w[0], &handle))
		return -1;
	args.handle = (uint32_t)handle;
	return call(c->drm, DRM_IOCTL_GEM_CLOSE, &args);
}

static int gem_info(struct client *c, uint64_t handle, struct drm_amdgpu_gem_create_in *ret)
{
	struct drm_amdgpu_gem_op args = {
		.handle = (uint32_t)handle,
		.op = AMDGPU_GEM_OP_GET_GEM_CREATE_INFO,
		.value = (uintptr_t)ret,
	};

	return call(c->drm, DRM_IOCTL_AMDGPU_GEM_OP, &args);
}

static int do_gem_info(struct client *c, int n, char **w)
{
	struct drm_amdgpu_gem_create_in info = { 0 };
	uint64_t handle;

	(void)n;
	if (bad_number(w[0], &handle) || gem_info(c, handle, &info))
		return -1;
	say(" bytes=%" PRIu64 " domains=%" PRIu64 " flags=0x%" PRIx64, (uint64_t)info.bo_size,
	    (uint64_t)info.domains, (uint64_t)info.domain_flags);
	return 0;
}

static int do_gem_op_placement(struct client *c, int n, char **w)
{
	struct drm_amdgpu_gem_op args = { .op = AMDGPU_GEM_OP_SET_PLACEMENT };
	uint64_t handle, domain;

	(void)n;
	if (bad_number(w[0], &handle) || bad_domain(w[1], &domain))
		return -1;
	args.handle = (uint32_t)handle;
	args.value = domain;
	return call(c->drm, DRM_IOCTL_AMDGPU_GEM_OP, &args);
}

static int gem_va(struct client *c, uint32_t operation, uint64_t handle, uint64_t va,
		  uint64_t bytes)
{
	struct drm_amdgpu_gem_va args = {
		.handle = (uint32_t)handle,
		.operation = operation,
		.flags = AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE,
		.va_address = va,
		.map_size = bytes,
	};

	return call(c->drm, DRM_IOCTL_AMDGPU_GEM_VA, &args);
}

static int do_gem_map(struct client *c, int n, char **w)
{
	struct drm_amdgpu_gem_create_in info = { 0 };
	uint64_t handle, bytes, va;

	if (bad_number(w[0], &handle) || (n > 1 && bad_number(w[1], &bytes)))
		return -1;
	if (n == 1) {
		if (gem_info(c, handle, &info))
			return -1;
		bytes = info.bo_size;
	}
	va = take_va(c, bytes);
	if (gem_va(c, AMDGPU_VA_OP_MAP, handle, va, bytes))
		return -1;
	say(" va=%" PRIu64 " bytes=%" PRIu64, va, bytes);
	return 0;
}

static int do_gem_unmap(struct client *c, int n, char **w)
{
	uint64_t handle, va, bytes;

	(void)n;
	if (bad_number(w[0], &handle) || bad_number(w[1], &va) || bad_number(w[2], &bytes))
		return -1;
	return gem_va(c, AMDGPU_VA_OP_UNMAP, handle, va, bytes);
}

static int do_dumb_create(struct client *c, int n, char **w)
{
	struct drm_mode_create_dumb args = { 0 };
	uint64_t width, height, bpp;

	(void)n;
	if (bad_number(w[0], &width) || bad_number(w[1], &height) || bad_number(w[2], &bpp))
		return -1;
	args.width = (uint32_t)width;
	args.height = (uint32_t)height;
	args.bpp = (uint32_t)bpp;
	if (call(c->drm, DRM_IOCTL_MODE_CREATE_DUMB, &args))
		return -1;
	say(" handle=%u bytes=%" PRIu64, args.handle, (uint64_t)args.size);
	return 0;
}

static int do_cs(struct client *c, int n, char **w)
{
	static struct drm_amdgpu_bo_list_entry entries[MAX_LISTED];
	union drm_amdgpu_ctx context = { .in.op = AMDGPU_CTX_OP_ALLOC_CTX };
	union drm_amdgpu_cs args = { 0 };
	struct drm_amdgpu_bo_list_in list = {
		.operation = ~0U,
		.list_handle = ~0U,
		.bo_number = (uint32_t)n,
		.bo_info_size = sizeof(entries[0]),
		.bo_info_ptr = (uintptr_t)entries,
	};
	struct drm_amdgpu_cs_chunk chunk = {
		.chunk_id = AMDGPU_CHUNK_ID_BO_HANDLES,
		.length_dw = sizeof(list) / 4,
		.chunk_data = (uintptr_t)&list,
	};
	uint64_t chunks[] = { (uintptr_t)&chunk };
	uint32_t id;
	uint64_t handle;
	int i, r, saved;

	for (i = 0; i < n; i++) {
		if (bad_number(w[i], &handle))
			return -1;
		entries[i].bo_handle = (uint32_t)handle;
	}
	if (call(c->drm, DRM_IOCTL_AMDGPU_CTX, &context))
		return -1;
	id = context.out_alloc.ctx_id;
	args.in.ctx_id = id;
	args.in.num_chunks = 1;
	args.in.chunks = (uintptr_t)chunks;
	r = call(c->drm, DRM_IOCTL_AMDGPU_CS, &args);
	saved = errno;
	memset(&context, 0, sizeof(context));
	context.in.op = AMDGPU_CTX_OP_FREE_CTX;
	context.in.ctx_id = id;
	call(c->drm, DRM_IOCTL_AMDGPU_CTX, &context);
	errno = saved;
	return r;
}

static int do_info(struct client *c, int n, char **w)
{
	struct drm_amdgpu_memory_info memory = { 0 };
	struct drm_amdgpu_info args = {
		.return_pointer = (uintptr_t)&memory,
		.return_size = sizeof(memory),
		.query = AMDGPU_INFO_MEMORY,
	};

	(void)n;
	(void)w;
	if (call(c->drm, DRM_IOCTL_AMDGPU_INFO, &args))
		return -1;
	say(" vram-total=%" PRIu64 " vram-used=%" PRIu64 " gtt-used=%" PRIu64,
	    (uint64_t)memory.vram.total_heap_size, (uint64_t)memory.vram.heap_usage,
	    (uint64_t)memory.gtt.heap_usage);
	return 0;
}

static int do_prime_export(struct client *c, int n, char **w)
{
	struct drm_prime_handle args = { .flags = O_CLOEXEC | O_RDWR };
	uint64_t handle;

	(void)n;
	if (bad_number(w[0], &handle))
		return -1;
	args.handle = (uint32_t)handle;
	if (call(c->drm, DRM_IOCTL_PRIME_HANDLE_TO_FD, &args))
		return -1;
	say(" fd=%d", args.fd);
	return 0;
}

static int do_prime_import(struct client *c, int n, char **w)
{
	struct drm_prime_handle args = { 0 };
	uint64_t fd;

	(void)n;
	if (bad_number(w[0], &fd))
		return -1;
	args.fd = (int32_t)fd;
	if (call(c->drm, DRM_IOCTL_PRIME_FD_TO_HANDLE, &args))
		return -1;
	say(" handle=%u", args.handle);
	return 0;
}

/* ---- many at once ---- */

static int do_fill(struct client *c, int n, char **w)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	uint64_t gpu = 0, chunk, count = 0;
	bool kfd = !strcmp(w[0], "kfd");
	uint32_t handle;
	int r;

	if (n != (kfd ? 3 : 2) || (!kfd && strcmp(w[0], "gem"))) {
		errno = EINVAL;
		return -1;
	}
	if ((kfd && bad_number(w[1], &gpu)) || bad_number(w[n - 1], &chunk))
		return -1;
	do {
		if (kfd)
			r = kfd_alloc(c, gpu, chunk, DEFAULT_KFD_FLAGS, 0, &args);
		else
			r = gem_create(c, chunk, AMDGPU_GEM_DOMAIN_VRAM, 0, &handle);
		count += !r;
	} while (!r);
	say(" bytes=%" PRIu64 " count=%" PRIu64 " errno=%s", count * chunk, count,
	    errno_name(errno));
	return 0;
}

struct switcher {
	volatile uint64_t *size;
	uint64_t small, big;
	volatile bool stop;
};

static void *switch_sizes(void *data)
{
	struct switcher *s = data;

	while (!s->stop) {
		*s->size = s->big;
		*s->size = s->small;
	}
	return NULL;
}

/* What a hostile program tries: other arguments when the kernel looks again. */
static int do_race(struct client *c, int n, char **w)
{
	static union {
		struct kfd_ioctl_alloc_memory_of_gpu_args kfd;
		union drm_amdgpu_gem_create gem;
	} args __attribute__((aligned(64)));
	struct drm_amdgpu_gem_create_in info;
	uint64_t gpu = 0, small, big, tries, i, had[4] = { 0 };
	bool kfd = !strcmp(w[0], "kfd");
	struct switcher s = { 0 };
	pthread_t thread;
	uint64_t size;
	int r;

	if (n != (kfd ? 5 : 4) || (!kfd && strcmp(w[0], "gem"))) {
		errno = EINVAL;
		return -1;
	}
	if ((kfd && bad_number(w[1], &gpu)) || bad_number(w[n - 3], &small) ||
	    bad_number(w[n - 2], &big) || bad_number(w[n - 1], &tries))
		return -1;
	s.size = kfd ? (volatile uint64_t *)&args.kfd.size :
		       (volatile uint64_t *)&args.gem.in.bo_size;
	s.small = small;
	s.big = big;
	memset(&args, 0, sizeof(args));
	r = pthread_create(&thread, NULL, switch_sizes, &s);
	if (r) {
		errno = r;
		return -1;
	}
	for (i = 0; i < tries; i++) {
		if (kfd) {
			struct kfd_ioctl_get_dmabuf_info_args of = { 0 };
			struct kfd_ioctl_export_dmabuf_args out = { .flags = O_CLOEXEC };

			args.kfd.va_addr = take_va(c, big);
			args.kfd.gpu_id = (uint32_t)gpu;
			args.kfd.flags = DEFAULT_KFD_FLAGS;
			r = call(c->kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &args.kfd);
			if (r) {
				had[errno == ENOMEM ? 2 : 3]++;
				continue;
			}
			/* How much it is, only the kernel can say. */
			out.handle = args.kfd.handle;
			size = 0;
			if (!call(c->kfd, AMDKFD_IOC_EXPORT_DMABUF, &out)) {
				of.dmabuf_fd = out.dmabuf_fd;
				if (!call(c->kfd, AMDKFD_IOC_GET_DMABUF_INFO, &of))
					size = of.size;
				close((int)out.dmabuf_fd);
			}
		} else {
			args.gem.in.alignment = 4096;
			args.gem.in.domains = AMDGPU_GEM_DOMAIN_VRAM;
			args.gem.in.domain_flags = 0;
			r = call(c->drm, DRM_IOCTL_AMDGPU_GEM_CREATE, &args.gem);
			if (r) {
				had[errno == ENOMEM ? 2 : 3]++;
				continue;
			}
			/* The other thread may have overwritten the handle's bytes: none do. */
			size = gem_info(c, args.gem.out.handle, &info) ? 0 : info.bo_size;
		}
		had[size == big ? 1 : size == small ? 0 : 3]++;
	}
	s.stop = true;
	pthread_join(thread, NULL);
	say(" small=%" PRIu64 " big=%" PRIu64 " refused=%" PRIu64 " other=%" PRIu64, had[0], had[1],
	    had[2], had[3]);
	return 0;
}

/* ---- anything ---- */

int which_file(struct client *c, const char *word, int *ret)
{
	if (!strcmp(word, "kfd"))
		*ret = c->kfd;
	else if (!strcmp(word, "drm"))
		*ret = c->drm;
	else {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

static int do_ioctl(struct client *c, int n, char **w)
{
	/* As much as a command word can say, so that the kernel never reads past it. */
	static unsigned char data[1 << 14];
	size_t i, length;
	uint64_t cmd;
	int fd, r, saved;

	if (which_file(c, w[0], &fd) || bad_number(w[1], &cmd))
		return -1;
	memset(data, 0, sizeof(data));
	r = n > 2 ? read_hex(w[2], data, sizeof(data)) : 0;
	if (r < 0)
		return -1;
	length = (size_t)r;
	r = ioctl(fd, cmd, data);
	saved = errno;
	if (length) {
		say(" data=");
		for (i = 0; i < length; i++)
			say("%02x", data[i]);
	}
	errno = saved;
	return r < 0 ? -1 : 0;
}

uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static int do_fuzz(struct client *c, int n, char **w)
{
	static uint64_t data[1 << 11];
	uint64_t state, count, i, j, worked = 0, r;
	bool kfd = !strcmp(w[0], "kfd");
	unsigned int size, nr;
	void *argument;
	int fd;

	(void)n;
	if (which_file(c, w[0], &fd) || bad_number(w[1], &state) || bad_number(w[2], &count))
		return -1;
	state = state * 2654435761U + 1;
	for (i = 0; i < count; i++) {
		for (j = 0; j < 32; j++) {
			r = next_random(&state);
			/* Numbers that mean something are small, round, or addresses. */
			switch (r % 6) {
			case 0:
				data[j] = 0;
				break;
			case 1:
				data[j] = r >> 60;
				break;
			case 2:
				data[j] = (uintptr_t)data;
				break;
			case 3:
				data[j] = 1ULL << (r >> 58);
				break;
			case 4:
				data[j] = ~0ULL;
				break;
			default:
				data[j] = r;
			}
		}
		r = next_random(&state);
		size = (r & 7) == 7 ? (r >> 8) & 0x3fff : (r >> 8) & 0x7f;
		nr = kfd ? (r >> 32) & 0x3f : 0x40 + ((r >> 32) & 0x1f);
		argument = (r & 0x70) == 0x70 ? (void *)(uintptr_t)(r >> 3) : (void *)data;
		worked += ioctl(fd, _IOC((r >> 40) & 3, kfd ? 'K' : 'd', nr, size), argument) >= 0;
	}
	say(" worked=%" PRIu64, worked);
	return 0;
}

static int do_pid(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	(void)w;
	say(" pid=%d", (int)getpid());
	return 0;
}

static int do_sleep(struct client *c, int n, char **w)
{
	struct timespec time;
	double seconds;
	char *end;

	(void)c;
	(void)n;
	seconds = strtod(w[0], &end);
	if (*end || seconds < 0 || seconds > 86400) {
		errno = EINVAL;
		return -1;
	}
	time.tv_sec = (time_t)seconds;
	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	return nanosleep(&time, NULL);
}

static const struct command commands[] = {
	{ "open", "render|card MINOR, or kfd", 1, 2, do_open },
	{ "use", "drm|kfd FD", 2, 2, do_use },
	{ "close", "FD", 1, 1, do_close },
	{ "acquire", "GPU", 1, 1, do_acquire },
	{ "kfd-version", "", 0, 0, do_kfd_version },
	{ "kfd-available", "GPU", 1, 1, do_kfd_available },
	{ "kfd-alloc", "GPU BYTES [FLAGS]", 2, 3, do_kfd_alloc },
	{ "kfd-userptr", "GPU BYTES", 2, 2, do_kfd_userptr },
	{ "kfd-free", "H", 1, 1, do_kfd_free },
	{ "map", "H [GPU ...]", 1, 65, do_map },
	{ "unmap", "H [GPU ...]", 1, 65, do_unmap },
	{ "kfd-export", "H", 1, 1, do_kfd_export },
	{ "kfd-import", "GPU FD", 2, 2, do_kfd_import },
	{ "kfd-dmabuf-info", "FD", 1, 1, do_kfd_dmabuf_info },
	{ "create-process", "", 0, 0, do_create_process },
	{ "svm", "GPU BYTES", 2, 2, do_svm },
	{ "queue-create", "GPU [compute|sdma]", 1, 2, do_queue_create },
	{ "queue-destroy", "QUEUE", 1, 1, do_queue_destroy },
	{ "cu-mask", "QUEUE WORD ...", 2, 65, do_cu_mask },
	{ "smi-open", "GPU EVENTS", 2, 2, do_smi_open },
	{ "smi-read", "FD SECONDS", 2, 2, do_smi_read },
	{ "gem-create", "BYTES vram|gtt|cpu [FLAGS]", 2, 3, do_gem_create },
	{ "gem-userptr", "BYTES", 1, 1, do_gem_userptr },
	{ "gem-close", "H", 1, 1, do_gem_close },
	{ "gem-info", "H", 1, 1, do_gem_info },
	{ "gem-op-placement", "H vram|gtt|cpu", 2, 2, do_gem_op_placement },
	{ "gem-map", "H [BYTES]", 1, 2, do_gem_map },
	{ "gem-unmap", "H VA BYTES", 3, 3, do_gem_unmap },
	{ "dumb-create", "WIDTH HEIGHT BPP", 3, 3, do_dumb_create },
	{ "cs", "H ...", 1, MAX_LISTED, do_cs },
	{ "info", "", 0, 0, do_info },
	{ "prime-export", "H", 1, 1, do_prime_export },
	{ "prime-import", "FD", 1, 1, do_prime_import },
	{ "send", "NAME FD", 2, 2, do_send },
	{ "recv", "NAME", 1, 1, do_recv },
	{ "fill", "kfd GPU CHUNK, or gem CHUNK", 2, 3, do_fill },
	{ "race", "kfd GPU SMALL BIG TRIES, or gem SMALL BIG TRIES", 4, 5, do_race },
	{ "ioctl", "kfd|drm CMD [HEXBYTES]", 2, 3, do_ioctl },
	{ "fuzz", "kfd|drm SEED COUNT", 3, 3, do_fuzz },
	{ "pid", "", 0, 0, do_pid },
	{ "sleep", "SECONDS", 1, 1, do_sleep },
	{ 0 },
};

static const struct command *const lists[] = { commands, escape_commands, storm_commands,
					       supervise_commands };

/* ---- the loop ---- */

static void print_answer(const char *name, int failed)
{
	if (failed)
		printf("err %s errno=%s%.*s\n", name, errno_name(failed), (int)answer_length,
		       answer);
	else
		printf("ok %s%.*s\n", name, (int)answer_length, answer);
	fflush(stdout);
}

static void misunderstood(struct client *c, const char *name, const char *usage)
{
	printf("err %s errno=EINVAL usage=", name);
	for (; *usage; usage++)
		putchar(*usage == ' ' ? '_' : *usage);
	putchar('\n');
	fflush(stdout);
	c->misunderstood = true;
}

static void run_in_child(struct client *c, int n, char **words)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	if (!child) {
		c->misunderstood = false;
		run_words(c, n, words);
		_exit(c->misunderstood ? 2 : 0);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0) {
		print_answer("fork", errno);
	} else if (WIFSIGNALED(status)) {
		say(" signal=%d", WTERMSIG(status));
		print_answer("fork", ECHILD);
	} else if (WEXITSTATUS(status)) {
		c->misunderstood = true;
	}
}

void run_words(struct client *c, int n, char **words)
{
	const struct command *command;
	uint64_t status = c->misunderstood ? 2 : 0;
	size_t i;
	int r;

	answer_length = 0;
	answer[0] = '\0';
	if (!strcmp(words[0], "exit")) {
		if (n > 1 && !is_number(words[1], &status)) {
			misunderstood(c, "exit", "[STATUS]");
			return;
		}
		exit((int)status);
	}
	if (!strcmp(words[0], "fork")) {
		if (n < 2)
			misunderstood(c, "fork", "COMMAND ...");
		else
			run_in_child(c, n - 1, words + 1);
		return;
	}
	for (i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		for (command = lists[i]; command->name && strcmp(words[0], command->name);)
			command++;
		if (!command->name)
			continue;
		if (n - 1 < command->least || n - 1 > command->most) {
			misunderstood(c, command->name, command->usage);
			return;
		}
		errno = 0;
		r = command->run(c, n - 1, words + 1);
		if (r || !c->answered)
			print_answer(command->name, r ? errno : 0);
		c->answered = false;
		return;
	}
	misunderstood(c, words[0], "a known command");
}

static void run_line(struct client *c, char *line)
{
	char *words[MAX_WORDS], *save = NULL, *word;
	int n = 0;

	for (word = strtok_r(line, " \t\r\n", &save); word && n < MAX_WORDS;
	     word = strtok_r(NULL, " \t\r\n", &save))
		words[n++] = word;
	if (n)
		run_words(c, n, words);
}

void run_input(struct client *c)
{
	static char line[MAX_LINE];

	while (fgets(line, sizeof(line), stdin))
		run_line(c, line);
}

int main(int argc, char **argv)
{
	/* Well above what programs map by themselves, well below the hole. */
	struct client c = { .drm = -1, .kfd = -1, .next_va = 1ULL << 40 };
	static char line[MAX_LINE];
	int i;

	for (i = 1; i < argc; i++) {
		snprintf(line, sizeof(line), "%s", argv[i]);
		run_line(&c, line);
	}
	if (argc < 2)
		run_input(&c);
	return c.misunderstood ? 2 : 0;
}
