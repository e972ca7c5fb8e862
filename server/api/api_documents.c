/* api_documents.c - /v1/documents: put, read, change, delete and list registered documents.
 *
 * A tenant sees its own documents and the public ones; its own win. Only an administrator changes
 * public ones. The handlers block on the disk, so they run on work threads (route.c). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "server/api/api.h"
#include "server/api/body.h"
#include "server/api/document_json.h"
#include "server/api/library_call.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define PATH "/v1/documents/"
#define LIST_N 20
#define LIST_N_MAX 1000
#define ETAG_BYTES 16

static int64_t now_s(void)
{
    return (int64_t)(clock_unix_ns() / 1000000000u);
}

static void add_etag(struct library_call *c, const struct document *d)
{
    char etag[ETAG_BYTES];

    snprintf(etag, sizeof etag, "\"%" PRIu32 "\"", d->version);
    http_add_header(c->x, "ETag", etag);
}

/* --- GET --- */

/* Tokens of the text alone. 0: the model has no tokenizer. */
static uint32_t count_tokens(const struct server *srv, const struct document *d)
{
    struct buf ids;
    uint32_t n = 0;

    buf_init(&ids, (d->text.len + 1) * sizeof(uint32_t));
    if (srv->tokenizer &&
        tokenizer_encode(srv->tokenizer, buf_str(&d->text), d->text.len, 0, &ids) == OK)
        n = (uint32_t)(ids.len / sizeof(uint32_t));
    buf_fini(&ids);
    return n;
}

static void write_path(struct writer *w, const struct document_path *p, const struct cache_span *s,
                       bool has_uses, uint32_t n_tiers)
{
    char key[2 * KV_KEY_BYTES + 1];

    hash_hex(key, p->key, KV_KEY_BYTES);
    write_puts(w, "{\"preamble\":");
    if (p->preamble[0])
        write_json(w, p->preamble, strlen(p->preamble));
    else
        write_puts(w, "null");
    write_format(w,
                 ",\"place\":%u,\"version\":%u,\"tokens\":%u,\"ready\":%s,\"key\":\"%s\","
                 "\"tiers\":",
                 p->place, p->version, p->n_tokens, s->n_tokens >= p->n_tokens ? "true" : "false",
                 key);
    for (uint32_t t = 0; t < n_tiers; t++)
        write_format(w, "%s\"%s\":%u", t ? "," : "{", cache_tier_name((enum cache_tier)t),
                     s->n_blocks_in[t]);
    write_puts(w, "}");
    if (has_uses)
        write_format(w, ",\"uses\":%" PRIu64 ",\"hit_tokens\":%" PRIu64 ",\"seconds_saved\":%.6f",
                     s->n_uses, s->n_hit_tokens, s->saved_s);
    if (has_uses)
        write_time(w, "used_at", p->used_s);
    write_puts(w, "}");
}

/* Whether the caller may see a path. Where a public document stands behind other text, that text is
 * a tenant's. */
static bool may_see(const struct library_call *c, const struct document *d,
                    const struct document_path *p)
{
    return d->tenant[0] || c->is_admin || p->preamble[0];
}

/* Write what is cached of the document. has_uses: of all tenants, or of its own. */
static enum status write_paths(struct library_call *c, const struct document *d, bool has_uses)
{
    struct document_path *paths = calloc(DOCUMENT_N_PATHS_MAX, sizeof *paths);
    struct kv_key *keys = calloc(DOCUMENT_N_PATHS_MAX, sizeof *keys);
    struct cache_span *spans = calloc(DOCUMENT_N_PATHS_MAX, sizeof *spans);
    enum status s = paths && keys && spans ? OK : ERR_NOMEM;
    uint32_t n = 0, n_written = 0;

