/* gemm_choice.cu - whether products of many rows run on Hopper's own matrix instructions
 * (gemm_wgmma.cu): decided once, when the device opens, as choice.cuh says, for the model's type of
 * weights. */
#include <stdio.h>

#include "base/buf.h"
#include "kernels/cuda/choice.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/pack.h"

/* Most elements of K of the trial. */
#define TRIAL_K 2048
#define TOLERANCE 5e-5f

enum { WEIGHTS, ROWS }; /* arrays of the trial */

/* Elements and scales of about 1 / 128, without NaN. */
static enum status fill_weights(struct cuda_context *c, const struct weight *w, unsigned char *at)
{
    struct pack_range ranges[2];

    (void)pack_row_ranges(w, 0, w->n, ranges);
    enum status s =
        trial_fill(c, at, ranges[0].n_bytes, w->dtype == DTYPE_F8 ? 0xbfbfbfbf : ~0u, 0);
    if (s != OK)
        return s;
    at += ranges[1].offset;
    if (w->dtype == DTYPE_F8)
        return trial_fill(c, at, ranges[1].n_bytes, 0x007fffff, 0x3c000000);
    if (dtype_is_affine(w->dtype))
        return trial_fill(c, at, ranges[1].n_bytes, 0x03ff03ff, 0x20002000);
    return trial_fill(c, at, ranges[1].n_bytes, 0x007f007f, 0x3c003c00);
}

/* The trial's product: as many outputs as give each multiprocessor a tile. */
static struct gemm_params product_of(const struct cuda_context *c)
{
    uint32_t k = c->config.max_k < TRIAL_K ? c->config.max_k : TRIAL_K;
    struct gemm_params p = {};

    p.w.dtype = c->config.weights;
    p.w.layout = WEIGHT_ROWS;
    p.w.group = c->config.weights_group;
    p.w.n = WGMMA_ROWS * (uint32_t)c->n_sms;
    p.w.k = p.w.stride = pack_row_stride(k);
    p.n_rows = WGMMA_ROWS;
    p.out_stride = p.w.n;
    return p;
}

static cudaError_t load(const struct cuda_context *c, const struct trial *)
{
    return gemm_wgmma_prepare(c->config.weights, c->config.weights_group);
}

static enum status prepare(struct cuda_context *c, struct trial *t)
{
    struct gemm_params *p = static_cast<struct gemm_params *>(t->arg);
    size_t n_row_bytes = (size_t)p->n_rows * p->w.stride * 2;
    enum status s = trial_array(c, t, WEIGHTS, pack_weight_bytes(&p->w));

    if (s == OK)
        s = trial_array(c, t, ROWS, n_row_bytes);
    if (s == OK)
        s = fill_weights(c, &p->w, static_cast<unsigned char *>(t->arrays[WEIGHTS]));
    p->w.data = t->arrays[WEIGHTS];
    p->rounded = static_cast<uint16_t *>(t->arrays[ROWS]);
    return s == OK ? trial_fill(c, t->arrays[ROWS], n_row_bytes, 0x807f807f, 0x3f003f00) : s;
}

static enum status run(struct cuda_context *c, struct trial *t, bool with_wgmma)
{
    struct gemm_params *p = static_cast<struct gemm_params *>(t->arg);

    p->out = t->out[with_wgmma];
    c->has_wgmma = with_wgmma;
    enum status s = gemm_ours(c, c->streams[DEVICE_COMPUTE], p);
    c->has_wgmma = false;
    return s;
}

static enum status try_out(struct cuda_context *c, bool *chosen)
{
    const struct device_config *g = &c->config;
    struct gemm_params p = product_of(c);
    char file[64], subject[64];
    struct trial t = {};

    snprintf(file, sizeof(file), "matrix-%u-%u", (unsigned)g->weights, g->weights_group);
    snprintf(subject, sizeof(subject), "weights %u of groups of %u", (unsigned)g->weights,
             g->weights_group);
    t.what = "products";
    t.file = file;
    t.subject = subject;
    t.tolerance = TOLERANCE;
    t.n_out = (size_t)p.n_rows * p.w.n;
    t.load = load;
    t.prepare = prepare;
    t.run = run;
    t.arg = &p;
    return trial_choose(c, &t, chosen);
}

enum status gemm_choose(struct cuda_context *c, struct buf *why)
{
    const struct device_config *g = &c->config;
    bool chosen = false;

    c->has_wgmma = false;
    if (!g->wgmma || !g->measure || g->batch_invariant || g->weights < DTYPE_FLOATS ||
        c->major != 9 || c->minor != 0 || g->max_rows < WGMMA_ROWS)
        return OK;
    size_t n_pieces = (size_t)ceil_div(g->max_rows, WGMMA_ROWS) *
                      (pack_row_stride(g->max_k) / GEMM_CHUNK);
    enum status s = cuda_check(c, cudaMalloc(&c->arranged, n_pieces * WGMMA_PIECE_BYTES_MAX),
                               "cudaMalloc");
    if (s == OK)
        s = try_out(c, &chosen);
    if (c->arranged && !chosen && !c->failed) {
        enum status freed = cuda_check(c, cudaFree(c->arranged), "cudaFree");

        s = s == OK ? freed : s;
        c->arranged = NULL;
    }
    c->has_wgmma = chosen;
    return trial_outcome(c, "products", s, why);
}
