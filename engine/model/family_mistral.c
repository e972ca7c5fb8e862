/* family_mistral.c - Mistral: Jiang et al., "Mistral 7B". Llama's layer; early models have a
 * window. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = model_check_activation(j, "silu", why);

    m->window = 4096;
    if (s == OK)
        s = model_read_common(j, m, why);
    return s == OK ? decoder_read_window(j, m, why) : s;
}

const struct model_family family_mistral = {
    .name = "mistral",
    .architectures = (const char *const[]){"MistralForCausalLM", "MistralModel", NULL},
    .model_types = (const char *const[]){"mistral", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
