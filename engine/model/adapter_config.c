#include "engine/model/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define ALPHA_MAX 1e6
/* Characters of a regular expression that a pattern may not have; "." stands for itself. */
#define PATTERN_MARKS "^$*+?()[]{}|\\"

/* Fields that say nothing about the addition, whatever their value. */
static const char *const passive[] = {
    "auto_mapping",        "base_model_name_or_path",
    "corda_config",        "ensure_weight_tying",
    "eva_config",          "exclude_modules",
    "inference_mode",      "layers_pattern",
    "layers_to_transform", "loftq_config",
    "lora_dropout",        "megatron_config",
    "megatron_core",       "peft_version",
    "qalora_group_size",   "revision",
    "runtime_config",
};

/* Fields that the functions below read. */
static const char *const read_here[] = {
    "alpha_pattern", "bias",           "init_lora_weights", "lora_alpha", "peft_type", "r",
    "rank_pattern",  "target_modules", "task_type",         "use_rslora",
};

static bool is_listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

/* Whether a value means "off": null, false, 0, "", [] or {}. */
static bool is_off(const struct json *v)
{
    switch (js_typeof(v)) {
    case JS_NULL: return true;
    case JS_BOOL: return !js_bool(v);
    case JS_INT: return js_int(v) == 0;
    case JS_REAL: return false;
    case JS_STRING: return js_string(v, NULL)[0] == '\0';
    case JS_ARRAY:
    case JS_OBJECT: return js_len(v) == 0;
    }
    return false;
}

/* Refuse every other field that is set: modules_to_save, use_dora, fan_in_fan_out, lora_bias,
 * layer_replication, trainable_token_indices, target_parameters, and those of later versions. */
static enum status refuse_others(const struct json *j, struct buf *why)
{
    for (void *it = js_first(j); it; it = js_next(j, it)) {
        const char *name = js_it_key(it);

        if (!is_listed(name, passive, ARRAY_SIZE(passive)) &&
            !is_listed(name, read_here, ARRAY_SIZE(read_here)) && !is_off(js_it_value(it)))
            return buf_why(why, ERR_UNSUPPORTED,
                           "%.60s is not supported; the adapter can be merged into its model "
                           "instead",
                           name);
    }
    return OK;
}

/* Check that a text is absent or one of the words [n]. */
static enum status check_word(const struct json *j, const char *name, const char *const *words,
                              size_t n, struct buf *why)
{
    const char *value = NULL;
    enum status s = js_get_str(j, name, &value, NULL, why);

    if (s != OK || !value || is_listed(value, words, n))
        return s;
    return buf_why(why, ERR_UNSUPPORTED, "%s \"%.60s\" is not supported; \"%s\" is", name, value,
                   words[0]);
}

/* Some ways to begin the training change the model's own weights, too, so that the adapter belongs
 * to another model than the checkpoint. */
static enum status check_start(const struct json *j, struct buf *why)
{
    static const char *const words[] = {"gaussian", "eva", "orthogonal"};
    const struct json *v = js_get_set(j, "init_lora_weights");

    return js_is(v, JS_BOOL) ? OK
                             : check_word(j, "init_lora_weights", words, ARRAY_SIZE(words), why);
}

static enum status check_words(const struct json *j, struct buf *why)
{
    static const char *const types[] = {"LORA"}, *const tasks[] = {"CAUSAL_LM"},
                             *const biases[] = {"none"};
    enum status s = check_word(j, "peft_type", types, ARRAY_SIZE(types), why);

    if (s == OK && !js_get_set(j, "peft_type"))
        s = buf_why(why, ERR_INVALID, "peft_type is missing");
    if (s == OK)
        s = check_word(j, "task_type", tasks, ARRAY_SIZE(tasks), why);
    if (s == OK)
        s = check_word(j, "bias", biases, ARRAY_SIZE(biases), why);
    return s == OK ? check_start(j, why) : s;
}

