// SPDX-License-Identifier: Apache-2.0
/*
 * The LD_AUDIT side of the hook. It changes two functions, and only for ROCm's own libraries:
 * getenv, so that the variables that decide whether the slice holds cannot be taken back by the
 * process, and ioctl, so that VRAM that no HSA call stands for is counted too. It uses no libc: an
 * auditor has a link namespace of its own, and a second libc there would cost every process.
 */
#include <link.h>

#include "../slice/freestanding.h"
#include "../slice/ioctl_hook.h"
#include "elf_symbol.h"
#include "pin.h"
#include "tool_path.h"

#define EXPORT __attribute__((visibility("default")))

/* Loaders offer 2 from the version on that does not slow every PLT call of an audited process. */
#define LAV_WITHOUT_COST 2

#define RF_ENOMEM 12

enum kind {
	OTHER,
	ROCR,
	THUNK,
	DRM
};

/* One per link namespace: each has its own libc, its own errno, and perhaps its own ROCr. */
struct link_space {
	bool used;
	Lmid_t id;
	const struct link_map *libc;
	const struct link_map *tool;
};

#define SPACES 16
static struct link_space spaces[SPACES];

typedef int (*ioctl_t)(int fd, unsigned long request, void *arg);
typedef int *(*errno_location_t)(void);
typedef void *(*dlmopen_t)(Lmid_t, const char *, int);

/*
 * A wrapper has to know which original it stands for, and its caller does not tell: so there is
 * one wrapper per original, and one original per copy of libc in the process.
 */
#define SLOTS 16
static rf_getenv_t getenv_originals[SLOTS];
static struct {
	ioctl_t original;
	struct link_space *home;
} ioctl_originals[SLOTS];

static struct link_space *space_of(Lmid_t id)
{
	struct link_space *free_one = NULL;

	for (int i = 0; i < SPACES; i++) {
		if (spaces[i].used && spaces[i].id == id)
			return &spaces[i];
		if (!spaces[i].used && !free_one)
			free_one = &spaces[i];
	}
	if (free_one) {
		free_one->id = id;
		free_one->used = true;
	}
	return free_one;
}

static const struct link_map *tool_for(const struct link_space *home)
{
	const struct link_space *base = space_of(LM_ID_BASE);
	const struct link_map *tool = __atomic_load_n(&home->tool, __ATOMIC_ACQUIRE);

	return tool || !base ? tool : __atomic_load_n(&base->tool, __ATOMIC_ACQUIRE);
}

/* A program that reaches the GPU without ROCr (Vulkan, VA-API) has nobody else to load it. */
static const struct link_map *bring_tool_in(const struct link_space *home)
{
	static int tried;
	const struct link_space *base = space_of(LM_ID_BASE);
	const struct link_map *libc = base ? __atomic_load_n(&base->libc, __ATOMIC_ACQUIRE) : NULL;
	dlmopen_t open_in;

	if (!libc || __atomic_exchange_n(&tried, 1, __ATOMIC_ACQ_REL))
		return tool_for(home);
	open_in = (dlmopen_t)rf_elf_symbol(libc, "dlmopen");
	if (open_in)
		open_in(LM_ID_BASE, rf_tool_path(), 2 /* RTLD_NOW */);
	return tool_for(home);
}

static int *errno_of(const struct link_space *home)
{
	const struct link_map *libc = __atomic_load_n(&home->libc, __ATOMIC_ACQUIRE);
	errno_location_t location =
		libc ? (errno_location_t)rf_elf_symbol(libc, "__errno_location") : NULL;

	return location ? location() : NULL;
}

static int counted_ioctl(int slot, int fd, unsigned long request, void *arg)
{
	ioctl_t original = ioctl_originals[slot].original;
	const struct link_space *home = ioctl_originals[slot].home;
	struct rf_ioctl_ticket ticket;
	const struct link_map *tool;
	rf_ioctl_enter_t enter = NULL;
	rf_ioctl_leave_t leave = NULL;
	int refused, result, saved;
	int *error;

	if (!rf_ioctl_matters(request))
		return original(fd, request, arg);
	tool = tool_for(home);
	if (!tool)
		tool = bring_tool_in(home);
	if (tool) {
		enter = (rf_ioctl_enter_t)rf_elf_symbol(tool, RF_IOCTL_ENTER);
		leave = (rf_ioctl_leave_t)rf_elf_symbol(tool, RF_IOCTL_LEAVE);
	}
	if (!enter || !leave)
		return original(fd, request, arg);
	error = errno_of(home);
	refused = enter(fd, request, arg, &ticket);
	if (refused) {
		/* Never left as it was: a stale EINTR makes ROCm try again for ever. */
		if (error)
			*error = refused;
		return -1;
	}
	result = original(fd, request, arg);
	saved = error ? *error : 0;
	leave(fd, request, arg, &ticket, result != 0);
	if (error)
		*error = saved;
	return result;
}

