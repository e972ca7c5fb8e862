#include "loadgen/bench/engine/limits.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "loadgen/bench/engine/limits_internal.h"
#include "loadgen/bench/engine/limits_loops.h"
#include "loadgen/bench/engine/median.h"

/* One try: short, so that on a busy machine some tries are left alone. */
#define TRY_NS UINT64_C(5000000)
#define LOOP_SLICE_NS 150000.0
#define PACED_SLICE_NS 50000.0
#define SLICES_MAX 64
/* Slices before a try: wide vectors lower the clock after some microseconds. */
#define WARM_SLICES 6
#define N_TRIES 5
#define N_TRIES_MAX 40
/* Shares of the expected rate: enough to stop trying, and too little to be believed. */
#define SHARE_GOOD 0.97
#define SHARE_VOID 0.90
/* Between 1 and 1/2, and nearer to 1/2 as a lighter load may have a higher clock. */
#define PACED_SHARE 0.70
#define LOOPS_MAX 16

struct limit_meter {
    uint32_t n_threads;
    struct read_meter *read;
    int pace[LOOPS_MAX]; /* of each loop */
};

const char *limits_name(enum limit_kind k)
{
    static const char *const names[LIMIT_COUNT] = {
        [LIMIT_READ] = "read",           [LIMIT_FP32] = "fp32",
        [LIMIT_BF16] = "bf16",           [LIMIT_INT8] = "int8",
        [LIMIT_AMX_BF16] = "amx_bf16",   [LIMIT_AMX_INT8] = "amx_int8",
        [LIMIT_AVX2_FP32] = "avx2_fp32", [LIMIT_AVX2_INT8] = "avx2_int8",
    };
    return names[k];
}

/* --- threads --- */

struct crew {
    pthread_barrier_t start;
    void (*fn)(void *arg, uint32_t i);
    void *arg;
};

struct member {
    struct crew *crew;
    pthread_t thread;
    uint32_t index;
    int core; /* -1: wherever */
};

