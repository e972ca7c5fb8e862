#include "engine/model/layer.h"

#include <math.h>

/* Where an op writes what the product with `reader` reads; *in: that product's `a`. */
static struct rounded_rows rounded_for(const struct layer_step *s, const struct weight *reader,
                                       const float *out, const float **in)
{
    bool rounds = s->rounded && reader && reader->dtype != DTYPE_F32;

    *in = rounds ? NULL : out;
    return rounds ? (struct rounded_rows){s->rounded, reader->stride, reader->dtype}
                  : (struct rounded_rows){0};
}

static struct rmsnorm_params norm_params(const struct layer_step *s, uint32_t n_rows,
                                         const float *x, const float *w, const float *bias,
                                         float *out)
{
    return (struct rmsnorm_params){.n_rows = n_rows,
                                   .dim = s->model->dim,
                                   .eps = (float)s->model->rms_eps,
                                   .x = x,
                                   .w = w,
                                   .out = out,
                                   .center = s->model->norm == NORM_LAYER,
                                   .bias = bias};
}

enum status layer_norm_with(const struct layer_step *s, uint32_t n_rows, const float *x,
                            const float *w, const float *bias, bool accumulate, float *out)
{
    struct rmsnorm_params p = norm_params(s, n_rows, x, w, bias, out);

    p.accumulate = accumulate;
    return s->ops->rmsnorm(s->device, NULL, &p);
}

enum status layer_norm_for(const struct layer_step *s, uint32_t n_rows, const float *x,
                           const float *w, const float *bias, const struct weight *reader,
                           float *out, const float **in)
{
    struct rmsnorm_params p = norm_params(s, n_rows, x, w, bias, out);

    p.rounded = rounded_for(s, reader, out, in);
    return s->ops->rmsnorm(s->device, NULL, &p);
}

enum status layer_norm_also(const struct layer_step *s, const float *x, const float *w,
                            const float *bias, const struct weight *reader, float *out,
                            bool *is_rounded)
{
    struct rmsnorm_params p = norm_params(s, s->n_rows, x, w, bias, out);
    const float *in;

    p.rounded = rounded_for(s, reader, out, &in);
    p.keep_out = *is_rounded = !in;
    return s->ops->rmsnorm(s->device, NULL, &p);
}

enum status layer_norm_heads(const struct layer_step *s, uint32_t n_parts, uint32_t dim,
                             const float *w, float *first)
{
    const struct model_config *m = s->model;
    size_t stride = (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    struct rmsnorm_params p = {.n_rows = s->n_rows,
                               .dim = dim,
                               .eps = (float)m->rms_eps,
                               .x = first,
                               .w = w,
                               .out = first,
                               .n_parts = n_parts,
                               .x_stride = stride,
                               .out_stride = stride,
                               .center = m->norm == NORM_LAYER};
    return s->ops->rmsnorm(s->device, NULL, &p);
}

enum status layer_scale(const struct layer_step *s, uint32_t n_rows, uint32_t dim, const float *x,
                        double factor, double cap, bool accumulate, float *out)
{
    struct scale_params p = {.n_rows = n_rows,
                             .dim = dim,
                             .scale = factor > 0 ? (float)factor : 1,
                             .soft_cap = (float)cap,
                             .accumulate = accumulate,
                             .x = x,
                             .out = out};
    return s->ops->scale(s->device, NULL, &p);
}

static enum status product(const struct layer_step *s, uint32_t n_rows, const float *a,
                           const struct weight *w, const struct weight *next, const float *bias,
                           bool accumulate, float *out)
{
    struct gemm_params p = {.n_rows = n_rows,
                            .a = a,
                            .a_stride = w->k,
                            .rounded = a ? NULL : s->rounded,
                            .w = *w,
                            .next = next,
                            .bias = bias,
                            .accumulate = accumulate,
                            .out = out,
                            .out_stride = w->n};
    return s->ops->gemm(s->device, NULL, &p);
}

enum status layer_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                          const struct weight *w, const struct weight *next, const float *bias,
                          float *out)
{
    return product(s, n_rows, a, w, next, bias, false, out);
}

enum status layer_add_part(const struct layer_step *s, uint32_t n_rows, const float *a,
                           const struct weight *w, const struct weight *next, float *out)
{
    return product(s, n_rows, a, w, next, NULL, true, out);
}

enum status layer_clear(const struct layer_step *s, uint32_t n_rows, uint32_t dim, float *x)
{
    struct scale_params p = {.n_rows = n_rows, .dim = dim, .scale = 0, .x = x, .out = x};

