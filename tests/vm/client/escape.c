// SPDX-License-Identifier: Apache-2.0
/*
 * What a hostile program does to have more than its share. None of these commands knows what it is
 * up against; each makes the kernel's calls in an order, from a place or at a moment that a limit
 * may not expect.
 *
 *   name COMM             what the kernel calls this task and those it forks
 *   exec                  this program anew, with the DRM file still open          fd
 *   leave-leader          the first thread ends; another reads on
 *   clone WORD ... -- COMMAND ...   run one command in a child. WORDs: vm (on our
 *                         memory, while we wait, as vfork's is), files (with our
 *                         table of open files), parent (our parent's child),
 *                         into=DIR (born in that cgroup)
 *   own GPU COMMAND ...   one command with this GPU's files opened anew
 *   unshare               a cgroup and a mount namespace of our own
 *   enter DIR             go into that cgroup, where its file can be written
 *   mount-cgroups DIR     the cgroup hierarchy, as far as we may see it
 *   pidfd-getfd PID FD    another process's open file                              fd
 *   reopen FD             the same by way of /proc, whatever it was opened for     fd
 *   torn kfd|drm CMD OFFSET BEFORE AFTER thread|mem|vm|never   the call with its first
 *                         OFFSET bytes read as BEFORE, and as AFTER once the rest
 *                         has been read: a page fault between them is served late.
 *                         By a thread; by a child that writes into our memory and
 *                         stays; by a child that shares it and stays; never faults
 *   shake dontneed|mremap|dontunmap|punch|dup|mem kfd GPU|gem SIZE TRIES   create while the
 *                         arguments' page, the file's number or its bytes (by
 *                         another process) are changed and put back   made refused
 *   waver GPU OTHER SIZE TRIES   allocate and free while another thread writes one
 *                         GPU's number, and the other's, into the arguments  made refused
 *   slip H TRIES          set the placement of a handle in one thread, and give the number
 *                         to the buffer H and take it back in another, until a call has
 *                         begun and does not end                               fd
 *   poke SMALL BIG        a child's GEM_CREATE of SMALL is made one of BIG by its
 *                         tracer, at the entry of the call
 *   uring kfd|drm CMD HEX the same call by io_uring
 *   bomb PROCESSES kfd GPU|gem CHUNK    each fills; they stay             bytes
 *   reap                  kill them
 *   kill-storm GPU ROUNDS SEED    children that allocate in four threads, each
 *                         killed or ended by one of them at a random moment
 *   crowd GPU PROCESSES CALLS SEED   children at random real-time priorities, each of
 *                         which makes and frees a buffer so often: they interrupt
 *                         each other anywhere                       made refused
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define PAGE	    4096UL
#define STACK_BYTES (1UL << 20)
#define MOST_BOMBS  256
#define MOST_MISSED 100000
/* In the headers since 6.0. */
#define OP_URING_CMD 46

static int do_name(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	return prctl(PR_SET_NAME, w[0]);
}

static int do_exec(struct client *c, int n, char **w)
{
	char *const argv[] = { "gpuclient", NULL };

	(void)n;
	(void)w;
	if (fcntl(c->drm, F_SETFD, 0))
		return -1;
	/* The answer; what reads on is the new program. */
	printf("ok exec fd=%d\n", c->drm);
	fflush(stdout);
	execv("/proc/self/exe", argv);
	_exit(127);
}

static void *read_on(void *data)
{
	struct client *c = data;

	printf("ok leave-leader\n");
	fflush(stdout);
	run_input(c);
	exit(c->misunderstood ? 2 : 0);
}

static int do_leave_leader(struct client *c, int n, char **w)
{
	static struct client copy;
	pthread_t thread;

	(void)n;
	(void)w;
	copy = *c;
	errno = pthread_create(&thread, NULL, read_on, &copy);
	if (errno)
		return -1;
	syscall(SYS_exit, 0);
	return -1;
}

/* The same GPU's files, opened anew: KFD knows a process by its memory, and who shares a DRM file
 * would keep what we leave in it. */
