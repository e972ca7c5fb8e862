#include "engine/embedder_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

#define FILE_BYTES_MAX ((size_t)64 << 10)
#define TOKENIZER_BYTES_MAX ((size_t)16 << 20) /* of tokenizer_config.json */
#define PATH_BYTES_MAX 4096

/* Parse DIR/NAME. ERR_NOT_FOUND: there is no such file. */
static enum status read_file(const char *dir, const char *name, size_t max_bytes, struct json **out,
                             struct buf *why)
{
    char path[PATH_BYTES_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= sizeof path)
        return buf_why(why, ERR_INVALID, "the path of %s is too long", name);
    return js_parse_file(out, path, max_bytes, why);
}

/* Check that a module is known, and that its files are where they are read. */
static enum status check_module(const struct json *module, struct buf *why)
{
    static const struct {
        const char *name, *path; /* path NULL: it has no files */
    } known[] = {{"Transformer", ""}, {"Pooling", "1_Pooling"}, {"Normalize", NULL}};
    const char *type = NULL, *path = NULL;
    enum status s = js_read_cstr(js_get(module, "type"), "modules.json: type", &type, why);

    if (s == OK)
        s = js_get_str(module, "path", &path, NULL, why);
    if (s != OK)
        return s;
    const char *dot = strrchr(type, '.'), *last = dot ? dot + 1 : type;
    for (size_t k = 0; k < ARRAY_SIZE(known); k++) {
        if (strcmp(last, known[k].name) != 0)
            continue;
        if (!path || !known[k].path || strcmp(path, known[k].path) == 0)
            return OK;
        return buf_why(why, ERR_UNSUPPORTED,
                       "modules.json: path \"%.100s\" of %s is not supported; \"%s\" is", path,
                       last, known[k].path);
    }
    return buf_why(why, ERR_UNSUPPORTED,
                   "modules.json: module %.100s is not supported; Transformer, Pooling and "
                   "Normalize are",
                   type);
}

/* A dense layer or another module behind the pooling would be left out silently. */
static enum status check_modules(const struct json *list, struct buf *why)
{
    enum status s = OK;

    if (!js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "modules.json: expected an array");
    for (size_t i = 0; s == OK && i < js_len(list); i++)
        s = check_module(js_at(list, i), why);
    return s;
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

/* Ways of pooling in the order of enum pooling, then those that are not supported. */
static const struct {
    const char *name; /* of `pooling_mode` */
    const char *flag; /* of files written before sentence-transformers 6 */
} modes[] = {{"lasttoken", "pooling_mode_lasttoken"},
             {"mean", "pooling_mode_mean_tokens"},
             {"cls", "pooling_mode_cls_token"},
             {"max", "pooling_mode_max_tokens"},
             {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"},
             {"weightedmean", "pooling_mode_weightedmean_tokens"}};

/* Find the mode; *mode is ARRAY_SIZE(modes) for a name that is unknown. */
static enum status find_mode(const struct json *j, size_t *mode, struct buf *why)
{
    const char *name = NULL;
    size_t n_on = 0;
    enum status s = js_get_str(j, "pooling_mode", &name, NULL, why);

    for (*mode = 0; name && *mode < ARRAY_SIZE(modes) && strcmp(name, modes[*mode].name) != 0;)
        ++*mode;
    if (s != OK || name)
        return s;
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(modes); i++) {
        bool is_on = false;
        s = js_get_bool(j, modes[i].flag, &is_on, why);
        if (is_on) {
            *mode = i;
            n_on++;
        }
    }
    if (s == OK && n_on != 1)
        s = buf_why(why, ERR_INVALID, "1_Pooling/config.json: %zu pooling modes are on, not one",
                    n_on);
    return s;
}

static enum status read_pooling(const struct json *j, uint32_t dim, bool is_encoder,
                                struct embedder_files *f, struct buf *why)
{
    int64_t given_dim = dim;
    size_t mode = 0, n_known = is_encoder ? 3 : 2;

    if (!js_is(j, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "1_Pooling/config.json: expected an object");
    enum status s = js_get_i64(j, "word_embedding_dimension", dim, dim, &given_dim, why);
    if (s == OK)
        s = js_get_i64(j, "embedding_dimension", dim, dim, &given_dim, why);
    if (s == OK)
        s = find_mode(j, &mode, why);
    if (s != OK)
        return s;
    if (mode >= n_known)
        return buf_why(why, ERR_UNSUPPORTED,
                       "1_Pooling/config.json: %s is not supported%s; %s and %s are%s",
                       mode < ARRAY_SIZE(modes) ? modes[mode].flag : "this pooling_mode",
                       is_encoder ? "" : " for a decoder", modes[0].flag, modes[1].flag,
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
    if (s == OK && max_tokens > 0)
        f->max_tokens = (uint32_t)max_tokens;
    return s == OK ? js_get_bool(j, "do_lower_case", &f->lowers, why) : s;
}

/* The tokenizer's length counts where the other file has none; a value far above all models means
 * that there is no limit. */
static void read_tokenizer_length(const struct json *j, struct embedder_files *f)
{
    const struct json *v = js_get_set(j, "model_max_length");

    if (js_is(v, JS_INT) && js_int(v) > 0 && js_int(v) <= UINT32_MAX)
        f->max_tokens = (uint32_t)js_int(v);
}

static enum status read_part(int part, const struct json *j, uint32_t dim, bool is_encoder,
                             struct embedder_files *f, struct buf *why)
{
    switch (part) {
    case 0: return check_modules(j, why);
    case 1: return read_prompts(j, f, why);
    case 2: read_tokenizer_length(j, f); return OK;
    case 3: return read_lengths(j, f, why);
    default: return read_pooling(j, dim, is_encoder, f, why);
    }
}

enum status embedder_files_load(struct embedder_files *out, const char *dir, uint32_t dim,
                                bool is_encoder, struct buf *why)
{
    static const struct {
        const char *name;
        size_t max_bytes;
    } files[] = {{"modules.json", FILE_BYTES_MAX},
                 {"config_sentence_transformers.json", FILE_BYTES_MAX},
                 {"tokenizer_config.json", TOKENIZER_BYTES_MAX},
                 {"sentence_bert_config.json", FILE_BYTES_MAX},
                 {"1_Pooling/config.json", FILE_BYTES_MAX}};
    enum status s = OK;

    *out = (struct embedder_files){.pooling = is_encoder ? POOLING_MEAN : POOLING_LAST};
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(files); i++) {
        struct json *j = NULL;

        s = read_file(dir, files[i].name, files[i].max_bytes, &j, why);
        if (s == OK)
            s = read_part((int)i, j, dim, is_encoder, out, why);
        else if (s == ERR_NOT_FOUND)
            s = OK;
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
