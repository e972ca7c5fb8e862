/* family_granite.c - Granite 3: IBM, 2024. Llama's layer with multipliers of the embedding, the
 * scores, the parts of a layer and the logits. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    double logits_scaling = 1;
    enum status s = model_check_activation(j, "silu", why);

    m->attention_scale = 1;
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "embedding_multiplier", &m->embed_scale, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "attention_multiplier", &m->attention_scale, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "residual_multiplier", &m->residual_scale, why);
    if (s == OK)
        s = decoder_read_multiplier(j, "logits_scaling", &logits_scaling, why);
    m->logit_scale = 1 / logits_scaling;
    return s;
}

const struct model_family family_granite = {
    .name = "granite",
    .architectures = (const char *const[]){"GraniteForCausalLM", "GraniteModel", NULL},
    .model_types = (const char *const[]){"granite", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers_with_out,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
