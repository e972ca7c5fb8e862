/* gemm_choice.cu - whether products of many rows run on Hopper's own matrix instructions
 * (gemm_wgmma.cu): decided once, when the device opens.
 *
 * Both kernels multiply the same random weights of the model's type and compare their results. The
 * new one is used if they agree within rounding and it is faster by CHOICE_MARGIN, so that noise
 * does not change the choice: bits of products, and so stored KV, belong to it (ops.cu has its
 * name). For the same reason the choice of an earlier start is kept in a file (measure_dir), and
 * only the results are compared then. Whatever cannot be tried leaves the other kernel in use. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/save_file.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/pack.h"

#define CHOICE_MARGIN 1.25f
#define TIMED_RUNS 3
/* Most elements of K of the trial. */
#define TRIAL_K 2048
/* Largest difference of two results, in parts of the largest result. */
#define TRIAL_TOLERANCE 5e-5f
#define THREADS 256
#define BLOCKS 1024

struct trial {
    struct gemm_params p;
    void *weights;
    uint16_t *rows;
    float *out[2];     /* by mma.sync, by wgmma */
    uint32_t *largest; /* bits of the largest difference and of the largest result */
    cudaEvent_t begin, end;
    float ms[2], difference;
};

/* Random words, each cut to the bits of `all` and with the bits of `one`. */
static __global__ void __launch_bounds__(THREADS)
fill_kernel(uint32_t *to, size_t n, uint32_t all, uint32_t one)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u;

        h = (h ^ h >> 16) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        to[i] = ((h ^ h >> 16) & all) | one;
    }
}

/* Bits of floats that are not negative are ordered as they are, with NaN at the end. */
static __global__ void __launch_bounds__(THREADS)
compare_kernel(const float *a, const float *b, size_t n, uint32_t largest[2])
{
    uint32_t difference = 0, result = 0;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        difference = max(difference, __float_as_uint(fabsf(a[i] - b[i])));
        result = max(result, __float_as_uint(fabsf(a[i])));
    }
    atomicMax(&largest[0], difference);
    atomicMax(&largest[1], result);
}

static enum status fill(struct cuda_context *c, void *to, size_t n_bytes, uint32_t all,
                        uint32_t one)
{
    LAUNCH(fill_kernel, BLOCKS, THREADS, 0, c->streams[DEVICE_COMPUTE],
           static_cast<uint32_t *>(to), n_bytes / sizeof(uint32_t), all, one);
    return cuda_launched(c, "fill");
}

static enum status allocate(struct cuda_context *c, void *out, size_t n_bytes)
{
    return cuda_check(c, cudaMalloc(static_cast<void **>(out), n_bytes), "cudaMalloc");
}

/* Elements and scales of about 1 / 128, without NaN. */
static enum status fill_weights(struct cuda_context *c, const struct weight *w, unsigned char *at)
{
    struct pack_range ranges[2];

    (void)pack_row_ranges(w, 0, w->n, ranges);
    enum status s = fill(c, at, ranges[0].n_bytes, w->dtype == DTYPE_F8 ? 0xbfbfbfbf : ~0u, 0);
    if (s != OK)
        return s;
    at += ranges[1].offset;
    if (w->dtype == DTYPE_F8)
        return fill(c, at, ranges[1].n_bytes, 0x007fffff, 0x3c000000);
    if (dtype_is_affine(w->dtype))
        return fill(c, at, ranges[1].n_bytes, 0x03ff03ff, 0x20002000);
    return fill(c, at, ranges[1].n_bytes, 0x007f007f, 0x3c003c00);
}

/* As many outputs as give each multiprocessor a tile. */
static enum status prepare(struct cuda_context *c, struct trial *t)
{
    struct gemm_params *p = &t->p;
    uint32_t k = c->config.max_k < TRIAL_K ? c->config.max_k : TRIAL_K;

    p->w.dtype = c->config.weights;
    p->w.layout = WEIGHT_ROWS;
    p->w.group = c->config.weights_group;
    p->w.n = WGMMA_ROWS * (uint32_t)c->n_sms;
    p->w.k = p->w.stride = pack_row_stride(k);
    p->n_rows = WGMMA_ROWS;
    p->out_stride = p->w.n;
    size_t n_out = (size_t)p->n_rows * p->w.n, n_row_bytes = (size_t)p->n_rows * p->w.stride * 2;

