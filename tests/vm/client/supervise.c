// SPDX-License-Identifier: Apache-2.0
/*
 * A process whose system calls another one answers for it, or interrupts.
 *
 *   notify kfd|drm CMD BEFORE AFTER   the call with arguments BEFORE is held up by seccomp;
 *                         its supervisor writes AFTER over them and lets it go on
 *   listen                a thread makes a call that a supervisor is asked about
 *                         first; the descriptor of whoever is to be that         fd
 *   notified              what that call returned: an open file               fd
 *   inject LISTENER FD    be the supervisor: put our FD into the one who calls
 *   interrupted COMMAND ...   one command while signals arrive, whose handler has
 *                         the interrupted calls begun anew
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "client.h"

#define MOST_BYTES	  256
#define MICROSECONDS_EACH 5000
/* A call that nothing else here makes. */
#define ASKED_FOR_A_FILE SYS_getppid

/* A thread, one of whose calls its supervisor is asked about. */
struct supervised {
	pthread_t thread;
	long number;
	int fd;
	unsigned long cmd;
	unsigned char arguments[MOST_BYTES];
	pthread_barrier_t listening;
	int listener;
	long result;
	int error;
};

static int listen_to(long number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
			    &program);
}

static void *make_call(void *data)
{
	struct supervised *s = data;

	s->listener = listen_to(s->number);
	s->error = errno;
	pthread_barrier_wait(&s->listening);
	if (s->listener < 0)
		return NULL;
	s->result = syscall(s->number, s->fd, s->cmd, s->arguments);
	s->error = errno;
	return NULL;
}

/* 0, or -1: nobody listens. */
static int begin(struct supervised *s)
{
	pthread_barrier_init(&s->listening, NULL, 2);
	errno = pthread_create(&s->thread, NULL, make_call, s);
	if (errno)
		return -1;
	pthread_barrier_wait(&s->listening);
	pthread_barrier_destroy(&s->listening);
	errno = s->error;
	return s->listener < 0 ? -1 : 0;
}

static int end(struct supervised *s)
{
	pthread_join(s->thread, NULL);
	errno = s->error;
	return s->result < 0 ? -1 : 0;
}

static int do_notify(struct client *c, int n, char **w)
{
	static unsigned char after[MOST_BYTES];
	static struct supervised s;
	struct seccomp_notif asked = { 0 };
	struct seccomp_notif_resp reply = { .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
	uint64_t cmd;
	int length;

	(void)n;
	s = (struct supervised){ .number = SYS_ioctl };
	if (which_file(c, w[0], &s.fd) || bad_number(w[1], &cmd))
		return -1;
	s.cmd = cmd;
	length = read_hex(w[2], s.arguments, sizeof(s.arguments));
	if (length < 0 || read_hex(w[3], after, sizeof(after)) != length) {
		errno = EINVAL;
		return -1;
	}
	if (begin(&s) || ioctl(s.listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
		return -1;
	memcpy(s.arguments, after, (size_t)length);
	reply.id = asked.id;
	if (ioctl(s.listener, SECCOMP_IOCTL_NOTIF_SEND, &reply))
		return -1;
	close(s.listener);
	return end(&s);
}

static struct supervised waiting;

static int do_listen(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	(void)w;
	waiting = (struct supervised){ .number = ASKED_FOR_A_FILE };
	if (begin(&waiting))
		return -1;
	say(" fd=%d", waiting.listener);
	return 0;
}

static int do_notified(struct client *c, int n, char **w)
{
	(void)c;
	(void)n;
	(void)w;
	if (end(&waiting))
		return -1;
	say(" fd=%ld", waiting.result);
	return 0;
}

static int do_inject(struct client *c, int n, char **w)
{
	struct seccomp_notif asked = { 0 };
	struct seccomp_notif_addfd file = { .flags = SECCOMP_ADDFD_FLAG_SEND };
	struct seccomp_notif_resp reply = { 0 };
	uint64_t listener, fd;
	int saved;

	(void)c;
	(void)n;
	if (bad_number(w[0], &listener) || bad_number(w[1], &fd) ||
	    ioctl((int)listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
		return -1;
	file.id = asked.id;
	file.srcfd = (uint32_t)fd;
	if (ioctl((int)listener, SECCOMP_IOCTL_NOTIF_ADDFD, &file) >= 0)
		return 0;
	saved = errno;
	/* Whoever calls goes on without it. */
	reply.id = asked.id;
	reply.error = -saved;
	ioctl((int)listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
	errno = saved;
	return -1;
}

static void arrive(int number)
{
	(void)number;
}

static int do_interrupted(struct client *c, int n, char **w)
{
	const struct itimerval each = { .it_interval.tv_usec = MICROSECONDS_EACH,
					.it_value.tv_usec = MICROSECONDS_EACH };
	const struct itimerval never = { 0 };
	struct sigaction handler = { .sa_handler = arrive, .sa_flags = SA_RESTART };

	if (sigaction(SIGALRM, &handler, NULL) || setitimer(ITIMER_REAL, &each, NULL))
		return -1;
	run_words(c, n, w);
	c->answered = true;
	return setitimer(ITIMER_REAL, &never, NULL);
}

const struct command supervise_commands[] = {
	{ "notify", "kfd|drm CMD BEFORE AFTER", 4, 4, do_notify },
	{ "listen", "", 0, 0, do_listen },
	{ "notified", "", 0, 0, do_notified },
	{ "inject", "LISTENER FD", 2, 2, do_inject },
	{ "interrupted", "COMMAND ...", 1, 64, do_interrupted },
	{ 0 },
};
