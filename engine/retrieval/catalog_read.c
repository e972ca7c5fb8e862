/* catalog_read.c - documents by id, by row and in lists. */
#include "engine/retrieval/catalog_inner.h"

static enum status read_document(const struct store_rows *r, struct document *d, bool with_text,
                                 struct buf *why)
{
    enum status s;

    d->row = store_get_int(r, 0);
    catalog_read_str(r, 1, d->tenant, sizeof d->tenant);
    catalog_read_str(r, 2, d->id, sizeof d->id);
    d->is_pinned = store_get_int(r, 5) != 0;
    d->prefill =
        store_get_int(r, 6) == DOCUMENT_PREFILL_NOW ? DOCUMENT_PREFILL_NOW : DOCUMENT_PREFILL_LAZY;
    d->version = (uint32_t)store_get_int(r, 7);
    d->created_s = store_get_int(r, 8);
    d->updated_s = store_get_int(r, 9);
    d->expires_s = store_get_int(r, 10);
    d->n_uses = (uint64_t)store_get_int(r, 11);
    buf_reset(&d->text);
    buf_reset(&d->embedding);
    if ((s = catalog_read(r, 3, &d->title, why)) == OK)
        s = catalog_read(r, 4, &d->metadata, why);
    if (s == OK && with_text && (s = catalog_read(r, 12, &d->text, why)) == OK)
        s = catalog_read(r, 13, &d->embedding, why);
    return s;
}

/* *found: whether the statement had a row. */
static enum status read_one(struct catalog *c, struct store_link *link,
                            enum catalog_statement statement, const struct store_value *values,
                            size_t n, struct document *out, bool *found, struct buf *why)
{
    struct store_rows r;
    enum status s = store_query(&r, link, statement, values, n, why);

    *found = false;
    if (s != OK)
        return s;
    if ((s = store_next(&r, found, why)) == OK && *found)
        s = read_document(&r, out, true, why);
    store_end(&r);
    if (s == OK && *found)
        out->n_uses += catalog_unwritten_uses(c, out->row);
    return s;
}

enum status catalog_read_document_row(struct catalog *c, struct store_link *link, int64_t row,
                                      struct document *out, bool *found, struct buf *why)
{
    /* No document has expired at 0. */
    return read_one(c, link, GET_ROW, STORE_VALUES(store_int(row), store_int(0)), out, found, why);
}

enum status catalog_get(struct catalog *c, const char *tenant, const char *id, struct document *out,
                        struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    bool found = false;
    int64_t no;
    enum status s = catalog_find_tenant(link, tenant, &no, why);

    if (s == OK)
        s = read_one(c, link, GET_VISIBLE,
                     STORE_VALUES(store_int(no), store_str(id), store_int(catalog_now_s())), out,
                     &found, why);
    store_put_back(c->store, link);
    if (s == OK && !found)
        return buf_why(why, ERR_NOT_FOUND, "there is no document \"%s\"", id);
    return s;
}

enum status catalog_get_row(struct catalog *c, int64_t row, struct document *out, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    bool found;
    enum status s =
        read_one(c, link, GET_ROW, STORE_VALUES(store_int(row), store_int(catalog_now_s())), out,
                 &found, why);

    store_put_back(c->store, link);
    if (s == OK && !found)
        return buf_why(why, ERR_NOT_FOUND, "the document was deleted");
    return s;
}

/* Call f for the rows of the list statement; one row more than `limit` was asked for. */
static enum status list_rows(struct catalog *c, struct store_rows *r, uint32_t limit,
                             bool (*f)(void *arg, const struct document *d), void *arg,
                             bool *has_more, struct buf *why)
{
    struct document d;
    bool has_row, goes_on = true;
    enum status s;

    document_init(&d);
    for (uint32_t i = 0; (s = store_next(r, &has_row, why)) == OK && has_row && goes_on; i++) {
        *has_more = i == limit;
        if (*has_more || (s = read_document(r, &d, false, why)) != OK)
            break;
        d.n_uses += catalog_unwritten_uses(c, d.row);
        goes_on = f(arg, &d);
    }
    document_fini(&d);
    return s;
}

