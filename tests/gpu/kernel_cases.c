/* kernel_cases.c - the cases of tarn-gpu-speed: every op at the shapes of a 0.5 B and an 8 B
 * model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "tests/gpu/speed.h"
#include "tests/gpu/timer.h"

struct shape {
    const char *name;
    uint32_t dim, ffn, n_heads, n_kv_heads, head_dim, n_vocab;
};

static const struct shape shapes[] = {
    {"0.5B", 1024, 3072, 16, 8, 128, 50257},
    {"8B", 4096, 14336, 32, 8, 128, 128256},
};

/* The shape, made smaller on the emulated GPU; the heads' size stays the same. */
static struct shape scaled(const struct speed *s, const struct shape *from)
{
    struct shape h = *from;

    h.dim /= s->scale;
    h.ffn /= s->scale;
    h.n_vocab /= s->scale;
    return h;
}

/* A number of rows or tokens, made smaller on the emulated GPU, at least 1. */
static uint32_t less(const struct speed *s, uint32_t n)
{
    return n / s->scale > 0 ? n / s->scale : 1;
}

/* --- ceilings --- */

struct gemm_arg {
    struct gemm_params p;
    const unsigned char *data; /* n_copies weights, one after another */
    size_t stride;
    uint32_t n_copies;
};

static enum status run_gemm(struct speed *s, void *arg, uint32_t turn)
{
    struct gemm_arg *g = arg;

    g->p.w.data = g->data + turn % g->n_copies * g->stride;
    return s->ops->gemm(s->d, NULL, &g->p);
}

/* A call that copies KV blocks: every second one of a pool, and pinned memory in the same order. */
struct block_copies {
    uint32_t n_blocks;
    size_t block_bytes;
    unsigned char *pool, *host; /* host NULL: copies within the pool */
    bool to_host;
};

static enum status run_copies(struct speed *s, void *arg, uint32_t turn)
{
    const struct block_copies *c = arg;
    void *to[DEVICE_COPIES_MAX];
    const void *from[DEVICE_COPIES_MAX];

    (void)turn;
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        unsigned char *block = c->pool + 2 * (size_t)i * c->block_bytes;
        unsigned char *other = c->host ? c->host + i * c->block_bytes : block + c->block_bytes;

        to[i] = c->host && !c->to_host ? block : other;
        from[i] = c->host && !c->to_host ? other : block;
    }
    return device_copies_async(s->d, NULL, to, from, c->n_blocks, c->block_bytes);
}

static void time_gemm(struct speed *s, const char *name, enum dtype t, uint32_t group, uint32_t n,
                      uint32_t k, uint32_t n_rows)
{
    struct gemm_arg g = {.p = {.n_rows = n_rows,
                               .a_stride = k,
                               .out_stride = n,
                               .w = {.dtype = t,
                                     .layout = WEIGHT_ROWS,
                                     .n = n,
                                     .k = k,
                                     .group = group,
                                     .stride = pack_row_stride(k)}}};
    static const char *const types[DTYPE_COUNT] = {
        [DTYPE_F32] = "f32", [DTYPE_F16] = "f16", [DTYPE_BF16] = "bf16",
        [DTYPE_I8] = "int8", [DTYPE_I4] = "int4", [DTYPE_F8] = "fp8"};
    struct speed_case c = {.op = "gemm", .run = run_gemm, .arg = &g};

    g.stride = (pack_weight_bytes(&g.p.w) + 255) / 256 * 256;
    g.n_copies = s->scale > 1 ? 1 : (uint32_t)(SPEED_COLD_BYTES / g.stride) + 1;
    g.p.a = speed_floats(s, (size_t)n_rows * k);
    g.p.out = speed_array(s, NULL, (size_t)n_rows * n * sizeof(float));
    g.data = speed_halves(s, g.n_copies * g.stride / 2);
    c.bytes = (double)g.stride + 4.0 * n_rows * ((double)k + n);
    c.ops = 2.0 * n_rows * n * k;
    snprintf(c.shape, sizeof c.shape, "%s %s%s N %u K %u T %u", name, types[t],
             group == 32 ? " g32" : "", n, k, n_rows);
    double time = speed_time(s, &c);
    if (c.ops / time > s->matrix_rate && s->copy_rate == 0)
        s->matrix_rate = c.ops / time;
    speed_clear(s);
}

