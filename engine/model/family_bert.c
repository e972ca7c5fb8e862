/* family_bert.c - encoders: BERT (Devlin et al., 2018), RoBERTa (Liu et al., 2019) and XLM-RoBERTa
 * (Conneau et al., 2019). Each token sees all others, positions are a table of the embedding, and
 * the norms are behind the parts of a layer. There is no output layer: engine/run/encoder.h gives
 * the last hidden states, or, of a model that classifies texts, the logits of its labels: a product
 * and tanh on the first token's state, and a second product. BERT calls the first one its pooler;
 * in RoBERTa both are parts of the classifier.
 *
 * The tensors of BERT and of the two others are named alike but for the first part, which a
 * checkpoint may leave out. The first rows of RoBERTa's table of positions are not used: its
 * positions begin behind the id of the padding. */
#include <stdio.h>
#include <string.h>

#include "engine/model/family.h"

enum buffer { QKV, ATTN, FFN, N_BUFFERS };

/* Places in model_config.own. */
enum own { OWN_FIRST_POSITION };

struct bert_layer {
    struct weight qkv; /* [3 D, D] */
    float *qkv_bias;
    struct weight o; /* [D, D] */
    float *o_bias;
    float *attn_norm, *attn_norm_bias; /* [D] */
    struct weight up;                  /* [F, D] */
    float *up_bias;
    struct weight down; /* [D, F] */
    float *down_bias;
    float *ffn_norm, *ffn_norm_bias; /* [D] */
};

/* --- config.json --- */

static enum status read_activation(const struct json *j, struct model_config *m, struct buf *why)
{
    static const char *const tanh_names[] = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"};
    const char *name = "gelu";
    enum status s = js_get_str(j, "hidden_act", &name, NULL, why);

    if (s != OK)
        return s;
    m->activation = ACTIVATION_GELU;
    if (!strcmp(name, "gelu") || !strcmp(name, "gelu_python"))
        return OK;
    m->activation = ACTIVATION_GELU_TANH;
    for (size_t i = 0; i < sizeof tanh_names / sizeof *tanh_names; i++)
        if (!strcmp(name, tanh_names[i]))
            return OK;
    return buf_why(why, ERR_UNSUPPORTED,
                   "hidden_act %.100s is not supported for BERT; gelu and gelu_new are", name);
}

static enum status refuse_variants(const struct json *j, struct buf *why)
{
    const char *kind = "absolute";
    bool is_decoder = false;
    enum status s = js_get_str(j, "position_embedding_type", &kind, NULL, why);

    if (s == OK && strcmp(kind, "absolute") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "position_embedding_type %.100s is not supported; absolute is", kind);
    if (s == OK)
        s = js_get_bool(j, "is_decoder", &is_decoder, why);
    if (s == OK && is_decoder)
        return buf_why(why, ERR_UNSUPPORTED, "is_decoder is not supported for BERT");
    return s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    int64_t n_types = 2;
    enum status s = refuse_variants(j, why);

    m->norm = NORM_LAYER;
    m->rms_eps = 1e-12;
    m->max_pos = 512;
    if (s == OK)
        s = read_activation(j, m, why);
    if (s == OK)
        s = js_get_f64(j, "layer_norm_eps", 0, 1, &m->rms_eps, why);
    if (s == OK)
        s = js_get_i64(j, "type_vocab_size", 0, 1 << 20, &n_types, why);
    if (s == OK)
        s = model_read_common(j, m, why);
    if (s != OK)
        return s;
    if (m->n_kv_heads != m->n_heads || m->head_dim * m->n_heads != m->dim)
        return buf_why(why, ERR_INVALID,
                       "hidden_size %u is not that of num_attention_heads %u: BERT's heads have "
                       "hidden_size / num_attention_heads elements each",
                       m->dim, m->n_heads);
    if (m->max_pos > 1 << 20)
        return buf_why(why, ERR_INVALID, "max_position_embeddings %u is above %d", m->max_pos,
                       1 << 20);
    m->tied = 0; /* to an output layer that is not computed */
    m->n_types = (uint32_t)n_types;
    for (uint32_t i = 0; i < m->n_layers; i++)
        model_add_layer(m->no_rope, i);
    return OK;
}

static enum status read_config_roberta(const struct json *j, struct model_config *m,
                                       struct buf *why)
{
    int64_t padding = 1;
    enum status s = read_config(j, m, why);

