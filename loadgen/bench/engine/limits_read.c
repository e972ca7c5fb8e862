/* limits_read.c - how fast N threads read memory.
 *
 * Each thread walks a buffer of its own, on huge pages where the system gives them, in a few
 * streams at once; all buffers together are many times the last-level cache, so that almost no byte
 * of the pass before is still in it. How many streams and which prefetch is best differs between
 * machines: tried out once. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "loadgen/bench/engine/limits_internal.h"
#include "loadgen/bench/engine/memory.h"

#define CACHE_MULTIPLE 8
#define CACHE_BYTES_UNKNOWN ((uint64_t)64 << 20)
#define TOTAL_BYTES_MAX ((uint64_t)4 << 30)
#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)
#define STREAMS_MAX 8
#define LINE_BYTES 64
#define N_PASSES 8
/* Of N_PASSES each, while the threads do not have their cores to themselves. */
#define N_ATTEMPTS 4

typedef uint64_t line __attribute__((vector_size(LINE_BYTES), aligned(LINE_BYTES)));

/* Read `n_bytes` from each of n_streams places, n_bytes apart; `ahead` 0: no prefetch. */
#define READ_BODY(n_streams)                                                                       \
    line sum[2] = {{0}, {0}};                                                                      \
                                                                                                   \
    for (uint64_t at = 0; at < n_bytes; at += 2 * LINE_BYTES)                                      \
        for (int s = 0; s < (n_streams); s++) {                                                    \
            const unsigned char *p = base + (uint64_t)s * n_bytes + at;                            \
            if (ahead) {                                                                           \
                __builtin_prefetch(p + ahead);                                                     \
                __builtin_prefetch(p + ahead + LINE_BYTES);                                        \
            }                                                                                      \
            sum[0] ^= *(const line *)(const void *)p;                                              \
            sum[1] ^= *(const line *)(const void *)(p + LINE_BYTES);                               \
        }                                                                                          \
    return sum[0][0] ^ sum[1][3]
#define READ_FUNCTION(name, n_streams)                                                             \
    static uint64_t name##_##n_streams(const unsigned char *base, uint64_t n_bytes,                \
                                       uint64_t ahead)                                             \
    {                                                                                              \
        READ_BODY(n_streams);                                                                      \
    }
#define READ_FUNCTIONS(name, attribute)                                                            \
    attribute READ_FUNCTION(name, 1) attribute READ_FUNCTION(name, 2) attribute READ_FUNCTION(     \
        name, 4) attribute                                                                         \
    READ_FUNCTION(name, 8)

#define UNROLLED __attribute__((optimize("O3", "unroll-loops")))
READ_FUNCTIONS(read_plain, UNROLLED)
#if defined(__x86_64__)
READ_FUNCTIONS(read_avx2, UNROLLED __attribute__((target("avx2"))))
READ_FUNCTIONS(read_avx512, UNROLLED __attribute__((target("avx512f"))))
#endif

typedef uint64_t read_fn(const unsigned char *base, uint64_t n_bytes, uint64_t ahead);

static read_fn *const widths[3][4] = {
    {read_plain_1, read_plain_2, read_plain_4, read_plain_8},
#if defined(__x86_64__)
    {read_avx2_1, read_avx2_2, read_avx2_4, read_avx2_8},
    {read_avx512_1, read_avx512_2, read_avx512_4, read_avx512_8},
#endif
};

static const struct pattern {
    uint32_t n_streams;
    uint32_t fn;    /* column of `widths` */
    uint32_t ahead; /* bytes */
} patterns[] = {{1, 0, 0}, {1, 0, 2048}, {2, 1, 0}, {2, 1, 2048},
                {4, 2, 0}, {4, 2, 2048}, {8, 3, 0}, {8, 3, 1024}};

struct read_meter {
    uint32_t n_threads;
    uint32_t width;          /* row of `widths` */
    uint64_t n_bytes;        /* of each thread */
    unsigned char **buffers; /* [n_threads] */
    struct {
        _Alignas(64) uint64_t begin_ns, end_ns, cpu_ns, sum;
    } * out;  /* [n_threads] */
    int best; /* of `patterns`; -1: not known yet */
    const struct pattern *now;
};

static uint32_t widest(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return 2;
    if (__builtin_cpu_supports("avx2"))
        return 1;
#endif
    return 0;
}

static uint64_t bytes_per_thread(uint32_t n_threads)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t total = CACHE_MULTIPLE * (cache > 0 ? (uint64_t)cache : CACHE_BYTES_UNKNOWN);
    uint64_t most = memory_available() / 4;

    if (most > TOTAL_BYTES_MAX)
        most = TOTAL_BYTES_MAX;
    total = total < most ? total : most;
    return (total / n_threads / HUGE_PAGE_BYTES + 1) * HUGE_PAGE_BYTES;
}