static int open_own(struct client *c, uint64_t gpu)
{
	struct kfd_ioctl_acquire_vm_args vm = { .gpu_id = (uint32_t)gpu };
	char link[32], path[64];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", c->drm);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return -1;
	path[length] = '\0';
	c->drm = open(path, O_RDWR | O_CLOEXEC);
	c->kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	vm.drm_fd = (uint32_t)c->drm;
	return c->drm < 0 || c->kfd < 0 ? -1 : call(c->kfd, AMDKFD_IOC_ACQUIRE_VM, &vm);
}

/* For a child of fork's. */
static int do_own(struct client *c, int n, char **w)
{
	uint64_t gpu;

	if (bad_number(w[0], &gpu) || open_own(c, gpu))
		return -1;
	run_words(c, n - 1, w + 1);
	c->answered = true;
	return 0;
}

/* ---- children of other kinds than fork's ---- */

struct child {
	struct client *c;
	int n;
	char **words;
};

static int run_child(void *data)
{
	struct child *child = data;

	child->c->misunderstood = false;
	run_words(child->c, child->n, child->words);
	/* With our memory shared, exit() would end what is the parent's. */
	_exit(child->c->misunderstood ? 2 : 0);
}

static int do_clone(struct client *c, int n, char **w)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	struct child child = { .c = c };
	char *stack = NULL;
	int status, i;
	pid_t pid;

	for (i = 0; i < n && strcmp(w[i], "--"); i++) {
		if (!strcmp(w[i], "vm"))
			args.flags |= CLONE_VM | CLONE_VFORK;
		else if (!strcmp(w[i], "files"))
			args.flags |= CLONE_FILES;
		else if (!strcmp(w[i], "parent"))
			args.flags |= CLONE_PARENT;
		else if (!strncmp(w[i], "into=", 5))
			args.cgroup = (unsigned int)open(w[i] + 5, O_PATH | O_CLOEXEC);
		else
			break;
	}
	if (i + 1 >= n || strcmp(w[i], "--")) {
		errno = EINVAL;
		return -1;
	}
	child.n = n - i - 1;
	child.words = w + i + 1;
	if (args.cgroup == (unsigned int)-1)
		return -1;
	if (args.cgroup)
		args.flags |= CLONE_INTO_CGROUP;
	if (args.flags & CLONE_VM) {
		stack = malloc(STACK_BYTES);
		if (!stack)
			return -1;
		pid = clone(run_child, stack + STACK_BYTES, (int)args.flags | SIGCHLD, &child);
	} else {
		if (args.flags & CLONE_PARENT)
			args.exit_signal = 0;
		pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
		if (!pid)
			run_child(&child);
	}
	if (args.cgroup)
		close((int)args.cgroup);
	if (pid < 0) {
		free(stack);
		return -1;
	}
	c->answered = true;
	/* Our parent's child is not ours to wait for. */
	if (!(args.flags & CLONE_PARENT) && waitpid(pid, &status, 0) == pid &&
	    WIFSIGNALED(status)) {
		c->answered = false;
		say(" signal=%d", WTERMSIG(status));
	}
	free(stack);
	return 0;
}

static int do_unshare(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	(void)w;
	return unshare(CLONE_NEWCGROUP | CLONE_NEWNS);
}

static int do_enter(struct client *c, int n, char **w)
{
	char path[256];
	int fd, r;

	(void)c;
	(void)n;
	snprintf(path, sizeof(path), "%s/cgroup.procs", w[0]);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	r = write(fd, "0", 1) == 1 ? 0 : -1;
	close(fd);
	return r;
}

static int do_mount_cgroups(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	/* What we mount is nobody else's business. */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	return mount("none", w[0], "cgroup2", 0, NULL);
}

static int do_pidfd_getfd(struct client *c, int n, char **w)
{
	uint64_t pid, number;
	int pidfd, fd;

	(void)c;
	(void)n;
	if (bad_number(w[0], &pid) || bad_number(w[1], &number))
		return -1;
	pidfd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (pidfd < 0)
		return -1;
	fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)number, 0);
	close(pidfd);
	if (fd < 0)
		return -1;
	say(" fd=%d", fd);
	return 0;
}

