/* memory.cc - device and pinned memory, with checked bounds of each allocation.
 *
 * Device memory is accessible only while its device works. At other times, and while another
 * device works, an access faults (or AddressSanitizer reports it), as on a real machine without
 * access from peer to peer. New memory holds 0xff: NaN floats, huge indices. Without
 * AddressSanitizer all pages are closed, and the first access of a device that works opens the
 * allocation by a fault: to open all of them for each piece of work took longer than the work.
 *
 * Memory that is shared with other processes (CUDA IPC) becomes a file without a name at the same
 * address when its handle is asked for. Other processes open the file in /proc while the owner
 * runs; what they have mapped stays when the owner ends, as on a GPU. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

/* Larger allocations are filled at both ends only. */
#define FILL_BYTES_MAX ((size_t)1 << 20)
#define SIGNAL_STACK_BYTES ((size_t)64 << 10)
/* From this size on device memory has whole pages, so that it can be shared. */
#define SHARED_BYTES_MIN ((size_t)64 << 10)
#define HANDLE_MAGIC UINT64_C(0x54524E454D554950)

static std::map<const char *, allocation> allocations;
static size_t n_device_bytes[DEVICES_MAX];
static int n_open;
static int open_device = PINNED_MEMORY; /* whose memory can be accessed; PINNED_MEMORY: no one's */

static bool protects(void)
{
    static bool yes = env_number("TARN_EMULATION_PROTECT", 1) != 0;

    return yes;
}

