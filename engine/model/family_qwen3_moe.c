/* family_qwen3_moe.c - Qwen3-MoE: Yang et al., "Qwen3 technical report". Qwen3's layer with
 * experts; some layers may be dense. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const struct moe_keys keys = {"num_experts", "num_experts_per_tok",
                                         "moe_intermediate_size"};
    enum status s = model_check_activation(j, "silu", why);

    m->n_experts = 128;
    m->n_chosen = 8;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = moe_read(j, m, &keys, why);
    if (s == OK)
        s = moe_read_renormalize(j, m, why);
    if (s == OK)
        s = moe_refuse_flag(j, "use_sliding_window", why);
    return s == OK ? moe_read_sparse_layers(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct moe_names experts = {MOE_USUAL_NAMES};
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .head_norm = HEAD_NORM_EACH,
                                               .moe = &experts};

    return decoder_plan(l, &names);
}

const struct model_family family_qwen3_moe = {
    .name = "qwen3_moe",
    .architectures = (const char *const[]){"Qwen3MoeForCausalLM", "Qwen3MoeModel", NULL},
    .model_types = (const char *const[]){"qwen3_moe", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_experts,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
