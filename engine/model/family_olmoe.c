/* family_olmoe.c - OLMoE: Muennighoff et al., "OLMoE: open mixture-of-experts language models".
 * Llama's layer with experts, and with a norm of all heads of Q and of K together. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const struct moe_keys keys = {"num_experts", "num_experts_per_tok", "intermediate_size"};
    enum status s = model_check_activation(j, "silu", why);

    m->n_experts = 64;
    m->n_chosen = 8;
    m->rms_eps = 1e-5;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = moe_read(j, m, &keys, why);
    if (s == OK && js_get_set(j, "clip_qkv"))
        s = buf_why(why, ERR_UNSUPPORTED, "clip_qkv is not supported; null is");
    return s == OK ? moe_read_renormalize(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct moe_names experts = {MOE_USUAL_NAMES};
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .head_norm = HEAD_NORM_ALL,
                                               .moe = &experts};

    return decoder_plan(l, &names);
}

const struct model_family family_olmoe = {
    .name = "olmoe",
    .architectures = (const char *const[]){"OlmoeForCausalLM", "OlmoeModel", NULL},
    .model_types = (const char *const[]){"olmoe", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_experts,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
