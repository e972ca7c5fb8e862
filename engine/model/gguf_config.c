/* gguf_config.c - keys of the metadata to members of config.json.
 *
 * The metadata has numbers as f32 that config.json has in decimal. The shortest decimal that gives
 * the same f32 is what stood in config.json (0.22 and not 0.2199999988), so both files of a model
 * lead to the same configuration.
 *
 * gguf_rope.c has the rotary positions. */
#include "engine/model/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/gguf_members.h"

#define LIST_BYTES_MAX 512
#define HEAD_DIM_MAX 65536
#define N_LAYERS_MAX 100000
#define N_EOS_MAX 16
#define TYPE_CONTROL 3 /* tokenizer.ggml.token_type */
#define N_LAYERS_GEMMA2_27B 46
#define N_LAYERS_GEMMA3_27B 62

static const struct gguf_architecture architectures[] = {
    {.name = "llama", .architecture = "LlamaForCausalLM", .pairs_side_by_side = true},
    {.name = "qwen2", .architecture = "Qwen2ForCausalLM"},
    {.name = "qwen3", .architecture = "Qwen3ForCausalLM"},
    {.name = "qwen2moe", .architecture = "Qwen2MoeForCausalLM"},
    {.name = "qwen3moe", .architecture = "Qwen3MoeForCausalLM", .norms_shares = true},
    {.name = "olmoe", .architecture = "OlmoeForCausalLM"},
    {.name = "phi3", .architecture = "Phi3ForCausalLM"},
    {.name = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .norms_plus_one = true,
     .four_norms = true},
    {.name = "gemma3",
     .architecture = "Gemma3ForCausalLM",
     .norms_plus_one = true,
     .four_norms = true},
    {.name = "smollm3", .architecture = "SmolLM3ForCausalLM", .pairs_side_by_side = true},
    {.name = "olmo2", .architecture = "Olmo2ForCausalLM"},
    {.name = "granite", .architecture = "GraniteForCausalLM", .pairs_side_by_side = true},
    {.name = "stablelm", .architecture = "StableLmForCausalLM"},
};

/* Texts of tokens that end an answer, beside those that the metadata names. generation_config.json
 * lists these for models of which the metadata has one. */
static const char *const end_texts[] = {
    "<|eot_id|>", "<|im_end|>",      "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|eom_id|>", "<|end_of_text|>", "<EOT>",   "_<EOT>",        "<|end_of_role|>",
};

/* --- values of the metadata --- */

static void key_of(const struct gguf_architecture *a, const char *key, char out[KEY_BYTES_MAX])
{
    snprintf(out, KEY_BYTES_MAX, "%s.%s", a->name, key);
}

bool gguf_member_has(const struct gguf_members *m, const char *key)
{
    char full[KEY_BYTES_MAX];

    key_of(m->a, key, full);
    return gguf_has(m->g, full);
}

/* Read a number, or a list of equal numbers as one number. */
static enum status read_equal(const struct gguf *g, const char *key, double *out, struct buf *why)
{
    struct gguf_array list = {0};

    if (gguf_get_array(g, key, &list, NULL) != OK || list.n == 0)
        return gguf_get_f64(g, key, out, why);
    if (list.type == GGUF_STRING)
        return buf_why(why, ERR_INVALID, "key %s: expected numbers", key);
    *out = gguf_array_number(&list, 0);
    for (uint64_t i = 1; i < list.n; i++)
        if (gguf_array_number(&list, i) != *out)
            return buf_why(why, ERR_UNSUPPORTED,
                           "key %s differs between layers, which is not supported", key);
    return OK;
}

enum status gguf_config_number(const struct gguf *g, const struct gguf_architecture *a,
                               const char *key, uint64_t max, uint64_t *out, struct buf *why)
{
    char full[KEY_BYTES_MAX];
    double v = (double)*out;

    key_of(a, key, full);
    enum status s = read_equal(g, full, &v, why);
    if (s != OK)
        return s;
    if (!(v >= 0 && v <= (double)max) || v != floor(v))
        return buf_why(why, ERR_INVALID, "key %s: expected a whole number up to %llu", full,
                       (unsigned long long)max);
    *out = (uint64_t)v;
    return OK;
}

double gguf_member_shortest(double v)
{
    char text[32];
    float f = (float)v;

    if (!isfinite(v) || (double)f != v)
        return v;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == f)
            return strtod(text, NULL);
    }
    return v;
}

