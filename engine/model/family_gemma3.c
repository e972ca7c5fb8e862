/* family_gemma3.c - Gemma 3, text only: Gemma team, "Gemma 3 technical report". Gemma 2's layer
 * with norms of the heads instead of soft caps; five of six layers have a window and frequencies
 * of their own. */
#include <math.h>

#include "engine/model/decoder.h"

static enum status read_windows(const struct json *j, struct model_config *m, struct buf *why)
{
    int64_t pattern = 6;
    bool listed = false;
    enum status s = model_read_window(j, m, &listed, why);

    if (s == OK)
        s = js_get_i64(j, "sliding_window_pattern", 1, MODEL_N_LAYERS_MAX, &pattern, why);
    for (uint32_t i = 0; s == OK && !listed && i < m->n_layers; i++)
        if ((i + 1) % (uint32_t)pattern != 0)
            model_add_layer(m->windowed, i);
    return s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    double per_head = 256;
    bool both_ways = false;
    enum status s = model_check_activation(j, "gelu_pytorch_tanh", why);

    m->norm = NORM_RMS_PLUS_ONE;
    m->activation = ACTIVATION_GELU_TANH;
    m->head_dim = 256;
    m->tied = 1;
    m->window = 4096;
    m->rope.theta = 1e6;
    m->rope_local = (struct rope_config){.theta = 10000, .factor = 1};
    if (s == OK)
        s = js_get_f64(j, "rope_local_base_freq", 1, 1e12, &m->rope_local.theta, why);
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = js_get_bool(j, "use_bidirectional_attention", &both_ways, why);
    if (s == OK && both_ways)
        s = buf_why(why, ERR_UNSUPPORTED, "use_bidirectional_attention is not supported");
    if (s == OK)
        s = js_get_f64(j, "query_pre_attn_scalar", 1, 1e6, &per_head, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "attn_logit_softcapping", &m->attention_cap, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "final_logit_softcapping", &m->logit_cap, why);
    m->attention_scale = 1 / sqrt(per_head);
    m->embed_scale = sqrt(m->dim);
    return s == OK ? read_windows(j, m, why) : s;
}

static enum status plan_weights(struct loader *l)
{
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .attn_after = "post_attention_layernorm",
                                               .ffn_norm = "pre_feedforward_layernorm",
                                               .ffn_after = "post_feedforward_layernorm",
                                               .head_norm = HEAD_NORM_EACH};

    return decoder_plan(l, &names);
}

const struct model_family family_gemma3 = {
    .name = "gemma3",
    .architectures = (const char *const[]){"Gemma3ForCausalLM", "Gemma3TextModel", NULL},
    .model_types = (const char *const[]){"gemma3_text", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = decoder_buffers_with_out,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
