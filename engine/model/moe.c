#include "engine/model/moe.h"

#include <stdio.h>

#include "base/check.h"

/* --- config.json --- */

static enum status read_u32(const struct json *j, const char *name, uint32_t max, uint32_t *out,
                            struct buf *why)
{
    int64_t value = *out;
    enum status s = name ? js_get_i64(j, name, 1, max, &value, why) : OK;

    if (s == OK && value == 0)
        return buf_why(why, ERR_INVALID, "%s is missing", name ? name : "the experts' size");
    *out = (uint32_t)value;
    return s;
}

enum status moe_read(const struct json *j, struct model_config *m, const struct moe_keys *keys,
                     struct buf *why)
{
    enum status s = read_u32(j, keys->n_experts, ROUTE_EXPERTS_MAX, &m->n_experts, why);

    if (s == OK)
        s = read_u32(j, keys->n_chosen, ROUTE_CHOSEN_MAX, &m->n_chosen, why);
    if (s == OK)
        s = read_u32(j, keys->expert_dim, 1 << 20, &m->expert_dim, why);
    if (s == OK && m->n_chosen > m->n_experts)
        return buf_why(why, ERR_INVALID, "%s %u is more than the %u experts of %s", keys->n_chosen,
                       m->n_chosen, m->n_experts, keys->n_experts);
    return s;
}

enum status moe_read_renormalize(const struct json *j, struct model_config *m, struct buf *why)
{
    bool value = m->renormalize;
    enum status s = js_get_bool(j, "norm_topk_prob", &value, why);

    m->renormalize = value;
    return s;
}

enum status moe_read_sparse_layers(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *dense = js_get_set(j, "mlp_only_layers");
    int64_t step = 1;
    enum status s = js_get_i64(j, "decoder_sparse_step", 1, MODEL_N_LAYERS_MAX, &step, why);

    if (s != OK)
        return s;
    if (dense && !js_is(dense, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "mlp_only_layers: not a list");
    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((i + 1) % step != 0)
            model_add_layer(m->no_experts, i);
    for (size_t i = 0; dense && i < js_len(dense); i++) {
        const struct json *layer = js_at(dense, i);

        if (!js_is(layer, JS_INT) || js_int(layer) < 0 || js_int(layer) >= MODEL_N_LAYERS_MAX)
            return buf_why(why, ERR_INVALID, "mlp_only_layers: not the number of a layer");
        model_add_layer(m->no_experts, (uint32_t)js_int(layer));
    }
    return OK;
}

enum status moe_refuse_flag(const struct json *j, const char *name, struct buf *why)
{
    bool value = false;
    enum status s = js_get_bool(j, name, &value, why);

    return s == OK && value ? buf_why(why, ERR_UNSUPPORTED, "%s is not supported", name) : s;
}

enum status moe_refuse_above(const struct json *j, const char *name, int64_t most, struct buf *why)
{
    int64_t value = 0;
    enum status s = js_get_i64(j, name, INT32_MIN, INT32_MAX, &value, why);

    if (s == OK && value > most)
        return buf_why(why, ERR_UNSUPPORTED, "%s %lld is not supported; up to %lld is", name,
                       (long long)value, (long long)most);
    return s;
}

/* --- weights --- */

static enum status plan_shared(struct loader *l, const struct moe_names *names, struct moe *y,
                               const char *prefix)
{
    const struct model_config *m = plan_model(l);
    char gate[64], up[64], down[64];
    struct plan_part parts[] = {{gate, m->shared_dim, PLAN_ROWS}, {up, m->shared_dim, PLAN_ROWS}};

    snprintf(gate, sizeof gate, "%s.gate_proj", names->shared);
    snprintf(up, sizeof up, "%s.up_proj", names->shared);
    snprintf(down, sizeof down, "%s.down_proj", names->shared);
    enum status s = plan_product(l, &y->shared_gate_up, NULL, m->dim, prefix, parts, 2);
    if (s == OK)
        s = plan_product(l, &y->shared_down, NULL, m->shared_dim, prefix,
                         (struct plan_part[]){{down, m->dim, PLAN_K}}, 1);
    if (s == OK && m->shared_gate)
        s = plan_router(l, &y->shared_gate, m->dim, prefix,
                        &(struct plan_part){names->shared_gate, 1, PLAN_WHOLE});
    return s;
}

enum status moe_plan(struct loader *l, const struct moe_names *names, struct moe *y,
                     const char *prefix, struct weight *each)
{
    const struct model_config *m = plan_model(l);
    uint32_t n = m->n_experts;
    const struct plan_part parts[] = {{names->gate, m->expert_dim, PLAN_ROWS},
                                      {names->up, m->expert_dim, PLAN_ROWS},
                                      {names->down, m->dim, PLAN_K}};
    const struct plan_experts gate_up = {n, m->dim, prefix, names->experts, parts, 2};
    const struct plan_experts down = {n, m->expert_dim, prefix, names->experts, parts + 2, 1};
    enum status s = plan_router(l, &y->router, m->dim, prefix,
                                &(struct plan_part){names->router, n, PLAN_WHOLE});

    if (s == OK)
        s = plan_experts(l, &gate_up, each, &y->gate_up_bytes);
    if (s == OK)
        s = plan_experts(l, &down, each + n, &y->down_bytes);
    if (s == OK && m->shared_dim > 0)
        s = plan_shared(l, names, y, prefix);
    y->gate_up = each[0];
    y->down = each[n];
    return s;
}

/* --- sizes --- */

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* F of the model's dense layers; 0: all layers have experts. */
static uint32_t dense_dim(const struct model_config *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (!moe_has_layer(m, i))
            return m->ffn_dim;
    return 0;
}

/* Floats of a row between the two products of any feed-forward part. */
static uint32_t act_width(const struct model_config *m)
{
    return max_u32(max_u32(dense_dim(m), m->shared_dim), m->n_chosen * m->expert_dim);
}

uint32_t moe_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    widths[MOE_GATE_UP] = 2 * act_width(m);
    widths[MOE_ACT] = act_width(m);
    widths[MOE_OUT] = m->shared_gate ? m->dim : 1;
    widths[MOE_LOGITS] = m->n_experts;
    widths[MOE_ROUTES] = 4 * m->n_chosen + m->n_experts + 1;
    widths[MOE_SORTED] = m->n_chosen * m->dim;
    return MOE_N_BUFFERS;
}