static int do_reopen(struct client *c, int n, char **w)
{
	char path[64];
	int known, fd;

	(void)c;
	(void)n;
	snprintf(path, sizeof(path), "/proc/self/fd/%s", w[0]);
	known = open(path, O_PATH | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", known);
	fd = known < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	close(known);
	say(" fd=%d", fd);
	return 0;
}

/* ---- arguments that change between two looks ---- */

struct tear {
	int faults_fd; /* of the userfaultfd */
	pid_t of; /* whose memory it is, for one who does not share it */
	unsigned char *first; /* of the arguments, at the end of a page */
	unsigned char *second; /* the page behind, which nobody has touched */
	size_t offset;
	const unsigned char *after;
	size_t length;
	volatile int faults;
};

/* As a debugger would; -1 where nothing is mapped. */
static int write_memory(pid_t of, void *to, const void *from, size_t length)
{
	char path[32];
	ssize_t written;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", of);
	fd = open(path, O_RDWR | O_CLOEXEC);
	written = fd < 0 ? -1 : pwrite(fd, from, length, (off_t)(uintptr_t)to);
	close(fd);
	return written == (ssize_t)length ? 0 : -1;
}

static void serve_fault(struct tear *t)
{
	static unsigned char page[PAGE] __attribute__((aligned(4096)));
	struct uffdio_copy copy = { .dst = (uintptr_t)t->second,
				    .src = (uintptr_t)page,
				    .len = PAGE };
	struct uffd_msg message;

	if (read(t->faults_fd, &message, sizeof(message)) != sizeof(message))
		return;
	if (message.event != UFFD_EVENT_PAGEFAULT)
		return;
	t->faults++;
	memcpy(page, t->after + t->offset, t->length - t->offset);
	if (t->of)
		write_memory(t->of, t->first, t->after, t->offset);
	else
		memcpy(t->first, t->after, t->offset);
	ioctl(t->faults_fd, UFFDIO_COPY, &copy);
}

static void *serve_in_thread(void *data)
{
	serve_fault(data);
	return NULL;
}

/* Stays, with what it has of ours open, until it is killed. */
static int serve_and_stay(void *data)
{
	int fd;

	/* Whoever reads our answers must see their end when we are gone. */
	for (fd = 0; fd <= 2; fd++)
		close(fd);
	serve_fault(data);
	while (pause())
		;
	return 0;
}

static int do_torn(struct client *c, int n, char **w)
{
	static unsigned char before[256], after[256];
	static struct tear t;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	unsigned char *pages, *stack;
	uint64_t cmd, offset;
	pthread_t thread;
	int fd, r, saved;

	(void)n;
	if (which_file(c, w[0], &fd) || bad_number(w[1], &cmd) || bad_number(w[2], &offset))
		return -1;
	r = read_hex(w[3], before, sizeof(before));
	if (r < 0 || read_hex(w[4], after, sizeof(after)) != r || (int)offset >= r) {
		errno = EINVAL;
		return -1;
	}
	t = (struct tear){ .offset = offset, .after = after, .length = (size_t)r };
	pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return -1;
	t.first = pages + PAGE - offset;
	t.second = pages + PAGE;
	memcpy(t.first, before, offset);

	t.faults_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (t.faults_fd < 0 || ioctl(t.faults_fd, UFFDIO_API, &api))
		return -1;
	range.range.start = (uintptr_t)t.second;
	range.range.len = PAGE;
	if (ioctl(t.faults_fd, UFFDIO_REGISTER, &range))
		return -1;

	if (!strcmp(w[5], "thread")) {
		r = -pthread_create(&thread, NULL, serve_in_thread, &t);
	} else if (!strcmp(w[5], "mem")) {
		t.of = getpid();
		r = fork();
		if (!r)
			serve_and_stay(&t);
	} else if (!strcmp(w[5], "vm")) {
		stack = malloc(STACK_BYTES);
		r = stack ? clone(serve_and_stay, stack + STACK_BYTES, CLONE_VM | SIGCHLD, &t) : -1;
	} else if (strcmp(w[5], "never")) {
		errno = EINVAL;
		r = -1;
	}
	if (r < 0)
		return -1;
	r = ioctl(fd, cmd, t.first);
	saved = errno;
	say(" faults=%d", t.faults);
	errno = saved;
	return r < 0 ? -1 : 0;
}

struct shaker {
	enum {
		DONTNEED,
		MREMAP,
		DONTUNMAP,
		PUNCH,
		DUP,
		MEM
	} how;
	unsigned char *page;
	int memory;
	int number, own, other;
	volatile bool stop;
};

static void *shake(void *data)
{
	struct shaker *s = data;
	unsigned char *elsewhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	while (!s->stop) {
		switch (s->how) {
		case DONTNEED:
			/* It is shared memory: it comes back as it was. */
			madvise(s->page, PAGE, MADV_DONTNEED);
			break;
		case MREMAP:
			mremap(s->page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
			mremap(elsewhere, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, s->page);
			break;
		case DONTUNMAP:
			mremap(s->page, PAGE, PAGE,
			       MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, elsewhere);
			break;
		case PUNCH:
			fallocate(s->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE);
			break;
		case DUP:
			dup2(s->other, s->number);
			dup2(s->own, s->number);
			break;
		case MEM:
			break;
		}
		sched_yield();
	}
	return NULL;
}

/* Another process that makes the arguments larger and smaller through /proc/<pid>/mem. */
static void shake_from_outside(pid_t of, off_t at, uint64_t small)
{
	uint64_t big = 4 * small;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", of);
	fd = open(path, O_RDWR);
	while (pwrite(fd, &big, sizeof(big), at) > 0 && pwrite(fd, &small, sizeof(small), at) > 0)
		sched_yield();
	_exit(0);
}

static int do_shake(struct client *c, int n, char **w)
{
	static unsigned char contents[PAGE];
	static const char *const hows[] = {
		"dontneed", "mremap", "dontunmap", "punch", "dup", "mem"
	};
	bool kfd = !strcmp(w[1], "kfd");
	struct kfd_ioctl_alloc_memory_of_gpu_args *of_kfd = (void *)contents;
	struct drm_amdgpu_gem_create_in *of_gem = (void *)contents;
	uint64_t gpu = 0, size, tries, i, missed, made = 0, refused = 0;
	unsigned long cmd = kfd ? AMDKFD_IOC_ALLOC_MEMORY_OF_GPU : DRM_IOCTL_AMDGPU_GEM_CREATE;
	struct shaker s = { 0 };
	off_t size_at;
	pthread_t thread;
	pid_t child = 0;

	if (n != (kfd ? 5 : 4) || (!kfd && strcmp(w[1], "gem"))) {
		errno = EINVAL;
		return -1;
	}
	if ((kfd && bad_number(w[2], &gpu)) || bad_number(w[n - 2], &size) ||
	    bad_number(w[n - 1], &tries))
		return -1;
	while (s.how <= MEM && strcmp(w[0], hows[s.how]))
		s.how++;
	s.memory = memfd_create("arguments", MFD_CLOEXEC);
	if (s.memory < 0 || ftruncate(s.memory, PAGE))
		return -1;
	s.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, s.memory, 0);
	s.own = kfd ? c->kfd : c->drm;
	s.other = kfd ? c->drm : c->kfd;
	s.number = dup(s.own);
	if (s.how > MEM || s.page == MAP_FAILED || s.number < 0) {
		errno = EINVAL;
		return -1;
	}
	size_at = (off_t)(uintptr_t)s.page;
	size_at += (off_t)(kfd ? offsetof(struct kfd_ioctl_alloc_memory_of_gpu_args, size) : 0);
	if (s.how == MEM) {
		child = fork();
		if (!child)
			shake_from_outside(getppid(), size_at, size);
	}
	errno = pthread_create(&thread, NULL, shake, &s);
	if (errno)
		return -1;
	for (i = 0; i < tries; i++) {
		memset(contents, 0, sizeof(contents));
		if (kfd) {
			of_kfd->va_addr = take_va(c, size);
			of_kfd->size = size;
			of_kfd->gpu_id = (uint32_t)gpu;
			of_kfd->flags = DEFAULT_KFD_FLAGS;
		} else {
			of_gem->bo_size = size;
			of_gem->domains = AMDGPU_GEM_DOMAIN_VRAM;
		}
		/* It may be elsewhere at the moment. */
		for (missed = 0; write_memory(getpid(), s.page, contents, PAGE); missed++) {
			if (missed == MOST_MISSED) {
				say(" lost=%" PRIu64, i);
				errno = ETIMEDOUT;
				return -1;
			}
			sched_yield();
		}
		if (ioctl(s.number, cmd, s.page))
			refused++;
		else
			made++;
	}
	s.stop = true;
	pthread_join(thread, NULL);
	if (child) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	close(s.number);
	close(s.memory);
	munmap(s.page, PAGE);
	say(" made=%" PRIu64 " refused=%" PRIu64, made, refused);
	return 0;
}

struct waverer {
	volatile uint32_t *gpu;
	uint32_t one, other;
	volatile bool stop;
};

static void *waver(void *data)
{
	struct waverer *s = data;
	volatile unsigned int i;

	/* Long enough for the scheduler to find each of them there. */
	while (!s->stop) {
		*s->gpu = s->other;
		for (i = 0; i < 1000; i++)
			;
		*s->gpu = s->one;
		for (i = 0; i < 1000; i++)
			;
	}
	return NULL;
}

static int do_waver(struct client *c, int n, char **w)
{
	static struct kfd_ioctl_alloc_memory_of_gpu_args args __attribute__((aligned(64)));
	struct kfd_ioctl_free_memory_of_gpu_args gone = { 0 };
	struct waverer s = { .gpu = &args.gpu_id };
	uint64_t one, other, size, tries, i, made = 0;
	pthread_t thread;

	(void)n;
	if (bad_number(w[0], &one) || bad_number(w[1], &other) || bad_number(w[2], &size) ||
	    bad_number(w[3], &tries))
		return -1;
	s.one = (uint32_t)one;
	s.other = (uint32_t)other;
	errno = pthread_create(&thread, NULL, waver, &s);
	if (errno)
		return -1;
	for (i = 0; i < tries; i++) {
		args.va_addr = take_va(c, size);
		args.size = size;
		args.flags = DEFAULT_KFD_FLAGS;
		if (ioctl(c->kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &args))
			continue;
		made++;
		gone.handle = args.handle;
		call(c->kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &gone);
	}
	s.stop = true;
	pthread_join(thread, NULL);
	say(" made=%" PRIu64 " refused=%" PRIu64, made, tries - made);
	return 0;
}

struct slipper {
	int drm;
	uint32_t handle;
	volatile uint64_t calls;
	volatile bool placed;
};

static void *place(void *data)
{
	struct slipper *s = data;
	struct drm_amdgpu_gem_op args = { .handle = s->handle,
					  .op = AMDGPU_GEM_OP_SET_PLACEMENT,
					  .value = AMDGPU_GEM_DOMAIN_VRAM };

	while (ioctl(s->drm, DRM_IOCTL_AMDGPU_GEM_OP, &args))
		s->calls++;
	s->placed = true;
	return NULL;
}

/* The number is nobody's while the call is asked about, and again when it is over. */
static int do_slip(struct client *c, int n, char **w)
{
	struct drm_prime_handle shared = { .flags = O_CLOEXEC | O_RDWR };
	struct drm_gem_close closed = { 0 };
	static struct slipper s;
	uint64_t handle, tries, state = 1, calls, i, waited;
	pthread_t thread;

	(void)n;
	if (bad_number(w[0], &handle) || bad_number(w[1], &tries))
		return -1;
	s = (struct slipper){ .drm = c->drm, .handle = (uint32_t)handle };
	shared.handle = closed.handle = s.handle;
	if (call(c->drm, DRM_IOCTL_PRIME_HANDLE_TO_FD, &shared) ||
	    call(c->drm, DRM_IOCTL_GEM_CLOSE, &closed))
		return -1;
	errno = pthread_create(&thread, NULL, place, &s);
	if (errno)
		return -1;
	for (i = 0; i < tries; i++) {
		usleep((useconds_t)(next_random(&state) % 2000));
		if (call(c->drm, DRM_IOCTL_PRIME_FD_TO_HANDLE, &shared))
			return -1;
		usleep((useconds_t)(next_random(&state) % 2000));
		closed.handle = shared.handle;
		if (call(c->drm, DRM_IOCTL_GEM_CLOSE, &closed))
			return -1;
		if (shared.handle != s.handle) {
			errno = EPROTO;
			return -1;
		}
		calls = s.calls;
		for (waited = 0; waited < 500 && calls == s.calls; waited++)
			usleep(1000);
		if (calls == s.calls) {
			say(" fd=%d tries=%" PRIu64, shared.fd, i + 1);
			return 0;
		}
	}
	errno = ETIME;
	return -1;
}

static int do_poke(struct client *c, int n, char **w)
{
	struct user_regs_struct regs;
	uint64_t small, big;
	int status, result = -1;
	uint32_t handle;
	pid_t child;

	(void)n;
	if (bad_number(w[0], &small) || bad_number(w[1], &big))
		return -1;
	child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		_exit(gem_create(c, small, AMDGPU_GEM_DOMAIN_VRAM, 0, &handle) ? errno : 0);
	}
	while (child > 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
		if (!ptrace(PTRACE_GETREGS, child, NULL, &regs) && regs.orig_rax == SYS_ioctl &&
		    regs.rsi == DRM_IOCTL_AMDGPU_GEM_CREATE && (int64_t)regs.rax == -ENOSYS)
			result = (int)ptrace(PTRACE_POKEDATA, child, regs.rdx, big);
		ptrace(PTRACE_SYSCALL, child, NULL, NULL);
	}
	if (child < 0 || result) {
		errno = ECHILD;
		return -1;
	}
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
	return errno ? -1 : 0;
}

