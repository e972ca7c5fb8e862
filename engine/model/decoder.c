#include "engine/model/decoder.h"

#include <stdio.h>

enum buffer {
    QKV,
    ATTN,
    GATE_UP = MOE_GATE_UP,
    ACT = MOE_ACT,
    N_BUFFERS,
    OUT = N_BUFFERS, /* MOE_OUT in models with experts, whose parts are added directly */
};

static uint32_t q_rows(const struct model_config *m)
{
    return m->n_heads * m->head_dim;
}

static uint32_t kv_rows(const struct model_config *m)
{
    return m->n_kv_heads * m->head_dim;
}

enum status decoder_read_multiplier(const struct json *j, const char *name, double *out,
                                    struct buf *why)
{
    if (js_get(j, name) && !js_get_set(j, name)) {
        *out = 0;
        return OK;
    }
    return js_get_f64(j, name, 1e-6, 1e6, out, why);
}

/* Without layer_types, the layers from `first` on have the window. */
static enum status read_windows_from(const struct json *j, struct model_config *m, uint32_t first,
                                     struct buf *why)
{
    bool listed = false;
    enum status s = model_read_window(j, m, &listed, why);

    for (uint32_t i = first; !listed && m->window > 0 && i < m->n_layers; i++)
        model_add_layer(m->windowed, i);
    return s;
}

enum status decoder_read_window(const struct json *j, struct model_config *m, struct buf *why)
{
    return read_windows_from(j, m, 0, why);
}

enum status decoder_read_upper_windows(const struct json *j, struct model_config *m,
                                       struct buf *why)
{
    int64_t first = 28;
    bool use = false;
    enum status s = js_get_bool(j, "use_sliding_window", &use, why);

    if (s == OK)
        s = js_get_i64(j, "max_window_layers", 0, UINT32_MAX, &first, why);
    if (s != OK || !use)
        return s;
    m->window = 4096;
    return read_windows_from(j, m, (uint32_t)first, why);
}

/* Plan a norm of the layer, with a bias where the model's norms have one (bias not NULL). */
static enum status plan_layer_norm(struct loader *l, float **w, float **bias, const char *prefix,
                                   const char *name)
{
    const struct model_config *m = plan_model(l);
    enum status s;

    if (!name)
        return OK;
    s = plan_norm(l, w, m->dim, prefix, name);
    return s == OK && bias && m->norm == NORM_LAYER ? plan_norm_bias(l, bias, m->dim, prefix, name)
                                                    : s;
}

/* A fused tensor is one part on one GPU, as its content hash says, and a part for each product
 * where ranks share it. */
static enum status plan_attention(struct loader *l, const struct decoder_names *names,
                                  struct decoder_layer *y, const char *prefix)
{
    const struct model_config *m = plan_model(l);
    uint32_t q = q_rows(m), kv = kv_rows(m);
    bool is_fused = names->is_fused || names->qkv;
    const char *all = names->qkv ? names->qkv : "self_attn.qkv_proj";
    const struct plan_part fused = {all, q + 2 * kv, PLAN_WHOLE};
    const struct plan_part apart[] = {{is_fused ? all : "self_attn.q_proj", q, PLAN_ROWS},
                                      {is_fused ? all : "self_attn.k_proj", kv, PLAN_ROWS},
                                      {is_fused ? all : "self_attn.v_proj", kv, PLAN_ROWS}};
    const struct plan_part o = {names->o ? names->o : "self_attn.o_proj", m->dim, PLAN_K};
    bool each = names->head_norm == HEAD_NORM_EACH, is_one = is_fused && plan_n_ranks(l) == 1;
    enum status s = plan_product(l, &y->qkv, m->attention_bias || m->qkv_bias ? &y->qkv_bias : NULL,
                                 m->dim, prefix, is_one ? &fused : apart, is_one ? 1 : 3);

    y->head_norm = names->head_norm;
    if (s == OK && names->head_norm)
        s = plan_norm(l, &y->q_norm, each ? m->head_dim : q, prefix, "self_attn.q_norm");
    if (s == OK && names->head_norm)
        s = plan_norm(l, &y->k_norm, each ? m->head_dim : kv, prefix, "self_attn.k_norm");
    if (s == OK)
        s = plan_product(l, &y->o, m->attention_bias ? &y->o_bias : NULL, q, prefix, &o, 1);
    return s;
}

static enum status plan_feed_forward(struct loader *l, const struct decoder_names *names,
                                     struct decoder_layer *y, const char *prefix)
{
    const struct model_config *m = plan_model(l);
    const char *all = "mlp.gate_up_proj";
    const struct plan_part fused = {all, 2 * m->ffn_dim, PLAN_WHOLE};
    const struct plan_part apart[] = {
        {names->is_fused ? all : "mlp.gate_proj", m->ffn_dim, PLAN_ROWS},
        {names->is_fused ? all : "mlp.up_proj", m->ffn_dim, PLAN_ROWS}};
    bool is_one = names->is_fused && plan_n_ranks(l) == 1;
    const struct plan_part down = {"mlp.down_proj", m->dim, PLAN_K};
    enum status s = plan_product(l, &y->gate_up, m->mlp_bias ? &y->gate_up_bias : NULL, m->dim,
                                 prefix, is_one ? &fused : apart, is_one ? 1 : 2);