    _Static_assert(DOCUMENT_N_PATHS_MAX <= ENGINE_N_SPANS_MAX, "one question about all paths");
    if (s == OK)
        s = catalog_paths(c->parts.catalog, d->row, paths, DOCUMENT_N_PATHS_MAX, &n, &c->why);
    for (uint32_t i = 0; s == OK && i < n; i++)
        memcpy(keys[i].bytes, paths[i].key, KV_KEY_BYTES);
    if (s == OK && (s = engine_cache_spans(c->srv->engine, keys, n, spans)) != OK)
        s = buf_why(&c->why, ERR_UNAVAILABLE, "the engine is in a long step, try again");
    write_puts(&c->w, ",\"paths\":[");
    for (uint32_t i = 0; s == OK && i < n; i++) {
        if (!may_see(c, d, &paths[i]))
            continue;
        write_puts(&c->w, n_written++ ? "," : "");
        write_path(&c->w, &paths[i], &spans[i], has_uses, c->srv->info->n_tiers);
    }
    write_puts(&c->w, "]");
    free(paths);
    free(keys);
    free(spans);
    return s;
}

static void write_prefill(struct library_call *c, const struct document *d)
{
    struct librarian_look look;

    library_look(c->srv->library, d->row, d->version, &look);
    write_format(&c->w,
                 ",\"prefill_state\":{\"queued\":%u,\"ready\":%u,\"waiting_for_room\":%u,"
                 "\"failed\":%u,\"why\":",
                 look.n_queued, look.n_ready, look.n_no_room, look.n_failed);
    if (look.why[0])
        write_json(&c->w, look.why, strlen(look.why));
    else
        write_puts(&c->w, "null");
    write_puts(&c->w, "}");
}

static enum status find(struct library_call *c, struct document *d)
{
    bool wants_public = false;
    enum status s = library_call_public(c, &wants_public);

    if (s == OK)
        s = catalog_get(c->parts.catalog, wants_public ? "" : c->account->owner, c->id, d, &c->why);
    return s;
}

void api_document(struct server *srv, struct http_exchange *x)
{
    struct library_call c;
    struct document d;

    document_init(&d);
    if (library_call_begin(&c, srv, x, PATH)) {
        enum status s = find(&c, &d);
        /* Uses of a public document tell what other tenants do. */
        bool has_uses = d.tenant[0] || c.is_admin;
        if (s == OK) {
            write_puts(&c.w, "{");
            document_write(&c.w, &d, true, has_uses);
            write_format(&c.w, ",\"bytes\":%zu,\"tokens\":%u", d.text.len, count_tokens(srv, &d));
            write_prefill(&c, &d);
            s = write_paths(&c, &d, has_uses);
            write_puts(&c.w, "}");
            add_etag(&c, &d);
        }
        library_call_reply(&c, s);
    }
    document_fini(&d);
    library_call_end(&c);
}

/* --- PUT --- */

static enum status reply_conflict(struct library_call *c, uint32_t has, uint32_t expected)
{
    char words[96];

    if (has)
        snprintf(words, sizeof words, "version: the document has version %u, not %u", has,
                 expected);
    else
        snprintf(words, sizeof words, "version: there is no such document, expected version %u",
                 expected);
    error_reply_as(c->x, 409, ERR_INVALID, "version_conflict", words);
    return ERR_INVALID;
}

/* Check `version` and put, without another writer in between. */
static enum status put_version(struct library_call *c, const struct document *d, uint32_t expected,
                               struct catalog_change *change)
{
    struct document old;
    enum status s = catalog_begin(c->parts.catalog, &c->why);

    if (s != OK)
        return s;
    document_init(&old);
    s = catalog_get(c->parts.catalog, d->tenant, d->id, &old, &c->why);
    if (s == ERR_NOT_FOUND || (s == OK && strcmp(old.tenant, d->tenant) != 0)) {
        old.version = 0;
        s = OK;
    }
    if (s == OK && old.version != expected)
        s = reply_conflict(c, old.version, expected);
    if (s == OK)
        s = catalog_put(c->parts.catalog, d, change, &c->why);
    if (s == OK)
        s = catalog_commit(c->parts.catalog, &c->why);
    else
        catalog_rollback(c->parts.catalog);
    document_fini(&old);
    return s;
}

/* Answer with the document as the catalog has it now. status: "created", ..., or NULL. */
static enum status write_stored(struct library_call *c, int64_t row, const char *status)
{
    struct document d;

