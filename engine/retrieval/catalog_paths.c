/* catalog_paths.c - where the KV of documents was computed. */
#include "engine/retrieval/catalog_inner.h"

static void read_path(const struct store_rows *r, struct document_path *p)
{
    size_t len;
    const void *key = store_get_bytes(r, 0, &len);

    memset(p, 0, sizeof *p);
    memcpy(p->key, key, len < sizeof p->key ? len : sizeof p->key);
    p->version = (uint32_t)store_get_int(r, 1);
    p->place = (uint32_t)store_get_int(r, 2);
    p->n_tokens = (uint32_t)store_get_int(r, 3);
    catalog_read_str(r, 4, p->preamble, sizeof p->preamble);
    p->used_s = store_get_int(r, 5);
}

/* Read at most n_max paths from a statement. */
static enum status read_paths(struct store_link *link, enum catalog_statement statement,
                              const struct store_value *values, size_t n_values,
                              struct document_path *out, uint32_t n_max, uint32_t *n,
                              struct buf *why)
{
    struct store_rows r;
    bool has_row;
    enum status s = store_query(&r, link, statement, values, n_values, why);

    *n = 0;
    if (s != OK)
        return s;
    while (*n < n_max && (s = store_next(&r, &has_row, why)) == OK && has_row)
        read_path(&r, &out[(*n)++]);
    store_end(&r);
    return s;
}

static enum status drop_oldest(struct store_link *link, int64_t row, struct document_path *oldest,
                               bool *dropped, struct buf *why)
{
    int64_t n_paths = 0;
    uint32_t n = 0;
    enum status s = store_run_int(link, COUNT_PATHS, STORE_VALUES(store_int(row)), &n_paths, why);

    if (s != OK || n_paths <= DOCUMENT_N_PATHS_MAX)
        return s;
    s = read_paths(link, OLDEST_PATH, STORE_VALUES(store_int(row)), oldest, 1, &n, why);
    *dropped = n > 0;
    if (s == OK && n > 0)
        s = store_run(link, DROP_PATH,
                      STORE_VALUES(store_int(row), store_blob(oldest->key, sizeof oldest->key)),
                      why);
    return s;
}

static enum status add_path(struct store_link *link, int64_t row, const struct document_path *p,
                            struct document_path *oldest, bool *dropped, struct buf *why)
{
    /* ADD_ORPHAN takes the same values without the first one. */
    const struct store_value values[] = {
        store_int(row),         store_blob(p->key, sizeof p->key),
        store_int(p->version),  store_int(p->place),
        store_int(p->n_tokens), store_str(p->preamble),
        store_int(p->used_s),
    };
    const size_t n = sizeof values / sizeof *values;
    int64_t version = 0;
    enum status s = store_run_int(link, DOCUMENT_VERSION, values, 1, &version, why);

    if (s == OK && version != p->version)
        return store_run(link, ADD_ORPHAN, values + 1, n - 1, why);
    if (s == OK)
        s = store_run(link, DROP_ORPHAN, values + 1, 1, why);
    if (s == OK)
        s = store_run(link, ADD_PATH, values, n, why);
    return s == OK ? drop_oldest(link, row, oldest, dropped, why) : s;
}

enum status catalog_add_path(struct catalog *c, int64_t row, const struct document_path *p,
                             struct document_path *oldest, bool *dropped, struct buf *why)
{
    struct store_link *link;
    enum status s = store_begin(c->store, &link, why);

    *dropped = false;
    if (s != OK)
        return s;
    s = catalog_finish(c, add_path(link, row, p, oldest, dropped, why), why);
    if (s != OK)
        *dropped = false;
    return s;
}

enum status catalog_paths(struct catalog *c, int64_t row, struct document_path *out, uint32_t n_max,
                          uint32_t *n, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    enum status s = read_paths(link, LIST_PATHS, STORE_VALUES(store_int(row), store_int(n_max)),
                               out, n_max, n, why);

    store_put_back(c->store, link);
    return s;
}

enum status catalog_find_path(struct catalog *c, const uint8_t key[DOCUMENT_KEY_BYTES],
                              struct document *out)
{
    struct store_link *link = store_reader(c->store);
    struct store_rows r;
    bool has_row = false;
    enum status s =
        store_query(&r, link, FIND_PATH, STORE_VALUES(store_blob(key, DOCUMENT_KEY_BYTES)), NULL);

    if (s == OK) {
        if ((s = store_next(&r, &has_row, NULL)) == OK && has_row) {
            out->row = store_get_int(&r, 0);
            catalog_read_str(&r, 1, out->tenant, sizeof out->tenant);
            catalog_read_str(&r, 2, out->id, sizeof out->id);
            out->version = (uint32_t)store_get_int(&r, 4);
            s = catalog_read(&r, 3, &out->title, NULL);
        }
        store_end(&r);
    }
    store_put_back(c->store, link);
    return s == OK && !has_row ? ERR_NOT_FOUND : s;
}

static enum status take(struct store_link *link, struct document_path *out, uint32_t n_max,
                        uint32_t *n, struct buf *why)
{
    enum status s = store_run(link, DROP_USED_ORPHANS, NULL, 0, why);

    if (s == OK)
        s = read_paths(link, LIST_ORPHANS, STORE_VALUES(store_int(n_max)), out, n_max, n, why);
    for (uint32_t i = 0; s == OK && i < *n; i++)
        s = store_run(link, DROP_ORPHAN, STORE_VALUES(store_blob(out[i].key, sizeof out[i].key)),
                      why);
    return s;
}

enum status catalog_take_paths(struct catalog *c, struct document_path *out, uint32_t n_max,
                               uint32_t *n, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    int64_t has_any = 0;
    enum status s = store_run_int(link, HAS_ORPHANS, NULL, 0, &has_any, why);

    store_put_back(c->store, link);
    *n = 0;
    if (s != OK || !has_any || (s = store_begin(c->store, &link, why)) != OK)
        return s;
    s = catalog_finish(c, take(link, out, n_max, n, why), why);
    if (s != OK)
        *n = 0;
    return s;
}
