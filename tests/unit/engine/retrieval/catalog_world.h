/* catalog_world.h - short ways to put documents into a catalog, for the catalog's tests. */
#ifndef TARN_TESTS_UNIT_ENGINE_RETRIEVAL_CATALOG_WORLD_H
#define TARN_TESTS_UNIT_ENGINE_RETRIEVAL_CATALOG_WORLD_H

#include <stdio.h>
#include <string.h>

#include "engine/retrieval/catalog.h"
#include "tests/unit/test.h"

static inline void set_str(struct buf *b, const char *text)
{
    buf_reset(b);
    assert_ok(buf_puts(b, text));
}

/* Fill a document that document_init() has prepared. */
static inline void set_document(struct document *d, const char *tenant, const char *id,
                                const char *title, const char *text)
{
    snprintf(d->tenant, sizeof d->tenant, "%s", tenant);
    snprintf(d->id, sizeof d->id, "%s", id);
    set_str(&d->title, title);
    set_str(&d->text, text);
}

static inline struct catalog_change put_with(struct catalog *c, const char *tenant, const char *id,
                                             const char *title, const char *text,
                                             const char *metadata, int64_t expires_s)
{
    struct catalog_change change;
    struct document d;

    document_init(&d);
    set_document(&d, tenant, id, title, text);
    set_str(&d.metadata, metadata);
    d.expires_s = expires_s;
    assert_ok(catalog_put(c, &d, &change, NULL));
    document_fini(&d);
    return change;
}

static inline struct catalog_change put(struct catalog *c, const char *tenant, const char *id,
                                        const char *text)
{
    return put_with(c, tenant, id, "", text, "", 0);
}

static inline struct json *parse(const char *text)
{
    struct json *j = NULL;

    assert_ok(js_parse(&j, text, strlen(text), NULL));
    return j;
}

/* The ids of a list or of a search, each followed by a blank. */
struct ids {
    char text[8192];
    uint32_t n, stop_at; /* stop_at 0: never */
};

static inline bool take_id(void *arg, const struct document *d)
{
    struct ids *ids = arg;
    size_t len = strlen(ids->text);

    assert_int_equal(d->text.len, 0);
    snprintf(ids->text + len, sizeof ids->text - len, "%s%s ", d->tenant[0] ? "" : "+", d->id);
    return ++ids->n != ids->stop_at;
}

#endif
