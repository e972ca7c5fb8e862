/* memory.cc - device and pinned memory, with checked bounds of each allocation.
 *
 * Device memory is accessible only while its device works. At other times, and while another
 * device works, an access faults (or AddressSanitizer reports it), as on a real machine without
 * access from peer to peer. New memory holds
 * 0xff: NaN floats, huge indices. */
#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

/* Larger allocations are filled at both ends only. */
#define FILL_BYTES_MAX ((size_t)1 << 20)
#define SIGNAL_STACK_BYTES ((size_t)64 << 10)

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

/* Red zones after the exact length. */
#if EMULATION_ASAN
static bool map_memory(allocation *a)
{
    a->map_bytes = a->n_bytes;
    if (posix_memalign(&a->mapping, 256, a->n_bytes) != 0)
        return false;
    a->base = static_cast<char *>(a->mapping);
    return true;
}

static void unmap_memory(const allocation *a)
{
    __asan_unpoison_memory_region(a->base, a->n_bytes);
    free(a->mapping);
}

static void set_access(const allocation *a, bool open)
{
    if (open)
        __asan_unpoison_memory_region(a->base, a->n_bytes);
    else
        __asan_poison_memory_region(a->base, a->n_bytes);
}
#else
/* Map memory whose end is at a page that faults. */
static bool map_memory(allocation *a)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = (a->n_bytes + 255) / 256 * 256;

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
    munmap(a->mapping, a->map_bytes + (size_t)sysconf(_SC_PAGESIZE));
}

static void set_access(const allocation *a, bool open)
{
    mprotect(a->mapping, a->map_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
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
    allocation a = {nullptr, n_bytes, device, nullptr, 0};

    if (device != PINNED_MEMORY && n_device_bytes[device] + n_bytes > capacity())
        return nullptr;
    if (!map_memory(&a))
        return nullptr;
    size_t n_filled = n_bytes < FILL_BYTES_MAX ? n_bytes : FILL_BYTES_MAX;
    memset(a.base, 0xff, n_filled);
    memset(a.base + n_bytes - n_filled, 0xff, n_filled);
    memset(a.base + n_bytes, 0xfd, slack_bytes(&a));
    allocations[a.base] = a;
    if (device != PINNED_MEMORY) {
        n_device_bytes[device] += n_bytes;
        if (protects() && device != open_device)
            set_access(&a, false);
    }
    return a.base;
}

bool memory_free(void *p, bool on_device)
{
    auto at = allocations.find(static_cast<char *>(p));

    if (at == allocations.end() || (at->second.device != PINNED_MEMORY) != on_device)
        return false;
    const allocation a = at->second;
    set_access(&a, true);
    for (size_t i = 0; i < slack_bytes(&a); i++)
        if (static_cast<unsigned char>(a.base[a.n_bytes + i]) != 0xfd)
            emulation_die("%zu bytes at %p: byte %zu behind their end was written", a.n_bytes, p,
                          i);
    unmap_memory(&a);
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

/* Fill with zeros without touching each page: the kernel supplies zero pages at the first
 * access. */
void memory_set(void *p, int byte, size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    uintptr_t first = (at + page - 1) / page * page, last = (at + n_bytes) / page * page;

    if (byte != 0 || first + FILL_BYTES_MAX > last) {
        memset(p, byte, n_bytes);
        return;
    }
    memset(p, 0, first - at);
    memset(reinterpret_cast<void *>(last), 0, at + n_bytes - last);
    if (madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED) != 0)
        memset(reinterpret_cast<void *>(first), 0, last - first);
}

static void set_all(int device, bool open)
{
    if (!protects() || device == PINNED_MEMORY)
        return;
    for (const auto &entry : allocations)
        if (entry.second.device == device)
            set_access(&entry.second, open);
}

#if !EMULATION_ASAN
static struct sigaction outer_segv, outer_bus;

/* Report a kernel's access out of bounds, before a test framework's handler leaves the stack. */
static void fault(int signal_number, siginfo_t *info, void *context)
{
    const char *at = static_cast<const char *>(info->si_addr);
    auto next = allocations.upper_bound(at);

    (void)context;
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
    if (device == open_device)
        return;
    set_all(open_device, false);
    set_all(device, true);
    open_device = device;
}

void memory_close(void)
{
    if (--n_open > 0)
        return;
    memory_use(PINNED_MEMORY);
    catch_faults_no_more();
}
