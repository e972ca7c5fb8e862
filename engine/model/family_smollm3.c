/* family_smollm3.c - SmolLM3: Hugging Face, 2025. Llama's layer; every fourth layer has no
 * rotary positions (Kazemnejad et al., "NoPE"). */
#include "engine/model/decoder.h"

/* no_rope_layers: 1 for a layer with rotary positions, 0 for one without. */
static enum status read_positions(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *list = js_get_set(j, "no_rope_layers");
    int64_t interval = 4;
    enum status s = js_get_i64(j, "no_rope_layer_interval", 1, MODEL_N_LAYERS_MAX, &interval, why);

    if (s == OK && list && (!js_is(list, JS_ARRAY) || js_len(list) != m->n_layers))
        s = buf_why(why, ERR_INVALID, "no_rope_layers: expected an array of num_hidden_layers");
    for (uint32_t i = 0; s == OK && i < m->n_layers; i++) {
        const struct json *v = list ? js_at(list, i) : NULL;
        if (list && !js_is(v, JS_INT))
            return buf_why(why, ERR_INVALID, "no_rope_layers: expected 0 or 1 for each layer");
        if (list ? js_int(v) == 0 : (i + 1) % (uint32_t)interval == 0)
            model_add_layer(m->no_rope, i);
    }
    return s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    bool windows = false;
    enum status s = model_check_activation(j, "silu", why);

    m->tied = 1;
    m->rope.theta = 2e6;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = read_positions(j, m, why);
    if (s == OK)
        s = js_get_bool(j, "use_sliding_window", &windows, why);
    if (s == OK && windows)
        s = buf_why(why, ERR_UNSUPPORTED, "use_sliding_window is not supported for SmolLM3");
    return s;
}

const struct model_family family_smollm3 = {
    .name = "smollm3",
    .architectures = (const char *const[]){"SmolLM3ForCausalLM", "SmolLM3Model", NULL},
    .model_types = (const char *const[]){"smollm3", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