    if (s == OK)
        s = plan_product(l, &y->down, m->mlp_bias ? &y->down_bias : NULL, m->ffn_dim, prefix, &down,
                         1);
    return s;
}

/* `each`: for the weights of the layer's experts. */
static enum status plan_layer(struct loader *l, const struct decoder_names *names,
                              struct decoder_layer *y, uint32_t i, struct weight *each)
{
    char prefix[64];
    enum status s;

    y->names = names;
    snprintf(prefix, sizeof prefix, "model.layers.%u.", i);
    s = plan_layer_norm(l, &y->attn_norm, &y->attn_norm_bias, prefix, names->attn_norm);
    if (s == OK)
        s = plan_attention(l, names, y, prefix);
    if (s == OK)
        s = plan_layer_norm(l, &y->attn_after, NULL, prefix, names->attn_after);
    if (s == OK)
        s = plan_layer_norm(l, &y->ffn_norm, &y->ffn_norm_bias, prefix, names->ffn_norm);
    if (s == OK)
        s = moe_has_layer(plan_model(l), i) ? moe_plan(l, names->moe, &y->moe, prefix, each)
                                            : plan_feed_forward(l, names, y, prefix);
    if (s == OK)
        s = plan_layer_norm(l, &y->ffn_after, NULL, prefix, names->ffn_after);
    return s;
}

/* Refuse what ranks cannot share. */
static enum status check_ranks(struct loader *l, const struct decoder_names *names)
{
    if (names->head_norm == HEAD_NORM_ALL)
        return plan_refuses_ranks(l, "this model normalizes all heads together, and each GPU has "
                                     "some of them only");
    return OK;
}

enum status decoder_plan(struct loader *l, const struct decoder_names *names)
{
    const struct model_config *m = plan_model(l);
    uint32_t n = m->n_layers, n_each = 2 * m->n_experts;
    /* The weights of all experts lie behind the layers. */
    struct decoder_layer *layers = plan_layers(l, sizeof *layers + n_each * sizeof(struct weight));
    struct weight *each = layers ? (struct weight *)(void *)(layers + n) : NULL;
    enum status s = layers ? check_ranks(l, names) : ERR_NOMEM;

    if (s == OK)
        s = plan_embedding(l, names->embedding ? names->embedding : DECODER_EMBEDDING);
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = plan_layer(l, names, &layers[i], i, each + (size_t)i * n_each);
    if (s == OK)
        s = plan_output(l, "model.norm.weight", "lm_head.weight");
    if (s == OK)
        plan_first_product(l, &layers[0].qkv);
    return s;
}

enum status decoder_plan_llama(struct loader *l)
{
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm"};

    return decoder_plan(l, &names);
}

uint32_t decoder_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    widths[QKV] = q_rows(m) + 2 * kv_rows(m);
    widths[ATTN] = q_rows(m);
    widths[GATE_UP] = 2 * m->ffn_dim;
    widths[ACT] = m->ffn_dim;
    return N_BUFFERS;
}

uint32_t decoder_buffers_with_out(const struct model_config *m,
                                  uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    (void)decoder_buffers(m, widths);
    widths[OUT] = m->dim;
    return N_BUFFERS + 1;
}

uint32_t decoder_buffers_with_experts(const struct model_config *m,
                                      uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    (void)decoder_buffers(m, widths);
    return moe_buffers(m, widths);
}

/* Norm the residual stream for a part of the layer; *in is what the part multiplies. reader: the
 * only weight that it is multiplied with, or NULL. */
static enum status norm_before(const struct layer_step *p, const float *w, const float *bias,
                               const struct weight *reader, const float **in)
{
    *in = p->x;
    return w ? layer_norm_for(p, p->n_rows, p->x, w, bias, reader, p->xn, in) : OK;
}

/* The last product of a part of the layer. */
struct last_product {
    const struct weight *w, *next; /* next: the weight that is multiplied after it */
    const float *bias, *after;     /* after: the norm behind it; both may be NULL */
    uint32_t layer;
    enum adapter_place place;
};

/* Add the product to the residual stream, normed or multiplied where the model does so. */
static enum status add_part(const struct layer_step *p, const float *a,
                            const struct last_product *y)
{
    const struct model_config *m = p->model;
    bool is_direct = !y->after && m->residual_scale == 0;
    float *out = is_direct ? p->x : p->buffer[OUT];
    enum status s = is_direct ? layer_add_product(p, p->n_rows, a, y->w, y->next, y->bias, out)
                              : layer_sum_product(p, p->n_rows, a, y->w, y->next, y->bias, out);

    if (s == OK)
        s = adapter_add(p, y->layer, y->place, a, out, m->dim);
    if (s != OK || is_direct)
        return s;
    if (y->after)
        return layer_norm_with(p, p->n_rows, out, y->after, NULL, true, p->x);
    return layer_scale(p, p->n_rows, m->dim, out, m->residual_scale, 0, true, p->x);
}

