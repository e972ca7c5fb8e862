#include "engine/model/hub_list.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/model/hub.h"

#define N_FILES_MAX 20000
#define N_VALUES_MAX 1000000
#define PARSE_BYTES_MAX ((size_t)256 << 20)
#define FILE_BYTES_MAX ((int64_t)1 << 42)
#define SMALL_BYTES_MAX ((uint64_t)256 << 20) /* of a file that is not weights */
#define LIST_BYTES_MAX 600                    /* of names in a message */
#define WEIGHTS "model.safetensors"

/* --- reading --- */

static bool is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static enum status read_sum(struct hub_file *f, const struct json *j, struct buf *why)
{
    const struct json *lfs = js_get_set(j, "lfs");
    const char *sum = NULL;
    enum status s =
        lfs ? js_get_str(lfs, "sha256", &sum, NULL, why) : js_get_str(j, "blobId", &sum, NULL, why);

    f->is_large = lfs != NULL;
    if (s == OK && (!sum || !is_hex(sum, lfs ? HUB_SUM_DIGITS_MAX : HUB_COMMIT_DIGITS)))
        s = buf_why(why, ERR_INVALID, "%s is missing or no checksum",
                    lfs ? "lfs.sha256" : "blobId");
    if (s == OK)
        snprintf(f->sum, sizeof f->sum, "%s", sum);
    return s;
}

static enum status read_size(struct hub_file *f, const struct json *j, struct buf *why)
{
    const struct json *lfs = js_get_set(j, "lfs");
    int64_t n_bytes = -1;
    enum status s = js_get_i64(j, "size", 0, FILE_BYTES_MAX, &n_bytes, why);

    if (s == OK && n_bytes < 0 && lfs)
        s = js_get_i64(lfs, "size", 0, FILE_BYTES_MAX, &n_bytes, why);
    if (s == OK && n_bytes < 0)
        s = buf_why(why, ERR_INVALID, "size is missing");
    f->n_bytes = (uint64_t)n_bytes;
    return s;
}

static enum status read_file(struct hub_file *f, const struct json *j, struct buf *why)
{
    struct buf inner;
    enum status s = js_get_str(j, "rfilename", &f->path, NULL, why);

    if (s != OK || !f->path)
        return buf_why(why, ERR_INVALID, "a file without a name (rfilename)");
    if (!hub_is_inside(f->path))
        return buf_why(why, ERR_INVALID,
                       "the file name \"%.200s\" is refused: it could leave the "
                       "model's directory",
                       f->path);
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = read_sum(f, j, &inner);
    if (s == OK)
        s = read_size(f, j, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", f->path, buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static enum status read_files(struct hub_list *l, struct buf *why)
{
    const struct json *files = js_get(l->json, "siblings");
    const char *commit = NULL;
    enum status s = js_get_str(l->json, "sha", &commit, NULL, why);

    if (s != OK)
        return s;
    if (!commit || !is_hex(commit, HUB_COMMIT_DIGITS))
        return buf_why(why, ERR_INVALID, "sha is missing or no commit");
    if (!js_is(files, JS_ARRAY) || js_len(files) == 0)
        return buf_why(why, ERR_INVALID, "siblings is missing: the model has no files");
    if (js_len(files) > N_FILES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "more than %d files", N_FILES_MAX);
    snprintf(l->commit, sizeof l->commit, "%s", commit);
    l->files = calloc(js_len(files), sizeof *l->files);
    if (!l->files)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; s == OK && i < js_len(files); i++) {
        s = read_file(&l->files[i], js_at(files, i), why);
        l->n += s == OK;
    }
    qsort(l->files, l->n, sizeof *l->files, compare_files);
    for (size_t i = 1; s == OK && i < l->n; i++)
        if (strcmp(l->files[i - 1].path, l->files[i].path) == 0)
            s = buf_why(why, ERR_INVALID, "%s stands there twice", l->files[i].path);
    return s;
}

enum status hub_list_parse(struct hub_list *out, const char *text, size_t len, struct buf *why)
{
    const struct js_limits limits = {N_VALUES_MAX, PARSE_BYTES_MAX};
    struct buf inner;

    *out = (struct hub_list){.n = 0};
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_parse_limited(&out->json, text, len, &limits, &inner);
    if (s == OK)
        s = read_files(out, &inner);
    if (s != OK) {
        buf_why(why, s, "the hub's list of files: %s", buf_str(&inner));
        hub_list_fini(out);
    }
    buf_fini(&inner);
    return s;
}

void hub_list_fini(struct hub_list *l)
{
    js_unref(l->json);
    free(l->files);
    *l = (struct hub_list){.n = 0};
}

struct hub_file *hub_list_find(const struct hub_list *l, const char *path)
{
    struct hub_file wanted = {.path = path};

