#include "engine/embedder_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

#define FILE_BYTES_MAX ((size_t)64 << 10)
#define PATH_BYTES_MAX 4096

/* Parse DIR/NAME. ERR_NOT_FOUND: there is no such file. */
static enum status read_file(const char *dir, const char *name, struct json **out, struct buf *why)
{
    char path[PATH_BYTES_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= sizeof path)
        return buf_why(why, ERR_INVALID, "the path of %s is too long", name);
    return js_parse_file(out, path, FILE_BYTES_MAX, why);
}

/* A dense layer or another module behind the pooling would be left out silently. */
static enum status check_modules(const struct json *list, struct buf *why)
{
    static const char *const known[] = {"Transformer", "Pooling", "Normalize"};

    if (!js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "modules.json: expected an array");
    for (size_t i = 0; i < js_len(list); i++) {
        const char *type = NULL;
        enum status s =
            js_read_cstr(js_get(js_at(list, i), "type"), "modules.json: type", &type, why);
        if (s != OK)
            return s;
        const char *dot = strrchr(type, '.'), *last = dot ? dot + 1 : type;
        bool is_known = false;
        for (size_t k = 0; k < ARRAY_SIZE(known); k++)
            is_known = is_known || strcmp(last, known[k]) == 0;
        if (!is_known)
            return buf_why(why, ERR_UNSUPPORTED,
                           "modules.json: module %.100s is not supported; Transformer, Pooling and "
                           "Normalize are",
                           type);
    }
    return OK;
}

/* With a prompt in front, `include_prompt` false asks for a mean without the prompt's tokens. */
static enum status check_prompt_counts(const struct json *j, const struct embedder_files *f,
                                       struct buf *why)
{
    bool counts = true;
    enum status s = js_get_bool(j, "include_prompt", &counts, why);

    if (s == OK && !counts && (f->query_prompt || f->document_prompt))
        return buf_why(why, ERR_UNSUPPORTED,
                       "1_Pooling/config.json: include_prompt false is not supported for a model "
                       "with prompts");
    return s;
}

static enum status read_pooling(const struct json *j, uint32_t dim, bool is_encoder,
                                struct embedder_files *f, struct buf *why)
{
    /* In the order of enum pooling, then those that are not supported. */
    static const char *const modes[] = {"pooling_mode_lasttoken",
                                        "pooling_mode_mean_tokens",
                                        "pooling_mode_cls_token",
                                        "pooling_mode_max_tokens",
                                        "pooling_mode_mean_sqrt_len_tokens",
                                        "pooling_mode_weightedmean_tokens"};
    int64_t given_dim = dim;
    size_t n_on = 0, mode = 0, n_known = is_encoder ? 3 : 2;

    if (!js_is(j, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "1_Pooling/config.json: expected an object");
    enum status s = js_get_i64(j, "word_embedding_dimension", dim, dim, &given_dim, why);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(modes); i++) {
        bool is_on = false;
        s = js_get_bool(j, modes[i], &is_on, why);
        if (is_on) {
            mode = i;
            n_on++;
        }
    }
    if (s != OK)
        return s;
    if (n_on != 1)
        return buf_why(why, ERR_INVALID, "1_Pooling/config.json: %zu pooling modes are on, not one",
                       n_on);
    if (mode >= n_known)
        return buf_why(why, ERR_UNSUPPORTED,
                       "1_Pooling/config.json: %s is not supported%s; %s and %s are%s", modes[mode],
                       is_encoder ? "" : " for a decoder", modes[0], modes[1],
                       is_encoder ? ", and pooling_mode_cls_token" : "");
    f->pooling = (enum pooling)mode;
    return check_prompt_counts(j, f, why);
}