void speed_ceilings(struct speed *s)
{
    uint32_t n = 8192 / s->scale;

    time_gemm(s, "ceiling", DTYPE_BF16, 0, n, n, n);

    struct block_copies copy = {.n_blocks = 1, .block_bytes = ((size_t)1 << 30) / s->scale};
    struct speed_case c = {.op = "copy", .run = run_copies, .arg = &copy};
    copy.pool = speed_halves(s, copy.block_bytes);
    c.bytes = 2.0 * (double)copy.block_bytes;
    snprintf(c.shape, sizeof c.shape, "ceiling %.0f MB", c.bytes * 0.5e-6);
    s->copy_rate = c.bytes / speed_time(s, &c);
    speed_clear(s);
}

/* --- small ops --- */

static enum status run_rmsnorm(struct speed *s, void *arg, uint32_t turn)
{
    (void)turn;
    return s->ops->rmsnorm(s->d, NULL, arg);
}

static enum status run_silu_mul(struct speed *s, void *arg, uint32_t turn)
{
    (void)turn;
    return s->ops->silu_mul(s->d, NULL, arg);
}

static enum status run_rope_kv(struct speed *s, void *arg, uint32_t turn)
{
    (void)turn;
    return s->ops->rope_kv(s->d, NULL, arg);
}

static enum status run_embed(struct speed *s, void *arg, uint32_t turn)
{
    (void)turn;
    return s->ops->embed(s->d, NULL, arg);
}

/* The numbers i * step modulo `below`. */
static const uint32_t *numbers(struct speed *s, uint32_t n, uint32_t step, uint32_t below)
{
    uint32_t *host = malloc(n * sizeof *host);

    ASSERT(host);
    for (uint32_t i = 0; i < n; i++)
        host[i] = (uint32_t)((uint64_t)i * step % below);
    const uint32_t *p = speed_array(s, host, n * sizeof *host);
    free(host);
    return p;
}

static void time_embed(struct speed *s, const struct shape *h, uint32_t n_rows)
{
    struct embed_params p = {.n_rows = n_rows,
                             .dim = h->dim,
                             .n_vocab = h->n_vocab,
                             .table = {.dtype = DTYPE_BF16,
                                       .layout = WEIGHT_ROWS,
                                       .n = h->n_vocab,
                                       .k = h->dim,
                                       .stride = pack_row_stride(h->dim)}};
    struct speed_case c = {
        .op = "embed", .run = run_embed, .arg = &p, .bytes = 6.0 * n_rows * h->dim};

    p.table.data = speed_halves(s, pack_weight_bytes(&p.table) / 2);
    p.ids = numbers(s, n_rows, 7919, h->n_vocab);
    p.out = speed_array(s, NULL, (size_t)n_rows * h->dim * 4);
    snprintf(c.shape, sizeof c.shape, "%s T %u", h->name, n_rows);
    (void)speed_time(s, &c);
    speed_clear(s);
}

static void time_norms(struct speed *s, const struct shape *h, uint32_t n_rows)
{
    struct rmsnorm_params n = {.n_rows = n_rows,
                               .dim = h->dim,
                               .eps = 1e-5f,
                               .x = speed_floats(s, (size_t)n_rows * h->dim),
                               .w = speed_floats(s, h->dim),
                               .out = speed_floats(s, (size_t)n_rows * h->dim)};
    struct silu_mul_params a = {.n_rows = n_rows,
                                .dim = h->ffn,
                                .gate_up = speed_floats(s, (size_t)n_rows * 2 * h->ffn),
                                .out = speed_floats(s, (size_t)n_rows * h->ffn)};
    struct speed_case c = {
        .op = "rmsnorm", .run = run_rmsnorm, .arg = &n, .bytes = 8.0 * n_rows * h->dim};

    snprintf(c.shape, sizeof c.shape, "%s T %u", h->name, n_rows);
    (void)speed_time(s, &c);
    n.sum = speed_floats(s, (size_t)n_rows * h->dim);
    c.bytes = 16.0 * n_rows * h->dim;
    snprintf(c.shape, sizeof c.shape, "%s T %u, residual", h->name, n_rows);
    (void)speed_time(s, &c);
    c = (struct speed_case){
        .op = "silu_mul", .run = run_silu_mul, .arg = &a, .bytes = 12.0 * n_rows * h->ffn};
    snprintf(c.shape, sizeof c.shape, "%s T %u", h->name, n_rows);
    (void)speed_time(s, &c);
    speed_clear(s);
}

