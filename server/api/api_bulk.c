/* api_bulk.c - POST /v1/documents/bulk: documents as JSON lines, with a streamed answer.
 *
 * A thread of its own reads the lines (two work threads serve all short handlers, and an import
 * takes minutes), and the exchange streams what the thread writes:
 *
 *     {"object":"documents.progress","done":500,"failed":1}
 *     {"object":"documents.error","line":17,"id":"x","error":{"message":"...","code":"..."}}
 *     {"object":"documents.bulk","done":...,"created":...,"updated":...,"unchanged":...,
 *      "failed":...,"omitted":...,"status":"completed"}
 *
 * Lines are put in groups: a group is written at once, and other writers wait meanwhile, so it is
 * small. Documents that a progress line counts as done are written. When the client leaves or the
 * server ends, the import stops behind the group; sending the same lines again changes nothing that
 * is there. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/api/api.h"
#include "server/api/document_json.h"
#include "server/api/library_call.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define GROUP_N_MAX 256
#define GROUP_BYTES_MAX (8u << 20) /* of lines */
#define PROGRESS_NS UINT64_C(1000000000)
#define OUT_BYTES_MAX (1u << 20) /* of the answer that the client has not read */
#define N_ERRORS_MAX 1000        /* told; further ones are only counted */
#define LINE_N_VALUES_MAX 20000
#define LINE_MEMORY_MIN ((size_t)4 << 20)

struct item {
    uint32_t line;
    struct document d;
    struct catalog_change done;
    bool is_bad; /* its error was written */
};

struct import {
    struct server *srv;
    struct library_parts parts;
    char owner[ACCOUNT_OWNER_BYTES];
    bool is_admin;
    struct buf body;
    /* The import's thread. */
    size_t at; /* in body */
    uint32_t line;
    uint64_t n_done, n_created, n_updated, n_unchanged, n_failed, n_omitted;
    uint64_t told_ns;
    struct item items[GROUP_N_MAX];
    uint32_t n_items;
    /* Both. */
    atomic_uint refs;
    atomic_bool is_gone; /* the client left, or the server cancels */
    void *waker;
    pthread_mutex_t lock;
    struct buf out; /* under lock, as the next */
    bool is_over;
};

static void import_unref(struct import *m)
{
    if (atomic_fetch_sub(&m->refs, 1) > 1)
        return;
    for (uint32_t i = 0; i < GROUP_N_MAX; i++)
        document_fini(&m->items[i].d);
    pthread_mutex_destroy(&m->lock);
    buf_fini(&m->body);
    buf_fini(&m->out);
    free(m);
}

/* --- what the client reads --- */

static void say(struct import *m, const struct buf *text, bool is_last)
{
    pthread_mutex_lock(&m->lock);
    /* A client that does not read loses lines of progress and errors, but not the last line. */
    if (buf_append(&m->out, buf_str(text), text->len) != OK)
        m->n_omitted++;
    m->is_over |= is_last;
    pthread_mutex_unlock(&m->lock);
    http_wake(m->waker);
}

static void say_progress(struct import *m)
{
    struct buf line;
    struct writer w = {&line, OK};

    buf_init(&line, 1024);
    write_format(
        &w, "{\"object\":\"documents.progress\",\"done\":%" PRIu64 ",\"failed\":%" PRIu64 "}\n",
        m->n_done, m->n_failed);
    say(m, &line, false);
    buf_fini(&line);
    m->told_ns = clock_now_ns();
}

static void say_error(struct import *m, uint32_t number, const char *id, enum status s,
                      const char *words)
{
    struct buf line;
    struct writer w = {&line, OK};

    if (m->n_failed++ >= N_ERRORS_MAX) {
        m->n_omitted++;
        return;
    }
    buf_init(&line, 8192);
    write_format(&w, "{\"object\":\"documents.error\",\"line\":%u", number);
    if (id[0]) {
        write_puts(&w, ",\"id\":");
        write_json(&w, id, strlen(id));
    }
    write_puts(&w, ",\"error\":{\"message\":");
    write_json(&w, words, strlen(words));
    write_format(&w, ",\"code\":\"%s\"}}\n", status_name(s));
    say(m, &line, false);
    buf_fini(&line);
}

static void say_end(struct import *m, bool is_whole)
{
    struct buf line;
    struct writer w = {&line, OK};

    buf_init(&line, 1024);
    write_format(&w,
                 "{\"object\":\"documents.bulk\",\"done\":%" PRIu64 ",\"created\":%" PRIu64
                 ",\"updated\":%" PRIu64 ",\"unchanged\":%" PRIu64 ",\"failed\":%" PRIu64
                 ",\"omitted\":%" PRIu64 ",\"status\":\"%s\"}\n",
                 m->n_done, m->n_created, m->n_updated, m->n_unchanged, m->n_failed, m->n_omitted,
                 is_whole ? "completed" : "stopped");
    pthread_mutex_lock(&m->lock);
    if (m->out.len + line.len > m->out.max)
        buf_reset(&m->out); /* the last line counts more */
    pthread_mutex_unlock(&m->lock);
    say(m, &line, true);
    buf_fini(&line);
}

