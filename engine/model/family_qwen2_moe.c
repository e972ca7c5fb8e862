/* family_qwen2_moe.c - Qwen1.5-MoE and Qwen2-MoE: Yang et al., "Qwen2 technical report". Qwen2's
 * layer with experts and a shared part, which has a gate; some layers may be dense. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const struct moe_keys keys = {"num_experts", "num_experts_per_tok",
                                         "moe_intermediate_size"};
    int64_t shared = 5632;
    bool bias = true;
    enum status s = model_check_activation(j, "silu", why);

    m->n_experts = 60;
    m->n_chosen = 4;
    m->shared_gate = 1;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = moe_read(j, m, &keys, why);
    if (s == OK)
        s = moe_read_renormalize(j, m, why);
    if (s == OK)
        s = js_get_i64(j, "shared_expert_intermediate_size", 1, 1 << 20, &shared, why);
    if (s == OK)
        s = js_get_bool(j, "qkv_bias", &bias, why);
    if (s == OK)
        s = moe_refuse_flag(j, "use_sliding_window", why);
    m->shared_dim = (uint32_t)shared;
    m->qkv_bias = bias;
    return s == OK ? moe_read_sparse_layers(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct moe_names experts = {MOE_USUAL_NAMES, .shared = "mlp.shared_expert",
                                             .shared_gate = "mlp.shared_expert_gate"};
    static const struct decoder_names names = {
        .attn_norm = "input_layernorm", .ffn_norm = "post_attention_layernorm", .moe = &experts};

    return decoder_plan(l, &names);
}

const struct model_family family_qwen2_moe = {
    .name = "qwen2_moe",
    .architectures = (const char *const[]){"Qwen2MoeForCausalLM", "Qwen2MoeModel", NULL},
    .model_types = (const char *const[]){"qwen2_moe", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_experts,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
