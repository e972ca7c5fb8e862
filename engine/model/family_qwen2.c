/* family_qwen2.c - Qwen2 and Qwen2.5: Yang et al., "Qwen2 technical report". Llama's layer with
 * biases on Q, K and V. */
#include "engine/model/decoder.h"

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = model_check_activation(j, "silu", why);

    m->qkv_bias = 1;
    if (s == OK)
        s = model_read_common(j, m, why);
    return s == OK ? decoder_read_upper_windows(j, m, why) : s;
}

const struct model_family family_qwen2 = {
    .name = "qwen2",
    .architectures = (const char *const[]){"Qwen2ForCausalLM", "Qwen2Model", NULL},
    .model_types = (const char *const[]){"qwen2", NULL},
    .embedding = DECODER_EMBEDDING,
    .read_config = read_config,
    .plan_weights = decoder_plan_llama,
    .plan_buffers = decoder_buffers,
    .run_layer = decoder_run,
    .count_work = decoder_count_work,
};