static void time_rope(struct speed *s, const struct shape *h, uint32_t n_rows)
{
    uint32_t n_blocks = n_rows / KV_BLOCK_TOKENS + 1, n_pos = 4096 / s->scale;
    size_t width = (size_t)(h->n_heads + 2 * h->n_kv_heads) * h->head_dim;
    struct rope_kv_params p = {.n_rows = n_rows,
                               .n_heads = h->n_heads,
                               .rot_dim = h->head_dim,
                               .qkv_stride = width,
                               .n_pos = n_pos,
                               .pool = {.layout = kv_layout_of(DTYPE_BF16),
                                        .n_blocks = n_blocks,
                                        .n_layers = 1,
                                        .n_kv_heads = h->n_kv_heads,
                                        .head_dim = h->head_dim}};
    struct speed_case c = {.op = "rope_kv", .run = run_rope_kv, .arg = &p};
    uint32_t *block = malloc(n_rows * sizeof *block), *offset = malloc(n_rows * sizeof *offset);

    ASSERT(block && offset);
    for (uint32_t i = 0; i < n_rows; i++) {
        block[i] = i / KV_BLOCK_TOKENS;
        offset[i] = i % KV_BLOCK_TOKENS;
    }
    float *qkv = speed_floats(s, n_rows * width);
    p.q = qkv;
    p.k = qkv + (size_t)h->n_heads * h->head_dim;
    p.v = p.k + (size_t)h->n_kv_heads * h->head_dim;
    p.pos = numbers(s, n_rows, 1, n_pos);
    p.cos_sin = speed_floats(s, (size_t)n_pos * h->head_dim);
    p.slot_block = speed_array(s, block, n_rows * sizeof *block);
    p.slot_offset = speed_array(s, offset, n_rows * sizeof *offset);
    p.pool.base = speed_array(s, NULL, n_blocks * kv_block_bytes(&p.pool));
    c.bytes = n_rows * (8.0 * h->n_heads + 12.0 * h->n_kv_heads) * h->head_dim;
    snprintf(c.shape, sizeof c.shape, "%s T %u", h->name, n_rows);
    (void)speed_time(s, &c);
    free(block);
    free(offset);
    speed_clear(s);
}

void speed_small_ops(struct speed *s)
{
    static const uint32_t rows[] = {1, 64, 512, 2048};

    for (size_t m = 0; m < ARRAY_SIZE(shapes); m++)
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            struct shape h = scaled(s, &shapes[m]);
            uint32_t n_rows = less(s, rows[i]);

            if (speed_is_late(s))
                return;
            time_embed(s, &h, n_rows);
            time_norms(s, &h, n_rows);
            time_rope(s, &h, n_rows);
        }
}

/* --- products --- */

void speed_products(struct speed *s)
{
    static const uint32_t rows[] = {1, 16, 64, 512, 2048};
    static const struct {
        enum dtype t;
        uint32_t group;
    } types[] = {{DTYPE_BF16, 0}, {DTYPE_I8, 128}, {DTYPE_I4, 32}, {DTYPE_F8, 128}};

    for (size_t m = 0; m < ARRAY_SIZE(shapes); m++)
        for (size_t t = 0; t < ARRAY_SIZE(types); t++)
            for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct shape h = scaled(s, &shapes[m]);
                uint32_t width = h.n_heads * h.head_dim / s->scale, n_rows = less(s, rows[i]);
                uint32_t kv = h.n_kv_heads * h.head_dim / s->scale;

                if (speed_is_late(s))
                    return;
                time_gemm(s, "qkv", types[t].t, types[t].group, width + 2 * kv, h.dim, n_rows);
                time_gemm(s, "o", types[t].t, types[t].group, h.dim, width, n_rows);
                time_gemm(s, "gate_up", types[t].t, types[t].group, 2 * h.ffn, h.dim, n_rows);
                time_gemm(s, "down", types[t].t, types[t].group, h.dim, h.ffn, n_rows);
                if (rows[i] <= 64)
                    time_gemm(s, "output", types[t].group ? DTYPE_I8 : types[t].t, types[t].group,
                              h.n_vocab, h.dim, n_rows);
            }
}

