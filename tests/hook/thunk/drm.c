// SPDX-License-Identifier: Apache-2.0
/* A stand-in for the little that ROCr asks of libdrm_amdgpu: a device, buffers never mapped. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <libdrm/amdgpu.h>

int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, amdgpu_device_handle *ret)
{
	/* The caller closes its own, and asks for this one. */
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	*major = 3;
	*minor = 57;
	/* Only ever handed back to this library, and never NULL. */
	*ret = (amdgpu_device_handle)(intptr_t)(own + 1);
	return own < 0 ? -EMFILE : 0;
}

int amdgpu_device_deinitialize(amdgpu_device_handle device)
{
	return close((int)(intptr_t)device - 1);
}

int amdgpu_device_get_fd(amdgpu_device_handle device)
{
	return (int)(intptr_t)device - 1;
}

const char *amdgpu_get_marketing_name(amdgpu_device_handle device)
{
	(void)device;
	return "stand-in";
}

int amdgpu_query_info(amdgpu_device_handle device, unsigned int what, unsigned int size, void *ret)
{
	(void)device;
	(void)what;
	memset(ret, 0, size);
	return 0;
}

int amdgpu_bo_import(amdgpu_device_handle device, enum amdgpu_bo_handle_type type, uint32_t shared,
		     struct amdgpu_bo_import_result *ret)
{
	(void)device;
	(void)type;
	(void)shared;
	ret->buf_handle = calloc(1, 16);
	ret->alloc_size = 0;
	return ret->buf_handle ? 0 : -ENOMEM;
}

int amdgpu_bo_export(amdgpu_bo_handle buffer, enum amdgpu_bo_handle_type type, uint32_t *shared)
{
	(void)buffer;
	(void)type;
	*shared = (uint32_t)memfd_create("buffer", 0);
	return 0;
}

int amdgpu_bo_free(amdgpu_bo_handle buffer)
{
	free(buffer);
	return 0;
}

int amdgpu_bo_va_op(amdgpu_bo_handle buffer, uint64_t offset, uint64_t size, uint64_t address,
		    uint64_t flags, uint32_t operation)
{
	(void)buffer;
	(void)offset;
	(void)size;
	(void)address;
	(void)flags;
	(void)operation;
	return 0;
}

int amdgpu_bo_cpu_map(amdgpu_bo_handle buffer, void **address)
{
	(void)buffer;
	(void)address;
	return -EINVAL;
}

int amdgpu_query_gpu_info(amdgpu_device_handle device, struct amdgpu_gpu_info *info)
{
	(void)device;
	memset(info, 0, sizeof(*info));
	info->num_shader_engines = 8;
	info->num_shader_arrays_per_engine = 1;
	return 0;
}

int amdgpu_bo_query_info(amdgpu_bo_handle buffer, struct amdgpu_bo_info *info)
{
	(void)buffer;
	memset(info, 0, sizeof(*info));
	return 0;
}

int amdgpu_bo_set_metadata(amdgpu_bo_handle buffer, struct amdgpu_bo_metadata *metadata)
{
	(void)buffer;
	(void)metadata;
	return 0;
}
