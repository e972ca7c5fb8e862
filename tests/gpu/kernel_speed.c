/* kernel_speed.c - how fast each CUDA kernel is beside its floors, as a table and as CSV.
 *
 *   tarn-gpu-speed [--invariant] [FILE.csv]
 *
 * The floor of an op is the larger of its bytes over the copy rate and its operations over the rate
 * of the largest product, both measured first; `share` is the floor over the time. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "kernels/pack.h"
#include "tests/gpu/speed.h"

#define N_ROUNDS 5
#define N_ARRAYS_MAX 256

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

void speed_open(struct speed *s, bool batch_invariant, const char *csv_file)
{
    bool emulated = getenv("TARN_GPU_TEST") == NULL;
    struct device_config config = {.kind = DEVICE_CUDA, .n_threads = 1, .max_k = 14336,
                                   .max_heads = 32, .max_head_dim = 128,
                                   .batch_invariant = batch_invariant};
    struct buf why;

    *s = (struct speed){.round_s = emulated ? 0 : 0.02, .scale = emulated ? 64 : 1};
    config.max_rows = 8192 / s->scale;
    config.max_k /= s->scale;
    buf_init(&why, BUF_WHY_MAX);
    if (device_open(&s->d, &config, &why) != OK)
        die("no device", why.data ? why.data : "out of memory");
    buf_fini(&why);
    s->ops = device_ops(s->d);
    if (csv_file && !(s->csv = fopen(csv_file, "w")))
        die(csv_file, "cannot be written");
    if (s->csv)
        fprintf(s->csv, "ops,op,shape,us,bytes,operations,GB_per_s,TFLOP_per_s,bound,share\n");
}

void speed_close(struct speed *s)
{
    speed_clear(s);
    if (s->csv && fclose(s->csv) != 0)
        die("the CSV file", "cannot be written");
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

/* One random megabyte, repeated: zeros would be faster than real data. */
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

/* Seconds per op of n of them in a row. */
static double round_of(struct speed *s, const struct speed_case *c, uint32_t n)
{
    uint64_t t0 = clock_now_ns();

    for (uint32_t i = 0; i < n; i++)
        check(s, c->run(s, c->arg, i), c->op);
    check(s, device_stream_wait(s->d, NULL), c->op);
    return (double)(clock_now_ns() - t0) * 1e-9 / n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double speed_time(struct speed *s, const struct speed_case *c)
{
    double rounds[N_ROUNDS], time, floor = 0;
    uint32_t n = 1;

    (void)round_of(s, c, 2); /* plans, pages, clocks */
    while ((time = round_of(s, c, n)) * n < s->round_s && n < 1u << 14)
        n *= 2;
    for (int i = 0; i < N_ROUNDS; i++)
        rounds[i] = round_of(s, c, n);
    qsort(rounds, N_ROUNDS, sizeof *rounds, by_value);
    time = rounds[N_ROUNDS / 2];

    bool by_bytes = true;
    if (s->copy_rate > 0 && s->matrix_rate > 0) {
        by_bytes = c->bytes / s->copy_rate >= c->ops / s->matrix_rate;
        floor = by_bytes ? c->bytes / s->copy_rate : c->ops / s->matrix_rate;
    }
    printf("%-10s %-34s %10.2f us %8.0f GB/s %8.1f TFLOP/s  %s %3.0f %%\n", c->op, c->shape,
           time * 1e6, c->bytes / time * 1e-9, c->ops / time * 1e-12,
           by_bytes ? "bytes" : "ops  ", 100 * floor / time);
    fflush(stdout);
    if (s->csv)
        fprintf(s->csv, "%s,%s,%s,%.3f,%.0f,%.0f,%.2f,%.3f,%s,%.4f\n", s->ops->name, c->op,
                c->shape, time * 1e6, c->bytes, c->ops, c->bytes / time * 1e-9,
                c->ops / time * 1e-12, by_bytes ? "bytes" : "operations", floor / time);
    return time;
}

int main(int argc, char **argv)
{
    bool invariant = argc > 1 && strcmp(argv[1], "--invariant") == 0;
    struct speed s;

    speed_open(&s, invariant, argc > 1 + invariant ? argv[1 + invariant] : NULL);
    speed_ceilings(&s);
    speed_small_ops(&s);
    speed_products(&s);
    speed_attention(&s);
    speed_copies(&s);
    speed_sampling(&s);
    speed_close(&s);
    return 0;
}