/* --- attention --- */

struct attention_arg {
    struct attention_params p;
    const uint32_t *blocks; /* [n_copies, n_blocks]: the block tables of each copy of the KV */
    uint32_t n_blocks, n_copies;
};

static enum status run_attention(struct speed *s, void *arg, uint32_t turn)
{
    struct attention_arg *a = arg;

    a->p.blocks = a->blocks + (size_t)(turn % a->n_copies) * a->n_blocks;
    return s->ops->attention(s->d, NULL, &a->p);
}

/* Send the block tables of n_seqs sequences of n_rows rows after `context` tokens to the device. */
static void send_sequences(struct speed *s, struct attention_params *p, uint32_t n_rows,
                           uint32_t context)
{
    uint32_t len = context + n_rows, n_segs = (len + 255) / 256, n_blocks = (len + 31) / 32;
    struct attn_seq *seqs = malloc(p->n_seqs * sizeof *seqs);
    struct attn_segment *segs = malloc((size_t)p->n_seqs * n_segs * sizeof *segs);

    ASSERT(seqs && segs);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        seqs[i] = (struct attn_seq){.row0 = i * n_rows,
                                    .n_rows = n_rows,
                                    .pos0 = context,
                                    .seg0 = i * n_segs,
                                    .n_segs = n_segs};
        for (uint32_t j = 0; j < n_segs; j++)
            segs[i * n_segs + j] =
                (struct attn_segment){.pos0 = j * 256,
                                      .n_tokens = len - j * 256 < 256 ? len - j * 256 : 256,
                                      .block0 = i * n_blocks + j * 8};
    }
    p->seqs = speed_array(s, seqs, p->n_seqs * sizeof *seqs);
    p->segments = speed_array(s, segs, (size_t)p->n_seqs * n_segs * sizeof *segs);
    free(seqs);
    free(segs);
}

/* Time n_seqs sequences of n_rows rows after `context` tokens, each with its own KV. Several copies
 * of the KV are used in turn, so that it is not in the L2 cache. */
static void time_attention(struct speed *s, const struct shape *h, enum dtype kv, uint32_t n_seqs,
                           uint32_t n_rows, uint32_t context)
{
    uint32_t len = context + n_rows, n_segs = (len + 255) / 256, n_blocks = (len + 31) / 32;
    struct attention_arg a = {.n_blocks = n_seqs * n_blocks,
                              .p = {.n_seqs = n_seqs,
                                    .n_rows = n_seqs * n_rows,
                                    .n_rows_max = n_rows,
                                    .n_segs = n_seqs * n_segs,
                                    .n_segs_max = n_segs,
                                    .n_heads = h->n_heads,
                                    .scale = 1.0f / sqrtf((float)h->head_dim),
                                    .q_stride = (size_t)h->n_heads * h->head_dim,
                                    .pool = {.layout = kv_layout_of(kv),
                                             .n_layers = 1,
                                             .n_kv_heads = h->n_kv_heads,
                                             .head_dim = h->head_dim}}};
    struct speed_case c = {.op = "attention", .run = run_attention, .arg = &a};
    double kv_bytes = (double)a.n_blocks * (double)kv_block_bytes(&a.p.pool);
    size_t n_out = (size_t)a.p.n_rows * a.p.q_stride;

    a.n_copies = s->scale > 1 ? 2 : (uint32_t)((double)SPEED_COLD_BYTES / kv_bytes) + 1;
    a.p.pool.n_blocks = a.n_copies * a.n_blocks;
    send_sequences(s, &a.p, n_rows, context);
    a.p.q = speed_floats(s, n_out);
    a.p.out = speed_array(s, NULL, n_out * sizeof(float));
    a.blocks = numbers(s, a.p.pool.n_blocks, 1, a.p.pool.n_blocks);
    a.p.pool.base = speed_halves(s, (size_t)(a.n_copies * kv_bytes) / 2);
    c.bytes = kv_bytes + 8.0 * (double)n_out;
    c.ops = 4.0 * (double)n_out * (context + (n_rows + 1) / 2.0);
    snprintf(c.shape, sizeof c.shape, "%s%s %u seqs x %u rows @ %u%s", h->name,
             kv == DTYPE_I8 ? " int8" : "", n_seqs, n_rows, context,
             s->without_wgmma ? " by mma.sync" : "");
    (void)speed_time(s, &c);
    speed_clear(s);
}

