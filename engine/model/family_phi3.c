/* family_phi3.c - Phi-3 and Phi-4: Abdin et al., "Phi-3 technical report". Llama's layer; Q, K
 * and V are one tensor, gate and up another. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = model_check_activation(j, "silu", why);

    m->rms_eps = 1e-5;
    if (s == OK)
        s = model_read_common(j, m, why);
    return s == OK ? decoder_read_window(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct decoder_names names = {
        .attn_norm = "input_layernorm", .ffn_norm = "post_attention_layernorm", .is_fused = true};

    return decoder_plan(l, &names);
}

const struct model_family family_phi3 = {
    .name = "phi3",
    .architectures = (const char *const[]){"Phi3ForCausalLM", "Phi3Model", NULL},
    .model_types = (const char *const[]){"phi3", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
