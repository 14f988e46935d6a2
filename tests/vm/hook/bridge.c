// SPDX-License-Identifier: Apache-2.0
/*
 * Leads the stand-in thunk's calls for VRAM (tests/hook/thunk, THUNK_IOCTL) to the virtual node's
 * KFD, so that unmodified HIP meets the limits of the kernel. To be preloaded, behind the hook.
 *
 *   BRIDGE_GPU    KFD's gpu_id of the GPU        BRIDGE_RENDER   its render node
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../client/abi.h"

#define NO_DEVICE (-1)
#define GAP	  (64ULL << 30)

static struct kfd_ioctl_acquire_vm_args vm;
static int kfd;

static void open_node(void)
{
	const char *render = getenv("BRIDGE_RENDER"), *gpu = getenv("BRIDGE_GPU");
	int drm = render ? open(render, O_RDWR | O_CLOEXEC) : -1;

	kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
	vm.drm_fd = (uint32_t)drm;
	vm.gpu_id = gpu ? (uint32_t)strtoul(gpu, NULL, 10) : 0;
	/* Without its node the test must not go on: nothing would be asked of the kernel. */
	if (kfd < 0 || drm < 0 || syscall(SYS_ioctl, kfd, AMDKFD_IOC_ACQUIRE_VM, &vm))
		abort();
}

static int allocate(struct kfd_ioctl_alloc_memory_of_gpu_args *args)
{
	static uint64_t next_va = 1ULL << 40;

	args->va_addr = __atomic_fetch_add(&next_va, GAP, __ATOMIC_RELAXED);
	args->gpu_id = vm.gpu_id;
	args->flags |= KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
	return (int)syscall(SYS_ioctl, kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, args);
}

int ioctl(int fd, unsigned long request, ...)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	va_list arguments;
	void *args;

	va_start(arguments, request);
	args = va_arg(arguments, void *);
	va_end(arguments);
	if (fd != NO_DEVICE)
		return (int)syscall(SYS_ioctl, fd, request, args);
	pthread_once(&once, open_node);
	if (request == AMDKFD_IOC_ALLOC_MEMORY_OF_GPU)
		return allocate(args);
	return (int)syscall(SYS_ioctl, kfd, request, args);
}