    document_init(&d);
    enum status s = catalog_get_row(c->parts.catalog, row, &d, &c->why);
    if (s == OK) {
        write_puts(&c->w, "{");
        document_write(&c->w, &d, false, true);
        write_format(&c->w, ",\"bytes\":%zu", d.text.len);
        if (status)
            write_format(&c->w, ",\"status\":\"%s\"", status);
        write_puts(&c->w, "}");
        add_etag(c, &d);
    }
    document_fini(&d);
    return s;
}

static enum status put(struct library_call *c, const struct json *body, struct document *d)
{
    struct unknown_fields unknown = {0};
    struct document_change change;
    struct catalog_change done;
    enum status s = document_read(d, &change, body, now_s(), &unknown, &c->why);

    unknown_fields_report(&unknown, &c->srv->unknown_log, c->x);
    if (s == OK && change.is_public)
        s = library_call_check_admin(c);
    if (s != OK)
        return s;
    if (strcmp(c->id, "bulk") == 0)
        return buf_why(&c->why, ERR_INVALID, "id: \"bulk\" is the path of imports");
    snprintf(d->id, sizeof d->id, "%s", c->id);
    snprintf(d->tenant, sizeof d->tenant, "%s", change.is_public ? "" : c->account->owner);
    s = library_embed(&c->parts, d, &c->why);
    if (s == OK)
        s = change.has_version ? put_version(c, d, change.version, &done)
                               : catalog_put(c->parts.catalog, d, &done, &c->why);
    if (s != OK)
        return s;
    library_entered(c->srv->library, d, &done);
    return write_stored(c, done.row,
                        done.is_new            ? "created"
                        : done.is_text_changed ? "updated"
                                               : "unchanged");
}

void api_document_put(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct library_call c;
    struct document d;

    if (!body)
        return; /* body_read() has answered */
    document_init(&d);
    if (library_call_begin(&c, srv, x, PATH)) {
        enum status s = put(&c, body, &d);
        library_call_reply(&c, s); /* has no effect after a conflict was answered */
    }
    document_fini(&d);
    library_call_end(&c);
    js_unref(body);
}

/* --- POST: pin, ttl and prefill --- */

/* Put the document with another `prefill`; its text stays, and so does its version. */
static enum status change_prefill(struct library_call *c, const struct document *found,
                                  enum document_prefill prefill)
{
    struct catalog_change done;
    struct document d;
    enum status s = catalog_begin(c->parts.catalog, &c->why);

    if (s != OK)
        return s;
    document_init(&d);
    s = catalog_get_row(c->parts.catalog, found->row, &d, &c->why);
    d.prefill = prefill;
    if (s == OK)
        s = catalog_put(c->parts.catalog, &d, &done, &c->why);
    if (s == OK)
        s = catalog_commit(c->parts.catalog, &c->why);
    else
        catalog_rollback(c->parts.catalog);
    document_fini(&d);
    return s;
}

static enum status change(struct library_call *c, const struct json *body, struct document *found)
{
    struct document_change what;
    struct document wanted;

    document_init(&wanted);
    enum status s = document_read_change(&wanted, &what, body, now_s(), &c->why);
    if (s == OK)
        s = find(c, found);
    if (s == OK && !found->tenant[0])
        s = library_call_check_admin(c);
    if (s == OK && (what.has_pin || what.has_expiry))
        s = catalog_set(c->parts.catalog, found->tenant, c->id,
                        what.has_pin ? &wanted.is_pinned : NULL,
                        what.has_expiry ? &wanted.expires_s : NULL, &c->why);
    if (s == OK && what.has_prefill && wanted.prefill != found->prefill)
        s = change_prefill(c, found, wanted.prefill);
    if (s == OK) {
        library_changed(c->srv->library, found->row);
        s = write_stored(c, found->row, NULL);
    }
    document_fini(&wanted);
    return s;
}

void api_document_change(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct library_call c;
    struct document d;

    if (!body)
        return; /* body_read() has answered */
    document_init(&d);
    if (library_call_begin(&c, srv, x, PATH))
        library_call_reply(&c, change(&c, body, &d));
    document_fini(&d);
    library_call_end(&c);
    js_unref(body);
}