static enum status norm_heads(const struct layer_step *p, const struct decoder_layer *w, float *qkv)
{
    const struct model_config *m = p->model;
    bool each = w->head_norm == HEAD_NORM_EACH;
    enum status s;

    if (w->head_norm == HEAD_NORM_NONE)
        return OK;
    s = layer_norm_heads(p, each ? m->n_heads : 1, each ? m->head_dim : q_rows(m), w->q_norm, qkv);
    if (s != OK)
        return s;
    return layer_norm_heads(p, each ? m->n_kv_heads : 1, each ? m->head_dim : kv_rows(m), w->k_norm,
                            qkv + q_rows(m));
}

/* The weight that the feed-forward part multiplies first. */
static const struct weight *first_of_ffn(const struct decoder_layer *w)
{
    return w->moe.gate_up.data ? &w->moe.router : &w->gate_up;
}

/* A mixture of experts and the norm in front of it, which router and experts read. */
static enum status run_moe(const struct layer_step *p, const struct decoder_layer *w,
                           const struct weight *after)
{
    bool is_rounded = false;
    enum status s = OK;

    if (w->ffn_norm)
        s = layer_norm_also(p, p->x, w->ffn_norm, w->ffn_norm_bias, &w->moe.gate_up, p->xn,
                            &is_rounded);
    return s == OK ? moe_run(p, &w->moe, w->ffn_norm ? p->xn : p->x, is_rounded, after) : s;
}

/* The feed-forward part and the norm in front of it. */
static enum status run_ffn(const struct layer_step *p, uint32_t layer, const struct weight *after)
{
    const struct decoder_layer *w = &decoder_layers(p->weights)[layer];
    const struct last_product down = {&w->down,     after, w->down_bias,
                                      w->ffn_after, layer, ADAPTER_DOWN};
    float *const *b = p->buffer;
    uint32_t n = p->n_rows;
    const float *act, *in;
    enum status s;

    if (w->moe.gate_up.data)
        return run_moe(p, w, after);
    if ((s = norm_before(p, w->ffn_norm, w->ffn_norm_bias, &w->gate_up, &in)) != OK ||
        (s = layer_product(p, n, in, &w->gate_up, &w->down, w->gate_up_bias, b[GATE_UP])) != OK ||
        (s = adapter_add(p, layer, ADAPTER_GATE_UP, in, b[GATE_UP], w->gate_up.n)) != OK ||
        (s = layer_silu_mul(p, n, p->model->ffn_dim, b[GATE_UP], &w->down, b[ACT], &act)) != OK)
        return s;
    return add_part(p, act, &down);
}

enum status decoder_run(const struct layer_step *p, uint32_t layer)
{
    const struct decoder_layer *w = &decoder_layers(p->weights)[layer];
    const struct weight *output = p->weights->output.data ? &p->weights->output : NULL;
    const struct weight *after = layer + 1 < p->model->n_layers ? &w[1].qkv : output;
    const struct last_product o = {&w->o,         first_of_ffn(w), w->o_bias,
                                   w->attn_after, layer,           ADAPTER_O};
    float *const *b = p->buffer;
    const float *in;
    enum status s;

    if ((s = norm_before(p, w->attn_norm, w->attn_norm_bias, &w->qkv, &in)) != OK ||
        (s = layer_product(p, p->n_rows, in, &w->qkv, &w->o, w->qkv_bias, b[QKV])) != OK ||
        (s = adapter_add(p, layer, ADAPTER_QKV, in, b[QKV], w->qkv.n)) != OK ||
        (s = norm_heads(p, w, b[QKV])) != OK || (s = layer_rope_kv(p, layer, b[QKV])) != OK ||
        (s = layer_attention(p, layer, b[QKV], &w->o, b[ATTN], &in)) != OK ||
        (s = add_part(p, in, &o)) != OK)
        return s;
    return run_ffn(p, layer, after);
}

void decoder_count_work(const struct model_config *m, const struct weights *w,
                        struct model_work *out)
{
    *out = (struct model_work){.k_max = m->dim, .flops_per_pair = 4.0 * m->n_layers * q_rows(m)};
    if (m->ffn_dim > out->k_max)
        out->k_max = m->ffn_dim;
    if (q_rows(m) > out->k_max)
        out->k_max = q_rows(m);
    if (moe_k_max(m) > out->k_max)
        out->k_max = moe_k_max(m);
    if (!w)
        return;
    out->flops_per_token = 2.0 * (double)w->n_params;
    out->weight_bytes = (double)w->n_bytes;
    for (uint32_t i = 0; i < m->n_layers; i++)
        moe_leave_out(m, &decoder_layers(w)[i].moe, out);
}
