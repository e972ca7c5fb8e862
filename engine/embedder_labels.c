#include "engine/embedder_labels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define PATH_BYTES_MAX 4096

/* Parse DIR/NAME. *out is NULL if there is no such file. */
static enum status read_file(const char *dir, const char *name, struct json **out, struct buf *why)
{
    char path[PATH_BYTES_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    *out = NULL;
    if (n < 0 || (size_t)n >= sizeof path)
        return buf_why(why, ERR_INVALID, "the path of %s is too long", name);
    enum status s = js_parse_file(out, path, FILE_BYTES_MAX, why);
    if (s == ERR_NOT_FOUND)
        return OK;
    if (s == OK && !js_is(*out, JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "%s: expected an object", name);
    return s;
}

static enum status read_name(const struct json *v, uint32_t i, char **out, struct buf *why)
{
    if (!v)
        return OK;
    if (!js_is(v, JS_STRING))
        return buf_why(why, ERR_INVALID, "config.json: id2label.%u: expected a string, got %s", i,
                       js_type_name(js_typeof(v)));
    *out = strdup(js_string(v, NULL));
    return *out ? OK : buf_why(why, ERR_NOMEM, "out of memory");
}

/* Without id2label the names are those of Hugging Face: LABEL_0, LABEL_1. */
static enum status read_names(const struct json *config, struct embedder_labels *l, struct buf *why)
{
    const struct json *names = js_get_set(config, "id2label");
    char key[24];
    enum status s = OK;

    l->names = calloc(l->n, sizeof *l->names);
    if (!l->names)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; s == OK && i < l->n; i++) {
        snprintf(key, sizeof key, names ? "%u" : "LABEL_%u", i);
        if (names)
            s = read_name(js_get(names, key), i, &l->names[i], why);
        else if (!(l->names[i] = strdup(key)))
            s = buf_why(why, ERR_NOMEM, "out of memory");
    }
    return s;
}

static enum status read_problem(const struct json *config, struct embedder_labels *l,
                                struct buf *why)
{
    const char *problem = NULL;
    enum status s = js_get_str(config, "problem_type", &problem, NULL, why);

    l->of_texts = l->n > 1 ? LABELS_SOFTMAX : LABELS_SIGMOID;
    if (s != OK || !problem || strcmp(problem, "single_label_classification") == 0)
        return s;
    if (strcmp(problem, "multi_label_classification") == 0)
        l->of_texts = LABELS_SIGMOID;
    else if (strcmp(problem, "regression") == 0)
        l->of_texts = LABELS_PLAIN;
    else
        return buf_why(why, ERR_UNSUPPORTED, "config.json: problem_type %.100s is not supported",
                       problem);
    return OK;
}

/* Read the name of a class of PyTorch, of which the last part counts. */
static enum status read_activation(const struct json *j, const char *key, const char *file,
                                   bool *found, struct embedder_labels *l, struct buf *why)
{
    static const char *const names[] = {"Identity", "Sigmoid", "Softmax"};
    const char *path = NULL;
    enum status s = *found || !js_get_set(j, key) ? OK : js_get_str(j, key, &path, NULL, why);

    if (s != OK || !path)
        return s;
    const char *dot = strrchr(path, '.'), *last = dot ? dot + 1 : path;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(last, names[i]) == 0) {
            l->of_pairs = (enum label_activation)i;
            *found = true;
            return OK;
        }
    return buf_why(why, ERR_UNSUPPORTED,
                   "%s: %s %.100s is not supported; Identity, Sigmoid and Softmax are", file, key,
                   path);
}

static enum status read_activations(const struct json *config, const struct json *library,
                                    struct embedder_labels *l, struct buf *why)
{
    bool found = false;
    enum status s = read_problem(config, l, why);

    l->of_pairs = l->n > 1 ? LABELS_SOFTMAX : LABELS_SIGMOID;
    if (s == OK)
        s = read_activation(library, "activation_fn", "config_sentence_transformers.json", &found,
                            l, why);
    if (s == OK)
        s = read_activation(js_get_set(config, "sentence_transformers"), "activation_fn",
                            "config.json: sentence_transformers", &found, l, why);
    if (s == OK)
        s = read_activation(config, "sbert_ce_default_activation_function", "config.json", &found,
                            l, why);
    return s;
}

/* The inputs that the tokenizer is said to make; an absent list has the types. */
static bool names_types(const struct json *tokenizer)
{
    const struct json *names = js_get_set(tokenizer, "model_input_names");

    if (!js_is(names, JS_ARRAY))
        return true;
    for (size_t i = 0; i < js_len(names); i++)
        if (js_is(js_at(names, i), JS_STRING) &&
            strcmp(js_string(js_at(names, i), NULL), "token_type_ids") == 0)
            return true;
    return false;
}

enum status embedder_labels_load(struct embedder_labels *out, const char *dir, uint32_t n,
                                 struct buf *why)
{
    struct json *config = NULL, *library = NULL, *tokenizer = NULL;

    *out = (struct embedder_labels){.n = n};
    enum status s = read_file(dir, "config.json", &config, why);
    if (s == OK)
        s = read_file(dir, "config_sentence_transformers.json", &library, why);
    if (s == OK)
        s = read_file(dir, "tokenizer_config.json", &tokenizer, why);
    if (s == OK)
        s = read_names(config, out, why);
    if (s == OK)
        s = read_activations(config, library, out, why);
    out->has_types = names_types(tokenizer);
    js_unref(config);
    js_unref(library);
    js_unref(tokenizer);
    if (s != OK)
        embedder_labels_fini(out);
    return s;
}

void embedder_labels_fini(struct embedder_labels *l)
{
    for (uint32_t i = 0; l->names && i < l->n; i++)
        free(l->names[i]);
    free(l->names);
    l->names = NULL;
}

void embedder_labels_activate(enum label_activation activation, float *logits, uint32_t n)
{
    double sum = 0;
    float most = logits[0];

    if (activation == LABELS_PLAIN)
        return;
    if (activation == LABELS_SIGMOID) {
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)(1 / (1 + exp(-(double)logits[i])));
        return;
    }
    for (uint32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)most);
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)(exp((double)logits[i] - (double)most) / sum);
}
