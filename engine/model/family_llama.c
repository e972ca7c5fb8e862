/* family_llama.c - Llama: Touvron et al., "LLaMA". */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *window = js_get_set(j, "sliding_window");
    enum status s;

    if (window && js_is(window, JS_INT) && js_int(window) != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "sliding_window is not supported for Llama; MistralForCausalLM has one");
    s = model_check_activation(j, "silu", why);
    return s == OK ? model_read_common(j, m, why) : s;
}

const struct model_family family_llama = {
    .name = "llama",
    .architectures = (const char *const[]){"LlamaForCausalLM", "LlamaModel", NULL},
    .model_types = (const char *const[]){"llama", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
