/* choice.cu - tries Hopper's own matrix instructions against mma.sync, for products and for
 * attention. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/save_file.h"
#include "kernels/cuda/choice.cuh"
#include "kernels/cuda/common.cuh"

#define CHOICE_MARGIN 1.25f
#define TIMED_RUNS 3
#define THREADS 256
#define BLOCKS 1024

/* The results of a trial. */
struct finding {
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

enum status trial_fill(struct cuda_context *c, void *to, size_t n_bytes, uint32_t all, uint32_t one)
{
    LAUNCH(fill_kernel, BLOCKS, THREADS, 0, c->streams[DEVICE_COMPUTE],
           static_cast<uint32_t *>(to), n_bytes / sizeof(uint32_t), all, one);
    return cuda_launched(c, "fill");
}

static enum status allocate(struct cuda_context *c, void *out, size_t n_bytes)
{
    return cuda_check(c, cudaMalloc(static_cast<void **>(out), n_bytes), "cudaMalloc");
}

enum status trial_array(struct cuda_context *c, struct trial *t, int i, size_t n_bytes)
{
    return allocate(c, &t->arrays[i], n_bytes);
}

static enum status prepare(struct cuda_context *c, struct trial *t, struct finding *f)
{
    enum status s = OK;

    for (int i = 0; i < 2 && s == OK; i++)
        s = allocate(c, &t->out[i], t->n_out * sizeof(float));
    if (s == OK)
        s = allocate(c, &f->largest, 2 * sizeof(*f->largest));
    if (s == OK)
        s = cuda_check(c, cudaEventCreate(&f->begin), "cudaEventCreate");
    if (s == OK)
        s = cuda_check(c, cudaEventCreate(&f->end), "cudaEventCreate");
    return s == OK ? t->prepare(c, t) : s;
}

/* Compute with both kernels, and compare. */
static enum status compare(struct cuda_context *c, struct trial *t, struct finding *f, bool *agree)
{
    cudaStream_t stream = c->streams[DEVICE_COMPUTE];
    uint32_t bits[2] = {};
    float largest[2];
    enum status s = t->run(c, t, false);

    if (s == OK)
        s = t->run(c, t, true);
    if (s == OK)
        s = trial_fill(c, f->largest, sizeof(bits), 0, 0);
    if (s != OK)
        return s;
    LAUNCH(compare_kernel, BLOCKS, THREADS, 0, stream, t->out[0], t->out[1], t->n_out, f->largest);
    s = cuda_launched(c, "compare");
    if (s == OK)
        s = cuda_check(c, cudaMemcpyAsync(bits, f->largest, sizeof(bits), cudaMemcpyDeviceToHost,
                                          stream), "cudaMemcpyAsync");
    if (s == OK)
        s = cuda_check(c, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    memcpy(largest, bits, sizeof(largest));
    f->difference = largest[0] / largest[1];
    *agree = f->difference <= t->tolerance; /* not NaN */
    return s;
}

/* The least time of several runs of each kernel, in turns. */
static enum status time_both(struct cuda_context *c, struct trial *t, struct finding *f)
{
    cudaStream_t stream = c->streams[DEVICE_COMPUTE];
    enum status s = OK;

    for (int i = 0; i < 2 * TIMED_RUNS && s == OK; i++) {
        float ms = 0, *best = &f->ms[i % 2];

        s = cuda_check(c, cudaEventRecord(f->begin, stream), "cudaEventRecord");
        if (s == OK)
            s = t->run(c, t, i % 2);
        if (s == OK)
            s = cuda_check(c, cudaEventRecord(f->end, stream), "cudaEventRecord");
        if (s == OK)
            s = cuda_check(c, cudaEventSynchronize(f->end), "cudaEventSynchronize");
        if (s == OK)
            s = cuda_check(c, cudaEventElapsedTime(&ms, f->begin, f->end),
                           "cudaEventElapsedTime");
        *best = i < 2 || ms < *best ? ms : *best;
    }
    return s;
}

static enum status free_one(struct cuda_context *c, void *p)
{
    return p ? cuda_check(c, cudaFree(p), "cudaFree") : OK;
}

/* Free everything; the first failure is returned. */
static enum status give_back(struct cuda_context *c, const struct trial *t, const struct finding *f)
{
    void *const memory[] = {t->out[0], t->out[1], f->largest};
    const cudaEvent_t events[] = {f->begin, f->end};
    enum status s = OK;

