/* family_mixtral.c - Mixtral: Jiang et al., "Mixtral of experts". Mistral's layer with experts. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const struct moe_keys keys = {"num_local_experts", "num_experts_per_tok",
                                         "intermediate_size"};
    enum status s = model_check_activation(j, "silu", why);

    m->n_experts = 8;
    m->n_chosen = 2;
    m->renormalize = 1;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = moe_read(j, m, &keys, why);
    return s == OK ? decoder_read_window(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct moe_names experts = {.router = "block_sparse_moe.gate",
                                             .experts = "block_sparse_moe.experts",
                                             .gate = "w1",
                                             .up = "w3",
                                             .down = "w2"};
    static const struct decoder_names names = {
        .attn_norm = "input_layernorm", .ffn_norm = "post_attention_layernorm", .moe = &experts};

    return decoder_plan(l, &names);
}

const struct model_family family_mixtral = {
    .name = "mixtral",
    .architectures = (const char *const[]){"MixtralForCausalLM", "MixtralModel", NULL},
    .model_types = (const char *const[]){"mixtral", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_experts,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
