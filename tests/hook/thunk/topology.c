// SPDX-License-Identifier: Apache-2.0
/* The machine ROCr sees: node 0 is the CPU, every further node a GPU. */
#include "thunk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB	      UINT64_C(1024)
#define GIB	      (UINT64_C(1) << 30)
#define COMPUTE_UNITS 104
#define SIMDS_PER_CU  4
#define FIRST_BUS     3

static HSAuint64 number(const char *name, int base, HSAuint64 otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, base) : otherwise;
}

HSAuint32 thunk_gpu_count(void)
{
	HSAuint64 count = number("THUNK_GPUS", 10, 1);

	return count > THUNK_MAX_GPUS ? THUNK_MAX_GPUS : (HSAuint32)count;
}

HSAuint64 thunk_vram_bytes(void)
{
	return number("THUNK_VRAM", 10, 8 * GIB);
}

HSAuint32 thunk_gpu_id(HSAuint32 node)
{
	return 1000 + node;
}

void thunk_log(const char *format, ...)
{
	const char *path = getenv("THUNK_LOG");
	va_list arguments;
	FILE *file;

	file = path ? fopen(path, "ae") : NULL;
	if (!file)
		return;
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	fclose(file);
}

HSAKMT_STATUS hsaKmtOpenKFD(void)
{
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtCloseKFD(void)
{
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetVersion(HsaVersionInfo *version)
{
	version->KernelInterfaceMajorVersion = 1;
	version->KernelInterfaceMinorVersion = 8;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtAcquireSystemProperties(HsaSystemProperties *properties)
{
	memset(properties, 0, sizeof(*properties));
	properties->NumNodes = 1 + thunk_gpu_count();
	properties->PlatformOem = 1;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtReleaseSystemProperties(void)
{
	return HSAKMT_STATUS_SUCCESS;
}

static void describe_cpu(HsaNodeProperties *properties)
{
	properties->NumCPUCores = 2;
	properties->NumCaches = 2;
	properties->NumMemoryBanks = 1;
	properties->NumIOLinks = thunk_gpu_count();
	properties->MaxEngineClockMhzCCompute = 2000;
	strcpy((char *)properties->AMDName, "cpu");
}

/* `gfx90a` is major 9, minor 0, stepping 10; `gfx1030` is major 10, minor 3, stepping 0. */
static void read_isa(HSA_ENGINE_ID *ret)
{
	const char *text = getenv("THUNK_GFX");
	HSAuint64 last_two, major;

	text = text && strlen(text) > 2 ? text : "90a";
	last_two = strtoull(text + strlen(text) - 2, NULL, 16);
	major = strtoull(text, NULL, 16) >> 8;
	ret->ui32.uCode = 60;
	/* The major number is decimal. */
	ret->ui32.Major = (major >> 4) * 10 + (major & 0xf);
	ret->ui32.Minor = last_two >> 4;
	ret->ui32.Stepping = last_two & 0xf;
}

static void describe_gpu(HSAuint32 node, HsaNodeProperties *properties)
{
	read_isa(&properties->EngineId);
	properties->NumFComputeCores = COMPUTE_UNITS * SIMDS_PER_CU;
	properties->NumSIMDPerCU = SIMDS_PER_CU;
	properties->NumShaderBanks = 8;
	properties->NumArrays = 1;
	properties->NumCUPerArray = 14;
	properties->MaxWavesPerSIMD = 8;
	properties->MaxSlotsScratchCU = 32;
	properties->LDSSizeInKB = 64;
	properties->WaveFrontSize = properties->EngineId.ui32.Major < 10 ? 64 : 32;
	properties->NumMemoryBanks = 4;
	properties->NumCaches = 2;
	properties->NumIOLinks = 1;
	properties->NumSdmaEngines = 2;
	properties->NumSdmaQueuesPerEngine = 8;
	properties->NumCpQueues = 24;
	properties->Capability.ui32.DoorbellType = 2;
	properties->Capability.ui32.SVMAPISupported = 1;
#ifdef ROCR_6
	/* Without it the scratch size comes to 0, which ROCr 6 asserts on. */
	properties->NumXcc = 1;
#endif
	properties->VendorId = 0x1002;
	properties->DeviceId = 0x740c;
	properties->LocationId = number("THUNK_LOCATION", 16, FIRST_BUS << 8) + ((node - 1) << 8);
	properties->LocalMemSize = thunk_vram_bytes();
	properties->MaxEngineClockMhzFCompute = 1700;
	properties->DrmRenderMinor = 127 + (HSAint32)node;
	properties->UniqueID = UINT64_C(0x1234567890abcd00) + node;
	strcpy((char *)properties->AMDName, "stand-in");
	properties->MarketingName[0] = 'S';
}

HSAKMT_STATUS hsaKmtGetNodeProperties(HSAuint32 node, HsaNodeProperties *properties)
{
	if (node > thunk_gpu_count())
		return HSAKMT_STATUS_INVALID_NODE_UNIT;
	memset(properties, 0, sizeof(*properties));
	if (node == 0)
		describe_cpu(properties);
	else
		describe_gpu(node, properties);
	return HSAKMT_STATUS_SUCCESS;
}

/* ROCr insists on all four banks of a GPU. */
HSAKMT_STATUS hsaKmtGetNodeMemoryProperties(HSAuint32 node, HSAuint32 count,
					    HsaMemoryProperties *banks)
{
	const HsaMemoryProperties gpu[] = {
		{ .HeapType = HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC,
		  .SizeInBytes = thunk_vram_bytes(),
		  .Width = 4096,
		  .MemoryClockMax = 1600 },
		{ .HeapType = HSA_HEAPTYPE_GPU_LDS,
		  .SizeInBytes = 64 * KIB,
		  .VirtualBaseAddress = UINT64_C(1) << 48 },
		{ .HeapType = HSA_HEAPTYPE_GPU_SCRATCH,
		  .SizeInBytes = 4 * GIB,
		  .VirtualBaseAddress = UINT64_C(2) << 48 },
		{ .HeapType = HSA_HEAPTYPE_DEVICE_SVM, .SizeInBytes = UINT64_C(1) << 46 },
	};
	const HsaMemoryProperties cpu = { .HeapType = HSA_HEAPTYPE_SYSTEM,
					  .SizeInBytes = 16 * GIB,
					  .Width = 64,
					  .MemoryClockMax = 1600 };

	for (HSAuint32 i = 0; i < count; i++)
		banks[i] = node == 0 ? cpu : gpu[i % 4];
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetNodeCacheProperties(HSAuint32 node, HSAuint32 processor, HSAuint32 count,
					   HsaCacheProperties *caches)
{
	(void)node;
	(void)processor;
	for (HSAuint32 i = 0; i < count; i++) {
		memset(&caches[i], 0, sizeof(caches[i]));
		caches[i].CacheLevel = i + 1;
		caches[i].CacheSize = i ? 8192 : 16;
		caches[i].CacheLineSize = 128;
		caches[i].CacheType.ui32.Data = 1;
		caches[i].CacheType.ui32.CPU = node == 0;
		caches[i].CacheType.ui32.HSACU = node != 0;
	}
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetNodeIoLinkProperties(HSAuint32 node, HSAuint32 count,
					    HsaIoLinkProperties *links)
{
	for (HSAuint32 i = 0; i < count; i++) {
		memset(&links[i], 0, sizeof(links[i]));
		links[i].IoLinkType = HSA_IOLINKTYPE_PCIEXPRESS;
		links[i].NodeFrom = node;
		links[i].NodeTo = node == 0 ? i + 1 : 0;
		links[i].Weight = 20;
	}
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetClockCounters(HSAuint32 node, HsaClockCounters *counters)
{
	struct timespec time;
	HSAuint64 nanoseconds;

	(void)node;
	clock_gettime(CLOCK_MONOTONIC, &time);
	nanoseconds = (HSAuint64)time.tv_sec * 1000000000 + (HSAuint64)time.tv_nsec;
	counters->GPUClockCounter = nanoseconds / 10;
	counters->CPUClockCounter = nanoseconds;
	counters->SystemClockCounter = nanoseconds;
	counters->SystemClockFrequencyHz = 1000000000;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetTileConfig(HSAuint32 node, HsaGpuTileConfig *config)
{
	static HSAuint32 tile[64], macro_tile[64];

	(void)node;
	config->TileConfig = tile;
	config->MacroTileConfig = macro_tile;
	config->NumTileConfigs = 0;
	config->NumMacroTileConfigs = 0;
	config->GbAddrConfig = 0x2a114042;
	config->NumBanks = 8;
	config->NumRanks = 1;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtGetXNACKMode(HSAint32 *enabled)
{
	*enabled = getenv("HSA_XNACK") && !strcmp(getenv("HSA_XNACK"), "1");
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtSetXNACKMode(HSAint32 enable)
{
	(void)enable;
	return HSAKMT_STATUS_SUCCESS;
}

HSAKMT_STATUS hsaKmtRuntimeEnable(void *debug, bool setup)
{
	(void)debug;
	(void)setup;
	return HSAKMT_STATUS_NOT_SUPPORTED;
}

HSAKMT_STATUS hsaKmtRuntimeDisable(void)
{
	return HSAKMT_STATUS_SUCCESS;
}
