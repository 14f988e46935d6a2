// SPDX-License-Identifier: Apache-2.0
/*
 * A process writes only its own slot, so there is nothing it can leave half done for others: the
 * sum over the slots of living processes is what the container holds. To reserve, a process
 * publishes its new count first and adds up afterwards; of two that reserve at once at least one
 * sees the other, so the sum never passes the limit. One that does not fit takes its count back.
 *
 * A slot lives as long as its process. The kernel says when that ends: the owner holds an open
 * file description lock on its slot's first byte, which is dropped with the process however it
 * dies, and /proc knows it by number and start time.
 */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "process.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define RETRIES 6
#define NO_SLOT (-1)

_Static_assert(sizeof(struct rf_ledger_header) == 4096, "documented layout");
_Static_assert(sizeof(struct rf_ledger_slot) == 64, "documented layout");
_Static_assert(sizeof(struct rf_ledger_count) == 16, "documented layout");

/* What this process knows of its own use: the file only repeats it. */
struct account {
	uint64_t pci;
	int column; /* NO_SLOT: not given one yet */
	struct rf_ledger_count own;
};

static struct {
	pthread_mutex_t lock;
	bool required;
	bool registered; /* with pthread_atfork */
	bool failed;
	int fd;
	int slot;
	uint32_t generation;
	struct rf_ledger_file *file;
	dev_t device;
	ino_t inode;
	struct rf_process self;
	uint32_t account_count;
	struct account accounts[RF_MAX_GPUS];
} ledger = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .slot = NO_SLOT };

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static uint64_t add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/*
 * Both books see what came from a pool, at different grain; the larger one is what is held. ROCr
 * takes blocks of 2 MiB from the driver and keeps some of them, so the driver's is the larger
 * where the auditor is there to keep it.
 */
static uint64_t held(const struct rf_ledger_count *count)
{
	uint64_t pool = load(&count->pool);
	uint64_t driver = load(&count->driver);

	return pool > driver ? pool : driver;
}

/* stat(2) by number: before glibc 2.33 it had no symbol of its own. */
static int file_status(int fd, struct stat *ret)
{
	return (int)syscall(SYS_fstat, fd, ret);
}

static off_t slot_offset(int slot)
{
	return (off_t)(offsetof(struct rf_ledger_file, slots) +
		       (size_t)slot * sizeof(struct rf_ledger_slot));
}

static bool lock_slot(int slot, short type)
{
	struct flock lock = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = slot_offset(slot), .l_len = 1
	};

	return fcntl(ledger.fd, F_OFD_SETLK, &lock) == 0;
}

