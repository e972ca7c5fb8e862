/* kernel_speed.c - measures each CUDA kernel against its floor; prints a table and CSV.
 *
 *   tarn-gpu-speed [--ceilings | --decisive] [--invariant] [--max-seconds N] [FILE.csv]
 *
 *   --ceilings       the rates of the largest product and of copies, on the device and over the bus
 *   --decisive       the few cases that matter most, and the ceilings, instead of all
 *   --invariant      products as under --batch-invariant; the ceilings still are cuBLASLt's
 *   --max-seconds N  begin no case after N seconds
 *
 * The floor of an op is the larger of two times: its bytes divided by the copy rate, and its
 * operations divided by the rate of the largest product. Both rates are measured first. `share` is
 * the floor divided by the measured time. Each row is flushed when it is measured. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "kernels/pack.h"
#include "tests/gpu/speed.h"
#include "tests/gpu/timer.h"

#define N_ROUNDS 5
#define N_ARRAYS_MAX 256
/* Ops enqueued while the stream is blocked. A stream's queue has room for about a thousand
 * launches, and an op has up to four. */
#define N_BEHIND_HOLD_MAX 200
#define HOLD_NS_MIN UINT64_C(200000)
#define HOLD_NS_MAX UINT64_C(20000000)

static void *arrays[N_ARRAYS_MAX];
static uint32_t n_arrays;

static void die(const char *what, const char *words)
{
    fprintf(stderr, "tarn-gpu-speed: %s: %s\n", what, words);
    exit(1);
}

static void check(struct speed *s, enum status status, const char *what)
{
    const char *failure = device_failure(s->d);

    if (status != OK)
        die(what, failure ? failure : status_name(status));
}

void speed_open(struct speed *s, bool batch_invariant)
{
    bool emulated = getenv("TARN_GPU_TEST") == NULL;
    struct device_config config = {.kind = DEVICE_CUDA,
                                   .n_threads = 1,
                                   .max_k = 14336,
                                   .max_heads = 32,
                                   .max_head_dim = 128,
                                   .weights = DTYPE_I4, /* whose products may run on wgmma */
                                   .weights_group = 32,
                                   .kv = DTYPE_BF16, /* and its attention */
                                   .measure = true,
                                   .wgmma = !s->without_wgmma,
                                   .batch_invariant = batch_invariant};
    struct buf why;

    s->round_s = emulated ? 0 : 0.01;
    s->scale = emulated ? 64 : 1;
    config.max_rows = 8192 / s->scale;
    config.max_k /= s->scale;
    buf_init(&why, BUF_WHY_MAX);
    if (device_open(&s->d, &config, &why) != OK)
        die("no device", why.data ? why.data : "out of memory");
    buf_fini(&why);
    s->ops = device_ops(s->d);
    s->timer = gpu_timer_create(device_stream(s->d, DEVICE_COMPUTE));
    if (!s->timer)
        die("the timer", "no memory or no events");
}

void speed_close(struct speed *s)
{
    speed_clear(s);
    gpu_timer_destroy(s->timer);
    device_close(s->d);
}

void *speed_array(struct speed *s, const void *host, size_t n_bytes)
{
    void *p = n_arrays < N_ARRAYS_MAX ? device_alloc(s->d, n_bytes) : NULL;

    if (!p)
        die("array", "out of device memory");
    arrays[n_arrays++] = p;
    if (host)
        check(s, device_upload(s->d, p, host, n_bytes), "upload");
    return p;
}

void speed_clear(struct speed *s)
{
    while (n_arrays > 0)
        device_free(s->d, arrays[--n_arrays]);
}

/* An array of one random megabyte, repeated. Zeros would be computed faster than real data. */
static void *filled(struct speed *s, enum dtype t, size_t n)
{
    enum { N = 1 << 18 };
    size_t n_bytes = n * dtype_bytes(t), piece = N * dtype_bytes(t);
    unsigned char *p = speed_array(s, NULL, n_bytes), *host = malloc(piece);
    uint32_t x = 1;

    if (!host)
        die("array", "out of memory");
    for (size_t i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        dtype_store(t, host, i, (float)(int32_t)x * 0x1p-32f);
    }
    for (size_t at = 0; at < n_bytes; at += piece)
        check(s, device_upload(s->d, p + at, host, n_bytes - at < piece ? n_bytes - at : piece),
              "upload");
    free(host);
    return p;
}

void *speed_floats(struct speed *s, size_t n)
{
    return filled(s, DTYPE_F32, n);
}

void *speed_halves(struct speed *s, size_t n)
{
    return filled(s, DTYPE_BF16, n);
}

struct round {
    double gpu_s, host_s; /* per op */
};

/* Measure n ops behind a hold of *hold_ns. The hold grows until the host has enqueued all ops
 * before the GPU begins, or until it is so long that launches no longer matter. */
static struct round round_of(struct speed *s, const struct speed_case *c, uint32_t n,
                             uint64_t *hold_ns)
{
    for (;;) {
        gpu_timer_hold(s->timer, *hold_ns);
        gpu_timer_begin(s->timer);
        uint64_t t0 = clock_now_ns();
        for (uint32_t i = 0; i < n; i++)
            check(s, c->run(s, c->arg, i), c->op);
        double host_s = (double)(clock_now_ns() - t0) * 1e-9 / n;
        bool early = gpu_timer_begun_early(s->timer);
        gpu_timer_end(s->timer);
        double gpu_s = gpu_timer_seconds(s->timer);
        check(s, device_stream_wait(s->d, NULL), c->op);
        if (gpu_s < 0)
            die(c->op, "the GPU's clock gave no time");
        if (!early || *hold_ns >= HOLD_NS_MAX || s->round_s == 0)
            return (struct round){gpu_s / n, host_s};
        *hold_ns *= 2;
    }
}

