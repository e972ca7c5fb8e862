/* device.c - open a backend, and memory for it. */
#include "kernels/device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/ref/ref.h"

#define THREADS_MAX 1024
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* From here on an allocation is a mapping of its own, aligned so that huge pages can back it. */
#define MAP_BYTES_MIN (2 * HUGE_PAGE_BYTES)

/* In front of every allocation. */
struct block {
    _Alignas(64) struct block *next;
    struct block *prev;
    void *mapping;    /* NULL: from malloc, freed as a whole */
    size_t map_bytes;
};

struct device {
    const struct ops *ops;
    struct cpu cpu;        /* cpu.pool is NULL on the reference device */
    struct block *blocks;  /* everything handed out */
};

struct cpu *device_cpu(struct device *d)
{
    return &d->cpu;
}

static uint32_t usable_cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

/* The variant asked for, or the best one. NULL with words in `why` if this machine has it not. */
static const struct cpu_variant *find_variant(const char *name, struct buf *why)
{
    uint32_t n;
    const struct cpu_variant *all = cpu_variants(&n);
    char list[64] = "";

    for (uint32_t i = 0; i < n; i++) {
        if (!all[i].supported())
            continue;
        if (!name || strcmp(name, all[i].name) == 0)
            return &all[i];
        if (list[0])
            strncat(list, ", ", sizeof(list) - strlen(list) - 1);
        strncat(list, all[i].name, sizeof(list) - strlen(list) - 1);
    }
    buf_why(why, ERR_UNSUPPORTED, "CPU variant '%s' is not available here; available: %s", name,
            list);
    return NULL;
}

static enum status open_cpu(struct device *d, const struct device_config *config, struct buf *why)
{
    const struct cpu_variant *v = find_variant(config->cpu_variant, why);
    uint32_t n_threads = config->n_threads ? config->n_threads : usable_cores();

    if (!v)
        return ERR_UNSUPPORTED;
    if (n_threads > THREADS_MAX)
        return buf_why(why, ERR_INVALID, "%u threads: at most %d", n_threads, THREADS_MAX);
    d->ops = v->ops;
    if (cpu_init(&d->cpu, config, n_threads) != OK)
        return buf_why(why, ERR_NOMEM, "no memory for %u compute threads and their scratch",
                       n_threads);
    return OK;
}

enum status device_open(struct device **out, const struct device_config *config, struct buf *why)
{
    struct device *d = calloc(1, sizeof(*d));
    enum status s = OK;

    if (!d)
        return buf_why(why, ERR_NOMEM, "no memory for a device");
    if (config->kind == DEVICE_REF)
        d->ops = &ref_ops;
    else
        s = open_cpu(d, config, why);
    if (s != OK) {
        free(d);
        return s;
    }
    *out = d;
    return OK;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    while (d->blocks)
        device_free(d, d->blocks + 1);
    cpu_fini(&d->cpu);
    free(d);
}

const struct ops *device_ops(const struct device *d)
{
    return d->ops;
}

int device_is_host(const struct device *d)
{
    (void)d; /* every backend of this build computes in host memory */
    return 1;
}

uint32_t device_n_threads(const struct device *d)
{
    return d->cpu.pool ? pool_n_threads(d->cpu.pool) : 1;
}

void device_adopt_thread(struct device *d)
{
    if (d->cpu.pool)
        pool_pin_caller(d->cpu.pool);
}

/* A mapping whose memory starts on a huge page, with the header just before it. */
static struct block *map_block(size_t n_bytes)
{
    size_t map_bytes = n_bytes + 2 * HUGE_PAGE_BYTES;
    char *map =
        mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    uintptr_t start = ((uintptr_t)map + sizeof(struct block) + HUGE_PAGE_BYTES - 1) &
                      ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    struct block *b = (struct block *)start - 1;

    (void)madvise((void *)start, n_bytes, MADV_HUGEPAGE); /* only a wish */
    b->mapping = map;
    b->map_bytes = map_bytes;
    return b;
}

void *device_alloc(struct device *d, size_t n_bytes)
{
    struct block *b = NULL;
    void *p;

    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes >= MAP_BYTES_MIN) {
        b = map_block(n_bytes);
    } else if (posix_memalign(&p, 64, sizeof(*b) + n_bytes) == 0) {
        b = p;
        memset(b, 0, sizeof(*b) + n_bytes);
    }
    if (!b)
        return NULL;
    b->prev = NULL;
    b->next = d->blocks;
    if (b->next)
        b->next->prev = b;
    d->blocks = b;
    return b + 1;
}

void device_free(struct device *d, void *p)
{
    if (!p)
        return;
    struct block *b = (struct block *)p - 1;

    if (b->prev)
        b->prev->next = b->next;
    else
        d->blocks = b->next;
    if (b->next)
        b->next->prev = b->prev;
    if (b->mapping)
        munmap(b->mapping, b->map_bytes);
    else
        free(b);
}

enum status device_upload(struct device *d, void *dst, const void *src, size_t n_bytes)
{
    (void)d;
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    return OK;
}

enum status device_download(struct device *d, void *dst, const void *src, size_t n_bytes)
{
    (void)d;
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    return OK;
}

struct parallel_job {
    void (*fn)(void *arg, uint32_t i);
    void *arg;
};

static void parallel_chunk(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct parallel_job *j = arg;

    (void)thread;
    for (uint32_t i = begin; i < end; i++)
        j->fn(j->arg, i);
}

void device_parallel(struct device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg)
{
    struct parallel_job j = {.fn = fn, .arg = arg};

    if (d->cpu.pool)
        pool_run(d->cpu.pool, n, 1, parallel_chunk, &j);
    else
        parallel_chunk(&j, 0, n, 0);
}
