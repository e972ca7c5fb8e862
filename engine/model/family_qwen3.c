/* family_qwen3.c - Qwen3: Yang et al., "Qwen3 technical report". Llama's layer with an RMS norm
 * of each head of Q and K; the heads' size is apart from the width. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = model_check_activation(j, "silu", why);

    m->head_dim = 128; /* unless config.json has another */
    if (s == OK)
        s = model_read_common(j, m, why);
    return s == OK ? decoder_read_upper_windows(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .head_norm = HEAD_NORM_EACH};

    return decoder_plan(l, &names);
}

const struct model_family family_qwen3 = {
    .name = "qwen3",
    .architectures = (const char *const[]){"Qwen3ForCausalLM", "Qwen3Model", NULL},
    .model_types = (const char *const[]){"qwen3", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