/* ---- io_uring ---- */

static int do_uring(struct client *c, int n, char **w)
{
	static unsigned char data[256];
	struct io_uring_params params = { 0 };
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
	unsigned char *ring;
	uint64_t cmd;
	int fd, uring;

	(void)n;
	if (which_file(c, w[0], &fd) || bad_number(w[1], &cmd) ||
	    read_hex(w[2], data, sizeof(data)) < 0)
		return -1;
	uring = (int)syscall(SYS_io_uring_setup, 4, &params);
	if (uring < 0)
		return -1;
	ring = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQ_RING);
	entries = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQES);
	if (ring == MAP_FAILED || entries == MAP_FAILED)
		return -1;
	memset(&entries[0], 0, sizeof(entries[0]));
	entries[0].opcode = OP_URING_CMD;
	entries[0].fd = fd;
	/* cmd_op and, for those that take it from there, the address of the arguments. */
	entries[0].off = (uint32_t)cmd;
	entries[0].addr = (uintptr_t)data;
	*(unsigned int *)(ring + params.sq_off.array) = 0;
	__atomic_store_n((unsigned int *)(ring + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, uring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -1;
	done = (void *)(ring + params.cq_off.cqes);
	close(uring);
	errno = done->res < 0 ? -done->res : 0;
	return errno ? -1 : 0;
}

/* ---- very many ---- */

static pid_t bombs[MOST_BOMBS];

static int do_bomb(struct client *c, int n, char **w)
{
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	uint64_t processes, gpu = 0, chunk, count, total = 0;
	bool kfd = !strcmp(w[1], "kfd");
	uint32_t handle;
	int results[2], i, failed;

	if (n != (kfd ? 4 : 3) || bad_number(w[0], &processes) || (kfd && bad_number(w[2], &gpu)) ||
	    bad_number(w[n - 1], &chunk) || processes > MOST_BOMBS || pipe(results)) {
		errno = EINVAL;
		return -1;
	}
	for (i = 0; i < (int)processes; i++) {
		bombs[i] = fork();
		if (bombs[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (kfd && open_own(c, gpu))
			_exit(1);
		for (count = 0, failed = 0; !failed; count += !failed)
			failed = kfd ? kfd_alloc(c, gpu, chunk, DEFAULT_KFD_FLAGS, 0, &args) :
				       gem_create(c, chunk, AMDGPU_GEM_DOMAIN_VRAM, 0, &handle);
		count = errno == ENOMEM ? count : ~0ULL;
		if (write(results[1], &count, sizeof(count)) != sizeof(count))
			_exit(1);
		for (;;)
			pause();
	}
	/* One that dies early must not be waited for. */
	close(results[1]);
	for (i = 0; i < (int)processes; i++) {
		if (read(results[0], &count, sizeof(count)) != sizeof(count) || count == ~0ULL) {
			errno = EPROTO;
			return -1;
		}
		total += count * chunk;
	}
	close(results[0]);
	say(" bytes=%" PRIu64, total);
	return 0;
}

static int do_reap(struct client *c, int n, char **w)
{
	int i;

	(void)c;
	(void)n;
	(void)w;
	for (i = 0; i < MOST_BOMBS && bombs[i] > 0; i++) {
		kill(bombs[i], SIGKILL);
		waitpid(bombs[i], NULL, 0);
		bombs[i] = 0;
	}
	return 0;
}

struct allocator {
	struct client c;
	uint64_t gpu, state;
	unsigned int ends_at; /* this thread ends the process then; 0: it does not */
};

static void *allocate_for_ever(void *data)
{
	struct allocator *a = data;
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	struct kfd_ioctl_free_memory_of_gpu_args gone = { 0 };
	struct drm_gem_close closed = { 0 };
	unsigned int i;

	for (i = 1;; i++) {
		if (i == a->ends_at)
			_exit(0);
		if (next_random(&a->state) & 64) {
			if (!kfd_alloc(&a->c, a->gpu, PAGE << (a->state & 7), DEFAULT_KFD_FLAGS, 0,
				       &args) &&
			    a->state & 256) {
				gone.handle = args.handle;
				call(a->c.kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &gone);
			}
		} else if (!gem_create(&a->c, PAGE << (a->state & 7), AMDGPU_GEM_DOMAIN_VRAM, 0,
				       &closed.handle) &&
			   a->state & 256) {
			call(a->c.drm, DRM_IOCTL_GEM_CLOSE, &closed);
		}
	}
	return NULL;
}

static void allocate_in_threads(struct client *c, uint64_t gpu, uint64_t state, bool ends)
{
	static struct allocator threads[4];
	pthread_t thread;
	size_t i;

	if (open_own(c, gpu))
		_exit(1);
	for (i = 0; i < 4; i++) {
		threads[i] =
			(struct allocator){ .c = *c, .gpu = gpu, .state = state + 7919 * i + 1 };
		threads[i].c.next_va += i << 42;
		if (ends && !i)
			threads[i].ends_at = 1 + (unsigned int)(state % 40);
		if (i)
			pthread_create(&thread, NULL, allocate_for_ever, &threads[i]);
	}
	allocate_for_ever(&threads[0]);
}

static int do_kill_storm(struct client *c, int n, char **w)
{
	uint64_t gpu, rounds, state, i;
	bool ends;
	pid_t child;
	int status;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &rounds) || bad_number(w[2], &state))
		return -1;
	state = state * 2654435761U + 1;
	for (i = 0; i < rounds; i++) {
		next_random(&state);
		ends = i & 1;
		child = fork();
		if (child < 0)
			return -1;
		if (!child)
			allocate_in_threads(c, gpu, state, ends);
		if (!ends) {
			usleep((useconds_t)(state % 60000));
			kill(child, SIGKILL);
		}
		if (waitpid(child, &status, 0) != child ||
		    (WIFEXITED(status) && WEXITSTATUS(status))) {
			errno = EPROTO;
			return -1;
		}
	}
	return 0;
}

static void make_and_free(struct client *c, uint64_t gpu, uint64_t calls, uint64_t state,
			  int results)
{
	struct sched_param priority = { .sched_priority = 1 + (int)(state % 90) };
	struct kfd_ioctl_alloc_memory_of_gpu_args args;
	struct kfd_ioctl_free_memory_of_gpu_args gone = { 0 };
	struct drm_gem_close closed = { 0 };
	uint32_t done[2] = { 0 };
	bool failed;
	uint64_t i;

	if (open_own(c, gpu) || sched_setscheduler(0, SCHED_FIFO, &priority))
		_exit(1);
	for (i = 0; i < calls; i++) {
		if (next_random(&state) & 64) {
			failed = kfd_alloc(c, gpu, PAGE, DEFAULT_KFD_FLAGS, 0, &args);
			gone.handle = args.handle;
			if (!failed)
				call(c->kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &gone);
		} else {
			failed = gem_create(c, PAGE, AMDGPU_GEM_DOMAIN_VRAM, 0, &closed.handle);
			if (!failed)
				call(c->drm, DRM_IOCTL_GEM_CLOSE, &closed);
		}
		done[failed]++;
		usleep((useconds_t)(state % 200));
	}
	_exit(write(results, done, sizeof(done)) != sizeof(done));
}

static int do_crowd(struct client *c, int n, char **w)
{
	uint64_t gpu, processes, calls, state, i, sum[2] = { 0 };
	uint32_t done[2];
	int results[2], status;

	(void)n;
	if (bad_number(w[0], &gpu) || bad_number(w[1], &processes) || bad_number(w[2], &calls) ||
	    bad_number(w[3], &state) || pipe(results))
		return -1;
	state = state * 2654435761U + 1;
	for (i = 0; i < processes; i++) {
		next_random(&state);
		switch (fork()) {
		case -1:
			return -1;
		case 0:
			make_and_free(c, gpu, calls, state, results[1]);
		}
	}
	close(results[1]);
	while (read(results[0], done, sizeof(done)) == sizeof(done)) {
		sum[0] += done[0];
		sum[1] += done[1];
	}
	close(results[0]);
	for (i = 0; i < processes; i++)
		if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
			errno = EPROTO;
			return -1;
		}
	say(" made=%" PRIu64 " refused=%" PRIu64, sum[0], sum[1]);
	return 0;
}

