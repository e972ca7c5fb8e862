/* family_bailing_moe.c - Ling-lite and Ling-plus: Ling team, "Every FLOP counts: scaling a
 * 300B mixture-of-experts LING LLM without premium GPUs". Llama's layer with experts and a shared
 * part; the first layers may be dense. */
#include "engine/model/decoder.h"

#include <string.h>

#define EMBEDDING "model.word_embeddings.weight"

/* The shared part is as wide as num_shared_experts experts. */
static enum status read_shared(const struct json *j, struct model_config *m, struct buf *why)
{
    int64_t n = 0, dim = m->expert_dim;
    enum status s = js_get_i64(j, "num_shared_experts", 0, 64, &n, why);

    if (s == OK)
        s = js_get_i64(j, "moe_shared_expert_intermediate_size", 1, 1 << 20, &dim, why);
    m->shared_dim = (uint32_t)(n * dim);
    return s;
}

static enum status read_biases(const struct json *j, struct model_config *m, struct buf *why)
{
    bool all = false, qkv = false;
    enum status s = js_get_bool(j, "use_bias", &all, why);

    if (s == OK)
        s = js_get_bool(j, "use_qkv_bias", &qkv, why);
    m->attention_bias = all;
    m->qkv_bias = qkv;
    return s;
}

/* Refuse what later models of the family have. */
static enum status check_router(const struct json *j, struct model_config *m, struct buf *why)
{
    static const char *const flags[] = {"moe_router_enable_expert_bias", "norm_head", "multi_gate",
                                        "use_qk_norm"};
    const char *score = "softmax";
    double scale = 1;
    enum status s = OK;

    for (size_t i = 0; s == OK && i < sizeof flags / sizeof *flags; i++)
        s = moe_refuse_flag(j, flags[i], why);
    if (s == OK)
        s = moe_refuse_above(j, "n_group", 1, why);
    if (s == OK)
        s = moe_refuse_above(j, "topk_group", 1, why);
    if (s == OK)
        s = js_get_str(j, "score_function", &score, NULL, why);
    if (s == OK && strcmp(score, "softmax") != 0)
        s = buf_why(why, ERR_UNSUPPORTED, "score_function %s is not supported; softmax is", score);
    if (s == OK)
        s = js_get_f64(j, "routed_scaling_factor", 1e-6, 1e6, &scale, why);
    m->expert_scale = scale;
    return s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const struct moe_keys keys = {"num_experts", "num_experts_per_tok",
                                         "moe_intermediate_size"};
    int64_t n_dense = 0;
    enum status s = model_check_activation(j, "silu", why);

    m->renormalize = 1;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = moe_read(j, m, &keys, why);
    if (s == OK)
        s = moe_read_renormalize(j, m, why);
    if (s == OK)
        s = js_get_i64(j, "first_k_dense_replace", 0, MODEL_N_LAYERS_MAX, &n_dense, why);
    if (m->n_chosen == 1) /* one expert keeps its share of all */
        m->renormalize = 0;
    for (uint32_t i = 0; i < n_dense && i < m->n_layers; i++)
        model_add_layer(m->no_experts, i);
    if (s == OK)
        s = read_shared(j, m, why);
    if (s == OK)
        s = read_biases(j, m, why);
    return s == OK ? check_router(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct moe_names experts = {MOE_USUAL_NAMES, .shared = "mlp.shared_experts"};
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .qkv = "attention.query_key_value",
                                               .o = "attention.dense",
                                               .embedding = EMBEDDING,
                                               .moe = &experts};

    return decoder_plan(l, &names);
}

const struct model_family family_bailing_moe = {
    .name = "bailing_moe",
    .architectures = (const char *const[]){"BailingMoeForCausalLM", "BailingMoeModel", NULL},
    .model_types = (const char *const[]){"bailing_moe", NULL},
    .embedding = EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_experts,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
