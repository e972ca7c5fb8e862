/* family_llama.c - Llama and Mistral: Touvron et al., "LLaMA". A layer is norm, QKV, rotary
 * positions, attention, residual, norm, gated feed-forward, residual. */
#include "engine/model/family_llama.h"

#include <stdio.h>
#include <string.h>

#include "engine/model/family.h"

enum buffer { QKV, ATTN, GATE_UP, ACT, N_BUFFERS };

static uint32_t q_rows(const struct model_config *m)
{
    return m->n_heads * m->head_dim;
}

static uint32_t kv_rows(const struct model_config *m)
{
    return m->n_kv_heads * m->head_dim;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *window = js_get_set(j, "sliding_window");
    const char *act = "silu";
    enum status s;

    if (window && js_is(window, JS_INT) && js_int(window) != 0)
        return buf_why(why, ERR_UNSUPPORTED, "sliding_window attention is not supported");
    s = js_get_str(j, "hidden_act", &act, NULL, why);
    if (s == OK && strcmp(act, "silu") != 0)
        s = buf_why(why, ERR_UNSUPPORTED, "hidden_act %s is not supported; silu is", act);
    return s == OK ? model_read_common(j, m, why) : s;
}

/* Q, K and V become one weight, gate and up another: a layer is four products. */
static enum status plan_layer(struct loader *l, struct llama_layer *y, uint32_t i)
{
    const struct model_config *m = plan_model(l);
    uint32_t q = q_rows(m), kv = kv_rows(m);
    char prefix[64];
    enum status s;

    snprintf(prefix, sizeof prefix, "model.layers.%u.", i);
    s = plan_norm(l, &y->attn_norm, m->dim, prefix, "input_layernorm");
    if (s == OK)
        s = plan_product(l, &y->qkv, m->attention_bias ? &y->qkv_bias : NULL, m->dim, prefix,
                         (struct plan_part[]){{"self_attn.q_proj", q},
                                              {"self_attn.k_proj", kv},
                                              {"self_attn.v_proj", kv}},
                         3);
    if (s == OK)
        s = plan_product(l, &y->o, m->attention_bias ? &y->o_bias : NULL, q, prefix,
                         (struct plan_part[]){{"self_attn.o_proj", m->dim}}, 1);
    if (s == OK)
        s = plan_norm(l, &y->ffn_norm, m->dim, prefix, "post_attention_layernorm");
    if (s == OK)
        s = plan_product(
            l, &y->gate_up, m->mlp_bias ? &y->gate_up_bias : NULL, m->dim, prefix,
            (struct plan_part[]){{"mlp.gate_proj", m->ffn_dim}, {"mlp.up_proj", m->ffn_dim}}, 2);
    if (s == OK)
        s = plan_product(l, &y->down, m->mlp_bias ? &y->down_bias : NULL, m->ffn_dim, prefix,
                         (struct plan_part[]){{"mlp.down_proj", m->dim}}, 1);
    return s;
}

static enum status plan_weights(struct loader *l)
{
    uint32_t n = plan_model(l)->n_layers;
    struct llama_layer *layers = plan_layers(l, sizeof *layers);
    enum status s = layers ? OK : ERR_NOMEM;

    if (s == OK)
        s = plan_embedding(l, family_llama.embedding);
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = plan_layer(l, &layers[i], i);
    if (s == OK)
        s = plan_output(l, "model.norm.weight", "lm_head.weight");
    if (s == OK)
        plan_first_product(l, &layers[0].qkv);
    return s;
}

static uint32_t plan_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    widths[QKV] = q_rows(m) + 2 * kv_rows(m);
    widths[ATTN] = q_rows(m);
    widths[GATE_UP] = 2 * m->ffn_dim;
    widths[ACT] = m->ffn_dim;
    return N_BUFFERS;
}

static enum status run_layer(const struct layer_step *p, uint32_t layer)
{
    const struct llama_layer *w = &llama_layers(p->weights)[layer];
    const struct weight *output = p->weights->output.data ? &p->weights->output : NULL;
    const struct weight *after = layer + 1 < p->model->n_layers ? &w[1].qkv : output;
    float *const *b = p->buffer;
    uint32_t n = p->n_rows;
    enum status s;

    if ((s = layer_norm(p, n, p->x, w->attn_norm, p->xn)) != OK ||
        (s = layer_product(p, n, p->xn, &w->qkv, &w->o, w->qkv_bias, b[QKV])) != OK ||
        (s = layer_rope_kv(p, layer, b[QKV])) != OK ||
        (s = layer_attention(p, layer, b[QKV], b[ATTN])) != OK ||
        (s = layer_add_product(p, n, b[ATTN], &w->o, &w->gate_up, w->o_bias, p->x)) != OK ||
        (s = layer_norm(p, n, p->x, w->ffn_norm, p->xn)) != OK ||
        (s = layer_product(p, n, p->xn, &w->gate_up, &w->down, w->gate_up_bias, b[GATE_UP])) !=
            OK ||
        (s = layer_silu_mul(p, p->model->ffn_dim, b[GATE_UP], b[ACT])) != OK)
        return s;
    return layer_add_product(p, n, b[ACT], &w->down, after, w->down_bias, p->x);
}

static void count_work(const struct model_config *m, const struct weights *w,
                       struct model_work *out)
{
    *out = (struct model_work){.k_max = m->dim, .flops_per_pair = 4.0 * m->n_layers * q_rows(m)};
    if (m->ffn_dim > out->k_max)
        out->k_max = m->ffn_dim;
    if (q_rows(m) > out->k_max)
        out->k_max = q_rows(m);
    if (w) {
        out->flops_per_token = 2.0 * (double)w->n_params;
        out->weight_bytes = (double)w->n_bytes;
    }
}

const struct model_family family_llama = {
    .name = "llama",
    .architectures = (const char *const[]){"LlamaForCausalLM", "MistralForCausalLM", "LlamaModel",
                                           "MistralModel", NULL},
    .model_types = (const char *const[]){"llama", "mistral", NULL},
    .embedding = "model.embed_tokens.weight",
    .read_config = read_config,
    .plan_weights = plan_weights,
    .plan_buffers = plan_buffers,
    .run_layer = run_layer,
    .count_work = count_work,
};
