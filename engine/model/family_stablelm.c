/* family_stablelm.c - StableLM: Bellagente et al., "Stable LM 2 1.6B". Llama's layer with
 * LayerNorm, of which a part of each head is rotated. */
#include "engine/model/decoder.h"

static enum status refuse(const struct json *j, const char *name, struct buf *why)
{
    bool set = false;
    enum status s = js_get_bool(j, name, &set, why);

    return s == OK && set ? buf_why(why, ERR_UNSUPPORTED, "%s is not supported for StableLM", name)
                          : s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    static const char name[] = "partial_rotary_factor";
    bool bias = false;
    enum status s = model_check_activation(j, "silu", why);

    m->norm = NORM_LAYER;
    m->rms_eps = 1e-5;
    if (s == OK)
        s = js_get_f64(j, "layer_norm_eps", 0, 1, &m->rms_eps, why);
    if (s == OK)
        s = js_get_bool(j, "use_qkv_bias", &bias, why);
    m->qkv_bias = bias;
    if (s == OK)
        s = refuse(j, "qk_layernorm", why);
    if (s == OK)
        s = refuse(j, "use_parallel_residual", why);
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK && !js_get_set(j, name) && !js_get_set(js_get_set(j, "rope_parameters"), name))
        s = buf_why(why, ERR_INVALID, "%s is missing", name);
    return s;
}

const struct model_family family_stablelm = {
    .name = "stablelm",
    .architectures = (const char *const[]){"StableLmForCausalLM", "StableLmModel", NULL},
    .model_types = (const char *const[]){"stablelm", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