    enum status s = allocate(c, &t->weights, pack_weight_bytes(&p->w));
    p->w.data = t->weights;
    for (int i = 0; i < 2 && s == OK; i++)
        s = allocate(c, &t->out[i], n_out * sizeof(float));
    if (s == OK)
        s = allocate(c, &t->rows, n_row_bytes);
    if (s == OK)
        s = allocate(c, &t->largest, 2 * sizeof(*t->largest));
    if (s == OK)
        s = cuda_check(c, cudaEventCreate(&t->begin), "cudaEventCreate");
    if (s == OK)
        s = cuda_check(c, cudaEventCreate(&t->end), "cudaEventCreate");
    if (s == OK)
        s = fill_weights(c, &p->w, static_cast<unsigned char *>(t->weights));
    p->rounded = t->rows;
    return s == OK ? fill(c, t->rows, n_row_bytes, 0x807f807f, 0x3f003f00) : s;
}

static enum status multiply(struct cuda_context *c, struct trial *t, int with_wgmma)
{
    t->p.out = t->out[with_wgmma];
    c->has_wgmma = with_wgmma;
    enum status s = gemm_ours(c, c->streams[DEVICE_COMPUTE], &t->p);
    c->has_wgmma = false;
    return s;
}

/* Compute with both kernels, and compare. */
static enum status compare(struct cuda_context *c, struct trial *t, bool *agree)
{
    cudaStream_t stream = c->streams[DEVICE_COMPUTE];
    uint32_t bits[2] = {};
    float largest[2];
    enum status s = multiply(c, t, 0);

    if (s == OK)
        s = multiply(c, t, 1);
    if (s == OK)
        s = fill(c, t->largest, sizeof(bits), 0, 0);
    if (s != OK)
        return s;
    LAUNCH(compare_kernel, BLOCKS, THREADS, 0, stream, t->out[0], t->out[1],
           (size_t)t->p.n_rows * t->p.w.n, t->largest);
    s = cuda_launched(c, "compare");
    if (s == OK)
        s = cuda_check(c, cudaMemcpyAsync(bits, t->largest, sizeof(bits), cudaMemcpyDeviceToHost,
                                          stream), "cudaMemcpyAsync");
    if (s == OK)
        s = cuda_check(c, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    memcpy(largest, bits, sizeof(largest));
    t->difference = largest[0] / largest[1];
    *agree = t->difference <= TRIAL_TOLERANCE; /* not NaN */
    return s;
}

/* The least time of several runs of each kernel, in turns. */
static enum status time_both(struct cuda_context *c, struct trial *t)
{
    cudaStream_t stream = c->streams[DEVICE_COMPUTE];
    enum status s = OK;

    for (int i = 0; i < 2 * TIMED_RUNS && s == OK; i++) {
        float ms = 0, *best = &t->ms[i % 2];

        s = cuda_check(c, cudaEventRecord(t->begin, stream), "cudaEventRecord");
        if (s == OK)
            s = multiply(c, t, i % 2);
        if (s == OK)
            s = cuda_check(c, cudaEventRecord(t->end, stream), "cudaEventRecord");
        if (s == OK)
            s = cuda_check(c, cudaEventSynchronize(t->end), "cudaEventSynchronize");
        if (s == OK)
            s = cuda_check(c, cudaEventElapsedTime(&ms, t->begin, t->end),
                           "cudaEventElapsedTime");
        *best = i < 2 || ms < *best ? ms : *best;
    }
    return s;
}

/* Free everything; the first failure is returned. */
static enum status give_back(struct cuda_context *c, const struct trial *t)
{
    void *const memory[] = {t->weights, t->rows, t->out[0], t->out[1], t->largest};
    const cudaEvent_t events[] = {t->begin, t->end};
    enum status s = OK;

    for (void *p : memory) {
        enum status one = p ? cuda_check(c, cudaFree(p), "cudaFree") : OK;

        s = s == OK ? one : s;
    }
    for (cudaEvent_t e : events) {
        enum status one = e ? cuda_check(c, cudaEventDestroy(e), "cudaEventDestroy") : OK;

        s = s == OK ? one : s;
    }
    return s;
}

/* --- the file of an earlier start --- */

/* The file of this kind of GPU and these weights: a server on another one must not take the place
 * of its choice. */
static bool write_path(char path[PATH_MAX], const struct device_config *g, const char *gpu)
{
    char name[64];
    size_t i = 0;

    for (; gpu[i] && i + 1 < sizeof(name); i++)
        name[i] = isalnum((unsigned char)gpu[i]) ? gpu[i] : '-';
    name[i] = '\0';
    int n = snprintf(path, PATH_MAX, "%s/matrix-%u-%u-%s.txt", g->measure_dir,
                     (unsigned)g->weights, g->weights_group, name);

    return n > 0 && n < PATH_MAX;
}

/* The whole text of a file with this choice, and its path. ERR_UNSUPPORTED: none is kept. */
static enum status write_choice(const struct cuda_context *c, bool chosen, char path[PATH_MAX],
                                struct buf *text)
{
    const struct device_config *g = &c->config;
    cudaDeviceProp prop;

