/* family_olmo2.c - OLMo 2: OLMo team, "2 OLMo 2 Furious". Norms behind both parts of a layer
 * instead of before them; Q and K are normed over all heads. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = model_check_activation(j, "silu", why);

    m->rms_eps = 1e-5;
    return s == OK ? model_read_common(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct decoder_names names = {.attn_after = "post_attention_layernorm",
                                               .ffn_after = "post_feedforward_layernorm",
                                               .head_norm = HEAD_NORM_ALL};

    return decoder_plan(l, &names);
}

const struct model_family family_olmo2 = {
    .name = "olmo2",
    .architectures = (const char *const[]){"Olmo2ForCausalLM", "Olmo2Model", NULL},
    .model_types = (const char *const[]){"olmo2", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_out,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