uint32_t moe_k_max(const struct model_config *m)
{
    return max_u32(m->expert_dim, m->shared_dim);
}

void moe_leave_out(const struct model_config *m, const struct moe *w, struct model_work *work)
{
    double n = (double)(m->n_experts - m->n_chosen);

    if (!w->gate_up.data)
        return;
    work->flops_per_token -= 2 * n * 3 * (double)m->expert_dim * m->dim;
    work->weight_bytes -= n * (double)(w->gate_up_bytes + w->down_bytes);
}

/* --- the step --- */

/* A view of MOE_ROUTES. */
struct routes {
    float *weights; /* [T, k] */
    uint32_t *experts, *at, *rows, *offsets;
};

static struct routes routes_of(const struct layer_step *p)
{
    size_t n = (size_t)p->n_rows * p->model->n_chosen;
    uint32_t *rest = (uint32_t *)(void *)(p->buffer[MOE_ROUTES] + n);

    return (struct routes){p->buffer[MOE_ROUTES], rest, rest + n, rest + 2 * n, rest + 3 * n};
}

static enum status choose(const struct layer_step *p, const struct moe *w, const float *in,
                          const struct routes *r)
{
    const struct model_config *m = p->model;
    struct route_params route = {.n_rows = p->n_rows,
                                 .n_experts = m->n_experts,
                                 .n_chosen = m->n_chosen,
                                 .score = ROUTE_SOFTMAX,
                                 .renormalize = m->renormalize != 0,
                                 .scale = m->expert_scale > 0 ? (float)m->expert_scale : 1,
                                 .logits = p->buffer[MOE_LOGITS],
                                 .slot_block = p->slot_block,
                                 .experts = r->experts,
                                 .weights = r->weights,
                                 .offsets = r->offsets,
                                 .rows = r->rows,
                                 .at = r->at};
    enum status s = layer_product(p, p->n_rows, in, &w->router, NULL, NULL, p->buffer[MOE_LOGITS]);

    return s == OK ? p->ops->route(p->device, NULL, &route) : s;
}

/* a NULL: the rows that the op before left in p->rounded. rows: as in gemm_experts_params. */
static enum status multiply(const struct layer_step *p, const struct weight *w, size_t expert_bytes,
                            const struct routes *r, const float *a, const uint32_t *rows,
                            float *out)
{
    struct gemm_experts_params g = {.n_rows = p->n_rows * p->model->n_chosen,
                                    .n_rows_max = p->n_rows,
                                    .n_experts = p->model->n_experts,
                                    .w = *w,
                                    .expert_bytes = expert_bytes,
                                    .offsets = r->offsets,
                                    .a = a,
                                    .rounded = a ? NULL : p->rounded,
                                    .rows = rows,
                                    .out = out};

    return p->ops->gemm_experts(p->device, NULL, &g);
}