/* --- lines --- */

static enum status read_id(struct item *item, const struct json *body, struct buf *why)
{
    const char *id = NULL;
    size_t len = 0;
    enum status s = js_get_str(body, "id", &id, &len, why);

    if (s == OK && !id)
        return buf_why(why, ERR_INVALID, "id: is required");
    if (s == OK)
        s = document_check_id(id, len, why);
    if (s == OK && strcmp(id, "bulk") == 0)
        s = buf_why(why, ERR_INVALID, "id: \"bulk\" is the path of imports");
    if (s == OK)
        memcpy(item->d.id, id, len + 1);
    return s;
}

static enum status read_line(struct import *m, struct item *item, const char *text, size_t len,
                             struct buf *why)
{
    const struct js_limits limits = {LINE_N_VALUES_MAX, LINE_MEMORY_MIN + 4 * len};
    int64_t now_s = (int64_t)(clock_unix_ns() / 1000000000u);
    struct document_change change;
    struct json *body = NULL;
    enum status s = js_parse_limited(&body, text, len, &limits, why);

    item->d.id[0] = '\0';
    if (s == OK && !js_is(body, JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "expected a JSON object, got %s",
                    js_type_name(js_typeof(body)));
    if (s == OK)
        s = read_id(item, body, why);
    if (s == OK)
        s = document_read(&item->d, &change, body, now_s, NULL, why);
    if (s == OK && change.has_version)
        s = buf_why(why, ERR_INVALID, "version: cannot be given in an import");
    if (s == OK && change.is_public && !m->is_admin)
        s = buf_why(why, ERR_FORBIDDEN, "public: needs an admin key (--admin-api-key)");
    if (s == OK)
        snprintf(item->d.tenant, sizeof item->d.tenant, "%s", change.is_public ? "" : m->owner);
    if (s == OK)
        s = library_embed(&m->parts, &item->d, why);
    js_unref(body);
    return s;
}

/* The next line that is not empty; false: there is none. */
static bool next_line(struct import *m, const char **text, size_t *len)
{
    while (m->at < m->body.len) {
        const char *begin = m->body.data + m->at;
        const char *end = memchr(begin, '\n', m->body.len - m->at);
        *text = begin;
        *len = end ? (size_t)(end - begin) : m->body.len - m->at;
        m->at += *len + 1;
        m->line++;
        while (*len > 0 && strchr(" \t\r", (*text)[*len - 1]))
            --*len;
        if (*len > 0)
            return true;
    }
    return false;
}

static void fail(struct import *m, struct item *item, enum status s, struct buf *why)
{
    library_name_bound(s, why);
    item->is_bad = true;
    say_error(m, item->line, item->d.id, s, why->len ? buf_str(why) : status_words(s));
}

/* --- groups --- */

/* Read lines until the group is full. False: there are no more. */
static bool read_group(struct import *m)
{
    size_t n_bytes = 0, len;
    const char *text;
    struct buf why;

    m->n_items = 0;
    while (m->n_items < GROUP_N_MAX && n_bytes < GROUP_BYTES_MAX && next_line(m, &text, &len)) {
        struct item *item = &m->items[m->n_items];
        buf_init(&why, BUF_WHY_MAX);
        item->line = m->line;
        item->is_bad = false;
        enum status s = read_line(m, item, text, len, &why);
        if (s == OK)
            m->n_items++;
        else
            fail(m, item, s, &why);
        buf_fini(&why);
        n_bytes += len;
        if (clock_now_ns() - m->told_ns >= PROGRESS_NS)
            say_progress(m);
    }
    return m->at < m->body.len;
}

static enum status put_group(struct import *m, struct buf *why)
{
    enum status s = catalog_begin(m->parts.catalog, why);
    struct buf inner;