enum status gguf_member_read(struct gguf_members *m, const char *key, double *out)
{
    char full[KEY_BYTES_MAX];
    double v = NAN;

    key_of(m->a, key, full);
    enum status s = gguf_get_f64(m->g, full, &v, m->why);
    if (s != OK || !gguf_has(m->g, full))
        return s;
    if (!isfinite(v))
        return buf_why(m->why, ERR_INVALID, "key %s: expected a finite number", full);
    *out = gguf_member_shortest(v);
    return OK;
}

/* --- members of the JSON object --- */

void gguf_member_fail(struct gguf_members *m, enum status s)
{
    if (m->status != OK || s == OK)
        return;
    m->status = s;
    m->why = NULL; /* the words of later failures are dropped */
}

static void keep_nomem(struct gguf_members *m, enum status s)
{
    if (s != OK)
        gguf_member_fail(m, buf_why(m->why, s, "out of memory"));
}

void gguf_member_put(struct gguf_members *m, struct json *object, const char *name,
                     struct json *value)
{
    if (!object)
        js_unref(value);
    keep_nomem(m, object ? js_set(object, name, value) : ERR_NOMEM);
}

void gguf_member_push(struct gguf_members *m, struct json *array, struct json *value)
{
    if (!array)
        js_unref(value);
    keep_nomem(m, array ? js_push(array, value) : ERR_NOMEM);
}

void gguf_member_set(struct gguf_members *m, const char *name, struct json *value)
{
    gguf_member_put(m, m->config, name, value);
}

static void set_text(struct gguf_members *m, const char *name, const char *text)
{
    gguf_member_set(m, name, js_new_string(text, strlen(text)));
}

static void set_bool(struct gguf_members *m, const char *name, bool v)
{
    gguf_member_set(m, name, js_new_bool(v));
}

static void set_int(struct gguf_members *m, const char *name, uint64_t v)
{
    gguf_member_set(m, name, js_new_int((int64_t)v));
}

/* Copy a whole number; `fallback` where the key is absent, and nothing where that is 0. */
static uint64_t copy_int(struct gguf_members *m, const char *key, const char *name,
                         uint64_t fallback)
{
    uint64_t v = fallback;

    gguf_member_fail(m, gguf_config_number(m->g, m->a, key, UINT32_MAX, &v, m->why));
    if (v > 0)
        set_int(m, name, v);
    return v;
}

static void copy_real(struct gguf_members *m, const char *key, const char *name)
{
    double v = NAN;

    gguf_member_fail(m, gguf_member_read(m, key, &v));
    if (!isnan(v))
        gguf_member_set(m, name, js_new_real(v));
}

/* --- parts of the configuration --- */

enum status gguf_architecture(const struct gguf *g, const struct gguf_architecture **out,
                              struct buf *why)
{
    const char *name = NULL;
    char known[LIST_BYTES_MAX];
    size_t len = 0;
    enum status s = gguf_get_str(g, "general.architecture", &name, NULL, why);

    if (s != OK)
        return s;
    if (!name)
        return buf_why(why, ERR_INVALID, "key general.architecture is missing");
    known[0] = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(architectures); i++) {
        if (!strcmp(architectures[i].name, name)) {
            *out = &architectures[i];
            return OK;
        }
        len += (size_t)snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "",
                                architectures[i].name);
    }
    return buf_why(why, ERR_UNSUPPORTED,
                   "architecture %.64s is not supported in GGUF files; supported: %s", name, known);
}

enum status gguf_head_dim(const struct gguf *g, const struct gguf_architecture *a, uint64_t *out,
                          struct buf *why)
{
    uint64_t dim = 0, n_heads = 0, value = 0;
    enum status s = gguf_config_number(g, a, "embedding_length", UINT32_MAX, &dim, why);

    if (s == OK)
        s = gguf_config_number(g, a, "attention.head_count", UINT32_MAX, &n_heads, why);
    if (s == OK && (n_heads == 0 || dim == 0))
        return buf_why(why, ERR_INVALID,
                       "keys %s.embedding_length and %s.attention.head_count are missing, or 0",
                       a->name, a->name);
    if (s != OK)
        return s;
    *out = value = dim / n_heads;
    s = gguf_config_number(g, a, "attention.key_length", HEAD_DIM_MAX, out, why);
    if (s == OK)
        s = gguf_config_number(g, a, "attention.value_length", HEAD_DIM_MAX, &value, why);
    if (s == OK && (*out == 0 || *out > HEAD_DIM_MAX))
        return buf_why(why, ERR_INVALID, "heads of %llu elements", (unsigned long long)*out);
    if (s == OK && *out != value)
        return buf_why(why, ERR_UNSUPPORTED,
                       "heads of %llu elements for keys and %llu for values are not supported",
                       (unsigned long long)*out, (unsigned long long)value);
    return s;
}