/* The first product of the experts. A GPU reads the rows where they are. */
static enum status multiply_rows(const struct layer_step *p, const struct moe *w,
                                 const struct routes *r, const float *in, bool is_rounded)
{
    float *sorted = p->buffer[MOE_SORTED], *out = p->buffer[MOE_GATE_UP];
    struct gather_params gather = {.n_rows = p->n_rows * p->model->n_chosen,
                                   .dim = p->model->dim,
                                   .x = in,
                                   .rows = r->rows,
                                   .out = sorted};
    enum status s;

    if (p->ops->rounds_rows)
        return multiply(p, &w->gate_up, w->gate_up_bytes, r, is_rounded ? NULL : in, r->rows, out);
    s = p->ops->gather(p->device, NULL, &gather);
    return s == OK ? multiply(p, &w->gate_up, w->gate_up_bytes, r, sorted, NULL, out) : s;
}

static enum status run_experts(const struct layer_step *p, const struct moe *w, const float *in,
                               bool is_rounded)
{
    const struct model_config *m = p->model;
    struct routes r = routes_of(p);
    uint32_t n = p->n_rows * m->n_chosen;
    float *const *b = p->buffer;
    const float *act;
    struct combine_params combine = {.n_rows = p->n_rows,
                                     .dim = m->dim,
                                     .n_chosen = m->n_chosen,
                                     .weights = r.weights,
                                     .at = r.at,
                                     .y = b[MOE_SORTED],
                                     .out = p->x};
    enum status s;

    if ((s = choose(p, w, in, &r)) != OK || (s = multiply_rows(p, w, &r, in, is_rounded)) != OK ||
        (s = layer_silu_mul(p, n, m->expert_dim, b[MOE_GATE_UP], &w->down, b[MOE_ACT], &act)) !=
            OK ||
        (s = multiply(p, &w->down, w->down_bytes, &r, act, NULL, b[MOE_SORTED])) != OK)
        return s;
    return p->ops->combine(p->device, NULL, &combine);
}

/* Add the shared part's output, times the sigmoid of its gate's product; act: its activations. */
static enum status add_gated(const struct layer_step *p, const struct moe *w, const float *in,
                             const float *act, const struct weight *after)
{
    uint32_t n = p->n_rows;
    float *const *b = p->buffer;
    struct route_params gate = {.n_rows = n,
                                .n_experts = 1,
                                .n_chosen = 1,
                                .score = ROUTE_SIGMOID,
                                .scale = 1,
                                .logits = b[MOE_LOGITS],
                                .experts = routes_of(p).experts,
                                .weights = b[MOE_ROUTES]};
    struct combine_params combine = {.n_rows = n,
                                     .dim = p->model->dim,
                                     .n_chosen = 1,
                                     .weights = gate.weights,
                                     .y = b[MOE_OUT],
                                     .out = p->x};
    enum status s;

    if ((s = layer_product(p, n, act, &w->shared_down, after, NULL, b[MOE_OUT])) != OK ||
        (s = layer_product(p, n, in, &w->shared_gate, NULL, NULL, b[MOE_LOGITS])) != OK ||
        (s = p->ops->route(p->device, NULL, &gate)) != OK)
        return s;
    return p->ops->combine(p->device, NULL, &combine);
}

static enum status run_shared(const struct layer_step *p, const struct moe *w, const float *in,
                              const struct weight *after)
{
    uint32_t n = p->n_rows;
    float *const *b = p->buffer;
    const float *act;
    enum status s;

    if ((s = layer_product(p, n, in, &w->shared_gate_up, &w->shared_down, NULL, b[MOE_GATE_UP])) !=
            OK ||
        (s = layer_silu_mul(p, n, p->model->shared_dim, b[MOE_GATE_UP], &w->shared_down, b[MOE_ACT],
                            &act)) != OK)
        return s;
    if (p->model->shared_gate)
        return add_gated(p, w, in, act, after);
    return layer_add_part(p, n, act, &w->shared_down, after, p->x);
}

enum status moe_run(const struct layer_step *p, const struct moe *w, const float *in,
                    bool is_rounded, const struct weight *after)
{
    size_t n = (size_t)p->n_rows * p->model->dim;
    enum status s = OK;

    /* The sum over the group has the old x once: that of the first device. Each device has the same
     * x, so the routers choose the same experts everywhere. */
    ASSERT(p->group->n == 1 || in != p->x);
    if (p->group->rank > 0)
        s = layer_clear(p, p->n_rows, p->model->dim, p->x);
    if (s == OK)
        s = run_experts(p, w, in, is_rounded);
    if (s == OK && p->model->shared_dim > 0)
        s = run_shared(p, w, in, after);
    return s == OK ? layer_sum(p, n, p->x) : s;
}