#define FOR_EACH_SLOT(X) \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

#define DEFINE_WRAPPERS(n)                                             \
	static char *getenv_##n(const char *name)                      \
	{                                                              \
		return rf_pinned_getenv(name, getenv_originals[n]);    \
	}                                                              \
	static int ioctl_##n(int fd, unsigned long request, void *arg) \
	{                                                              \
		return counted_ioctl(n, fd, request, arg);             \
	}
FOR_EACH_SLOT(DEFINE_WRAPPERS)

#define GETENV_NAME(n) getenv_##n,
#define IOCTL_NAME(n)  ioctl_##n,
static const rf_getenv_t getenv_wrappers[SLOTS] = { FOR_EACH_SLOT(GETENV_NAME) };
static const ioctl_t ioctl_wrappers[SLOTS] = { FOR_EACH_SLOT(IOCTL_NAME) };

/* The loader calls la_symbind64 for one binding at a time only when it binds eagerly. */
static uintptr_t wrap_getenv(uintptr_t original)
{
	for (int i = 0; i < SLOTS; i++) {
		rf_getenv_t expected = NULL;

		if (__atomic_compare_exchange_n(&getenv_originals[i], &expected,
						(rf_getenv_t)original, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE) ||
		    expected == (rf_getenv_t)original)
			return (uintptr_t)getenv_wrappers[i];
	}
	return original;
}

static uintptr_t wrap_ioctl(uintptr_t original, struct link_space *home)
{
	for (int i = 0; i < SLOTS; i++) {
		ioctl_t expected = NULL;

		if (__atomic_compare_exchange_n(&ioctl_originals[i].original, &expected,
						(ioctl_t)original, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE) ||
		    expected == (ioctl_t)original) {
			__atomic_store_n(&ioctl_originals[i].home, home, __ATOMIC_RELEASE);
			return (uintptr_t)ioctl_wrappers[i];
		}
	}
	return original;
}

static enum kind kind_by_name(const char *path)
{
	const char *base = rf_basename(path);

	if (rf_starts_with(base, "libhsa-runtime64"))
		return ROCR;
	if (rf_starts_with(base, "libhsakmt"))
		return THUNK;
	if (rf_starts_with(base, "libdrm.so") || rf_starts_with(base, "libdrm_amdgpu"))
		return DRM;
	return OTHER;
}

/* A copy under another file name still says what it is. */
static const char *soname(const struct link_map *map)
{
	const char *strings = NULL;
	ElfW(Addr) offset = 0;
	bool named = false;

	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_STRTAB) {
			ElfW(Addr) value = entry->d_un.d_ptr;

			strings = (const char *)(value < map->l_addr ? value + map->l_addr : value);
		} else if (entry->d_tag == DT_SONAME) {
			offset = entry->d_un.d_val;
			named = true;
		}
	}
	return strings && named ? strings + offset : "";
}

EXPORT unsigned int la_version(unsigned int offered)
{
	/* 0 has the loader drop this library again, and the process pays nothing for it. */
	return offered < LAV_WITHOUT_COST ? 0 : LAV_WITHOUT_COST;
}

EXPORT unsigned int la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie)
{
	struct link_space *home = space_of(id);
	const char *base = rf_basename(map->l_name);
	enum kind kind = kind_by_name(map->l_name);

	*cookie = 0;
	if (!home)
		return LA_FLG_BINDTO;
	if (rf_starts_with(base, "libc.so"))
		__atomic_store_n(&home->libc, map, __ATOMIC_RELEASE);
	else if (rf_streq(base, RF_TOOL_NAME))
		__atomic_store_n(&home->tool, map, __ATOMIC_RELEASE);
	else if (kind == OTHER)
		kind = kind_by_name(soname(map));
	if (kind == OTHER)
		return LA_FLG_BINDTO;
	*cookie = (uintptr_t)(home - spaces) + 1;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

EXPORT uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned int index, uintptr_t *from,
			      uintptr_t *to, unsigned int *flags, const char *name)
{
	(void)index;
	(void)to;
	(void)flags;
	if (*from == 0 || *from > SPACES)
		return symbol->st_value;
	if (rf_streq(name, "getenv") || rf_streq(name, "secure_getenv"))
		return wrap_getenv(symbol->st_value);
	if (rf_streq(name, "ioctl"))
		return wrap_ioctl(symbol->st_value, &spaces[*from - 1]);
	return symbol->st_value;
}