static bool has_tensor(const struct gguf_members *m, const char *name)
{
    return gguf_find(m->g, name) != NULL;
}

static void add_shapes(struct gguf_members *m)
{
    const struct gguf_tensor *embedding = gguf_find(m->g, "token_embd.weight");
    struct gguf_array tokens = {0};
    uint64_t n_vocab = embedding ? embedding->shape[1] : 0;

    m->n_layers = copy_int(m, "block_count", "num_hidden_layers", 0);
    if (m->n_layers > N_LAYERS_MAX)
        gguf_member_fail(m, buf_why(m->why, ERR_INVALID, "key %s.block_count: more than %d layers",
                                    m->a->name, N_LAYERS_MAX));
    copy_int(m, "embedding_length", "hidden_size", 0);
    copy_int(m, "feed_forward_length", "intermediate_size", 0);
    copy_int(m, "context_length", "max_position_embeddings", 0);
    copy_int(m, "attention.head_count", "num_attention_heads", 0);
    copy_int(m, "attention.head_count_kv", "num_key_value_heads", 0);
    gguf_member_fail(m, gguf_head_dim(m->g, m->a, &m->head_dim, m->why));
    set_int(m, "head_dim", m->head_dim);
    gguf_member_fail(m, gguf_get_array(m->g, "tokenizer.ggml.tokens", &tokens, m->why));
    if (tokens.n > 0)
        set_int(m, "vocab_size", tokens.n);
    else
        copy_int(m, "vocab_size", "vocab_size", n_vocab);
}