    if (s == OK)
        s = js_get_i64(j, "pad_token_id", 0, UINT32_MAX, &padding, why);
    if (s != OK)
        return s;
    if (padding + 1 >= (int64_t)m->max_pos)
        return buf_why(why, ERR_INVALID,
                       "max_position_embeddings %u leaves no position behind pad_token_id %lld",
                       m->max_pos, (long long)padding);
    m->own[OWN_FIRST_POSITION] = (uint64_t)padding + 1;
    m->max_pos -= (uint32_t)padding + 1;
    return OK;
}

static enum status read_config_labels(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = read_config(j, m, why);

    return s == OK ? model_read_labels(j, m, why) : s;
}

static enum status read_config_roberta_labels(const struct json *j, struct model_config *m,
                                              struct buf *why)
{
    enum status s = read_config_roberta(j, m, why);

    return s == OK ? model_read_labels(j, m, why) : s;
}

/* --- weights --- */

static enum status plan_norm_pair(struct loader *l, float **w, float **bias, const char *prefix,
                                  const char *name)
{
    uint32_t dim = plan_model(l)->dim;
    enum status s = plan_norm(l, w, dim, prefix, name);

    return s == OK ? plan_norm_bias(l, bias, dim, prefix, name) : s;
}

static enum status plan_layer(struct loader *l, struct bert_layer *y, const char *prefix)
{
    const struct model_config *m = plan_model(l);
    const struct plan_part qkv[] = {{"attention.self.query", m->dim, PLAN_WHOLE},
                                    {"attention.self.key", m->dim, PLAN_WHOLE},
                                    {"attention.self.value", m->dim, PLAN_WHOLE}};
    const struct plan_part o = {"attention.output.dense", m->dim, PLAN_WHOLE};
    const struct plan_part up = {"intermediate.dense", m->ffn_dim, PLAN_WHOLE};
    const struct plan_part down = {"output.dense", m->dim, PLAN_WHOLE};
    enum status s = plan_product(l, &y->qkv, &y->qkv_bias, m->dim, prefix, qkv, 3);

    if (s == OK)
        s = plan_product(l, &y->o, &y->o_bias, m->dim, prefix, &o, 1);
    if (s == OK)
        s = plan_norm_pair(l, &y->attn_norm, &y->attn_norm_bias, prefix,
                           "attention.output.LayerNorm");
    if (s == OK)
        s = plan_product(l, &y->up, &y->up_bias, m->dim, prefix, &up, 1);
    if (s == OK)
        s = plan_product(l, &y->down, &y->down_bias, m->ffn_dim, prefix, &down, 1);
    return s == OK ? plan_norm_pair(l, &y->ffn_norm, &y->ffn_norm_bias, prefix, "output.LayerNorm")
                   : s;
}

static enum status plan_embeddings(struct loader *l, const char *root)
{
    const struct model_config *m = plan_model(l);
    uint32_t first = (uint32_t)m->own[OWN_FIRST_POSITION];
    char prefix[64], name[96];
    enum status s = plan_embedding(l, m->family->embedding);

    snprintf(prefix, sizeof prefix, "%s.embeddings.", root);
    snprintf(name, sizeof name, "%sposition_embeddings.weight", prefix);
    if (s == OK)
        s = plan_positions(l, first, m->max_pos, name);
    snprintf(name, sizeof name, "%stoken_type_embeddings.weight", prefix);
    if (s == OK && m->n_types > 0)
        s = plan_types(l, m->n_types, name);
    return s == OK ? plan_embedding_norm(l, prefix, "LayerNorm") : s;
}

static enum status plan_all(struct loader *l, const char *root)
{
    uint32_t n = plan_model(l)->n_layers;
    struct bert_layer *layers = plan_layers(l, sizeof *layers);
    enum status s = layers ? plan_embeddings(l, root) : ERR_NOMEM;
    char prefix[64];

    for (uint32_t i = 0; s == OK && i < n; i++) {
        snprintf(prefix, sizeof prefix, "%s.encoder.layer.%u.", root, i);
        s = plan_layer(l, &layers[i], prefix);
    }
    if (s == OK)
        plan_first_product(l, &layers[0].qkv);
    return s;
}

static enum status plan_bert(struct loader *l)
{
    return plan_all(l, "bert");
}

static enum status plan_roberta(struct loader *l)
{
    return plan_all(l, "roberta");
}

static enum status plan_bert_labels(struct loader *l)
{
    enum status s = plan_bert(l);

    return s == OK ? plan_labels(l, "bert.pooler.dense", "classifier") : s;
}