void speed_attention(struct speed *s)
{
    static const uint32_t cases[][3] = {{1, 1, 1024},   {16, 1, 1024},  {64, 1, 1024},
                                        {1, 1, 8192},   {16, 1, 8192},  {64, 1, 8192},
                                        {1, 1, 131072}, {1, 512, 0},    {1, 512, 8192},
                                        {1, 2048, 0},   {4, 512, 2048}, {1, 64, 16384}};

    for (size_t m = 0; m < ARRAY_SIZE(shapes); m++)
        for (size_t i = 0; i < ARRAY_SIZE(cases) && !speed_is_late(s); i++)
            time_attention(s, &shapes[m], DTYPE_BF16, s->scale > 1 ? 1 : cases[i][0],
                           less(s, cases[i][1]), cases[i][2] / s->scale);
    for (size_t i = 4; i <= 7 && !speed_is_late(s); i += 3) /* a decode and a prefill */
        time_attention(s, &shapes[1], DTYPE_I8, s->scale > 1 ? 1 : cases[i][0],
                       less(s, cases[i][1]), cases[i][2] / s->scale);
}

/* --- copies --- */

/* Blocks of models that users run: 0.5 billion parameters with KV in int8 and bf16, 8 billion; one
 * in a call, and the eight of a segment, which is a move between tiers. */
void speed_copies(struct speed *s)
{
    static const size_t sizes[] = {208896, 393216, 4194304};

    for (size_t i = 0; i < 4 * ARRAY_SIZE(sizes); i++) {
        struct block_copies copies = {.n_blocks = i % 2 ? 8 : 1,
                                      .block_bytes = sizes[i / 4] / s->scale,
                                      .to_host = i % 4 >= 2};
        size_t n_bytes = copies.n_blocks * copies.block_bytes;
        struct speed_case c = {.op = copies.to_host ? "download" : "upload",
                               .run = run_copies,
                               .arg = &copies,
                               .bytes = (double)n_bytes};

        copies.pool = speed_halves(s, n_bytes);
        copies.host = device_alloc_pinned(s->d, n_bytes);
        ASSERT(copies.host);
        memset(copies.host, 1, n_bytes);
        snprintf(c.shape, sizeof c.shape, "%u blocks of %.2f MB in a call", copies.n_blocks,
                 (double)copies.block_bytes * 1e-6);
        (void)speed_time(s, &c);
        speed_clear(s);
        device_free_pinned(s->d, copies.host);
    }
}

/* --- sampling --- */

static enum status run_sample(struct speed *s, void *arg, uint32_t turn)
{
    (void)turn;
    return s->ops->sample(s->d, NULL, arg);
}

struct sampling {
    const char *name;
    float temperature, top_p;
    uint32_t top_k, n_logprobs;
};

static void time_sample(struct speed *s, const struct sampling *kind, uint32_t n_rows)
{
    uint32_t n = less(s, n_rows), n_vocab = shapes[1].n_vocab / s->scale;
    struct sample_row row[256];
    struct sample_params p = {.n_rows = n, .n_vocab = n_vocab, .n_top = 20};
    struct speed_case c = {
        .op = "sample", .run = run_sample, .arg = &p, .bytes = 4.0 * n * n_vocab};

    for (uint32_t r = 0; r < n; r++)
        row[r] = (struct sample_row){.seed = r,
                                     .temperature = kind->temperature,
                                     .top_p = kind->top_p,
                                     .top_k = kind->top_k,
                                     .repetition_penalty = 1,
                                     .want_logprob = kind->n_logprobs > 0,
                                     .n_logprobs = kind->n_logprobs};
    p.logits = speed_floats(s, (size_t)n * n_vocab);
    p.rows = speed_array(s, row, n * sizeof *row);
    p.ids = speed_array(s, NULL, n * 4);
    p.logprobs = speed_array(s, NULL, n * 4);
    p.top = speed_array(s, NULL, (size_t)n * 20 * sizeof *p.top);
    snprintf(c.shape, sizeof c.shape, "%s R %u V %u", kind->name, n, n_vocab);
    (void)speed_time(s, &c);
    speed_clear(s);
}