    if (!g->measure_dir || cudaGetDeviceProperties(&prop, (int)g->ordinal) != cudaSuccess ||
        !write_path(path, g, prop.name))
        return ERR_UNSUPPORTED;
    buf_reset(text);
    return buf_printf(text, "tarn matrix instructions 1, %s, weights %u of groups of %u: %s\n",
                      prop.name, (unsigned)g->weights, g->weights_group,
                      chosen ? "wgmma" : "mma.sync");
}

/* Whether the file has one of the two choices, which *chosen then becomes. */
static bool load_choice(const struct cuda_context *c, bool *chosen)
{
    char path[PATH_MAX], kept[512];
    struct buf text;
    bool found = false;

    buf_init(&text, sizeof kept);
    for (int i = 0; i < 2 && !found; i++) {
        if (write_choice(c, i == 1, path, &text) != OK)
            break;
        FILE *f = fopen(path, "r");
        size_t len = f ? fread(kept, 1, sizeof kept, f) : 0;

        if (f)
            fclose(f);
        found = len == text.len && len > 0 && memcmp(kept, text.data, len) == 0;
        *chosen = i == 1;
    }
    buf_fini(&text);
    return found;
}

static void save_choice(const struct cuda_context *c, bool chosen)
{
    char path[PATH_MAX];
    struct buf text, why;

    buf_init(&text, 512);
    buf_init(&why, BUF_WHY_MAX);
    if (write_choice(c, chosen, path, &text) == OK && save_file(path, &text, &why) != OK)
        log_event(LOG_WARN, "the choice of matrix instructions is not kept: each start measures",
                  "why=\"%s\"", buf_str(&why));
    buf_fini(&text);
    buf_fini(&why);
}

/* Choose by an earlier start, or by time. A process that starts at the same time waits, and then
 * finds the choice of this one. */
static enum status choose_by_time(struct cuda_context *c, struct trial *t, bool *chosen)
{
    int lock = c->config.measure_dir ? save_lock_dir(c->config.measure_dir) : -1;
    bool loaded = load_choice(c, chosen);
    enum status s = loaded ? OK : time_both(c, t);

    if (s == OK && !loaded) {
        *chosen = t->ms[1] * CHOICE_MARGIN <= t->ms[0];
        save_choice(c, *chosen);
    }
    save_unlock_dir(lock);
    if (s != OK)
        return s;
    log_event(LOG_INFO, "matrix instructions chosen", "products=%s source=%s mma_us=%.1f "
              "wgmma_us=%.1f largest_difference=%.2g", *chosen ? "wgmma" : "mma.sync",
              loaded ? "file" : "measured", 1e3 * (double)t->ms[0], 1e3 * (double)t->ms[1],
              (double)t->difference);
    return OK;
}

static enum status try_out(struct cuda_context *c, bool *chosen)
{
    struct trial t = {};
    bool agree = false;
    enum status s = cuda_check(c, gemm_wgmma_prepare(c->config.weights, c->config.weights_group),
                               "loading the products of compute capability 9.0");

    if (s == OK)
        s = prepare(c, &t);
    if (s == OK)
        s = compare(c, &t, &agree);
    if (s == OK && !agree)
        log_event(LOG_ERROR, "products by wgmma are wrong on this GPU and not used: please report "
                  "it", "largest_difference=%g", (double)t.difference);
    else if (s == OK)
        s = choose_by_time(c, &t, chosen);
    enum status given = give_back(c, &t);
    return s == OK ? given : s;
}

enum status gemm_choose(struct cuda_context *c, struct buf *why)
{
    const struct device_config *g = &c->config;
    enum status s;

    c->has_wgmma = false;
    if (!g->wgmma || !g->measure || g->batch_invariant || g->weights < DTYPE_FLOATS ||
        c->major != 9 || c->minor != 0 || g->max_rows < WGMMA_ROWS)
        return OK;
    size_t n_pieces = (size_t)ceil_div(g->max_rows, WGMMA_ROWS) *
                      (pack_row_stride(g->max_k) / GEMM_CHUNK);
    bool chosen = false;
    s = allocate(c, &c->arranged, n_pieces * WGMMA_PIECE_BYTES_MAX);
    if (s == OK)
        s = try_out(c, &chosen);
    if (s != OK)
        chosen = false;
    if (c->arranged && !chosen && !c->failed) {
        enum status freed = cuda_check(c, cudaFree(c->arranged), "cudaFree");

        s = s == OK ? freed : s;
        c->arranged = NULL;
    }
    if (c->failed)
        return buf_why(why, ERR_INTERNAL, "the trial of Hopper's matrix instructions failed (%s): "
                       "set {wgmma} to false", c->failure);
    if (s != OK)
        log_event(LOG_WARN, "products by wgmma could not be tried and are not used", "status=%s",
                  status_name(s));
    c->has_wgmma = chosen;
    return OK;
}