/* llama is Mixtral, where it has experts. */
static void add_experts(struct gguf_members *m)
{
    bool is_llama = !strcmp(m->a->name, "llama");
    double scale = 1;
    uint64_t n = copy_int(m, "expert_count", is_llama ? "num_local_experts" : "num_experts", 0);

    if (n == 0)
        return;
    if (is_llama)
        m->architecture = "MixtralForCausalLM";
    else
        set_bool(m, "norm_topk_prob", m->a->norms_shares);
    copy_int(m, "expert_used_count", "num_experts_per_tok", 0);
    copy_int(m, "expert_feed_forward_length", "moe_intermediate_size", 0);
    copy_int(m, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", 0);
    gguf_member_fail(m, gguf_member_read(m, "expert_weights_scale", &scale));
    if (scale != 1 && scale != 0)
        gguf_member_fail(m, buf_why(m->why, ERR_UNSUPPORTED,
                                    "key %s.expert_weights_scale %g is not supported", m->a->name,
                                    scale));
}

static void add_norms_and_biases(struct gguf_members *m)
{
    bool qkv = has_tensor(m, "blk.0.attn_q.bias");
    bool all = has_tensor(m, "blk.0.attn_output.bias");

    copy_real(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
    copy_real(m, "attention.layer_norm_epsilon", "layer_norm_eps");
    set_bool(m, "tie_word_embeddings", !has_tensor(m, "output.weight"));
    if (!strcmp(m->a->name, "stablelm"))
        set_bool(m, "use_qkv_bias", qkv);
    else if (!strcmp(m->a->name, "qwen2moe"))
        set_bool(m, "qkv_bias", qkv);
    else if (strcmp(m->a->name, "qwen2") != 0)
        set_bool(m, "attention_bias", qkv || all);
    set_bool(m, "mlp_bias", has_tensor(m, "blk.0.ffn_up.bias"));
}

/* The layers with a window: a list of bools, or a period whose last layer has none. */
static void add_layer_types(struct gguf_members *m, uint64_t period)
{
    char key[KEY_BYTES_MAX];
    struct gguf_array list = {0};
    struct json *types = js_new_array();

    key_of(m->a, "attention.sliding_window_pattern", key);
    if (gguf_get_array(m->g, key, &list, NULL) != OK)
        gguf_member_fail(m, gguf_get_u64(m->g, key, 1, N_LAYERS_MAX, &period, m->why));
    if (list.n > 0 && (list.n < m->n_layers || list.type == GGUF_STRING))
        gguf_member_fail(m,
                         buf_why(m->why, ERR_INVALID, "key %s: expected one bool per layer", key));
    for (uint64_t i = 0; m->status == OK && i < m->n_layers; i++) {
        bool windowed = list.n > 0    ? gguf_array_number(&list, i) != 0
                        : period == 0 ? false
                                      : i % period < period - 1;
        const char *name = windowed ? "sliding_attention" : "full_attention";
        gguf_member_push(m, types, js_new_string(name, strlen(name)));
    }
    gguf_member_set(m, "layer_types", types);
}

static void add_windows(struct gguf_members *m)
{
    bool is_gemma3 = !strcmp(m->a->name, "gemma3");
    bool is_qwen = !strncmp(m->a->name, "qwen", strlen("qwen"));
    bool pattern = gguf_member_has(m, "attention.sliding_window_pattern");
    bool has = gguf_member_has(m, "attention.sliding_window");
    uint64_t window = 0;

    gguf_member_fail(
        m, gguf_config_number(m->g, m->a, "attention.sliding_window", UINT32_MAX, &window, m->why));
    if (has && window > 0)
        set_int(m, "sliding_window", window);
    else if (has || strcmp(m->a->name, "gemma2") != 0)
        gguf_member_set(m, "sliding_window", js_new_null());
    if (is_gemma3)
        add_layer_types(m, window > 0 ? 6 : 0);
    else if (!strcmp(m->a->name, "gemma2") || (is_qwen && window > 0 && pattern))
        add_layer_types(m, 2);
    if (is_qwen)
        set_bool(m, "use_sliding_window", window > 0 && pattern);
    if (window > 0 && !strcmp(m->architecture, "LlamaForCausalLM")) /* one that computes windows */
        m->architecture = "MistralForCausalLM";
    if (window > 0 && (!strcmp(m->a->name, "olmo2") || !strcmp(m->a->name, "smollm3") ||
                       !strcmp(m->a->name, "granite") || !strcmp(m->a->name, "stablelm")))
        gguf_member_fail(m, buf_why(m->why, ERR_UNSUPPORTED,
                                    "key %s.attention.sliding_window is not supported for that "
                                    "architecture",
                                    m->a->name));
}

static void add_gemma(struct gguf_members *m, uint64_t n_layers_27b)
{
    uint64_t dim = 0, n_heads = 1, per_head = m->head_dim;

    set_text(m, "hidden_activation", "gelu_pytorch_tanh");
    copy_real(m, "attn_logit_softcapping", "attn_logit_softcapping");
    copy_real(m, "final_logit_softcapping", "final_logit_softcapping");
    gguf_member_fail(m,
                     gguf_config_number(m->g, m->a, "embedding_length", UINT32_MAX, &dim, m->why));
    gguf_member_fail(
        m, gguf_config_number(m->g, m->a, "attention.head_count", UINT32_MAX, &n_heads, m->why));
    /* The metadata does not say it; only the largest model of each family differs. */
    if (m->n_layers == n_layers_27b && n_heads > 0)
        per_head = dim / n_heads;
    set_int(m, "query_pre_attn_scalar", per_head);
}

static void add_granite(struct gguf_members *m)
{
    /* llama.cpp's meaning of an absent key. */
    if (!gguf_member_has(m, "attention.scale") && m->head_dim > 0)
        gguf_member_set(m, "attention_multiplier", js_new_real(1 / sqrt((double)m->head_dim)));
    copy_real(m, "attention.scale", "attention_multiplier");
    copy_real(m, "embedding_scale", "embedding_multiplier");
    copy_real(m, "residual_scale", "residual_multiplier");
    copy_real(m, "logit_scale", "logits_scaling");
}

static void add_stablelm(struct gguf_members *m)
{
    char key[KEY_BYTES_MAX];
    bool parallel = false;

    key_of(m->a, "use_parallel_residual", key);
    gguf_member_fail(m, gguf_get_bool(m->g, key, &parallel, m->why));
    set_bool(m, "use_parallel_residual", parallel);
    set_bool(m, "qk_layernorm", has_tensor(m, "blk.0.attn_q_norm.weight"));
}

static bool is_end_text(const char *text, size_t len)
{
    for (size_t i = 0; i < ARRAY_SIZE(end_texts); i++)
        if (strlen(end_texts[i]) == len && !memcmp(end_texts[i], text, len))
            return true;
    return false;
}

static void push_end(struct gguf_members *m, struct json *ids, uint64_t id)
{
    for (size_t i = 0; i < js_len(ids); i++)
        if (js_int(js_at(ids, i)) == (int64_t)id)
            return;
    if (js_len(ids) < N_EOS_MAX)
        gguf_member_push(m, ids, js_new_int((int64_t)id));
}

/* The tokens that the metadata names, and control tokens with a text that ends answers. */
static void add_ends(struct gguf_members *m)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    struct gguf_array tokens = {0}, types = {0};
    struct json *ids = js_new_array();

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        uint64_t id = UINT64_MAX;
        gguf_member_fail(m, gguf_get_u64(m->g, keys[i], 0, UINT32_MAX, &id, m->why));
        if (id != UINT64_MAX)
            push_end(m, ids, id);
    }
    gguf_member_fail(m, gguf_get_array(m->g, "tokenizer.ggml.tokens", &tokens, m->why));
    gguf_member_fail(m, gguf_get_array(m->g, "tokenizer.ggml.token_type", &types, m->why));
    for (uint64_t i = 0; m->status == OK && i < tokens.n && i < types.n; i++) {
        size_t len = 0;
        const char *text = gguf_array_str(m->g, &tokens, i, &len);
        if (text && gguf_array_number(&types, i) == TYPE_CONTROL && is_end_text(text, len))
            push_end(m, ids, i);
    }
    gguf_member_set(m, "eos_token_id", ids);
}