static int by_gpu_time(const void *a, const void *b)
{
    const struct round *x = a, *y = b;

    return x->gpu_s < y->gpu_s ? -1 : x->gpu_s > y->gpu_s;
}

bool speed_is_late(struct speed *s)
{
    bool late = s->deadline_ns && clock_now_ns() > s->deadline_ns;

    s->n_left_out += late;
    return late;
}

static void write_row(struct speed *s, const struct speed_case *c, struct round r)
{
    double by_bytes = s->copy_rate > 0 ? c->bytes / s->copy_rate : 0;
    double by_ops = s->matrix_rate > 0 ? c->ops / s->matrix_rate : 0;
    double floor = by_bytes >= by_ops ? by_bytes : by_ops;
    const char *bound = by_bytes >= by_ops ? "bytes" : "operations";

    printf("%-10s %-34s %10.2f us %8.0f GB/s %8.1f TFLOP/s  %-10s %3.0f %%  host %.2f us\n", c->op,
           c->shape, r.gpu_s * 1e6, c->bytes / r.gpu_s * 1e-9, c->ops / r.gpu_s * 1e-12, bound,
           100 * floor / r.gpu_s, r.host_s * 1e6);
    fflush(stdout);
    if (!s->csv)
        return;
    fprintf(s->csv, "%s,%s,%s,%.3f,%.3f,%.0f,%.0f,%.2f,%.3f,%s,%.3f,%.4f\n", s->ops->name, c->op,
            c->shape, r.gpu_s * 1e6, r.host_s * 1e6, c->bytes, c->ops, c->bytes / r.gpu_s * 1e-9,
            c->ops / r.gpu_s * 1e-12, bound, floor * 1e6, floor / r.gpu_s);
    if (fflush(s->csv) != 0)
        die("the CSV file", "cannot be written");
}

double speed_time(struct speed *s, const struct speed_case *c)
{
    struct round rounds[N_ROUNDS];
    uint64_t hold_ns = HOLD_NS_MIN;
    uint32_t n = 1;

    if (s->round_s == 0) { /* emulated: one round, as times have no meaning */
        rounds[0] = round_of(s, c, 1, &hold_ns);
        write_row(s, c, rounds[0]);
        return rounds[0].gpu_s;
    }
    (void)round_of(s, c, 2, &hold_ns); /* warm up: cuBLASLt's plans, pages, clocks */
    while (round_of(s, c, n, &hold_ns).gpu_s * n < s->round_s && n < N_BEHIND_HOLD_MAX)
        n = 2 * n < N_BEHIND_HOLD_MAX ? 2 * n : N_BEHIND_HOLD_MAX;
    for (int i = 0; i < N_ROUNDS; i++)
        rounds[i] = round_of(s, c, n, &hold_ns);
    qsort(rounds, N_ROUNDS, sizeof *rounds, by_gpu_time);
    write_row(s, c, rounds[N_ROUNDS / 2]);
    return rounds[N_ROUNDS / 2].gpu_s;
}

struct arguments {
    bool ceilings, decisive, invariant;
    uint32_t max_seconds;
    const char *csv_file;
};

static struct arguments read_arguments(int argc, char **argv)
{
    struct arguments a = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--ceilings") == 0)
            a.ceilings = true;
        else if (strcmp(argv[i], "--decisive") == 0)
            a.decisive = true;
        else if (strcmp(argv[i], "--invariant") == 0)
            a.invariant = true;
        else if (strcmp(argv[i], "--max-seconds") == 0 && i + 1 < argc)
            a.max_seconds = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (argv[i][0] != '-' && !a.csv_file)
            a.csv_file = argv[i];
        else
            die(argv[i], "unknown; see the top of tests/gpu/kernel_speed.c");
    }
    return a;
}

static void open_csv(struct speed *s, const char *file)
{
    s->csv = fopen(file, "w");
    if (!s->csv)
        die(file, "cannot be written");
    fprintf(s->csv, "ops,op,shape,us,host_us,bytes,operations,GB_per_s,TFLOP_per_s,bound,"
                    "floor_us,share\n");
}

static void time_all(struct speed *s)
{
    speed_small_ops(s);
    speed_products(s);
    speed_attention(s);
    speed_copies(s);
    speed_sampling(s);
}

static void time_decisive(struct speed *s, bool batch_invariant)
{
    speed_decisive(s);
    speed_close(s);
    s->without_wgmma = true;
    speed_open(s, batch_invariant);
    speed_attention_beside(s);
}

int main(int argc, char **argv)
{
    struct arguments a = read_arguments(argc, argv);
    struct speed s = {0};

    if (a.max_seconds)
        s.deadline_ns = clock_now_ns() + a.max_seconds * UINT64_C(1000000000);
    if (a.csv_file)
        open_csv(&s, a.csv_file);
    speed_open(&s, false);
    speed_ceilings(&s);
    if (a.invariant) { /* the ceilings come from cuBLASLt, not from the kernels to measure */
        speed_close(&s);
        speed_open(&s, true);
    }
    if (a.ceilings)
        speed_copies(&s);
    else if (a.decisive)
        time_decisive(&s, a.invariant);
    else if (a.invariant)
        speed_products(&s);
    else
        time_all(&s);
    speed_close(&s);
    if (s.n_left_out)
        printf("%u cases were left out: --max-seconds %u\n", s.n_left_out, a.max_seconds);
    if (s.csv && fclose(s.csv) != 0)
        die("the CSV file", "cannot be written");
    return 0;
}
