#include "engine/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/model/family.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)
#define PI 3.14159265358979323846

#define ROW(member, name, type, ...) FIELD(model_config, member, name, type, __VA_ARGS__)
#define COMPUTED .file = FIELD_COMPUTED
#define CONFIG(low, high) .file = FIELD_CONFIG, .min = (low), .max = (high)
#define REQUIRED(low, high) CONFIG(low, high), .required = true
#define GENERATION(low, high)                                                                      \
    .file = FIELD_GENERATION, .not_of_kv = true, .min = (low), .max = (high)

/* A row counts for the fingerprint unless it says not_of_kv: positions beyond max_pos are never
 * computed, the types of the weights are in the fingerprint by themselves, and the end-of-sequence
 * ids and the sampling defaults only choose tokens. */
static const struct field rows[] = {
    ROW(family, "family", FIELD_NAMED, COMPUTED),
    ROW(rope.theta, "rope.theta", FIELD_F64, COMPUTED),
    ROW(rope.factor, "rope.factor", FIELD_F64, COMPUTED),
    ROW(rope.low_freq_factor, "rope.low_freq_factor", FIELD_F64, COMPUTED),
    ROW(rope.high_freq_factor, "rope.high_freq_factor", FIELD_F64, COMPUTED),
    ROW(rope.original_max_pos, "rope.original_max_position_embeddings", FIELD_U32, COMPUTED),
    ROW(rope.kind, "rope.kind", FIELD_U32, COMPUTED),
    ROW(rms_eps, "rms_norm_eps", FIELD_F64, CONFIG(0, 1)),
    ROW(own, "own", FIELD_U32, COMPUTED),
    ROW(n_layers, "num_hidden_layers", FIELD_U32, REQUIRED(1, 1000)),
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

static enum status find_family(const struct json *j, const struct model_family **out,
                               struct buf *why)
{
    const struct json *first = js_at(js_get_set(j, "architectures"), 0);
    bool by_type = !first || !js_is(first, JS_STRING);
    const char *name = by_type ? NULL : js_string(first, NULL);
    enum status s = by_type ? js_get_str(j, "model_type", &name, NULL, why) : OK;
    char known[512];

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
    return buf_why(why, ERR_UNSUPPORTED, "architecture %s is not supported; supported: %s", name,
                   known);
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

static enum status read_llama3(const struct json *r, struct rope_config *rope, struct buf *why)
{
    double original_max_pos = 8192;
    enum status s;

    rope->low_freq_factor = 1;
    rope->high_freq_factor = 4;
    s = js_get_f64(r, "low_freq_factor", 1e-3, 1e6, &rope->low_freq_factor, why);
    if (s == OK)
        s = js_get_f64(r, "high_freq_factor", 1e-3, 1e6, &rope->high_freq_factor, why);
    if (s == OK)
        s = js_get_f64(r, "original_max_position_embeddings", 1, 1e9, &original_max_pos, why);
    rope->original_max_pos = (uint32_t)original_max_pos;
    if (s == OK && rope->high_freq_factor <= rope->low_freq_factor)
        s = buf_why(why, ERR_INVALID,
                    "rope_scaling.high_freq_factor must be above "
                    "low_freq_factor");
    return s;
}

static enum status read_rope(const struct json *j, struct rope_config *rope, struct buf *why)
{
    /* Newer files keep everything in rope_parameters, older ones have rope_theta beside
     * rope_scaling. */
    const struct json *params = js_get_set(j, "rope_parameters");
    const struct json *r = params ? params : js_get_set(j, "rope_scaling");
    const char *kind = "default";
    enum status s;

    *rope = (struct rope_config){.kind = ROPE_PLAIN, .theta = 10000, .factor = 1};
    s = js_get_f64(j, "rope_theta", 1, 1e12, &rope->theta, why);
    if (s == OK && params)
        s = js_get_f64(params, "rope_theta", 1, 1e12, &rope->theta, why);
    if (s != OK || !r)
        return s;
    if (!js_is(r, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "rope_scaling: expected an object");
    s = js_get_str(r, js_get_set(r, "rope_type") ? "rope_type" : "type", &kind, NULL, why);
    if (s == OK)
        s = js_get_f64(r, "factor", 1e-3, 1e6, &rope->factor, why);
    if (s != OK || !strcmp(kind, "default"))
        return s;
    if (!strcmp(kind, "linear")) {
        rope->kind = ROPE_LINEAR;
        return OK;
    }
    if (!strcmp(kind, "llama3")) {
        rope->kind = ROPE_LLAMA3;
        return read_llama3(r, rope, why);
    }
    return buf_why(why, ERR_UNSUPPORTED,
                   "rope_scaling type %s is not supported; default, linear "
                   "and llama3 are",
                   kind);
}

static enum status read_shapes(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s;

    m->max_pos = 2048;
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
        s = read_rope(j, &m->rope, why);
    if (s == OK)
        s = read_dtype(j, &m->stored_dtype, why);
    return s == OK ? read_eos(j, m, why) : s;
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

enum status model_config_load(struct model_config *m, const char *dir, struct buf *why)
{
    enum status s;

    *m = (struct model_config){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    s = read_json_file(m, dir, "config.json", read_config, why);
    if (s != OK)
        return s;
    s = read_json_file(m, dir, "generation_config.json", read_generation, why);
    return s == ERR_NOT_FOUND ? OK : s;
}

static double llama3_freq(const struct rope_config *r, double f)
{
    double wavelength = 2 * PI / f;

    if (wavelength < r->original_max_pos / r->high_freq_factor)
        return f;
    if (wavelength > r->original_max_pos / r->low_freq_factor)
        return f / r->factor;
    double smooth = (r->original_max_pos / wavelength - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

void model_rope_freqs(const struct model_config *m, double *out)
{
    for (uint32_t i = 0; i < m->head_dim / 2; i++) {
        double f = pow(m->rope.theta, -2.0 * i / m->head_dim);
        if (m->rope.kind == ROPE_LINEAR)
            f /= m->rope.factor;
        else if (m->rope.kind == ROPE_LLAMA3)
            f = llama3_freq(&m->rope, f);
        out[i] = f;
    }
}
