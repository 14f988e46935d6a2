// SPDX-License-Identifier: Apache-2.0
/*
 * Children that no fork handler hears of. `children clone|vfork MiB`: the parent holds, a child
 * made by the raw system call lives and exits, the parent asks for as much again. `orphan`: the
 * parent dies and its child lives on for a while.
 */
#include <hip/hip_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int ask(size_t mib)
{
	void *held;

	return (int)hipMalloc(&held, mib << 20);
}

int main(int count, char **arguments)
{
	size_t mib;
	pid_t child;
	int status;

	if (count < 3)
		return 2;
	mib = strtoull(arguments[2], NULL, 10);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("parent %d\n", ask(mib));
	if (!strcmp(arguments[1], "vfork")) {
		child = vfork();
		if (child == 0)
			_exit(0);
	} else {
		child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	}
	if (child == 0) {
		if (strcmp(arguments[1], "orphan"))
			exit(0);
		/* Nobody waits for this one: not the reader of the output either. */
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		sleep(20);
		_exit(0);
	}
	if (!strcmp(arguments[1], "orphan"))
		raise(SIGKILL);
	waitpid(child, &status, 0);
	printf("child %d\n", WEXITSTATUS(status));
	printf("parent %d\n", ask(mib));
	return 0;
}
