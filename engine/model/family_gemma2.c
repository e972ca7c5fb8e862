/* family_gemma2.c - Gemma 2: Gemma team, "Gemma 2". Norms before and behind both parts of a
 * layer, whose weights are stored less 1; soft caps of scores and logits; every other layer has
 * a window. */
#include <math.h>

#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    double per_head = 256;
    bool listed = false;
    enum status s = model_check_activation(j, "gelu_pytorch_tanh", why);

    m->norm = NORM_RMS_PLUS_ONE;
    m->activation = ACTIVATION_GELU_TANH;
    m->head_dim = 256;
    m->tied = 1;
    m->window = 4096;
    m->attention_cap = 50;
    m->logit_cap = 30;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = js_get_f64(j, "query_pre_attn_scalar", 1, 1e6, &per_head, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "attn_logit_softcapping", &m->attention_cap, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "final_logit_softcapping", &m->logit_cap, why);
    if (s == OK)
        s = model_read_window(j, m, &listed, why);
    for (uint32_t i = 0; s == OK && !listed && i < m->n_layers; i += 2)
        model_add_layer(m->windowed, i);
    m->attention_scale = 1 / sqrt(per_head);
    m->embed_scale = sqrt(m->dim);
    return s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .attn_after = "post_attention_layernorm",
                                               .ffn_norm = "pre_feedforward_layernorm",
                                               .ffn_after = "post_feedforward_layernorm"};

    return decoder_plan(l, &names);
}

const struct model_family family_gemma2 = {
    .name = "gemma2",
    .architectures = (const char *const[]){"Gemma2ForCausalLM", "Gemma2Model", NULL},
    .model_types = (const char *const[]){"gemma2", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_out,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