static enum status make_generation(const struct gguf *g, struct json **out, struct buf *why)
{
    static const struct {
        const char *key, *name;
    } rows[] = {{"general.sampling.temp", "temperature"},
                {"general.sampling.top_p", "top_p"},
                {"general.sampling.min_p", "min_p"},
                {"general.sampling.penalty_repeat", "repetition_penalty"}};
    uint64_t top_k = UINT64_MAX;
    enum status s = OK;

    *out = js_new_object();
    if (!*out)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++) {
        double v = NAN;
        s = gguf_get_f64(g, rows[i].key, &v, why);
        if (s == OK && isfinite(v) &&
            (s = js_set(*out, rows[i].name, js_new_real(gguf_member_shortest(v)))) != OK)
            buf_why(why, s, "out of memory");
    }
    if (s == OK)
        s = gguf_get_u64(g, "general.sampling.top_k", 0, INT32_MAX, &top_k, why);
    if (s == OK && top_k != UINT64_MAX &&
        (s = js_set(*out, "top_k", js_new_int((int64_t)top_k))) != OK)
        buf_why(why, s, "out of memory");
    return s;
}

static void add_own(struct gguf_members *m)
{
    if (!strcmp(m->a->name, "gemma2"))
        add_gemma(m, N_LAYERS_GEMMA2_27B);
    else if (!strcmp(m->a->name, "gemma3"))
        add_gemma(m, N_LAYERS_GEMMA3_27B);
    else
        set_text(m, "hidden_act", "silu");
    if (!strcmp(m->a->name, "granite"))
        add_granite(m);
    if (!strcmp(m->a->name, "stablelm"))
        add_stablelm(m);
}

enum status gguf_config_make(const struct gguf *g, struct json **config, struct json **generation,
                             struct buf *why)
{
    struct gguf_members m = {.g = g, .why = why};
    enum status s = gguf_architecture(g, &m.a, why);

    *config = *generation = NULL;
    if (s != OK)
        return s;
    m.architecture = m.a->architecture;
    m.config = js_new_object();
    if (!m.config)
        return buf_why(why, ERR_NOMEM, "out of memory");
    add_shapes(&m);
    add_experts(&m);
    add_norms_and_biases(&m);
    add_windows(&m);
    add_own(&m);
    gguf_add_rope(&m);
    add_ends(&m);
    struct json *list = js_new_array();
    gguf_member_push(&m, list, js_new_string(m.architecture, strlen(m.architecture)));
    gguf_member_set(&m, "architectures", list);
    if (m.status == OK)
        m.status = make_generation(g, generation, why);
    if (m.status == OK) {
        *config = m.config;
        return OK;
    }
    js_unref(m.config);
    js_unref(*generation);
    *generation = NULL;
    return m.status;
}