static enum status plan_roberta_labels(struct loader *l)
{
    enum status s = plan_roberta(l);

    return s == OK ? plan_labels(l, "classifier.dense", "classifier.out_proj") : s;
}

/* --- a layer --- */

static uint32_t plan_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    widths[QKV] = 3 * m->dim;
    widths[ATTN] = m->dim;
    widths[FFN] = m->ffn_dim;
    return N_BUFFERS;
}

/* The pool has one layer, which each layer overwrites: no later step reads its K and V. */
static enum status run_layer(const struct layer_step *s, uint32_t layer)
{
    const struct bert_layer *w = (const struct bert_layer *)s->weights->layers + layer;
    const struct weight *after = layer + 1 < s->model->n_layers ? &w[1].qkv : NULL;
    float *const *b = s->buffer;
    const float *in;
    uint32_t n = s->n_rows;
    enum status st;

    if ((st = layer_product(s, n, s->x, &w->qkv, &w->o, w->qkv_bias, b[QKV])) != OK ||
        (st = layer_rope_kv(s, 0, b[QKV])) != OK ||
        (st = layer_attention(s, 0, b[QKV], &w->o, b[ATTN], &in)) != OK ||
        (st = layer_add_product(s, n, in, &w->o, &w->up, w->o_bias, s->x)) != OK ||
        (st = layer_norm_with(s, n, s->x, w->attn_norm, w->attn_norm_bias, false, s->x)) != OK ||
        (st = layer_product(s, n, s->x, &w->up, &w->down, w->up_bias, b[FFN])) != OK ||
        (st = layer_activate(s, s->model->ffn_dim, b[FFN])) != OK ||
        (st = layer_add_product(s, n, b[FFN], &w->down, after, w->down_bias, s->x)) != OK)
        return st;
    return layer_norm_with(s, n, s->x, w->ffn_norm, w->ffn_norm_bias, false, s->x);
}

static void count_work(const struct model_config *m, const struct weights *w,
                       struct model_work *out)
{
    *out = (struct model_work){.k_max = m->ffn_dim > m->dim ? m->ffn_dim : m->dim,
                               .flops_per_pair = 4.0 * m->n_layers * m->dim};
    if (w) {
        out->flops_per_token = 2.0 * (double)w->n_params;
        out->weight_bytes = (double)w->n_bytes;
    }
}

const struct model_family family_bert = {
    .name = "bert",
    .architectures = (const char *const[]){"BertModel", "BertForMaskedLM", NULL},
    .model_types = (const char *const[]){"bert", NULL},
    .embedding = "bert.embeddings.word_embeddings.weight",
    .is_encoder = true,
    .read_config = read_config,
    .plan_weights = plan_bert,
    .plan_buffers = plan_buffers,
    .run_layer = run_layer,
    .count_work = count_work,
};

const struct model_family family_bert_labels = {
    .name = "bert-labels",
    .architectures = (const char *const[]){"BertForSequenceClassification", NULL},
    .model_types = (const char *const[]){NULL},
    .embedding = "bert.embeddings.word_embeddings.weight",
    .is_encoder = true,
    .read_config = read_config_labels,
    .plan_weights = plan_bert_labels,
    .plan_buffers = plan_buffers,
    .run_layer = run_layer,
    .count_work = count_work,
};

const struct model_family family_roberta = {
    .name = "roberta",
    .architectures = (const char *const[]){"XLMRobertaModel", "RobertaModel",
                                           "XLMRobertaForMaskedLM", "RobertaForMaskedLM", NULL},
    .model_types = (const char *const[]){"xlm-roberta", "roberta", NULL},
    .embedding = "roberta.embeddings.word_embeddings.weight",
    .is_encoder = true,
    .read_config = read_config_roberta,
    .plan_weights = plan_roberta,
    .plan_buffers = plan_buffers,
    .run_layer = run_layer,
    .count_work = count_work,
};

const struct model_family family_roberta_labels = {
    .name = "roberta-labels",
    .architectures = (const char *const[]){"XLMRobertaForSequenceClassification",
                                           "RobertaForSequenceClassification", NULL},
    .model_types = (const char *const[]){NULL},
    .embedding = "roberta.embeddings.word_embeddings.weight",
    .is_encoder = true,
    .read_config = read_config_roberta_labels,
    .plan_weights = plan_roberta_labels,
    .plan_buffers = plan_buffers,
    .run_layer = run_layer,
    .count_work = count_work,
};