/* --- DELETE --- */

static enum status delete (struct library_call *c, struct document *d) {
    enum status s = find(c, d);

    if (s == OK && !d->tenant[0]) s = library_call_check_admin(c);
    if (s == OK) s = library_delete(c->srv->library, d->tenant, c->id, &c->why);
    if (s == OK){write_puts(&c->w, "{\"object\":\"document.deleted\",\"id\":");
                 write_json(&c->w, c->id, strlen(c->id)); write_puts(&c->w, ",\"deleted\":true}");}
return s;
}

void api_document_delete(struct server *srv, struct http_exchange *x)
{
    struct library_call c;
    struct document d;

    document_init(&d);
    if (library_call_begin(&c, srv, x, PATH))
        library_call_reply(&c, delete (&c, &d));
    document_fini(&d);
    library_call_end(&c);
}

/* --- the list --- */

struct listing {
    struct library_call *c;
    uint32_t n;
    char first[DOCUMENT_ID_BYTES_MAX + 1], last[DOCUMENT_ID_BYTES_MAX + 1];
};

static bool list_one(void *arg, const struct document *d)
{
    struct listing *l = arg;
    struct writer *w = &l->c->w;

    write_puts(w, l->n ? ",{" : "{");
    document_write(w, d, false, d->tenant[0] || l->c->is_admin);
    write_puts(w, "}");
    if (l->n++ == 0)
        snprintf(l->first, sizeof l->first, "%s", d->id);
    snprintf(l->last, sizeof l->last, "%s", d->id);
    return w->status == OK;
}

static enum status read_limit(struct library_call *c, uint32_t *limit)
{
    const char *text = http_query(c->x, "limit");
    size_t len = text ? strspn(text, "0123456789") : 0;

    *limit = LIST_N;
    if (!text)
        return OK;
    *limit = len > 0 && len <= 4 && text[len] == '\0' ? (uint32_t)strtoul(text, NULL, 10) : 0;
    return *limit > 0 && *limit <= LIST_N_MAX
               ? OK
               : buf_why(&c->why, ERR_INVALID,
                         "limit: expected a whole number from 1 to %d, got \"%.20s\"", LIST_N_MAX,
                         text);
}

/* Parse the query's `filter`. *filter is NULL without one. */
static enum status read_filter(struct library_call *c, struct json **filter)
{
    const char *text = http_query(c->x, "filter");
    struct buf inner;

    *filter = NULL;
    if (!text)
        return OK;
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_parse(filter, text, strlen(text), &inner);
    if (s == OK)
        s = catalog_check_filter(*filter, &inner);
    if (s != OK)
        buf_why(&c->why, s, "filter: %s", buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static void write_end_of_list(struct listing *l, bool has_more)
{
    struct writer *w = &l->c->w;

    write_format(w, "],\"has_more\":%s,\"first_id\":", has_more ? "true" : "false");
    if (l->n == 0) {
        write_puts(w, "null,\"last_id\":null}");
        return;
    }
    write_json(w, l->first, strlen(l->first));
    write_puts(w, ",\"last_id\":");
    write_json(w, l->last, strlen(l->last));
    write_puts(w, "}");
}

static enum status list(struct library_call *c)
{
    struct listing l = {.c = c};
    struct json *filter = NULL;
    bool has_more = false;
    uint32_t limit;
    enum status s = read_limit(c, &limit);

    if (s == OK)
        s = read_filter(c, &filter);
    write_puts(&c->w, "{\"object\":\"list\",\"data\":[");
    if (s == OK)
        s = catalog_list(c->parts.catalog, c->account->owner, http_query(c->x, "after"), limit,
                         filter, list_one, &l, &has_more, &c->why);
    write_end_of_list(&l, has_more);
    js_unref(filter);
    return s;
}

void api_documents(struct server *srv, struct http_exchange *x)
{
    struct library_call c;

    if (library_call_begin(&c, srv, x, NULL))
        library_call_reply(&c, list(&c));
    library_call_end(&c);
}