/* On the thread that will read it, so that the pages lie near its core. */
static void touch_buffer(void *arg, uint32_t i)
{
    struct read_meter *m = arg;

    memset(m->buffers[i], 1, m->n_bytes);
}

/* One mapping longer than it must be, so that the buffer can start on a huge page. */
static unsigned char *map_buffer(uint64_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, n_bytes, MADV_HUGEPAGE);
    return p;
}

enum status read_create(struct read_meter **out, uint32_t n_threads, struct buf *why)
{
    struct read_meter *m = calloc(1, sizeof *m);
    enum status s = ERR_NOMEM;

    *out = NULL;
    if (!m)
        return buf_why(why, ERR_NOMEM, "out of memory");
    m->n_threads = n_threads;
    m->width = widest();
    m->n_bytes = bytes_per_thread(n_threads);
    m->best = -1;
    m->buffers = calloc(n_threads, sizeof *m->buffers);
    m->out = aligned_alloc(64, n_threads * sizeof *m->out);
    if (!m->buffers || !m->out)
        goto done;
    for (uint32_t i = 0; i < n_threads; i++)
        if (!(m->buffers[i] = map_buffer(m->n_bytes)))
            goto done;
    s = threads_run(n_threads, touch_buffer, m);
done:
    if (s != OK) {
        read_destroy(m);
        return buf_why(why, s, "no memory or threads to measure the read bandwidth");
    }
    *out = m;
    return OK;
}

void read_destroy(struct read_meter *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->buffers && i < m->n_threads; i++)
        if (m->buffers[i])
            munmap(m->buffers[i], m->n_bytes);
    free(m->buffers);
    free(m->out);
    free(m);
}

/* CPU time of this thread. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void read_buffer(void *arg, uint32_t i)
{
    struct read_meter *m = arg;
    uint64_t n = m->n_bytes / m->now->n_streams, cpu0 = cpu_ns(), t0 = clock_now_ns();

    /* The last prefetches are beyond the end of the buffer: they neither fault nor fetch. */
    m->out[i].sum = widths[m->width][m->now->fn](m->buffers[i], n, m->now->ahead);
    m->out[i].begin_ns = t0;
    m->out[i].end_ns = clock_now_ns();
    m->out[i].cpu_ns = cpu_ns() - cpu0;
}

/* All threads' bytes over the time from the first one's start to the last one's end. */
static enum status read_once(struct read_meter *m, const struct pattern *pattern,
                             struct read_figure *out)
{
    uint64_t begin = UINT64_MAX, end = 0, cpu = 0;

    m->now = pattern;
    enum status s = threads_run(m->n_threads, read_buffer, m);
    if (s != OK)
        return s;
    for (uint32_t i = 0; i < m->n_threads; i++) {
        begin = m->out[i].begin_ns < begin ? m->out[i].begin_ns : begin;
        end = m->out[i].end_ns > end ? m->out[i].end_ns : end;
        cpu += m->out[i].cpu_ns;
    }
    out->bytes_per_s = (double)(m->n_bytes * m->n_threads) / ((double)(end - begin) * 1e-9);
    out->cpu_share = (double)cpu / ((double)(end - begin) * m->n_threads);
    return OK;
}

static enum status read_best(struct read_meter *m, const struct pattern *pattern, int n_passes,
                             struct read_figure *best)
{
    enum status s = OK;
    struct read_figure one;

    *best = (struct read_figure){0, 0};
    for (int i = 0; s == OK && i < n_passes; i++) {
        s = read_once(m, pattern, &one);
        if (s == OK && one.bytes_per_s > best->bytes_per_s)
            *best = one;
    }
    return s;
}

static enum status find_pattern(struct read_meter *m)
{
    enum status s = OK;
    struct read_figure one;
    double best = 0;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(patterns); i++) {
        s = read_best(m, &patterns[i], N_PASSES / 4, &one);
        if (s == OK && one.bytes_per_s > best) {
            best = one.bytes_per_s;
            m->best = (int)i;
        }
    }
    return s;
}

enum status read_measure(struct read_meter *m, struct read_figure *out)
{
    enum status s = m->best < 0 ? find_pattern(m) : OK;

    *out = (struct read_figure){0, 0};
    for (int i = 0; s == OK && i < N_ATTEMPTS && out->cpu_share < READ_CPU_SHARE_MIN; i++) {
        struct read_figure one;
        s = read_best(m, &patterns[m->best], N_PASSES, &one);
        if (s == OK && one.bytes_per_s > out->bytes_per_s)
            *out = one;
    }
    return s;
}