uint32_t threads_usable_cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* The n-th core of this process; -1: it has fewer. */
static int nth_core(uint32_t n)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set) && n-- == 0)
            return core;
    return -1;
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    cpu_set_t one;

    if (m->core >= 0) {
        CPU_ZERO(&one);
        CPU_SET(m->core, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    pthread_barrier_wait(&m->crew->start);
    m->crew->fn(m->crew->arg, m->index);
    return NULL;
}

enum status threads_run(uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg)
{
    struct crew crew = {.fn = fn, .arg = arg};
    struct member *members = calloc(n, sizeof *members);
    bool spread = n <= threads_usable_cores();

    if (!members)
        return ERR_NOMEM;
    if (pthread_barrier_init(&crew.start, NULL, n) != 0) {
        free(members);
        return ERR_INTERNAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        members[i] = (struct member){.crew = &crew, .index = i, .core = spread ? nth_core(i) : -1};
        /* Threads that wait already cannot be stopped: a missing thread aborts the measurement. */
        ASSERT(pthread_create(&members[i].thread, NULL, run_member, &members[i]) == 0);
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(members[i].thread, NULL);
    pthread_barrier_destroy(&crew.start);
    free(members);
    return OK;
}

/* --- one loop --- */

/* The result of one thread in one try. */
struct sample {
    double ops_per_s;
    double clock_hz; /* 0: the loop has no paced twin */
};

struct
try {
    const struct limit_loop *loop;
    int pace; /* of loop->paces */
    uint32_t n_threads;
    atomic_uint n_ready;
    _Atomic uint64_t begin_ns; /* of all threads; 0: not yet */
    struct sample *samples;    /* [n_threads] */
};

static double time_ns(void (*run)(uint64_t), uint64_t n)
{
    uint64_t t0 = clock_now_ns();

    run(n);
    return (double)(clock_now_ns() - t0);
}

/* Turns of the loop that take about `ns`. */
static uint64_t turns_for(void (*run)(uint64_t), double ns)
{
    uint64_t n = 16;
    double t;

    while ((t = time_ns(run, n)) < ns / 4)
        n *= 2;
    return (uint64_t)((double)n * ns / t) + 1;
}

/* Until all threads are warm; returns when the last of them was. Spinning, as waking up takes a
 * good part of a slice. */
static uint64_t start_together(struct try *t)
{
    uint64_t begin;

    if (atomic_fetch_add(&t->n_ready, 1) + 1 == t->n_threads)
        atomic_store(&t->begin_ns, clock_now_ns());
    while ((begin = atomic_load(&t->begin_ns)) == 0)
        ;
    return begin;
}

/* Slices of the loop and of its paced twin in turns. The rate is over all the loop's time,
 * interruptions included, as is whatever passes between the common start and this thread's first
 * slice: rates of threads that did not run at once must not be added. The clock is the median of
 * the slices, so that interruptions do not touch it. */
static void run_slices(struct try *t, struct sample *out)
{
    const struct limit_loop *loop = t->loop;
    void (*paced)(uint64_t) = loop->paces[t->pace].run;
    double clocks[SLICES_MAX];
    uint64_t n_paced = paced ? turns_for(paced, PACED_SLICE_NS) : 0;
    uint64_t n_turns = 0, slice = turns_for(loop->run, LOOP_SLICE_NS);
    uint32_t n = 0;

    time_ns(loop->run, slice * WARM_SLICES);
    uint64_t begin = start_together(t);
    double loop_ns = (double)(clock_now_ns() - begin);
    do {
        loop_ns += time_ns(loop->run, slice);
        n_turns += slice;
        if (paced)
            clocks[n] = (double)n_paced * loop->paces[t->pace].chain_cycles /
                        (time_ns(paced, n_paced) * 1e-9);
        n++;
    } while (n < SLICES_MAX && clock_now_ns() < begin + TRY_NS);
    out->ops_per_s = (double)n_turns * loop->ops_per_turn / (loop_ns * 1e-9);
    out->clock_hz = paced ? median_of(clocks, n) : 0;
}

static void run_try(void *arg, uint32_t i)
{
    struct try *t = arg;

    if (t->loop->begin)
        t->loop->begin();
    run_slices(t, &t->samples[i]);
    if (t->loop->end)
        t->loop->end();
}

struct figure {
    double rate;      /* all threads' */
    double clock_hz;  /* mean of the cores; 0: unknown */
    double per_cycle; /* operations of one core, mean; 0: unknown */
};

static enum status try_once(const struct limit_loop *loop, int pace, uint32_t n_threads,
                            struct figure *out)
{
    struct sample *samples = calloc(n_threads, sizeof *samples);
    struct try t = {.loop = loop, .pace = pace, .n_threads = n_threads, .samples = samples};

    if (!samples)
        return ERR_NOMEM;
    enum status s = threads_run(n_threads, run_try, &t);
    *out = (struct figure){0};
    for (uint32_t i = 0; s == OK && i < n_threads; i++) {
        out->rate += samples[i].ops_per_s;
        out->clock_hz += samples[i].clock_hz / n_threads;
        if (samples[i].clock_hz > 0)
            out->per_cycle += samples[i].ops_per_s / samples[i].clock_hz / n_threads;
    }
    free(samples);
    return s;
}

static double expected_of(const struct limit_loop *loop, int pace)
{
    uint32_t cycles = loop->paces[pace].turn_cycles;

    return cycles ? (double)loop->ops_per_turn / cycles : 0;
}

/* The best of N_TRIES tries; more tries while the best is below SHARE_GOOD of the expected rate. */
static enum status measure_loop(const struct limit_loop *loop, int pace, uint32_t n_threads,
                                struct figure *best)
{
    double good = SHARE_GOOD * expected_of(loop, pace);
    enum status s = OK;
    struct figure one;

    *best = (struct figure){0};
    for (int i = 0; s == OK && i < N_TRIES_MAX; i++) {
        if (i >= N_TRIES && best->per_cycle >= good)
            break;
        s = try_once(loop, pace, n_threads, &one);
        if (s == OK && one.rate > best->rate)
            *best = one;
    }
    return s;
}

/* Find the pace that fits, from one core alone: the slowest chain certainly sets the pace and shows
 * about the clock; a faster chain that does not set the pace seems to show half of it or less. */
static enum status find_pace(const struct limit_loop *loop, int *out)
{
    double clock_hz[LIMITS_N_PACES] = {0};
    struct figure one;
    enum status s = OK;

    for (int i = 0; s == OK && i < N_TRIES * LIMITS_N_PACES; i++) {
        int pace = i % LIMITS_N_PACES;
        s = try_once(loop, pace, 1, &one);
        if (s == OK && one.clock_hz > clock_hz[pace])
            clock_hz[pace] = one.clock_hz;
    }
    *out = 0;
    while (*out < LIMITS_N_PACES - 1 && clock_hz[*out] < PACED_SHARE * clock_hz[LIMITS_N_PACES - 1])
        (*out)++;
    return s;
}

static enum status find_paces(struct limit_meter *m)
{
    uint32_t n;
    const struct limit_loop *loops = limits_loops(&n);
    enum status s = OK;

    ASSERT(n <= ARRAY_SIZE(m->pace));
    for (uint32_t i = 0; s == OK && i < n; i++)
        if (loops[i].supported() && loops[i].paces[0].run)
            s = find_pace(&loops[i], &m->pace[i]);
    return s;
}

/* --- all of them --- */

enum status limits_create(struct limit_meter **out, uint32_t n_threads, struct buf *why)
{
    struct limit_meter *m = calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return buf_why(why, ERR_NOMEM, "out of memory");
    m->n_threads = n_threads ? n_threads : threads_usable_cores();
    enum status s = read_create(&m->read, m->n_threads, why);
    if (s == OK)
        s = find_paces(m);
    if (s != OK) {
        limits_destroy(m);
        return s;
    }
    *out = m;
    return OK;
}

void limits_destroy(struct limit_meter *m)
{
    if (!m)
        return;
    read_destroy(m->read);
    free(m);
}

static void check_loop(struct limits *out, enum limit_kind k)
{
    if (out->is_void || out->per_cycle[k] >= SHARE_VOID * out->expected[k])
        return;
    out->is_void = true;
    snprintf(out->void_why, sizeof out->void_why,
             "%s reached %.1f of %.0f operations per cycle and core: others use the cores, or two "
             "threads share one",
             limits_name(k), out->per_cycle[k], out->expected[k]);
}

static void check_read(struct limits *out, const struct read_figure *read)
{
    if (read->cpu_share >= READ_CPU_SHARE_MIN)
        return;
    out->is_void = true;
    snprintf(out->void_why, sizeof out->void_why,
             "the threads that read memory had %.0f %% of their cores: others use them",
             read->cpu_share * 100);
}

enum status limits_measure(struct limit_meter *m, struct limits *out)
{
    uint32_t n, n_clocks = 0;
    const struct limit_loop *loops = limits_loops(&n);
    struct read_figure read;
    struct figure f;

    *out = (struct limits){.n_threads = m->n_threads};
    enum status s = read_measure(m->read, &read);
    out->rate[LIMIT_READ] = read.bytes_per_s;
    check_read(out, &read);
    for (uint32_t i = 0; s == OK && i < n; i++) {
        enum limit_kind k = loops[i].kind;
        if (!loops[i].supported() || out->rate[k] > 0)
            continue;
        s = measure_loop(&loops[i], m->pace[i], m->n_threads, &f);
        if (s != OK)
            break;
        out->rate[k] = f.rate;
        out->per_cycle[k] = f.per_cycle;
        out->expected[k] = expected_of(&loops[i], m->pace[i]);
        out->clock_hz += f.clock_hz;
        n_clocks += f.clock_hz > 0;
        check_loop(out, k);
    }
    out->clock_hz = n_clocks ? out->clock_hz / n_clocks : 0;
    return s;
}

/* The median of a field that lies `offset` bytes into each of n structs. */
static double median_at(const struct limits *all, uint32_t n, size_t offset)
{
    double values[1000];

    ASSERT(n >= 1 && n <= ARRAY_SIZE(values));
    for (uint32_t i = 0; i < n; i++)
        memcpy(&values[i], (const char *)&all[i] + offset, sizeof values[i]);
    return median_of(values, n);
}

void limits_median(const struct limits *all, uint32_t n, struct limits *out)
{
    uint32_t n_void = 0;

    *out = all[n - 1];
    out->is_void = false;
    for (int k = 0; k < LIMIT_COUNT; k++) {
        out->rate[k] = median_at(all, n, offsetof(struct limits, rate) + k * sizeof(double));
        out->per_cycle[k] =
            median_at(all, n, offsetof(struct limits, per_cycle) + k * sizeof(double));
    }
    out->clock_hz = median_at(all, n, offsetof(struct limits, clock_hz));
    for (uint32_t i = 0; i < n; i++)
        if (all[i].is_void) {
            n_void++;
            memcpy(out->void_why, all[i].void_why, sizeof out->void_why);
        }
    out->is_void = 2 * n_void > n;
}