const struct command escape_commands[] = {
	{ "name", "COMM", 1, 1, do_name },
	{ "exec", "", 0, 0, do_exec },
	{ "leave-leader", "", 0, 0, do_leave_leader },
	{ "clone", "WORD ... -- COMMAND ...", 2, 64, do_clone },
	{ "own", "GPU COMMAND ...", 2, 64, do_own },
	{ "unshare", "", 0, 0, do_unshare },
	{ "enter", "DIR", 1, 1, do_enter },
	{ "mount-cgroups", "DIR", 1, 1, do_mount_cgroups },
	{ "pidfd-getfd", "PID FD", 2, 2, do_pidfd_getfd },
	{ "reopen", "FD", 1, 1, do_reopen },
	{ "torn", "kfd|drm CMD OFFSET BEFORE AFTER thread|mem|vm|never", 6, 6, do_torn },
	{ "shake", "dontneed|mremap|dontunmap|punch|dup|mem kfd GPU|gem SIZE TRIES", 4, 5,
	  do_shake },
	{ "waver", "GPU OTHER SIZE TRIES", 4, 4, do_waver },
	{ "slip", "H TRIES", 2, 2, do_slip },
	{ "poke", "SMALL BIG", 2, 2, do_poke },
	{ "uring", "kfd|drm CMD HEX", 3, 3, do_uring },
	{ "bomb", "PROCESSES kfd GPU|gem CHUNK", 3, 4, do_bomb },
	{ "reap", "", 0, 0, do_reap },
	{ "kill-storm", "GPU ROUNDS SEED", 3, 3, do_kill_storm },
	{ "crowd", "GPU PROCESSES CALLS SEED", 4, 4, do_crowd },
	{ 0 },
};
