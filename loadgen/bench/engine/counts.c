#include "loadgen/bench/engine/counts.h"

#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"

enum dtype bench_dtype(const char *name, enum dtype if_auto)
{
    if (strcmp(name, "f32") == 0)
        return DTYPE_F32;
    if (strcmp(name, "f16") == 0)
        return DTYPE_F16;
    if (strcmp(name, "int8") == 0)
        return DTYPE_I8;
    if (strcmp(name, "fp8") == 0)
        return DTYPE_F8;
    return strcmp(name, "bf16") == 0 ? DTYPE_BF16 : if_auto;
}

uint64_t counts_weight_bytes(enum dtype t, uint32_t n, uint32_t k, uint32_t group)
{
    uint64_t panels = (n + PANEL_COLS - 1) / PANEL_COLS;
    uint64_t per_panel = 0;

    if (t < DTYPE_FLOATS) {
        uint64_t n_k = t == DTYPE_BF16 ? (k + 1) / 2 * 2 : k;
        return panels * PANEL_COLS * n_k * dtype_bytes(t);
    }
    uint32_t in_quad = 32 / dtype_bits(t); /* elements of K in four bytes */
    uint32_t head = pack_head_bytes(t) / PANEL_COLS;
    ASSERT(group > 0);
    for (uint32_t k0 = 0; k0 < k; k0 += group) {
        uint32_t n_k = k - k0 < group ? k - k0 : group;
        per_panel += PANEL_COLS * (head + (uint64_t)(n_k + in_quad - 1) / in_quad * 4);
    }
    return panels * per_panel;
}

uint64_t counts_kv_token_bytes(const struct bench_shape *m)
{
    struct kv_pool pool = {.layout = kv_layout_of(m->kv),
                           .n_layers = m->n_layers,
                           .n_kv_heads = m->n_kv_heads,
                           .head_dim = m->head_dim};

    return kv_block_bytes(&pool) / KV_BLOCK_TOKENS;
}

uint64_t counts_attention_ops(uint32_t n_heads, uint32_t head_dim, uint32_t pos0, uint32_t n_rows)
{
    /* Row i sees pos0 + i + 1 keys. */
    uint64_t n_keys = (uint64_t)n_rows * pos0 + (uint64_t)n_rows * (n_rows + 1) / 2;

    return 4 * (uint64_t)n_heads * head_dim * n_keys; /* scores and values */
}

/* Multiply-adds of one row through one layer, and the bytes of the layer's weights. */
static uint64_t layer_macs(const struct bench_shape *m, uint64_t *bytes)
{
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const uint32_t nk[4][2] = {
        {q + 2 * kv, m->dim}, {m->dim, q}, {2 * m->ffn_dim, m->dim}, {m->dim, m->ffn_dim}};
    uint64_t macs = 0;

    *bytes = 0;
    for (int i = 0; i < 4; i++) {
        macs += (uint64_t)nk[i][0] * nk[i][1];
        *bytes += counts_weight_bytes(m->layers, nk[i][0], nk[i][1], m->layers_group);
    }
    return macs;
}

/* An embedding row: of a float table as it is, of a quantized one with its scales. */
static uint64_t embed_row_bytes(const struct bench_shape *m)
{
    if (m->output < DTYPE_FLOATS)
        return (uint64_t)m->dim * dtype_bytes(m->output);
    return counts_weight_bytes(m->output, PANEL_COLS, m->dim, m->output_group) / PANEL_COLS;
}

void counts_step(const struct bench_shape *m, uint32_t n_seqs, uint32_t pos0, uint32_t n_rows,
                 uint32_t n_out, struct bench_work *out)
{
    uint64_t rows = (uint64_t)n_seqs * n_rows, layer_bytes;
    uint64_t macs = layer_macs(m, &layer_bytes);

    *out = (struct bench_work){
        .layer_ops = 2 * macs * m->n_layers * rows,
        .output_ops = 2 * (uint64_t)m->n_vocab * m->dim * n_seqs * n_out,
        .attention_ops =
            counts_attention_ops(m->n_heads, m->head_dim, pos0, n_rows) * m->n_layers * n_seqs,
        .weight_bytes = layer_bytes * m->n_layers + rows * embed_row_bytes(m),
        .kv_bytes = counts_kv_token_bytes(m) * pos0 * n_seqs,
    };
    if (n_out)
        out->weight_bytes += counts_weight_bytes(m->output, m->n_vocab, m->dim, m->output_group);
}

static enum limit_kind faster(const struct limits *l, enum limit_kind a, enum limit_kind b)
{
    return l->rate[b] > l->rate[a] ? b : a;
}

enum limit_kind counts_rate_of(const struct limits *l, const char *ops_name, enum dtype t)
{
    bool amx = strstr(ops_name, "amx") != NULL;
    enum limit_kind k;

    if (strstr(ops_name, "avx2"))
        return t < DTYPE_FLOATS ? LIMIT_AVX2_FP32 : faster(l, LIMIT_AVX2_FP32, LIMIT_AVX2_INT8);
    k = faster(l, LIMIT_FP32, LIMIT_AVX2_FP32);
    if (t == DTYPE_BF16)
        k = faster(l, faster(l, k, LIMIT_BF16), amx ? LIMIT_AMX_BF16 : LIMIT_BF16);
    if (t >= DTYPE_FLOATS)
        k = faster(l, faster(l, faster(l, k, LIMIT_AVX2_INT8), LIMIT_INT8),
                   amx ? LIMIT_AMX_INT8 : LIMIT_INT8);
    return k;
}

/* Seconds of each resource over the steps of a case. */
struct times {
    double of[LIMIT_COUNT];
};

static double add_ops(struct times *t, const struct limits *l, enum limit_kind k, uint64_t ops)
{
    double seconds = l->rate[k] > 0 ? (double)ops / l->rate[k] : 0;

    t->of[k] += seconds;
    return seconds;
}

static double step_floor(const struct bench_shape *m, const struct bench_work *w,
                         const struct limits *l, const char *ops_name, struct times *total)
{
    struct times compute = {{0}};
    double read =
        l->rate[LIMIT_READ] > 0 ? (double)(w->weight_bytes + w->kv_bytes) / l->rate[LIMIT_READ] : 0;
    double seconds = add_ops(&compute, l, counts_rate_of(l, ops_name, m->layers), w->layer_ops) +
                     add_ops(&compute, l, counts_rate_of(l, ops_name, m->output), w->output_ops) +
                     add_ops(&compute, l, counts_rate_of(l, ops_name, m->kv), w->attention_ops);

    if (read >= seconds) {
        total->of[LIMIT_READ] += read;
        return read;
    }
    for (int k = 0; k < LIMIT_COUNT; k++)
        total->of[k] += compute.of[k];
    return seconds;
}

void counts_floor(const struct bench_shape *m, const struct bench_case *c, uint32_t chunk,
                  const struct limits *l, const char *ops_name, struct bench_floor *out)
{
    uint32_t rows = case_rows_per_seq(c), n;
    struct times total = {{0}};

    *out = (struct bench_floor){0, LIMIT_READ};
    for (uint32_t done = 0; done < rows; done += n) {
        struct bench_work w;
        n = rows - done < chunk ? rows - done : chunk;
        counts_step(m, c->batch, c->context + done, n, done + n == rows, &w);
        out->seconds += step_floor(m, &w, l, ops_name, &total);
    }
    for (int k = 0; k < LIMIT_COUNT; k++)
        if (total.of[k] > total.of[out->limit])
            out->limit = (enum limit_kind)k;
}