enum status catalog_list(struct catalog *c, const char *tenant, const char *after, uint32_t limit,
                         const struct json *filter, bool (*f)(void *arg, const struct document *d),
                         void *arg, bool *has_more, struct buf *why)
{
    struct store_fits fits = {catalog_filter_fits, (void *)filter};
    struct store_rows r;
    struct store_link *link;
    int64_t no;
    enum status s = filter ? catalog_check_filter(filter, why) : OK;

    *has_more = false;
    if (s != OK)
        return s;
    link = store_reader(c->store);
    s = catalog_find_tenant(link, tenant, &no, why);
    if (s == OK)
        s = store_query(&r, link, LIST_DOCUMENTS,
                        STORE_VALUES(store_int(no), store_str(after ? after : ""),
                                     store_int(catalog_now_s()), store_fits(filter ? &fits : NULL),
                                     store_int((int64_t)limit + 1)),
                        why);
    if (s == OK) {
        s = list_rows(c, &r, limit, f, arg, has_more, why);
        store_end(&r);
    }
    store_put_back(c->store, link);
    return s;
}

static enum status each_row(struct store_rows *r,
                            bool (*f)(void *arg, int64_t row, const float *v, uint32_t dim),
                            void *arg, struct buf *why)
{
    struct buf v; /* SQLite's memory need not be aligned for floats */
    bool has_row, goes_on = true;
    enum status s = OK;

    buf_init(&v, DOCUMENT_DIM_MAX * sizeof(float));
    while (goes_on && (s = store_next(r, &has_row, why)) == OK && has_row) {
        if ((s = catalog_read(r, 1, &v, why)) != OK)
            break;
        goes_on =
            f(arg, store_get_int(r, 0), (const float *)v.data, (uint32_t)(v.len / sizeof(float)));
    }
    buf_fini(&v);
    return s;
}

enum status catalog_each_embedding(struct catalog *c, const char *tenant,
                                   bool (*f)(void *arg, int64_t row, const float *v, uint32_t dim),
                                   void *arg, struct buf *why)
{
    struct store_rows r;
    struct store_link *link = store_reader(c->store);
    int64_t no;
    enum status s = catalog_find_tenant(link, tenant, &no, why);

    if (s == OK && no != NO_TENANT)
        s = store_query(&r, link, EACH_EMBEDDING,
                        STORE_VALUES(store_int(no), store_int(catalog_now_s())), why);
    if (s == OK && no != NO_TENANT) {
        s = each_row(&r, f, arg, why);
        store_end(&r);
    }
    store_put_back(c->store, link);
    return s;
}

enum status catalog_each_prefill(struct catalog *c, bool (*f)(void *arg, int64_t row), void *arg,
                                 struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    struct store_rows r;
    bool has_row;
    enum status s =
        store_query(&r, link, EACH_PREFILL, STORE_VALUES(store_int(catalog_now_s())), why);

    if (s == OK) {
        while ((s = store_next(&r, &has_row, why)) == OK && has_row)
            if (!f(arg, store_get_int(&r, 0)))
                break;
        store_end(&r);
    }
    store_put_back(c->store, link);
    return s;
}

enum status catalog_tenant_of(struct catalog *c, int64_t row, char out[128], struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    struct store_rows r;
    bool has_row = false;
    enum status s = store_query(&r, link, NAME_TENANT, STORE_VALUES(store_int(row)), why);

    if (s == OK) {
        if ((s = store_next(&r, &has_row, why)) == OK && has_row)
            catalog_read_str(&r, 0, out, 128);
        store_end(&r);
    }
    store_put_back(c->store, link);
    return s == OK && !has_row ? ERR_NOT_FOUND : s;
}