    return s->ops->scale(s->device, NULL, &p);
}

enum status layer_sum(const struct layer_step *s, size_t n, float *x)
{
    struct all_reduce_params p = {.n = n, .x = x};

    if (s->group->n == 1)
        return OK;
    ++*s->n_sums; /* whatever the op answers, this device took part */
    return s->ops->all_reduce(s->device, NULL, &p);
}

enum status layer_sum_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                              const struct weight *w, const struct weight *next, const float *bias,
                              float *out)
{
    const float *own_bias = s->group->rank == 0 ? bias : NULL;
    enum status status = product(s, n_rows, a, w, next, own_bias, false, out);

    return status == OK ? layer_sum(s, (size_t)n_rows * w->n, out) : status;
}

enum status layer_add_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                              const struct weight *w, const struct weight *next, const float *bias,
                              float *out)
{
    /* The first device adds its product and the bias to the old out, the others begin with their
     * product alone: the sum over the group has the old out and the bias once. */
    bool is_first = s->group->rank == 0;
    enum status status = product(s, n_rows, a, w, next, is_first ? bias : NULL, is_first, out);

    return status == OK ? layer_sum(s, (size_t)n_rows * w->n, out) : status;
}

enum status layer_rope_kv(const struct layer_step *s, uint32_t layer, float *qkv)
{
    const struct model_config *m = s->model;
    size_t q = (size_t)m->n_heads * m->head_dim, kv = (size_t)m->n_kv_heads * m->head_dim;
    struct rope_kv_params p = {.n_rows = s->n_rows,
                               .n_heads = m->n_heads,
                               .rot_dim = model_has_layer(m->no_rope, layer) ? 0 : model_rot_dim(m),
                               .layer = layer,
                               .q = qkv,
                               .k = qkv + q,
                               .v = qkv + q + kv,
                               .qkv_stride = q + 2 * kv,
                               .pos = s->pos,
                               .cos_sin = model_has_layer(m->windowed, layer) ? s->cos_sin_local
                                                                              : s->cos_sin,
                               .n_pos = s->n_pos,
                               .slot_block = s->slot_block,
                               .slot_offset = s->slot_offset,
                               .pool = *s->pool};
    return s->ops->rope_kv(s->device, NULL, &p);
}

float layer_attention_scale(const struct model_config *m)
{
    return m->attention_scale > 0 ? (float)m->attention_scale : 1.0f / sqrtf((float)m->head_dim);
}

enum status layer_attention(const struct layer_step *s, uint32_t layer, const float *qkv,
                            const struct weight *reader, float *out, const float **in)
{
    const struct model_config *m = s->model;
    struct attention_params p = {.n_seqs = s->n_seqs,
                                 .n_rows = s->n_rows,
                                 .n_rows_max = s->seq_rows_most,
                                 .n_segs = s->n_segments,
                                 .n_segs_max = s->seq_segments_most,
                                 .n_heads = m->n_heads,
                                 .layer = layer,
                                 .window = model_has_layer(m->windowed, layer) ? m->window : 0,
                                 .bidirectional = s->bidirectional,
                                 .scale = layer_attention_scale(m),
                                 .soft_cap = (float)m->attention_cap,
                                 .q = qkv,
                                 .q_stride = (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
                                 .out = out,
                                 .seqs = s->seqs,
                                 .segments = s->segments,
                                 .blocks = s->blocks,
                                 .work = s->work,
                                 .pool = *s->pool};

    p.rounded = rounded_for(s, s->attention ? NULL : reader, out, in);
    return s->attention ? s->attention(s->attention_arg, &p)
                        : s->ops->attention(s->device, NULL, &p);
}

enum status layer_silu_mul(const struct layer_step *s, uint32_t n_rows, uint32_t dim,
                           const float *gate_up, const struct weight *reader, float *out,
                           const float **in)
{
    struct silu_mul_params p = {.n_rows = n_rows,
                                .dim = dim,
                                .gate_up = gate_up,
                                .out = out,
                                .activation = s->model->activation,
                                .rounded = rounded_for(s, reader, out, in)};

    return s->ops->silu_mul(s->device, NULL, &p);
}

enum status layer_activate(const struct layer_step *s, uint32_t dim, float *x)
{
    struct silu_mul_params p = {.n_rows = s->n_rows,
                                .dim = dim,
                                .gate_up = x,
                                .out = x,
                                .activation = s->model->activation,
                                .ungated = 1};

    return s->ops->silu_mul(s->device, NULL, &p);
}
