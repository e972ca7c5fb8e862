/* documents.c - the calls about registered documents and preambles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "clients/c/client.h"

#define DOCUMENTS "/v1/documents"
#define PREAMBLES "/v1/preambles"
#define ID_BYTES_MAX 256
#define PATH_BYTES_MAX (3 * ID_BYTES_MAX + 64) /* each byte of an id becomes at most %XX */
#define BODY_BYTES_MAX ((size_t)1 << 30)

/* Append the id to a path. "." and ".." would be removed from the URL as segments. */
static bool add_id(char *path, const char *id)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
    size_t n = strlen(path);

    if (!id || !id[0] || strlen(id) > ID_BYTES_MAX || !strcmp(id, ".") || !strcmp(id, ".."))
        return false;
    for (; *id; id++)
        n +=
            (size_t)snprintf(path + n, 4, strchr(plain, *id) ? "%c" : "%%%02X", (unsigned char)*id);
    return true;
}

/* A call about one id. */
static enum tarn_error call_id(struct tarn_answer *answer, const struct tarn_client *client,
                               const char *method, const char *folder, const char *id,
                               const char *body, size_t len)
{
    char path[PATH_BYTES_MAX];

    snprintf(path, sizeof path, "%s/", folder);
    if (!add_id(path, id))
        return wait_refuse(answer, TARN_ERR_INVALID,
                           "an id has 1 to 256 bytes, and is neither \".\" nor \"..\"");
    return wait_fetch(answer, client, method, NULL, path, body, len);
}

/* --- bodies --- */

static enum status set_text(struct json *o, const char *name, const struct tarn_text *t)
{
    struct json *v;

    if (!t->data)
        return OK;
    v = js_new_string(t->data, t->len ? t->len : strlen(t->data));
    return v ? js_set(o, name, v) : ERR_INVALID; /* not UTF-8 */
}

static enum status set_bool(struct json *o, const char *name, int64_t v)
{
    return v == TARN_UNSET ? OK : js_set(o, name, js_new_bool(v != 0));
}

static enum status set_embedding(struct json *o, const struct tarn_document_fields *f)
{
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < f->n_embedding; i++)
        s = js_push(list, js_new_real((double)f->embedding[i]));
    if (s != OK) {
        js_unref(list);
        return s;
    }
    return js_set(o, "embedding", list);
}

/* Set a field to the value that the text has in JSON. */
static enum status set_parsed(struct json *o, const char *name, const char *text)
{
    struct json *v;
    enum status s = js_parse(&v, text, strlen(text), NULL);

    return s == OK ? js_set(o, name, v) : s;
}

static enum status fill(struct json *o, const struct tarn_document_fields *f)
{
    const struct tarn_text prefill = {f->prefill, 0};
    enum status s = set_text(o, "title", &f->title);

    if (s == OK)
        s = set_text(o, "text", &f->text);
    if (s == OK && f->metadata)
        s = set_parsed(o, "metadata", f->metadata);
    if (s == OK && f->embedding)
        s = set_embedding(o, f);
    if (s == OK)
        s = set_bool(o, "public", f->is_public);
    if (s == OK)
        s = set_bool(o, "pin", f->is_pinned);
    if (s == OK && f->ttl != TARN_UNSET)
        s = js_set(o, "ttl", js_new_int(f->ttl));
    return s == OK ? set_text(o, "prefill", &prefill) : s;
}

/* Send the object *o, which this call frees, unless s says that it could not be built. */
static enum tarn_error send_object(struct tarn_answer *answer, const struct tarn_client *client,
                                   const char *method, const char *folder, const char *id,
                                   struct json *o, enum status s)
{
    struct buf body;
    enum tarn_error e;

    buf_init(&body, BODY_BYTES_MAX);
    if (s == OK)
        s = js_write(&body, o);
    js_unref(o);
    if (s == OK)
        e = call_id(answer, client, method, folder, id, body.data, body.len);
    else
        e = wait_refuse(answer, s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_INVALID,
                        s == ERR_NOMEM ? NULL
                                       : "a text is not UTF-8, tools or metadata is not JSON");
    buf_fini(&body);
    return e;
}

static enum tarn_error send_fields(struct tarn_answer *answer, const struct tarn_client *client,
                                   const char *method, const char *id,
                                   const struct tarn_document_fields *f)
{
    struct json *o = js_new_object();

    return send_object(answer, client, method, DOCUMENTS, id, o, o ? fill(o, f) : ERR_NOMEM);
}

/* --- the calls --- */

void tarn_document_fields_init(struct tarn_document_fields *f)
{
    *f = (struct tarn_document_fields){
        .is_public = TARN_UNSET, .is_pinned = TARN_UNSET, .ttl = TARN_UNSET};
}

enum tarn_error tarn_document_put(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id, const struct tarn_document_fields *fields)
{
    return send_fields(answer, client, "PUT", id, fields);
}

enum tarn_error tarn_document_change(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id, const struct tarn_document_fields *fields)
{
    return send_fields(answer, client, "POST", id, fields);
}

enum tarn_error tarn_document_get(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id)
{
    return call_id(answer, client, NULL, DOCUMENTS, id, NULL, 0);
}

enum tarn_error tarn_document_delete(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id)
{
    return call_id(answer, client, "DELETE", DOCUMENTS, id, NULL, 0);
}

enum tarn_error tarn_documents_list(struct tarn_answer *answer, const struct tarn_client *client,
                                    const char *after, uint32_t limit)
{
    char path[PATH_BYTES_MAX] = DOCUMENTS;
    size_t n = strlen(path);

    if (limit > 0)
        n += (size_t)snprintf(path + n, sizeof path - n, "?limit=%u", limit);
    if (after) {
        snprintf(path + n, sizeof path - n, limit > 0 ? "&after=" : "?after=");
        if (!add_id(path, after))
            return wait_refuse(answer, TARN_ERR_INVALID, "after: not an id");
    }
    return tarn_fetch(answer, client, path, NULL, 0);
}

enum tarn_error tarn_documents_import(struct tarn_answer *answer, const struct tarn_client *client,
                                      const char *lines, size_t len)
{
    return wait_fetch(answer, client, "POST", "application/x-ndjson", DOCUMENTS "/bulk", lines,
                      len);
}

enum tarn_error tarn_preamble_put(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id, const struct tarn_text *system_text,
                                  const char *tools, int64_t is_public)
{
    struct json *o = js_new_object();
    enum status s = o ? set_text(o, "system", system_text) : ERR_NOMEM;

    if (s == OK && tools)
        s = set_parsed(o, "tools", tools);
    if (s == OK)
        s = set_bool(o, "public", is_public);
    return send_object(answer, client, "PUT", PREAMBLES, id, o, s);
}

enum tarn_error tarn_preamble_delete(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id)
{
    return call_id(answer, client, "DELETE", PREAMBLES, id, NULL, 0);
}

enum tarn_error tarn_preambles_list(struct tarn_answer *answer, const struct tarn_client *client)
{
    return tarn_fetch(answer, client, PREAMBLES, NULL, 0);
}