void speed_sampling(struct speed *s)
{
    static const uint32_t rows[] = {1, 64, 256};
    static const struct sampling kinds[] = {{"greedy", 0, 1, 0, 0},
                                            {"free", 1, 1, 0, 0},
                                            {"top_p 0.9", 1, 0.9f, 0, 0},
                                            {"top_k 50 top_p 0.9", 1, 0.9f, 50, 0},
                                            {"greedy, 5 logprobs", 0, 1, 0, 5}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (size_t k = 0; k < ARRAY_SIZE(kinds) && !speed_is_late(s); k++)
            time_sample(s, &kinds[k], rows[i]);
}

/* --- the decisive cases --- */

static enum status run_empty(struct speed *s, void *arg, uint32_t turn)
{
    const uint32_t *n_blocks = arg;

    (void)turn;
    gpu_timer_empty_kernel(s->timer, *n_blocks);
    return OK;
}

/* Time empty kernels, to measure a launch on the GPU and on the host. */
static void time_launches(struct speed *s)
{
    static uint32_t counts[] = {1, 132, 4096};

    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        struct speed_case c = {.op = "launch", .run = run_empty, .arg = &counts[i]};

        snprintf(c.shape, sizeof c.shape, "empty kernel, %u blocks", counts[i]);
        (void)speed_time(s, &c);
    }
}

static void time_decisive_products(struct speed *s)
{
    static const uint32_t rows[] = {1, 16, 64};
    static const struct {
        enum dtype t;
        uint32_t group;
    } types[] = {{DTYPE_BF16, 0}, {DTYPE_I8, 128}, {DTYPE_I4, 32}};
    struct shape h = scaled(s, &shapes[1]);

    for (size_t t = 0; t < ARRAY_SIZE(types); t++)
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            uint32_t n_rows = less(s, rows[i]);

            time_gemm(s, "gate_up", types[t].t, types[t].group, 2 * h.ffn, h.dim, n_rows);
            time_gemm(s, "o", types[t].t, types[t].group, h.dim, h.dim, n_rows);
        }
    /* With the two above, all products of a step of 64 rows: the output layer has 8 bits. */
    time_gemm(s, "qkv", DTYPE_I4, 32, h.dim + h.dim / 2, h.dim, less(s, 64));
    time_gemm(s, "down", DTYPE_I4, 32, h.dim, h.ffn, less(s, 64));
    time_gemm(s, "output", DTYPE_I8, 128, h.n_vocab, h.dim, less(s, 64));
    time_gemm(s, "gate_up", DTYPE_BF16, 0, 2 * h.ffn, h.dim, less(s, 2048));
    /* By wgmma, if it was chosen: the ops' name tells. */
    time_gemm(s, "gate_up", DTYPE_I4, 32, 2 * h.ffn, h.dim, less(s, 2048));
    time_gemm(s, "o", DTYPE_I4, 32, h.dim, h.dim, less(s, 2048));
}

/* Sequences, rows, context; the prefills are the last three. */
static const uint32_t decisive_attention[][3] = {
    {1, 1, 1024}, {64, 1, 4096}, {1, 2048, 0}, {1, 8192, 0}, {1, 64, 16384}};
#define DECISIVE_PREFILL 2

static void time_decisive_attention(struct speed *s, size_t from)
{
    for (size_t i = from; i < ARRAY_SIZE(decisive_attention); i++) {
        const uint32_t *c = decisive_attention[i];

        time_attention(s, &shapes[1], DTYPE_BF16, s->scale > 1 ? 1 : c[0], less(s, c[1]),
                       c[2] / s->scale);
    }
}

void speed_attention_beside(struct speed *s)
{
    if (!speed_is_late(s))
        time_decisive_attention(s, DECISIVE_PREFILL);
}

void speed_decisive(struct speed *s)
{
    static const struct sampling kinds[] = {{"greedy", 0, 1, 0, 0}, {"top_p 0.9", 1, 0.9f, 0, 0}};

    time_launches(s);
    time_decisive_products(s);
    time_decisive_attention(s, 0); /* by wgmma, if it was chosen */
    speed_copies(s);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        time_sample(s, &kinds[i], 64);
    struct shape h = scaled(s, &shapes[1]);
    time_norms(s, &h, 1);
    time_norms(s, &h, less(s, 64));
}