    return l->n ? bsearch(&wanted, l->files, l->n, sizeof wanted, compare_files) : NULL;
}

/* --- choosing --- */

/* Config, tokenizer, chat template: by their names at the top, and the parts of an embedding
 * model. */
static bool is_small_part(const char *path)
{
    static const char *const wanted[] = {"*.json",    "*.jinja",         "merges.txt",
                                         "vocab.txt", "tokenizer.model", "[0-9]_*/config.json"};
    static const char *const others[] = {"*pytorch*", "*flax*", "*tf_model*", "*onnx*",
                                         "*openvino*"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (fnmatch(others[i], path, 0) == 0)
            return false;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (fnmatch(wanted[i], path, FNM_PATHNAME) == 0)
            return true;
    return false;
}

static enum status choose_small(struct hub_list *l, struct buf *why)
{
    for (size_t i = 0; i < l->n; i++) {
        struct hub_file *f = &l->files[i];
        if (!is_small_part(f->path))
            continue;
        if (f->n_bytes > SMALL_BYTES_MAX)
            return buf_why(why, ERR_TOO_LARGE,
                           "%s has %llu bytes; a file of that kind has at most "
                           "%llu",
                           f->path, (unsigned long long)f->n_bytes,
                           (unsigned long long)SMALL_BYTES_MAX);
        f->is_wanted = true;
    }
    return OK;
}

/* Write the names of files with that end, separated by commas. */
static void list_names(const struct hub_list *l, const char *glob, char out[LIST_BYTES_MAX])
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < l->n; i++)
        if (fnmatch(glob, l->files[i].path, FNM_CASEFOLD) == 0 &&
            !hub_is_later_part(l->files[i].path)) {
            size_t n = strlen(l->files[i].path);
            if (len + n + 8 > LIST_BYTES_MAX) {
                snprintf(out + len, LIST_BYTES_MAX - len, ", ...");
                return;
            }
            len += (size_t)snprintf(out + len, LIST_BYTES_MAX - len, "%s%s", len ? ", " : "",
                                    l->files[i].path);
        }
}

static enum status choose_gguf(struct hub_list *l, const char *wanted, struct buf *why)
{
    struct hub_file *found = hub_list_find(l, wanted);
    char names[LIST_BYTES_MAX];
    size_t n_found = found ? 1 : 0;

    for (size_t i = 0; !hub_list_find(l, wanted) && i < l->n; i++)
        if (hub_fits(l->files[i].path, wanted) && !hub_is_later_part(l->files[i].path)) {
            found = &l->files[i];
            n_found++;
        }
    list_names(l, "*.gguf", names);
    if (n_found == 0 && wanted[0])
        return buf_why(why, ERR_NOT_FOUND, "no GGUF file of the model fits %s; it has: %s", wanted,
                       names[0] ? names : "none");
    if (n_found == 0)
        return ERR_NOT_FOUND;
    if (n_found > 1)
        return buf_why(why, ERR_INVALID,
                       "the model has several GGUF files: name one, as in org/name:FILE or "
                       "org/name:Q4_K_M: %s",
                       names);
    for (size_t i = 0; i < l->n; i++)
        if (hub_is_same_split(found->path, l->files[i].path))
            l->files[i].is_wanted = true;
    found->is_wanted = true;
    return OK;
}

enum status hub_list_choose(struct hub_list *l, const char *file, struct buf *why)
{
    struct hub_file *weights = hub_list_find(l, HUB_INDEX_FILE);
    char names[LIST_BYTES_MAX];

    if (!weights)
        weights = hub_list_find(l, WEIGHTS);
    if (!file[0] && weights) {
        weights->is_wanted = true;
        return choose_small(l, why);
    }
    enum status s = choose_gguf(l, file, why);
    if (s != ERR_NOT_FOUND || file[0])
        return s;
    list_names(l, "*", names);
    return buf_why(why, ERR_NOT_FOUND,
                   "the model has neither " WEIGHTS ", nor " HUB_INDEX_FILE
                   ", nor a GGUF file, which is what Tarn reads; it has: %s",
                   names);
}

enum status hub_list_choose_shards(struct hub_list *l, const struct json *index, struct buf *why)
{
    const struct json *map = js_get(index, "weight_map");

    if (!js_is(map, JS_OBJECT) || js_len(map) == 0)
        return buf_why(why, ERR_INVALID, HUB_INDEX_FILE ": weight_map is missing");
    for (void *it = js_first(map); it; it = js_next(map, it)) {
        const struct json *v = js_it_value(it);
        struct hub_file *f = js_is(v, JS_STRING) ? hub_list_find(l, js_string(v, NULL)) : NULL;
        if (!f)
            return buf_why(why, ERR_INVALID,
                           HUB_INDEX_FILE ": weight_map.%s: the hub has no such file",
                           js_it_key(it));
        f->is_wanted = true;
    }
    return OK;
}

enum status hub_list_include(struct hub_list *l, const char *glob, struct buf *why)
{
    size_t n_found = 0;

    for (size_t i = 0; i < l->n; i++)
        if (fnmatch(glob, l->files[i].path, 0) == 0) {
            l->files[i].is_wanted = true;
            n_found++;
        }
    return n_found ? OK : buf_why(why, ERR_NOT_FOUND, "no file of the model fits %s", glob);
}