/* Copy prompt `name`, if the file has it. An empty one counts as none. */
static enum status copy_prompt(const struct json *prompts, const char *name, bool *found,
                               char **out, struct buf *why)
{
    const struct json *v = js_get_set(prompts, name);
    const char *text = NULL;
    enum status s;

    *found = v != NULL;
    if (!v)
        return OK;
    s = js_read_cstr(v, "config_sentence_transformers.json: a prompt", &text, why);
    if (s != OK || !*text)
        return s;
    *out = strdup(text);
    return *out ? OK : buf_why(why, ERR_NOMEM, "out of memory");
}

/* Copy the first prompt of these names [n], or the default one. */
static enum status choose_prompt(const struct json *j, const char *const *names, size_t n,
                                 char **out, struct buf *why)
{
    const struct json *prompts = js_get_set(j, "prompts");
    const char *by_default = NULL;
    bool found = false;
    enum status s = OK;

    for (size_t i = 0; s == OK && i < n && !found; i++)
        s = copy_prompt(prompts, names[i], &found, out, why);
    if (s == OK && !found)
        s = js_get_str(j, "default_prompt_name", &by_default, NULL, why);
    if (s != OK || !by_default)
        return s;
    s = copy_prompt(prompts, by_default, &found, out, why);
    if (s == OK && !found)
        s = buf_why(why, ERR_INVALID,
                    "config_sentence_transformers.json: default_prompt_name: there is no prompt of "
                    "this name");
    return s;
}

static enum status read_prompts(const struct json *j, struct embedder_files *f, struct buf *why)
{
    static const char *const of_queries[] = {"query"};
    static const char *const of_documents[] = {"document", "passage", "corpus"};
    const struct json *prompts = js_get_set(j, "prompts");
    enum status s;

    if (!js_is(j, JS_OBJECT) || (prompts && !js_is(prompts, JS_OBJECT)))
        return buf_why(why, ERR_INVALID,
                       "config_sentence_transformers.json: expected an object, and in it prompts");
    s = choose_prompt(j, of_queries, ARRAY_SIZE(of_queries), &f->query_prompt, why);
    return s == OK
               ? choose_prompt(j, of_documents, ARRAY_SIZE(of_documents), &f->document_prompt, why)
               : s;
}

static enum status read_lengths(const struct json *j, struct embedder_files *f, struct buf *why)
{
    int64_t max_tokens = 0;
    enum status s;

    if (!js_is(j, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "sentence_bert_config.json: expected an object");
    s = js_get_i64(j, "max_seq_length", 1, UINT32_MAX, &max_tokens, why);
    f->max_tokens = (uint32_t)max_tokens;
    return s == OK ? js_get_bool(j, "do_lower_case", &f->lowers, why) : s;
}

/* Parse a file; *j is NULL if it is missing. */
static enum status read_optional(const char *dir, const char *name, struct json **j,
                                 struct buf *why)
{
    enum status s;

    *j = NULL;
    s = read_file(dir, name, j, why);
    return s == ERR_NOT_FOUND ? OK : s;
}

enum status embedder_files_load(struct embedder_files *out, const char *dir, uint32_t dim,
                                bool is_encoder, struct buf *why)
{
    static const char *const names[] = {"modules.json", "config_sentence_transformers.json",
                                        "sentence_bert_config.json", "1_Pooling/config.json"};
    enum status s = OK;

    *out = (struct embedder_files){.pooling = is_encoder ? POOLING_MEAN : POOLING_LAST};
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(names); i++) {
        struct json *j;

        s = read_optional(dir, names[i], &j, why);
        if (s == OK && j)
            s = i == 0   ? check_modules(j, why)
                : i == 1 ? read_prompts(j, out, why)
                : i == 2 ? read_lengths(j, out, why)
                         : read_pooling(j, dim, is_encoder, out, why);
        js_unref(j);
    }
    if (s != OK)
        embedder_files_fini(out);
    return s;
}

void embedder_files_fini(struct embedder_files *f)
{
    free(f->query_prompt);
    free(f->document_prompt);
    f->query_prompt = f->document_prompt = NULL;
}