static size_t capacity(void)
{
    static size_t n = (size_t)env_number("TARN_EMULATION_MEMORY_MB", 1024) << 20;

    return n;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static bool has_pages(const allocation *a)
{
    return a->device != PINNED_MEMORY && a->n_bytes >= SHARED_BYTES_MIN;
}

/* Red zones after the exact length. */
#if EMULATION_ASAN
static bool map_pages(allocation *a)
{
    size_t page = page_bytes();

    a->map_bytes = (a->n_bytes + page) / page * page; /* at least a byte more */
    a->mapping = mmap(nullptr, a->map_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED)
        return false;
    a->base = static_cast<char *>(a->mapping);
    __asan_poison_memory_region(a->base + a->n_bytes, a->map_bytes - a->n_bytes);
    return true;
}

static bool map_memory(allocation *a)
{
    if (has_pages(a))
        return map_pages(a);
    a->map_bytes = a->n_bytes;
    if (posix_memalign(&a->mapping, 256, a->n_bytes) != 0)
        return false;
    a->base = static_cast<char *>(a->mapping);
    return true;
}

static void unmap_memory(const allocation *a)
{
    if (has_pages(a)) {
        __asan_unpoison_memory_region(a->mapping, a->map_bytes);
        munmap(a->mapping, a->map_bytes);
        return;
    }
    __asan_unpoison_memory_region(a->base, a->n_bytes);
    free(a->mapping);
}

static void set_access(allocation *a, bool open)
{
    a->is_open = open;
    if (open)
        __asan_unpoison_memory_region(a->base, a->n_bytes);
    else
        __asan_poison_memory_region(a->base, a->n_bytes);
}
#else
/* Map memory whose end is at a page that faults. */
static bool map_memory(allocation *a)
{
    size_t page = page_bytes(), rounded = (a->n_bytes + 255) / 256 * 256;

    a->map_bytes = (rounded + page - 1) / page * page;
    a->mapping = mmap(nullptr, a->map_bytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED)
        return false;
    char *end = static_cast<char *>(a->mapping) + a->map_bytes;
    mprotect(end, page, PROT_NONE);
    a->base = end - rounded;
    return true;
}

static void unmap_memory(const allocation *a)
{
    munmap(a->mapping, a->map_bytes + page_bytes());
}

static void set_access(allocation *a, bool open)
{
    mprotect(a->mapping, a->map_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    a->is_open = open;
}
#endif

/* The bytes between the requested length and the end of the mapping. */
static size_t slack_bytes(const allocation *a)
{
    return EMULATION_ASAN ? 0 : (size_t)(static_cast<char *>(a->mapping) + a->map_bytes - a->base) -
                                    a->n_bytes;
}

void *memory_alloc(size_t n_bytes, int device)
{
    allocation a = {};

    a.n_bytes = n_bytes;
    a.device = device;
    a.fd = -1;
    a.is_open = true;

    if (device != PINNED_MEMORY && n_device_bytes[device] + n_bytes > capacity())
        return nullptr;
    if (!map_memory(&a))
        return nullptr;
    size_t n_filled = n_bytes < FILL_BYTES_MAX ? n_bytes : FILL_BYTES_MAX;
    memset(a.base, 0xff, n_filled);
    memset(a.base + n_bytes - n_filled, 0xff, n_filled);
    memset(a.base + n_bytes, 0xfd, slack_bytes(&a));
    if (device != PINNED_MEMORY) {
        n_device_bytes[device] += n_bytes;
        if (protects() && device != open_device)
            set_access(&a, false);
    }
    allocations[a.base] = a;
    return a.base;
}

bool memory_free(void *p, bool on_device)
{
    auto at = allocations.find(static_cast<char *>(p));

    if (at == allocations.end() || (at->second.device != PINNED_MEMORY) != on_device ||
        at->second.is_borrowed)
        return false;
    allocation a = at->second;
    set_access(&a, true);
    for (size_t i = 0; i < slack_bytes(&a); i++)
        if (static_cast<unsigned char>(a.base[a.n_bytes + i]) != 0xfd)
            emulation_die("%zu bytes at %p: byte %zu behind their end was written", a.n_bytes, p,
                          i);
    unmap_memory(&a);
    if (a.fd >= 0)
        close(a.fd);
    if (on_device)
        n_device_bytes[a.device] -= a.n_bytes;
    allocations.erase(at);
    return true;
}

const allocation *memory_find(const void *p, size_t n_bytes)
{
    const char *at = static_cast<const char *>(p);
    auto next = allocations.upper_bound(at);

    if (next == allocations.begin())
        return nullptr;
    const allocation *a = &std::prev(next)->second;
    return at + n_bytes <= a->base + a->n_bytes ? a : nullptr;
}

void memory_info(int device, size_t *n_free, size_t *n_total)
{
    *n_total = capacity();
    *n_free = capacity() - n_device_bytes[device];
}

bool memory_take(int device, size_t n_bytes)
{
    if (n_device_bytes[device] + n_bytes > capacity())
        return false;
    n_device_bytes[device] += n_bytes;
    return true;
}

void memory_give(int device, size_t n_bytes)
{
    n_device_bytes[device] -= n_bytes;
}

/* Fill with zeros without touching each page: the kernel supplies zero pages at the first
 * access. */
void memory_set(void *p, int byte, size_t n_bytes)
{
    const allocation *a = memory_find(p, n_bytes);
    size_t page = page_bytes();
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    uintptr_t first = (at + page - 1) / page * page, last = (at + n_bytes) / page * page;

    if (byte != 0 || first + FILL_BYTES_MAX > last || (a && a->fd >= 0)) {
        memset(p, byte, n_bytes);
        return;
    }
    memset(p, 0, first - at);
    memset(reinterpret_cast<void *>(last), 0, at + n_bytes - last);
    if (madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED) != 0)
        memset(reinterpret_cast<void *>(first), 0, last - first);
}

/* --- memory of several processes --- */

struct handle {
    uint64_t magic;
    int64_t process;
    int64_t fd;
    uint64_t file; /* its number: the owner may have another file under fd by now */
    uint64_t map_bytes, at, n_bytes;
};
static_assert(sizeof(struct handle) <= CUDA_IPC_HANDLE_SIZE, "a handle");

/* Copy all pages that are not zeros into the file. */
static bool fill_file(int fd, const allocation *a)
{
    static const char zeros[4096] = {};
    const char *from = static_cast<const char *>(a->mapping);

    for (size_t at = 0; at < a->map_bytes; at += sizeof zeros)
        if (memcmp(from + at, zeros, sizeof zeros) != 0 &&
            pwrite(fd, from + at, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros)
            return false;
    return true;
}

/* Put a file into the place of the memory. */
static bool make_file(allocation *a)
{
    int fd = memfd_create("emulated GPU memory", MFD_CLOEXEC);
    struct stat st;
    bool done;

    if (fd < 0)
        return false;
#if EMULATION_ASAN
    __asan_unpoison_memory_region(a->mapping, a->map_bytes);
#else
    set_access(a, true);
#endif
    done = ftruncate(fd, (off_t)a->map_bytes) == 0 && fstat(fd, &st) == 0 && fill_file(fd, a) &&
           mmap(a->mapping, a->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
               MAP_FAILED;
#if EMULATION_ASAN
    __asan_poison_memory_region(a->base + a->n_bytes, a->map_bytes - a->n_bytes);
#endif
    if (protects() && a->device != open_device)
        set_access(a, false);
    if (!done) {
        close(fd);
        return false;
    }
    a->fd = fd;
    a->file = st.st_ino;
    return true;
}

cudaError_t memory_export(void *p, cudaIpcMemHandle_t *handle)
{
    auto found = allocations.find(static_cast<char *>(p));
    struct handle h = {};

    if (found == allocations.end() || found->second.is_borrowed || !has_pages(&found->second))
        return cudaErrorInvalidValue;
    allocation *a = &found->second;
    if (a->fd < 0 && !make_file(a))
        return cudaErrorMemoryAllocation;
    h.magic = HANDLE_MAGIC;
    h.process = getpid();
    h.fd = a->fd;
    h.file = a->file;
    h.map_bytes = a->map_bytes;
    h.at = (uint64_t)(a->base - static_cast<char *>(a->mapping));
    h.n_bytes = a->n_bytes;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &h, sizeof h);
    return cudaSuccess;
}

/* Open the owner's file. */
static int open_file(const struct handle *h)
{
    char path[64];
    struct stat st;

    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)h->process, (long long)h->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_ino != h->file ||
                    (uint64_t)st.st_size != h->map_bytes)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* A page that faults lies behind the memory. */
static bool map_file(allocation *a, int fd, const struct handle *h)
{
    size_t page = page_bytes();

    a->map_bytes = h->map_bytes;
    a->mapping = mmap(nullptr, a->map_bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->mapping == MAP_FAILED)
        return false;
    if (mmap(a->mapping, a->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
        MAP_FAILED) {
        munmap(a->mapping, a->map_bytes + page);
        return false;
    }
    a->base = static_cast<char *>(a->mapping) + h->at;
    return true;
}

/* The same handle once more. */
static bool import_again(void **out, const struct handle *h)
{
    for (auto &entry : allocations)
        if (entry.second.is_borrowed && entry.second.file == h->file) {
            entry.second.n_opens++;
            *out = entry.second.base;
            return true;
        }
    return false;
}

cudaError_t memory_import(void **out, const cudaIpcMemHandle_t *handle)
{
    struct handle h;
    allocation a = {};

    memcpy(&h, handle, sizeof h);
    if (h.magic != HANDLE_MAGIC || h.at + h.n_bytes > h.map_bytes)
        return cudaErrorInvalidResourceHandle;
    if (h.process == getpid())
        return cudaErrorDeviceUninitialized; /* as the real runtime */
    if (import_again(out, &h))
        return cudaSuccess;
    a.n_bytes = h.n_bytes;
    a.device = device_current();
    a.is_borrowed = true;
    a.is_open = true;
    a.n_opens = 1;
    a.fd = -1;
    a.file = h.file;
    int fd = open_file(&h);
    bool done = fd >= 0 && map_file(&a, fd, &h);
    if (fd >= 0)
        close(fd);
    if (!done)
        return cudaErrorMapBufferObjectFailed;
    if (protects() && a.device != open_device)
        set_access(&a, false);
    allocations[a.base] = a;
    *out = a.base;
    return cudaSuccess;
}

bool memory_return(void *p)
{
    auto at = allocations.find(static_cast<char *>(p));

    if (at == allocations.end() || !at->second.is_borrowed)
        return false;
    if (--at->second.n_opens > 0)
        return true;
    const allocation a = at->second;
#if EMULATION_ASAN
    __asan_unpoison_memory_region(a.mapping, a.map_bytes);
#endif
    munmap(a.mapping, a.map_bytes + page_bytes());
    allocations.erase(at);
    return true;
}

static void close_all(int device)
{
    if (!protects() || device == PINNED_MEMORY)
        return;
    for (auto &entry : allocations)
        if (entry.second.device == device && entry.second.is_open)
            set_access(&entry.second, false);
}

#if !EMULATION_ASAN
static struct sigaction outer_segv, outer_bus;
static pthread_t worker; /* the thread that runs the device's work */

static void open_all(int device)
{
    (void)device; /* a fault opens what is touched */
}

/* Open the closed memory that the worker touches on the device that works; false: it may not. */
static bool open_touched(const char *at)
{
    auto next = allocations.upper_bound(at);

    if (!protects() || open_device == PINNED_MEMORY || !pthread_equal(worker, pthread_self()) ||
        next == allocations.begin())
        return false;
    allocation *a = &std::prev(next)->second;
    if (a->device != open_device || a->is_open ||
        at >= static_cast<char *>(a->mapping) + a->map_bytes)
        return false;
    set_access(a, true);
    return true;
}

/* Open memory, or report a kernel's access out of bounds, before a test framework's handler leaves
 * the stack. */
static void fault(int signal_number, siginfo_t *info, void *context)
{
    const char *at = static_cast<const char *>(info->si_addr);
    auto next = allocations.upper_bound(at);

    (void)context;
    if (open_touched(at))
        return;
    sigaction(SIGSEGV, &outer_segv, nullptr);
    if (next != allocations.begin()) {
        const allocation &a = std::prev(next)->second;
        if (at < a.base + a.n_bytes)
            fprintf(stderr, "CUDA emulation: device %d touched memory of device %d\n", open_device,
                    a.device);
        else
            fprintf(stderr, "CUDA emulation: %td bytes after the end of %zu bytes at %p\n",
                    at - (a.base + a.n_bytes), a.n_bytes, static_cast<void *>(a.base));
    }
    emulation_die("signal %d: a kernel or copy touched %p", signal_number, info->si_addr);
}

static void catch_faults(void)
{
    static bool has_stack;
    struct sigaction mine = {};
    stack_t stack = {};

    if (!has_stack) { /* the handler needs a stack of its own if a fiber's stack overflows */
        stack.ss_sp = malloc(SIGNAL_STACK_BYTES);
        stack.ss_size = SIGNAL_STACK_BYTES;
        sigaltstack(&stack, nullptr);
        has_stack = true;
    }
    mine.sa_sigaction = fault;
    mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &mine, &outer_segv);
    sigaction(SIGBUS, &mine, &outer_bus);
}

static void catch_faults_no_more(void)
{
    sigaction(SIGSEGV, &outer_segv, nullptr);
    sigaction(SIGBUS, &outer_bus, nullptr);
}
#else /* AddressSanitizer's own report is better */
static void open_all(int device)
{
    if (!protects() || device == PINNED_MEMORY)
        return;
    for (auto &entry : allocations)
        if (entry.second.device == device)
            set_access(&entry.second, true);
}

static void catch_faults(void)
{
}

static void catch_faults_no_more(void)
{
}
#endif

void memory_open(void)
{
    if (n_open++ > 0)
        return;
    catch_faults();
}

void memory_use(int device)
{
#if !EMULATION_ASAN
    worker = pthread_self();
#endif
    if (device == open_device)
        return;
    close_all(open_device);
    open_all(device);
    open_device = device;
}

void memory_close(void)
{
    if (--n_open > 0)
        return;
    memory_use(PINNED_MEMORY);
    catch_faults_no_more();
}
