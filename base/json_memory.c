#include "base/json_memory.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#define GAP_BYTES ((size_t)8) /* between two blocks, so that ASan finds reads past a block */
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#define GAP_BYTES ((size_t)0)
#endif

#define ALIGN_BYTES ((size_t)8) /* jansson stores nothing wider than a double or a pointer */
#define GRANULE_BITS 16
#define GRANULE_BYTES ((size_t)1 << GRANULE_BITS)
#define CHUNK_BYTES_MAX ((size_t)1 << 20)
/* A block of this size or more has a mapping of its own, which is unmapped when the block is freed:
 * buffers and arrays grow by copying, and their old copies must not accumulate. */
#define LARGE_BYTES (GRANULE_BYTES / 2)
#define N_SPARE_MAX 16

/* Whole granules from mmap(). */
struct region {
    struct region *next, *prev; /* list of the arena; next: also list of spares */
    struct arena *arena;
    unsigned char *bytes;
    size_t n_bytes;
    bool is_large; /* one large block; else a chunk of small blocks */
};

struct arena {
    struct region first; /* the chunk that holds this struct */
    struct region *others;
    atomic_size_t n_live;      /* live blocks, plus one while json_memory_run() runs */
    size_t n_bytes, max_bytes; /* sum over all regions */
    unsigned char *at, *end;   /* unused rest of the newest chunk */
    size_t chunk_bytes;        /* size of the next chunk */
};

/* --- table: granule to region --- */

#define ADDRESS_BITS 48
#define LEAF_BITS 15
#define LEAF_MASK (((size_t)1 << LEAF_BITS) - 1)
#define N_LEAVES ((size_t)1 << (ADDRESS_BITS - GRANULE_BITS - LEAF_BITS))

struct leaf {
    struct region *_Atomic regions[(size_t)1 << LEAF_BITS];
};

/* Each leaf covers 2 GiB of addresses: 256 KiB of zeros of which only written pages exist. Leaves
 * are made on demand and kept. */
static struct leaf *_Atomic leaves[N_LEAVES];

static struct region *find_region(const void *p)
{
    uint64_t granule = (uint64_t)(uintptr_t)p >> GRANULE_BITS;

    if (granule >> LEAF_BITS >= N_LEAVES)
        return NULL;
    struct leaf *leaf = atomic_load_explicit(&leaves[granule >> LEAF_BITS], memory_order_acquire);
    if (!leaf)
        return NULL;
    /* Relaxed is enough: whatever synchronization passed the block to this thread also ordered the
     * entry of its region before. */
    return atomic_load_explicit(&leaf->regions[granule & LEAF_MASK], memory_order_relaxed);
}

