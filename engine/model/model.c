#include "engine/model/model.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/model/family.h"
#include "engine/model/gguf_config.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)

#define ROW(member, name, type, ...) FIELD(model_config, member, name, type, __VA_ARGS__)
#define COMPUTED .file = FIELD_COMPUTED
#define CONFIG(low, high) .file = FIELD_CONFIG, .min = (low), .max = (high)
#define REQUIRED(low, high) CONFIG(low, high), .required = true
#define GENERATION(low, high)                                                                      \
    .file = FIELD_GENERATION, .not_of_kv = true, .min = (low), .max = (high)

#define ROPE_ROWS(rope)                                                                            \
    ROW(rope.theta, #rope ".theta", FIELD_F64, COMPUTED),                                          \
        ROW(rope.factor, #rope ".factor", FIELD_F64, COMPUTED),                                    \
        ROW(rope.low_freq_factor, #rope ".low_freq_factor", FIELD_F64, COMPUTED),                  \
        ROW(rope.high_freq_factor, #rope ".high_freq_factor", FIELD_F64, COMPUTED),                \
        ROW(rope.beta_fast, #rope ".beta_fast", FIELD_F64, COMPUTED),                              \
        ROW(rope.beta_slow, #rope ".beta_slow", FIELD_F64, COMPUTED),                              \
        ROW(rope.magnitude, #rope ".magnitude", FIELD_F64, COMPUTED),                              \
        ROW(rope.original_max_pos, #rope ".original_max_pos", FIELD_U32, COMPUTED),                \
        ROW(rope.kind, #rope ".kind", FIELD_U32, COMPUTED)

/* A row counts for the fingerprint unless it says not_of_kv: positions beyond max_pos are never
 * computed, the types of the weights are in the fingerprint by themselves, and the end-of-sequence
 * ids and the sampling defaults only choose tokens. */
static const struct field rows[] = {
    ROW(family, "family", FIELD_NAMED, COMPUTED),
    ROPE_ROWS(rope),
    ROPE_ROWS(rope_local),
    ROW(rope_factors, "rope_factors", FIELD_F64, COMPUTED),
    ROW(rms_eps, "rms_norm_eps", FIELD_F64, CONFIG(0, 1)),
    ROW(attention_scale, "attention_scale", FIELD_F64, COMPUTED),
    ROW(attention_cap, "attention_cap", FIELD_F64, COMPUTED),
    ROW(logit_cap, "logit_cap", FIELD_F64, COMPUTED),
    ROW(embed_scale, "embed_scale", FIELD_F64, COMPUTED),
    ROW(residual_scale, "residual_scale", FIELD_F64, COMPUTED),
    ROW(logit_scale, "logit_scale", FIELD_F64, COMPUTED),
    ROW(expert_scale, "expert_scale", FIELD_F64, COMPUTED),
    ROW(own, "own", FIELD_U32, COMPUTED),
    ROW(n_layers, "num_hidden_layers", FIELD_U32, REQUIRED(1, MODEL_N_LAYERS_MAX)),
    ROW(dim, "hidden_size", FIELD_U32, REQUIRED(1, 1 << 17)),
    ROW(n_heads, "num_attention_heads", FIELD_U32, REQUIRED(1, 4096)),
    ROW(n_kv_heads, "num_key_value_heads", FIELD_U32, CONFIG(1, 4096)),
    ROW(head_dim, "head_dim", FIELD_U32, CONFIG(2, 256)),
    ROW(ffn_dim, "intermediate_size", FIELD_U32, REQUIRED(1, 1 << 20)),
    ROW(n_vocab, "vocab_size", FIELD_U32, REQUIRED(1, 4 << 20)),
    ROW(max_pos, "max_position_embeddings", FIELD_U32, CONFIG(1, 1 << 26), .not_of_kv = true),
    ROW(tied, "tie_word_embeddings", FIELD_FLAG, CONFIG(0, 1)),
    ROW(attention_bias, "attention_bias", FIELD_FLAG, CONFIG(0, 1)),
    ROW(mlp_bias, "mlp_bias", FIELD_FLAG, CONFIG(0, 1)),
    ROW(qkv_bias, "qkv_bias", FIELD_U32, COMPUTED),
    ROW(rot_dim, "rot_dim", FIELD_U32, COMPUTED),
    ROW(window, "window", FIELD_U32, COMPUTED),
    ROW(rope_long, "rope_long", FIELD_U32, COMPUTED),
    ROW(norm, "norm", FIELD_U32, COMPUTED),
    ROW(activation, "activation", FIELD_U32, COMPUTED),
    ROW(n_experts, "n_experts", FIELD_U32, COMPUTED),
    ROW(n_chosen, "n_chosen", FIELD_U32, COMPUTED),
    ROW(expert_dim, "expert_dim", FIELD_U32, COMPUTED),
    ROW(shared_dim, "shared_dim", FIELD_U32, COMPUTED),
    ROW(shared_gate, "shared_gate", FIELD_U32, COMPUTED),
    ROW(renormalize, "renormalize", FIELD_U32, COMPUTED),
    ROW(n_types, "n_types", FIELD_U32, COMPUTED, .not_of_kv = true),
    ROW(n_labels, "n_labels", FIELD_U32, COMPUTED, .not_of_kv = true),
    ROW(windowed, "windowed", FIELD_U32, COMPUTED),
    ROW(no_rope, "no_rope", FIELD_U32, COMPUTED),
    ROW(no_experts, "no_experts", FIELD_U32, COMPUTED),
    ROW(stored_dtype, "torch_dtype", FIELD_U32, COMPUTED, .not_of_kv = true),
    ROW(eos_ids, "eos_token_id", FIELD_U32, COMPUTED, .not_of_kv = true),
    ROW(n_eos_ids, "n_eos_ids", FIELD_U32, COMPUTED, .not_of_kv = true),
    ROW(temperature, "temperature", FIELD_F32, GENERATION(0, 100)),
    ROW(top_p, "top_p", FIELD_F32, GENERATION(0, 1)),
    ROW(min_p, "min_p", FIELD_F32, GENERATION(0, 1)),
    ROW(repetition_penalty, "repetition_penalty", FIELD_F32, GENERATION(1e-3, 100)),
    ROW(top_k, "top_k", FIELD_U32, GENERATION(0, 4 << 20)),
};

struct field_table model_config_fields(void)
{
    return (struct field_table){rows, ARRAY_SIZE(rows)};
}

enum status model_config_write(const struct model_config *m, bool only_kv, struct buf *out)
{
    return fields_write(model_config_fields(), m, only_kv, out);
}

static bool is_in(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

/* Every architecture or model type that a family takes, separated by commas. */
static void list_known(bool types, char *out, size_t n_bytes)
{
    size_t len = 0;

    out[0] = '\0';
    for (const struct model_family *const *f = model_families; *f; f++)
        for (const char *const *name = types ? (*f)->model_types : (*f)->architectures;
             *name && len < n_bytes; name++)
            len += (size_t)snprintf(out + len, n_bytes - len, "%s%s", len ? ", " : "", *name);
}

static size_t n_alike(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* The family's first architecture that begins like `name`, or NULL if none has four letters of
 * it. */
static const char *find_nearest(const char *name)
{
    const char *best = NULL;
    size_t n_best = 3;

    for (const struct model_family *const *f = model_families; *f; f++)
        if (n_alike(name, (*f)->architectures[0]) > n_best) {
            best = (*f)->architectures[0];
            n_best = n_alike(name, best);
        }
    return best;
}

static enum status find_family(const struct json *j, const struct model_family **out,
                               struct buf *why)
{
    const struct json *first = js_at(js_get_set(j, "architectures"), 0);
    bool by_type = !first || !js_is(first, JS_STRING);
    const char *name = by_type ? NULL : js_string(first, NULL);
    enum status s = by_type ? js_get_str(j, "model_type", &name, NULL, why) : OK;
    char known[1024];

    if (s != OK)
        return s;
    for (const struct model_family *const *f = model_families; name && *f; f++)
        if (is_in(name, by_type ? (*f)->model_types : (*f)->architectures)) {
            *out = *f;
            return OK;
        }
    list_known(by_type, known, sizeof known);
    if (by_type)
        return buf_why(why, ERR_UNSUPPORTED,
                       "architectures is missing and model_type is %s; supported types: %s",
                       name ? name : "missing, too", known);
    const char *nearest = find_nearest(name);
    return buf_why(why, ERR_UNSUPPORTED, "architecture %s is not supported; %s%s%ssupported: %s",
                   name, nearest ? "the nearest is " : "", nearest ? nearest : "",
                   nearest ? "; " : "", known);
}

static enum status read_dtype(const struct json *j, enum dtype *out, struct buf *why)
{
    const char *name = NULL;
    enum status s =
        js_get_str(j, js_get_set(j, "torch_dtype") ? "torch_dtype" : "dtype", &name, NULL, why);

    if (s != OK)
        return s;
    if (!name || !strcmp(name, "float32"))
        *out = DTYPE_F32;
    else if (!strcmp(name, "bfloat16"))
        *out = DTYPE_BF16;
    else if (!strcmp(name, "float16"))
        *out = DTYPE_F16;
    else
        s = buf_why(why, ERR_UNSUPPORTED, "torch_dtype %s is not supported", name);
    return s;
}

static enum status read_shapes(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s;

    if (m->max_pos == 0)
        m->max_pos = 2048;
    if (m->rms_eps == 0)
        m->rms_eps = 1e-6;
    s = fields_read(model_config_fields(), FIELD_CONFIG, j, m, why);
    if (s != OK)
        return s;
    if (m->n_kv_heads == 0)
        m->n_kv_heads = m->n_heads;
    if (m->head_dim == 0)
        m->head_dim = m->dim / m->n_heads;
    if (m->n_heads % m->n_kv_heads)
        return buf_why(why, ERR_INVALID,
                       "num_attention_heads %u is no multiple of "
                       "num_key_value_heads %u",
                       m->n_heads, m->n_kv_heads);
    if (m->head_dim < 2 || m->head_dim > 256 || m->head_dim % 2)
        return buf_why(why, ERR_UNSUPPORTED, "head_dim %u is not supported (even, 2 to 256)",
                       m->head_dim);
    return OK;
}

/* eos_token_id: a number or a list of them. Replaces what is there when present. */
static enum status read_eos(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *v = js_get_set(j, "eos_token_id");
    size_t n = js_is(v, JS_ARRAY) ? js_len(v) : v ? 1 : 0;

    if (n == 0)
        return OK;
    if (n > MODEL_N_EOS_MAX)
        return buf_why(why, ERR_INVALID, "eos_token_id: more than %d ids", MODEL_N_EOS_MAX);
    m->n_eos_ids = 0;
    for (size_t i = 0; i < n; i++) {
        const struct json *id = js_is(v, JS_ARRAY) ? js_at(v, i) : v;
        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) >= (int64_t)m->n_vocab)
            return buf_why(why, ERR_INVALID, "eos_token_id: not an id below vocab_size");
        m->eos_ids[m->n_eos_ids++] = (uint32_t)js_int(id);
    }
    return OK;
}

enum status model_read_common(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = read_shapes(j, m, why);

    if (s == OK)
        s = model_read_rope(j, m, why);
    if (s == OK)
        s = read_dtype(j, &m->stored_dtype, why);
    return s == OK ? read_eos(j, m, why) : s;
}

/* layer_types: "full_attention" or "sliding_attention" for each layer. */
static enum status read_layer_types(const struct json *types, struct model_config *m,
                                    struct buf *why)
{
    if (!js_is(types, JS_ARRAY) || js_len(types) != m->n_layers)
        return buf_why(why, ERR_INVALID, "layer_types: expected an array of num_hidden_layers");
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct json *type = js_at(types, i);
        const char *name = js_is(type, JS_STRING) ? js_string(type, NULL) : "no text";

        if (!strcmp(name, "sliding_attention"))
            model_add_layer(m->windowed, i);
        else if (strcmp(name, "full_attention") != 0)
            return buf_why(why, ERR_UNSUPPORTED,
                           "layer_types: %s is not supported; full_attention and "
                           "sliding_attention are",
                           name);
    }
    return OK;
}

enum status model_read_window(const struct json *j, struct model_config *m, bool *listed,
                              struct buf *why)
{
    const struct json *types = js_get_set(j, "layer_types");
    int64_t window = js_get(j, "sliding_window") ? 0 : m->window; /* null: none */
    enum status s = js_get_i64(j, "sliding_window", 0, UINT32_MAX, &window, why);

    /* A window of the whole context hides nothing. */
    m->window = window < (int64_t)m->max_pos ? (uint32_t)window : 0;
    *listed = types != NULL;
    return s == OK && types ? read_layer_types(types, m, why) : s;
}

enum status model_read_labels(const struct json *j, struct model_config *m, struct buf *why)
{
    const struct json *names = js_get_set(j, "id2label");
    int64_t n = 2;
    enum status s = js_get_i64(j, "num_labels", 1, MODEL_N_LABELS_MAX, &n, why);

    if (s != OK)
        return s;
    if (names && !js_is(names, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "id2label: expected an object");
    if (names && (js_len(names) == 0 || js_len(names) > MODEL_N_LABELS_MAX))
        return buf_why(why, ERR_INVALID, "id2label: %zu labels, expected 1 to %d", js_len(names),
                       MODEL_N_LABELS_MAX);
    m->n_labels = names ? (uint32_t)js_len(names) : (uint32_t)n;
    return OK;
}

enum status model_check_activation(const struct json *j, const char *name, struct buf *why)
{
    const char *act = name;
    const char *key = js_get_set(j, "hidden_activation") ? "hidden_activation" : "hidden_act";
    enum status s = js_get_str(j, key, &act, NULL, why);

    if (s == OK && strcmp(act, name) != 0)
        s = buf_why(why, ERR_UNSUPPORTED, "%s %s is not supported; %s is", key, act, name);
    return s;
}

static enum status read_config(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s;

    if (!js_is(j, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "not a JSON object");
    s = find_family(j, &m->family, why);
    return s == OK ? m->family->read_config(j, m, why) : s;
}

static enum status read_generation(const struct json *j, struct model_config *m, struct buf *why)
{
    bool do_sample = true;
    enum status s = read_eos(j, m, why);

    if (s == OK)
        s = js_get_bool(j, "do_sample", &do_sample, why);
    if (s == OK)
        s = fields_read(model_config_fields(), FIELD_GENERATION, j, m, why);
    if (!do_sample)
        m->temperature = 0;
    if (m->top_p <= 0)
        m->top_p = 1;
    return s;
}

/* Parse DIR/NAME and read it; an error gets the path in front. */
static enum status read_json_file(struct model_config *m, const char *dir, const char *name,
                                  enum status (*read)(const struct json *, struct model_config *,
                                                      struct buf *),
                                  struct buf *why)
{
    char path[4096];
    struct json *j = NULL;
    struct buf inner;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return buf_why(why, ERR_INVALID, "model path is too long");
    enum status s = js_parse_file(&j, path, CONFIG_BYTES_MAX, why);
    if (s != OK)
        return s;
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = read(j, m, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", path, buf_str(&inner));
    buf_fini(&inner);
    js_unref(j);
    return s;
}

static enum status read_gguf(struct model_config *m, const char *path, struct buf *why)
{
    struct json *config = NULL, *generation = NULL;
    struct gguf *g;
    struct buf inner;
    enum status s = gguf_open(&g, path, why);

    if (s != OK)
        return s;
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = gguf_config_make(g, &config, &generation, &inner);
    if (s == OK)
        s = read_config(config, m, &inner);
    if (s == OK)
        s = read_generation(generation, m, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", path, buf_str(&inner));
    buf_fini(&inner);
    js_unref(config);
    js_unref(generation);
    gguf_close(g);
    return s;
}

enum status model_config_load(struct model_config *m, const char *dir, struct buf *why)
{
    enum status s;

    *m = (struct model_config){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (gguf_is(dir))
        return read_gguf(m, dir, why);
    s = read_json_file(m, dir, "config.json", read_config, why);
    if (s != OK)
        return s;
    s = read_json_file(m, dir, "generation_config.json", read_generation, why);
    return s == ERR_NOT_FOUND ? OK : s;
}

enum status model_share(const struct model_config *m, uint32_t n, struct model_config *share,
                        struct buf *why)
{
    const struct {
        const char *name;
        uint32_t n;
    } parts[] = {{"num_attention_heads", m->n_heads},
                 {"num_key_value_heads", m->n_kv_heads},
                 {"intermediate_size", m->ffn_dim},
                 {"moe_intermediate_size", m->expert_dim},
                 {"shared_expert_intermediate_size", m->shared_dim}};

    *share = *m;
    if (n == 1)
        return OK;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (parts[i].n % n != 0)
            return buf_why(why, ERR_UNSUPPORTED,
                           "{tensor_parallel_size} %u does not divide the model's %s %u", n,
                           parts[i].name, parts[i].n);
    share->n_heads /= n;
    share->n_kv_heads /= n;
    share->ffn_dim /= n;
    share->expert_dim /= n;
    share->shared_dim /= n;
    return OK;
}