    if (s != OK)
        return s;
    buf_init(&inner, BUF_WHY_MAX);
    for (uint32_t i = 0; i < m->n_items; i++) {
        struct item *item = &m->items[i];
        buf_reset(&inner);
        enum status put = catalog_put(m->parts.catalog, &item->d, &item->done, &inner);
        if (put != OK)
            fail(m, item, put, &inner);
    }
    buf_fini(&inner);
    return catalog_commit(m->parts.catalog, why);
}

static void count_group(struct import *m)
{
    for (uint32_t i = 0; i < m->n_items; i++) {
        const struct item *item = &m->items[i];
        if (item->is_bad)
            continue;
        library_entered(m->srv->library, &item->d, &item->done);
        m->n_done++;
        m->n_created += item->done.is_new;
        m->n_updated += !item->done.is_new && item->done.is_text_changed;
        m->n_unchanged += !item->done.is_text_changed;
    }
}

static void write_group(struct import *m)
{
    struct buf why;

    if (m->n_items == 0)
        return;
    buf_init(&why, BUF_WHY_MAX);
    enum status s = put_group(m, &why);
    if (s == OK)
        count_group(m);
    for (uint32_t i = 0; s != OK && i < m->n_items; i++)
        if (!m->items[i].is_bad)
            fail(m, &m->items[i], s, &why);
    say_progress(m);
    buf_fini(&why);
}

static void *import_thread(void *arg)
{
    struct import *m = arg;
    struct library *l = m->srv->library;
    bool more = true, stops = false;

    m->told_ns = clock_now_ns();
    while (more && !stops) {
        more = read_group(m);
        write_group(m);
        stops = atomic_load(&m->is_gone) || library_is_closing(l);
    }
    say_end(m, !more);
    log_event(LOG_INFO, "documents imported", "done=%" PRIu64 " failed=%" PRIu64 " whole=%s",
              m->n_done, m->n_failed, more ? "false" : "true");
    import_unref(m);
    library_end_import(l); /* the library may be gone from here on */
    return NULL;
}

/* --- the exchange --- */

static enum http_next on_step(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    (void)x;
    return HTTP_STREAM;
}

static enum http_next on_fill(void *ctx, struct buf *out, uint64_t idle_ns)
{
    struct import *m = ctx;

    (void)idle_ns;
    pthread_mutex_lock(&m->lock);
    enum status s = buf_append(out, buf_str(&m->out), m->out.len);
    buf_reset(&m->out);
    bool is_over = m->is_over;
    pthread_mutex_unlock(&m->lock);
    return s != OK ? HTTP_ABORT : is_over ? HTTP_DONE : HTTP_WAIT;
}

static void on_gone(void *ctx)
{
    atomic_store(&((struct import *)ctx)->is_gone, true);
}

static void on_close(void *ctx, int status)
{
    struct import *m = ctx;

    (void)status;
    atomic_store(&m->is_gone, true);
    import_unref(m);
}

static const struct http_async async = {
    .step = on_step, .fill = on_fill, .gone = on_gone, .close = on_close};

static struct import *import_create(struct library_call *c)
{
    struct import *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->srv = c->srv;
    m->parts = c->parts;
    snprintf(m->owner, sizeof m->owner, "%s", c->account->owner);
    m->is_admin = c->is_admin;
    for (uint32_t i = 0; i < GROUP_N_MAX; i++)
        document_init(&m->items[i].d);
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->lock, NULL);
    buf_init(&m->out, OUT_BYTES_MAX);
    return m;
}

/* Start the thread. The exchange is deferred: it owns one reference, the thread gets another. */
static bool start_thread(struct import *m)
{
    pthread_attr_t attr;
    pthread_t thread;

    atomic_fetch_add(&m->refs, 1);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    bool ok = pthread_create(&thread, &attr, import_thread, m) == 0;
    pthread_attr_destroy(&attr);
    if (!ok)
        atomic_fetch_sub(&m->refs, 1);
    return ok;
}

static enum status begin(struct library_call *c)
{
    struct import *m = import_create(c);

    if (!m)
        return ERR_NOMEM;
    enum status s = http_defer(c->x, &async, m);
    if (s != OK) {
        import_unref(m);
        return buf_why(&c->why, s, "the server is shutting down");
    }
    http_take_body(c->x, &m->body);
    http_set_stream_type(c->x, "application/x-ndjson");
    m->waker = http_waker(c->x);
    if (start_thread(m))
        return OK;
    return buf_why(&c->why, ERR_UNAVAILABLE, "no thread for this import, try again");
}

void api_bulk(struct server *srv, struct http_exchange *x)
{
    struct library_call c;

    if (library_call_begin(&c, srv, x, NULL)) {
        enum status s = OK;
        if (http_body(x)->len == 0)
            s = buf_why(&c.why, ERR_INVALID, "the body is empty; send one JSON object a line");
        else if (!library_begin_import(srv->library))
            s = buf_why(&c.why, ERR_BUSY, "too many imports run, try again when one has ended");
        else if ((s = begin(&c)) != OK)
            library_end_import(srv->library);
        if (s != OK)
            library_call_reply(&c, s);
    }
    library_call_end(&c);
}