static void *map_pages(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* NULL: out of memory. */
static struct leaf *make_leaf(size_t i)
{
    struct leaf *leaf = atomic_load_explicit(&leaves[i], memory_order_acquire);

    if (leaf)
        return leaf;
    struct leaf *made = map_pages(sizeof *made);
    if (made && !atomic_compare_exchange_strong(&leaves[i], &leaf, made))
        munmap(made, sizeof *made); /* another thread was faster; `leaf` is now that thread's */
    else
        leaf = made;
    return leaf;
}

/* Enter `as` for all granules of r. False: out of memory, and none is entered. */
static bool enter_region(const struct region *r, struct region *as)
{
    uint64_t first = (uint64_t)(uintptr_t)r->bytes >> GRANULE_BITS;
    uint64_t last = first + r->n_bytes / GRANULE_BYTES - 1;

    if (last >> LEAF_BITS >= N_LEAVES)
        return false;
    for (uint64_t i = first >> LEAF_BITS; i <= last >> LEAF_BITS; i++)
        if (!make_leaf(i))
            return false;
    for (uint64_t g = first; g <= last; g++)
        atomic_store_explicit(&make_leaf(g >> LEAF_BITS)->regions[g & LEAF_MASK], as,
                              memory_order_relaxed);
    return true;
}

/* --- regions --- */

/* Map n bytes of whole granules, aligned to granules. mmap() aligns to pages only, so one granule
 * more is mapped and the ends are cut off. */
static unsigned char *map_granules(size_t n)
{
    unsigned char *p = map_pages(n + GRANULE_BYTES);

    if (!p)
        return NULL;
    size_t before = (size_t)(-(uintptr_t)p & (GRANULE_BYTES - 1));
    if (before > 0)
        munmap(p, before);
    munmap(p + before + n, GRANULE_BYTES - before);
    return p + before;
}

static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct region *spares; /* first chunks of one granule each, still in the table; protected by
                                 spare_lock */
static unsigned n_spares;

static struct arena *take_spare(void)
{
    pthread_mutex_lock(&spare_lock);
    struct region *r = spares;
    if (r) {
        spares = r->next;
        n_spares--;
    }
    pthread_mutex_unlock(&spare_lock);
    return r ? r->arena : NULL;
}

static bool keep_spare(struct region *r)
{
    bool keep;

    pthread_mutex_lock(&spare_lock);
    keep = r->n_bytes == GRANULE_BYTES && n_spares < N_SPARE_MAX;
    if (keep) {
        r->next = spares;
        spares = r;
        n_spares++;
    }
    pthread_mutex_unlock(&spare_lock);
    return keep;
}

static void unmap_region(const struct region *r)
{
    unsigned char *bytes = r->bytes; /* r may lie in its own region */
    size_t n = r->n_bytes;

    (void)enter_region(r, NULL);
    UNPOISON(bytes, n);
    munmap(bytes, n);
}

/* --- an arena --- */

static void use_chunk(struct arena *a, unsigned char *from, unsigned char *end)
{
    a->at = from;
    a->end = end;
    POISON(from, (size_t)(end - from));
}

/* NULL: out of memory. */
static struct arena *arena_make(size_t max_bytes)
{
    struct arena *a = take_spare();

    if (!a) {
        unsigned char *bytes = map_granules(GRANULE_BYTES);
        if (!bytes)
            return NULL;
        a = (struct arena *)(void *)bytes;
        a->first = (struct region){.arena = a, .bytes = bytes, .n_bytes = GRANULE_BYTES};
        if (!enter_region(&a->first, &a->first)) {
            munmap(bytes, GRANULE_BYTES);
            return NULL;
        }
    }
    a->others = NULL;
    atomic_init(&a->n_live, 1);
    a->n_bytes = a->first.n_bytes;
    a->max_bytes = max_bytes;
    a->chunk_bytes = 2 * GRANULE_BYTES;
    use_chunk(a, (unsigned char *)(a + 1), a->first.bytes + a->first.n_bytes);
    return a;
}

static void arena_drop(struct arena *a)
{
    while (a->others) {
        struct region *r = a->others, *next = r->next;
        /* The list is newest first, and a large block's struct lies in a chunk older than the
         * block's region. So the struct is still mapped when its region is unmapped. */
        unmap_region(r);
        a->others = next;
    }
    POISON(a + 1, GRANULE_BYTES - sizeof *a);
    if (!keep_spare(&a->first))
        unmap_region(&a->first);
}

/* Acquire and release: the last thread unmaps what others have freed. */
static void unref(struct arena *a)
{
    size_t n = atomic_fetch_sub_explicit(&a->n_live, 1, memory_order_acq_rel);

    ASSERT(n > 0);
    if (n == 1)
        arena_drop(a);
}

static void link_region(struct arena *a, struct region *r)
{
    r->prev = NULL;
    r->next = a->others;
    if (a->others)
        a->others->prev = r;
    a->others = r;
    a->n_bytes += r->n_bytes;
}

/* Held to unlink a large block of any arena: two threads may free blocks of one arena. */
static pthread_mutex_t large_lock = PTHREAD_MUTEX_INITIALIZER;

static void unlink_region(struct arena *a, struct region *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        a->others = r->next;
    if (r->next)
        r->next->prev = r->prev;
    a->n_bytes -= r->n_bytes;
}

/* --- blocks --- */

/* The parse that the calling thread is running. */
struct run {
    struct arena *arena;
    enum status status;
    jmp_buf failed;
};

static _Thread_local struct run *running;

__attribute__((noreturn)) static void fail(enum status s)
{
    running->status = s;
    longjmp(running->failed, 1);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

/* Map n bytes of whole granules, charged to the arena. */
static unsigned char *map_for(const struct arena *a, size_t n)
{
    if (n > a->max_bytes || a->n_bytes > a->max_bytes - n)
        fail(ERR_TOO_LARGE);
    unsigned char *bytes = map_granules(n);
    if (!bytes)
        fail(ERR_NOMEM);
    return bytes;
}

static void enter_or_fail(struct arena *a, struct region *r)
{
    if (enter_region(r, r)) {
        link_region(a, r);
        return;
    }
    munmap(r->bytes, r->n_bytes);
    fail(ERR_NOMEM);
}

/* Start a new chunk. The rest of the previous one stays unused. */
static void add_chunk(struct arena *a)
{
    size_t n = a->chunk_bytes;

    if (a->n_bytes + n > a->max_bytes)
        n = GRANULE_BYTES; /* near the maximum the last chunks are small */
    struct region head = {.arena = a, .n_bytes = n};
    head.bytes = map_for(a, n);
    struct region *r = (struct region *)(void *)head.bytes;
    *r = head;
    enter_or_fail(a, r);
    use_chunk(a, (unsigned char *)(r + 1), r->bytes + n);
    if (a->chunk_bytes < CHUNK_BYTES_MAX)
        a->chunk_bytes *= 2;
}

static void *alloc_small(struct arena *a, size_t n)
{
    size_t stride = round_up(n + GAP_BYTES, ALIGN_BYTES);

    if ((size_t)(a->end - a->at) < stride)
        add_chunk(a);
    void *p = a->at;
    a->at += stride;
    UNPOISON(p, n);
    return p;
}

static void *alloc_large(struct arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        fail(ERR_TOO_LARGE);
    struct region *r = alloc_small(a, sizeof *r);
    *r = (struct region){.arena = a, .n_bytes = round_up(n, GRANULE_BYTES), .is_large = true};
    r->bytes = map_for(a, r->n_bytes);
    enter_or_fail(a, r);
    return r->bytes;
}

void *json_memory_alloc(size_t n)
{
    struct arena *a = running->arena;
    void *p = n < LARGE_BYTES ? alloc_small(a, n) : alloc_large(a, n);

    atomic_fetch_add_explicit(&a->n_live, 1, memory_order_relaxed);
    return p;
}

bool json_memory_free(void *p)
{
    struct region *r = find_region(p);

    if (!r)
        return false;
    struct arena *a = r->arena;
    if (r->is_large) {
        pthread_mutex_lock(&large_lock);
        unlink_region(a, r);
        pthread_mutex_unlock(&large_lock);
        unmap_region(r);
    }
    unref(a);
    return true;
}

bool json_memory_is_running(void)
{
    return running != NULL;
}

/* Call build(arg). False: build() returned false, or an allocation failed. `run` belongs to the
 * caller, because after longjmp() the local variables of the function that called setjmp() are
 * indeterminate. */
static bool try_build(struct run *run, bool (*build)(void *arg), void *arg)
{
    return setjmp(run->failed) == 0 && build(arg);
}

enum status json_memory_run(size_t max_bytes, bool (*build)(void *arg), void *arg)
{
    struct run run = {.arena = arena_make(max_bytes), .status = OK};

    ASSERT(!running);
    if (!run.arena)
        return ERR_NOMEM;
    running = &run;
    bool keep = try_build(&run, build, arg);
    running = NULL;
    if (keep)
        unref(run.arena);
    else
        arena_drop(run.arena);
    return run.status;
}
