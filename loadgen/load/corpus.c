#include "loadgen/load/corpus.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/map.h"
#include "loadgen/load/lines.h"

#define N_DOCUMENTS_MAX 10000000u

void corpus_fini(struct corpus *c)
{
    for (uint32_t i = 0; i < c->n_documents; i++) {
        free(c->documents[i].title);
        free(c->documents[i].text);
    }
    for (uint32_t i = 0; i < c->n_questions; i++)
        free(c->questions[i].text);
    free(c->documents);
    free(c->questions);
    memset(c, 0, sizeof *c);
}

/* Make room for one more item of `size` bytes. */
static enum status grow(void *array, uint32_t n, uint32_t *cap, size_t size)
{
    void **at = array;

    if (n < *cap)
        return OK;
    if (n >= N_DOCUMENTS_MAX)
        return ERR_TOO_LARGE;
    uint32_t more = *cap ? 2 * *cap : 256;
    void *p = realloc(*at, more * size);
    if (!p)
        return ERR_NOMEM;
    *at = p;
    *cap = more;
    return OK;
}

/* Copy o[key]. ERR_INVALID for a member that is no string, or is absent and `needed`. */
static enum status copy_text(const struct lines *l, const struct json *o, const char *key,
                             bool needed, char **out, size_t *len, struct buf *why)
{
    const struct json *v = js_get_set(o, key);

    *out = NULL;
    *len = 0;
    if (!v && !needed)
        return OK;
    if (!js_is(v, JS_STRING))
        return lines_why(l, why, ERR_INVALID, "%s: expected a string", key);
    const char *text = js_string(v, len);
    if (strlen(text) != *len)
        return lines_why(l, why, ERR_INVALID, "%s: holds U+0000", key);
    *out = malloc(*len + 1);
    if (!*out)
        return ERR_NOMEM;
    memcpy(*out, text, *len + 1);
    return OK;
}

static enum status read_document(struct corpus *c, const struct lines *l, const struct json *o,
                                 int64_t *doc_id, struct buf *why)
{
    size_t title_len;
    enum status s = grow(&c->documents, c->n_documents, &c->cap_documents, sizeof *c->documents);

    if (s != OK)
        return s;
    struct corpus_document *d = &c->documents[c->n_documents];
    *d = (struct corpus_document){0};
    const struct json *id = js_get(o, "doc_id");
    *doc_id = js_is(id, JS_INT) ? js_int(id) : -1;
    if (*doc_id < 0)
        return lines_why(l, why, ERR_INVALID, "doc_id: expected a whole number");
    s = copy_text(l, o, "title", false, &d->title, &title_len, why);
    if (s == OK)
        s = copy_text(l, o, "text", true, &d->text, &d->text_len, why);
    if (s == OK)
        c->n_documents++;
    else
        free(d->title);
    return s;
}

static enum status load_documents(struct corpus *c, const char *path, uint32_t n_max, int64_t **ids,
                                  struct buf *why)
{
    struct lines l;
    bool more = true;
    uint32_t cap = 0;
    enum status s = lines_open(&l, path, why);

    while (s == OK && more && (n_max == 0 || c->n_documents < n_max)) {
        struct json *o = NULL;
        s = lines_next(&l, &more, why);
        if (s == OK && more)
            s = lines_json(&l, &o, why);
        if (s == OK && more)
            s = grow(ids, c->n_documents, &cap, sizeof **ids);
        if (s == OK && more)
            s = read_document(c, &l, o, &(*ids)[c->n_documents], why);
        js_unref(o);
    }
    if (s == OK && c->n_documents == 0)
        s = buf_why(why, ERR_INVALID, "%s: has no documents", path);
    lines_close(&l);
    return s;
}

/* Read the retrieval list as places in the file. *inside: all documents of the list were loaded. */
static enum status read_list(struct corpus_question *q, const struct lines *l,
                             const struct json *list, const struct map *place_of, bool *inside,
                             struct buf *why)
{
    uint32_t place = 0;

    *inside = js_len(list) > 0; /* retrieval found nothing: no question for RAG */
    if (!js_is(list, JS_ARRAY) || js_len(list) > CORPUS_LIST_MAX)
        return lines_why(l, why, ERR_INVALID, "bm25_top5: expected an array of at most %d doc ids",
                         CORPUS_LIST_MAX);
    for (size_t i = 0; i < js_len(list); i++) {
        const struct json *id = js_at(list, i);
        if (!js_is(id, JS_INT) || js_int(id) < 0)
            return lines_why(l, why, ERR_INVALID, "bm25_top5: expected whole numbers");
        if (!map_get(place_of, (uint64_t)js_int(id), &place)) {
            *inside = false;
            return OK;
        }
        q->docs[q->n_docs++] = place;
    }
    return OK;
}

static enum status read_question(struct corpus *c, const struct lines *l, const struct json *o,
                                 const struct map *place_of, struct buf *why)
{
    bool inside;
    enum status s = grow(&c->questions, c->n_questions, &c->cap_questions, sizeof *c->questions);

    if (s != OK)
        return s;
    struct corpus_question *q = &c->questions[c->n_questions];
    memset(q, 0, sizeof *q);
    const struct json *list = js_get_set(o, "retrieved");
    s = read_list(q, l, list ? list : js_get(o, "bm25_top5"), place_of, &inside, why);
    if (s == OK && inside)
        s = copy_text(l, o, "question", true, &q->text, &q->text_len, why);
    if (s == OK && inside)
        c->n_questions++;
    return s;
}

static enum status load_questions(struct corpus *c, const char *path, const struct map *place_of,
                                  struct buf *why)
{
    struct lines l;
    bool more = true;
    enum status s = lines_open(&l, path, why);

    while (s == OK && more) {
        struct json *o = NULL;
        s = lines_next(&l, &more, why);
        if (s == OK && more)
            s = lines_json(&l, &o, why);
        if (s == OK && more)
            s = read_question(c, &l, o, place_of, why);
        js_unref(o);
    }
    lines_close(&l);
    return s;
}

enum status corpus_load(struct corpus *c, const char *dir, uint32_t n_documents_max,
                        struct buf *why)
{
    char path[4096];
    int64_t *ids = NULL;
    struct map place_of = {0};

    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "%s/documents.jsonl", dir);
    enum status s = load_documents(c, path, n_documents_max, &ids, why);
    if (s == OK)
        s = map_init(&place_of, c->n_documents);
    for (uint32_t i = 0; s == OK && i < c->n_documents; i++)
        map_put(&place_of, (uint64_t)ids[i], i);
    snprintf(path, sizeof path, "%s/questions.jsonl", dir);
    if (s == OK && access(path, F_OK) == 0)
        s = load_questions(c, path, &place_of, why);
    map_fini(&place_of);
    free(ids);
    if (s == ERR_NOMEM || s == ERR_TOO_LARGE)
        buf_why(why, s, "%s: %s", dir, status_name(s));
    if (s != OK)
        corpus_fini(c);
    return s;
}