/* Check a pattern's members: names of modules, not regular expressions; numbers in (0, max]. */
static enum status read_pattern(const struct json *j, const char *name, double max,
                                const struct json **out, struct buf *why)
{
    const struct json *v = js_get_set(j, name);

    *out = v;
    if (!v)
        return OK;
    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object", name);
    for (void *it = js_first(v); it; it = js_next(v, it)) {
        const struct json *n = js_it_value(it);
        const char *key = js_it_key(it);

        if (!key[0] || strpbrk(key, PATTERN_MARKS))
            return buf_why(why, ERR_UNSUPPORTED,
                           "%s: \"%.80s\" is not supported; names of modules or their ends are",
                           name, key);
        if (!(js_is(n, JS_INT) || js_is(n, JS_REAL)) || !(js_number(n) > 0) || js_number(n) > max ||
            (max <= ADAPTER_RANK_MAX && !js_is(n, JS_INT)))
            return buf_why(why, ERR_INVALID, "%s.%.80s: expected a number above 0, at most %g",
                           name, key, max);
    }
    return OK;
}

/* target_modules may be a list, a regular expression or "all-linear": the tensors tell which
 * modules were trained. Here only the type is checked. */
static enum status check_targets(const struct json *j, struct buf *why)
{
    const struct json *v = js_get_set(j, "target_modules");

    if (!v || js_is(v, JS_STRING))
        return OK;
    for (size_t i = 0; js_is(v, JS_ARRAY) && i < js_len(v); i++)
        if (!js_is(js_at(v, i), JS_STRING))
            return buf_why(why, ERR_INVALID, "target_modules[%zu]: expected a string", i);
    return js_is(v, JS_ARRAY) ? OK : buf_why(why, ERR_INVALID, "target_modules: expected a list");
}

static enum status read_fields(struct adapter_config *c, struct buf *why)
{
    const struct json *j = c->file;
    int64_t rank = 8; /* PEFT's defaults */
    enum status s =
        js_is(j, JS_OBJECT) ? check_words(j, why) : buf_why(why, ERR_INVALID, "expected an object");

    c->alpha = 8;
    if (s == OK)
        s = refuse_others(j, why);
    if (s == OK)
        s = js_get_i64(j, "r", 1, ADAPTER_RANK_MAX, &rank, why);
    if (s == OK)
        s = js_get_f64(j, "lora_alpha", 1e-6, ALPHA_MAX, &c->alpha, why);
    if (s == OK)
        s = js_get_bool(j, "use_rslora", &c->is_rank_stabilized, why);
    if (s == OK)
        s = check_targets(j, why);
    if (s == OK)
        s = read_pattern(j, "rank_pattern", ADAPTER_RANK_MAX, &c->ranks, why);
    if (s == OK)
        s = read_pattern(j, "alpha_pattern", ALPHA_MAX, &c->alphas, why);
    c->rank = (uint32_t)rank;
    return s;
}

enum status adapter_config_read(struct adapter_config *c, const char *dir, struct buf *why)
{
    char path[4096];
    struct buf words;

    *c = (struct adapter_config){0};
    if (snprintf(path, sizeof path, "%s/adapter_config.json", dir) >= (int)sizeof path)
        return buf_why(why, ERR_INVALID, "the adapter's path is too long");
    enum status s = js_parse_file(&c->file, path, FILE_BYTES_MAX, why);
    if (s != OK)
        return s;
    buf_init(&words, BUF_WHY_MAX / 2);
    s = read_fields(c, &words);
    if (s != OK) {
        buf_why(why, s, "%s: %s", path, buf_str(&words));
        adapter_config_fini(c);
    }
    buf_fini(&words);
    return s;
}

void adapter_config_fini(struct adapter_config *c)
{
    js_unref(c->file);
    *c = (struct adapter_config){0};
}

/* Whether the last parts of a module's name are `pattern`. */
static bool ends_with(const char *module, const char *pattern)
{
    size_t n = strlen(module), k = strlen(pattern);

    return n >= k && strcmp(module + n - k, pattern) == 0 && (n == k || module[n - k - 1] == '.');
}

/* The number of the first pattern that applies; `other` where none does. */
static double by_pattern(const struct json *patterns, const char *module, double other)
{
    for (void *it = js_first(patterns); it; it = js_next(patterns, it))
        if (ends_with(module, js_it_key(it)))
            return js_number(js_it_value(it));
    return other;
}

uint32_t adapter_config_rank(const struct adapter_config *c, const char *module)
{
    return (uint32_t)by_pattern(c->ranks, module, c->rank);
}

double adapter_config_scale(const struct adapter_config *c, const char *module)
{
    double rank = adapter_config_rank(c, module), alpha = by_pattern(c->alphas, module, c->alpha);

    return alpha / (c->is_rank_stabilized ? sqrt(rank) : rank);
}