    for (void *p : memory) {
        enum status one = free_one(c, p);

        s = s == OK ? one : s;
    }
    for (void *p : t->arrays) {
        enum status one = free_one(c, p);

        s = s == OK ? one : s;
    }
    for (cudaEvent_t e : events) {
        enum status one = e ? cuda_check(c, cudaEventDestroy(e), "cudaEventDestroy") : OK;

        s = s == OK ? one : s;
    }
    return s;
}

/* --- the file of an earlier start --- */

/* The path of the file for this kind of GPU: a server on another one must not take the place of its
 * choice. */
static bool write_path(char path[PATH_MAX], const char *dir, const char *file, const char *gpu)
{
    char name[64];
    size_t i = 0;

    for (; gpu[i] && i + 1 < sizeof(name); i++)
        name[i] = isalnum((unsigned char)gpu[i]) ? gpu[i] : '-';
    name[i] = '\0';
    int n = snprintf(path, PATH_MAX, "%s/%s-%s.txt", dir, file, name);

    return n > 0 && n < PATH_MAX;
}

/* The whole text of a file with this choice, and its path. ERR_UNSUPPORTED: none is kept. */
static enum status write_choice(const struct cuda_context *c, const struct trial *t, bool chosen,
                                char path[PATH_MAX], struct buf *text)
{
    const struct device_config *g = &c->config;
    cudaDeviceProp prop;

    if (!g->measure_dir || cudaGetDeviceProperties(&prop, (int)g->ordinal) != cudaSuccess ||
        !write_path(path, g->measure_dir, t->file, prop.name))
        return ERR_UNSUPPORTED;
    buf_reset(text);
    return buf_printf(text, "tarn matrix instructions 1, %s, %s: %s\n", prop.name, t->subject,
                      chosen ? "wgmma" : "mma.sync");
}

/* Whether the file has one of the two choices, which *chosen then becomes. */
static bool load_choice(const struct cuda_context *c, const struct trial *t, bool *chosen)
{
    char path[PATH_MAX], kept[512];
    struct buf text;
    bool found = false;

    buf_init(&text, sizeof kept);
    for (int i = 0; i < 2 && !found; i++) {
        if (write_choice(c, t, i == 1, path, &text) != OK)
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

static void save_choice(const struct cuda_context *c, const struct trial *t, bool chosen)
{
    char path[PATH_MAX];
    struct buf text, why;

    buf_init(&text, 512);
    buf_init(&why, BUF_WHY_MAX);
    if (write_choice(c, t, chosen, path, &text) == OK && save_file(path, &text, &why) != OK)
        log_event(LOG_WARN, "the choice of matrix instructions is not kept: each start measures",
                  "of=%s why=\"%s\"", t->what, buf_str(&why));
    buf_fini(&text);
    buf_fini(&why);
}

/* --- the choice --- */

/* Choose by an earlier start, or by time. A process that starts at the same time waits, and then
 * finds the choice of this one. */
static enum status choose_by_time(struct cuda_context *c, struct trial *t, struct finding *f,
                                  bool *chosen)
{
    int lock = c->config.measure_dir ? save_lock_dir(c->config.measure_dir) : -1;
    bool loaded = load_choice(c, t, chosen);
    enum status s = loaded ? OK : time_both(c, t, f);

    if (s == OK && !loaded) {
        *chosen = f->ms[1] * CHOICE_MARGIN <= f->ms[0];
        save_choice(c, t, *chosen);
    }
    save_unlock_dir(lock);
    if (s != OK)
        return s;
    log_event(LOG_INFO, "matrix instructions chosen", "of=%s by=%s source=%s mma_us=%.1f "
              "wgmma_us=%.1f largest_difference=%.2g", t->what, *chosen ? "wgmma" : "mma.sync",
              loaded ? "file" : "measured", 1e3 * (double)f->ms[0], 1e3 * (double)f->ms[1],
              (double)f->difference);
    return OK;
}

enum status trial_choose(struct cuda_context *c, struct trial *t, bool *chosen)
{
    struct finding f = {};
    bool agree = false;
    enum status s = cuda_check(c, t->load(c, t), "loading the kernels of compute capability 9.0");

    *chosen = false;
    if (s == OK)
        s = prepare(c, t, &f);
    if (s == OK)
        s = compare(c, t, &f, &agree);
    if (s == OK && !agree)
        log_event(LOG_ERROR, "results by wgmma are wrong on this GPU and not used: please report "
                  "it", "of=%s largest_difference=%g", t->what, (double)f.difference);
    else if (s == OK)
        s = choose_by_time(c, t, &f, chosen);
    enum status given = give_back(c, t, &f);

    s = s == OK ? given : s;
    *chosen = *chosen && s == OK;
    return s;
}

enum status trial_outcome(struct cuda_context *c, const char *what, enum status s, struct buf *why)
{
    if (c->failed)
        return buf_why(why, ERR_INTERNAL, "the trial of Hopper's matrix instructions failed (%s): "
                       "set {wgmma} to false", c->failure);
    if (s != OK)
        log_event(LOG_WARN, "wgmma could not be tried and is not used", "for=%s status=%s", what,
                  status_name(s));
    return OK;
}