static bool slot_is_locked(int slot)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot_offset(slot), .l_len = 1
	};

	/* Without an answer the slot counts: too much is safer than too little. */
	return fcntl(ledger.fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/*
 * A lock outlives its owner where a child of a raw clone inherited it, and is lost early where the
 * owner closed a descriptor it did not know: so where both share a pid namespace, /proc is asked.
 */
static bool owner_lives(int number, uint64_t owner)
{
	const struct rf_ledger_slot *slot = &ledger.file->slots[number];
	uint64_t space = load(&slot->pid_namespace);
	uint64_t start = load(&slot->start);
	pid_t pid = (pid_t)(uint32_t)owner;
	bool locked = slot_is_locked(number);

	if (!space || space != ledger.self.pid_namespace)
		return locked;
	/* Our own number: another copy of this library, or what this process was before an exec. */
	if (pid == ledger.self.pid && start == ledger.self.start)
		return locked;
	switch (rf_process_alive(pid, start)) {
	case RF_DEAD:
		return false;
	case RF_ALIVE:
		return locked || rf_process_maps(pid, ledger.device, ledger.inode);
	case RF_CANNOT_TELL:
		break;
	}
	return locked;
}

/* What this process writes into its slot's first word. */
static uint64_t own_word(void)
{
	return (uint64_t)ledger.generation << 32 | (uint32_t)ledger.self.pid;
}

/* Frees the slots of the dead. A slot is freed by one word; its counts mean nothing from then. */
static void reap(void)
{
	uint32_t end = __atomic_load_n(&ledger.file->header.high_water, __ATOMIC_SEQ_CST);

	if (ledger.fd < 0)
		return;
	for (uint32_t i = 0; i < end && i < RF_LEDGER_SLOTS; i++) {
		uint64_t owner = load(&ledger.file->slots[i].owner);

		if (!owner || (int)i == ledger.slot || owner_lives((int)i, owner))
			continue;
		__atomic_compare_exchange_n(&ledger.file->slots[i].owner, &owner, 0, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

static uint64_t held_by_others(int column)
{
	uint32_t end = __atomic_load_n(&ledger.file->header.high_water, __ATOMIC_SEQ_CST);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < end && i < RF_LEDGER_SLOTS; i++)
		if ((int)i != ledger.slot && load(&ledger.file->slots[i].owner))
			sum = add(sum, held(&ledger.file->counts[column][i]));
	return sum;
}

static bool take_slot(void)
{
	struct rf_ledger_header *header = &ledger.file->header;

	for (int i = 0; i < RF_LEDGER_SLOTS; i++) {
		struct rf_ledger_slot *slot = &ledger.file->slots[i];
		uint64_t owner = load(&slot->owner);
		uint32_t high_water;

		if (owner && owner_lives(i, owner))
			continue;
		if (ledger.fd >= 0 && !lock_slot(i, F_WRLCK))
			continue;
		/* Between the look and the lock another process may have come and closed its file. */
		if (load(&slot->owner) != owner) {
			lock_slot(i, F_UNLCK);
			continue;
		}
		store(&slot->owner, 0);
		for (int column = 0; column < RF_MAX_GPUS; column++) {
			store(&ledger.file->counts[column][i].pool, 0);
			store(&ledger.file->counts[column][i].driver, 0);
		}
		store(&slot->start, ledger.self.start);
		store(&slot->pid_namespace, ledger.self.pid_namespace);
		store(&slot->refusals, 0);
		memcpy(slot->command, ledger.self.command, sizeof(slot->command));
		high_water = __atomic_load_n(&header->high_water, __ATOMIC_SEQ_CST);
		while (high_water < (uint32_t)i + 1 &&
		       !__atomic_compare_exchange_n(&header->high_water, &high_water,
						    (uint32_t)i + 1, false, __ATOMIC_SEQ_CST,
						    __ATOMIC_SEQ_CST))
			;
		ledger.slot = i;
		/* The start time makes the word another one when a number is used again. */
		ledger.generation = (uint32_t)ledger.self.start + 1;
		store(&slot->owner, own_word());
		return true;
	}
	rf_log(RF_LOG_ERROR, RF_LOG_LEDGER,
	       "ledger: all %d slots belong to living processes; end some of this container's",
	       RF_LEDGER_SLOTS);
	return false;
}

/* Child of a fork: the parent's slot, lock and memory are the parent's. */
static void after_fork(void)
{
	if (ledger.fd >= 0)
		close(ledger.fd);
	ledger.fd = -1;
	ledger.slot = NO_SLOT;
	ledger.file = NULL;
	ledger.failed = false;
	ledger.account_count = 0;
	pthread_mutex_init(&ledger.lock, NULL);
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);

	if (fd >= 0) {
		/* Processes of other users of this container keep their books here too. */
		fchmod(fd, 0666);
		return fd;
	}
	if (errno != EEXIST)
		return -1;
	return open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

static bool map_file(const char *path)
{
	uint64_t magic = 0;
	struct stat status;
	void *mapped;
	int fd;

	fd = open_file(path);
	if (fd < 0)
		return false;
	if (file_status(fd, &status) < 0)
		goto fail;
	if (!S_ISREG(status.st_mode)) {
		errno = ENXIO;
		goto fail;
	}
	/* Only ever grown, to one size: an all-zero file is an empty ledger. */
	if ((size_t)status.st_size < sizeof(struct rf_ledger_file) &&
	    ftruncate(fd, sizeof(struct rf_ledger_file)) < 0)
		goto fail;
	mapped = mmap(NULL, sizeof(struct rf_ledger_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		      0);
	if (mapped == MAP_FAILED)
		goto fail;
	ledger.file = mapped;
	if (!__atomic_compare_exchange_n(&ledger.file->header.magic, &magic, RF_LEDGER_MAGIC, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    magic != RF_LEDGER_MAGIC) {
		munmap(mapped, sizeof(struct rf_ledger_file));
		ledger.file = NULL;
		errno = EUCLEAN;
		goto fail;
	}
	ledger.file->header.slots = RF_LEDGER_SLOTS;
	ledger.file->header.gpus = RF_MAX_GPUS;
	ledger.fd = fd;
	ledger.device = status.st_dev;
	ledger.inode = status.st_ino;
	return true;
fail:
	close(fd);
	return false;
}

/* Called with the lock held; everything here happens once per process. */
static bool prepare(void)
{
	if (ledger.slot != NO_SLOT)
		return true;
	if (ledger.failed)
		return false;
	if (!ledger.registered)
		ledger.registered = pthread_atfork(NULL, NULL, after_fork) == 0;
	if (!ledger.file) {
		rf_process_self(&ledger.self);
		if (!map_file(RF_LEDGER_DIR "/" RF_LEDGER_NAME) && ledger.required) {
			rf_log(RF_LOG_ERROR, RF_LOG_LEDGER,
			       "ledger " RF_LEDGER_DIR "/" RF_LEDGER_NAME
			       ": %s; it must be a writable file of the version in its name, so no "
			       "GPU is shown: ask the administrator to look at the mount",
			       strerror(errno));
			ledger.failed = true;
			return false;
		}
	}
	if (!ledger.file && !map_file(RF_LEDGER_FALLBACK)) {
		void *own = mmap(NULL, sizeof(struct rf_ledger_file), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		rf_log(RF_LOG_WARNING, RF_LOG_LEDGER,
		       "ledger " RF_LEDGER_FALLBACK
		       ": %s; each process of this container is held to the limit on its own",
		       strerror(errno));
		if (own == MAP_FAILED) {
			ledger.failed = true;
			return false;
		}
		ledger.file = own;
	}
	return take_slot();
}

static int column_of(uint64_t pci)
{
	uint64_t *keys = ledger.file->header.gpu_keys;
	uint64_t wanted = pci | RF_LEDGER_KEY_USED;

	for (int i = 0; i < RF_MAX_GPUS; i++) {
		uint64_t key = 0;

		if (__atomic_compare_exchange_n(&keys[i], &key, wanted, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST) ||
		    key == wanted)
			return i;
	}
	return NO_SLOT;
}

static struct account *account_of(uint64_t pci)
{
	struct account *account;
	int column;

	for (uint32_t i = 0; i < ledger.account_count; i++)
		if (ledger.accounts[i].pci == pci)
			return &ledger.accounts[i];
	if (ledger.account_count == RF_MAX_GPUS)
		return NULL;
	column = column_of(pci);
	if (column == NO_SLOT)
		return NULL;
	account = &ledger.accounts[ledger.account_count++];
	*account = (struct account){ .pci = pci, .column = column };
	return account;
}

static struct rf_ledger_count *published(const struct account *account)
{
	return &ledger.file->counts[account->column][ledger.slot];
}

/* A store that others must see before the next load is dear, so what has not changed is left. */
static void publish(const struct account *account)
{
	struct rf_ledger_count *count = published(account);

	if (load(&count->pool) != account->own.pool)
		store(&count->pool, account->own.pool);
	if (load(&count->driver) != account->own.driver)
		store(&count->driver, account->own.driver);
}

/* What only this process writes has changed: a tenant can, but not unseen. */
static void check_tampering(const struct account *account)
{
	const struct rf_ledger_count *count = published(account);
	struct rf_ledger_slot *slot = &ledger.file->slots[ledger.slot];

	if (load(&count->pool) == account->own.pool &&
	    load(&count->driver) == account->own.driver && load(&slot->owner) == own_word())
		return;
	__atomic_fetch_add(&ledger.file->header.tampered, 1, __ATOMIC_SEQ_CST);
	store(&slot->owner, own_word());
	rf_log(RF_LOG_ERROR, RF_LOG_TAMPERED,
	       "ledger " RF_LEDGER_DIR "/" RF_LEDGER_NAME
	       ": another process changed this one's entry; put right, and reported to the node");
}

static void check_unlinked(void)
{
	struct stat status;

	if (ledger.fd < 0 || file_status(ledger.fd, &status) < 0 || status.st_nlink)
		return;
	rf_log(RF_LOG_ERROR, RF_LOG_TAMPERED,
	       "ledger " RF_LEDGER_DIR "/" RF_LEDGER_NAME
	       ": was deleted while in use; this process goes on with the deleted one");
}

static uint64_t *book_of(struct account *account, enum rf_book book)
{
	return book == RF_BOOK_POOL ? &account->own.pool : &account->own.driver;
}

static bool fits(const struct account *account, uint64_t before, uint64_t limit)
{
	uint64_t after;

	publish(account);
	if (limit == RF_UNLIMITED)
		return true;
	after = held(&account->own);
	/* Growth of one book below the other takes nothing more. */
	return after <= before || add(after, held_by_others(account->column)) <= limit;
}

static void pause_for(int attempt)
{
	/* Different for each process, so that two that collided do not collide again. */
	long nanoseconds = (20000L << attempt) + (ledger.self.pid * 7919L) % 20000L;
	struct timespec time = { .tv_nsec = nanoseconds };

	nanosleep(&time, NULL);
}

void rf_ledger_configure(bool required)
{
	ledger.required = required;
}

static enum rf_verdict charge_locked(const struct rf_charge *charge, uint64_t *used)
{
	struct account *account;
	uint64_t *book;
	uint64_t before;
	bool granted;

	if (!prepare())
		return RF_NO_LEDGER;
	account = account_of(charge->pci);
	if (!account)
		return RF_NO_LEDGER;
	check_tampering(account);
	book = book_of(account, charge->book);
	before = held(&account->own);
	if (charge->bytes > UINT64_MAX - *book) {
		*used = add(before, held_by_others(account->column));
		return RF_OVER_LIMIT;
	}
	*book += charge->bytes;
	granted = fits(account, before, charge->limit);
	for (int attempt = 0; !granted && attempt < RETRIES; attempt++) {
		/* Alone over the limit: nobody else's going makes room. */
		bool hopeless = held(&account->own) > charge->limit;

		*book -= charge->bytes;
		publish(account);
		if (hopeless)
			goto refused;
		reap();
		/* Another process may have published a count that it is about to take back. */
		if (attempt)
			pause_for(attempt);
		*book += charge->bytes;
		granted = fits(account, before, charge->limit);
	}
	if (granted)
		return RF_GRANTED;
	*book -= charge->bytes;
	publish(account);
refused:
	*used = add(before, held_by_others(account->column));
	__atomic_fetch_add(&ledger.file->slots[ledger.slot].refusals, 1, __ATOMIC_SEQ_CST);
	check_unlinked();
	return RF_OVER_LIMIT;
}

enum rf_verdict rf_ledger_charge(const struct rf_charge *charge, uint64_t *used)
{
	enum rf_verdict verdict;

	*used = 0;
	pthread_mutex_lock(&ledger.lock);
	verdict = charge_locked(charge, used);
	pthread_mutex_unlock(&ledger.lock);
	return verdict;
}

void rf_ledger_give_back(uint64_t pci, enum rf_book book, uint64_t bytes)
{
	struct account *account;

	pthread_mutex_lock(&ledger.lock);
	/* A process without a slot has nothing to give back: its parent had. */
	account = ledger.slot == NO_SLOT ? NULL : account_of(pci);
	if (account) {
		uint64_t *own = book_of(account, book);

		check_tampering(account);
		*own -= bytes < *own ? bytes : *own;
		publish(account);
	}
	pthread_mutex_unlock(&ledger.lock);
}

uint64_t rf_ledger_used(uint64_t pci)
{
	struct account *account;
	uint64_t used = 0;

	pthread_mutex_lock(&ledger.lock);
	if (prepare()) {
		account = account_of(pci);
		if (account) {
			reap();
			check_tampering(account);
			used = add(held(&account->own), held_by_others(account->column));
		}
	}
	pthread_mutex_unlock(&ledger.lock);
	return used;
}

bool rf_ledger_usable(void)
{
	bool usable;

	pthread_mutex_lock(&ledger.lock);
	usable = prepare() || !ledger.required;
	pthread_mutex_unlock(&ledger.lock);
	return usable;
}

void rf_ledger_forget_pools(void)
{
	pthread_mutex_lock(&ledger.lock);
	/* An exit handler can run in a child that shares this memory but not this entry. */
	if (ledger.slot != NO_SLOT && ledger.self.pid == getpid()) {
		for (uint32_t i = 0; i < ledger.account_count; i++) {
			ledger.accounts[i].own.pool = 0;
			publish(&ledger.accounts[i]);
		}
	}
	pthread_mutex_unlock(&ledger.lock);
}
