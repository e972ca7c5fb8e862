/* catalog_stamps.c - the stamp of each record, and the digests over all of them. */
#include "engine/retrieval/catalog_inner.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/little_endian.h"

#define HASHED_BYTES (CATALOG_NAME_BYTES + 17)
#define KEY_TAG_WORDS "tarn catalog digests"

int catalog_stamp_compare(const struct catalog_stamp *a, const struct catalog_stamp *b)
{
    if (a->counter != b->counter)
        return a->counter < b->counter ? -1 : 1;
    if (a->writer != b->writer)
        return a->writer < b->writer ? -1 : 1;
    return (int)a->is_deletion - (int)b->is_deletion;
}

void catalog_record_name(enum catalog_kind kind, const char *owner, const char *id,
                         uint8_t out[CATALOG_NAME_BYTES])
{
    struct hash_state h;
    uint8_t kind_byte = (uint8_t)kind;

    hash_begin(&h, CATALOG_NAME_BYTES, NULL, 0);
    hash_add(&h, &kind_byte, 1);
    hash_add(&h, owner, strlen(owner) + 1);
    hash_add(&h, id, strlen(id) + 1);
    hash_end(&h, out, CATALOG_NAME_BYTES);
}

static int64_t hash_of(const struct catalog *c, const uint8_t *name, const struct catalog_stamp *s)
{
    uint8_t bytes[HASHED_BYTES], hash[16];

    memcpy(bytes, name, CATALOG_NAME_BYTES);
    put_u64(bytes + CATALOG_NAME_BYTES, s->counter);
    put_u64(bytes + CATALOG_NAME_BYTES + 8, s->writer);
    bytes[CATALOG_NAME_BYTES + 16] = s->is_deletion;
    hash_blake2b(hash, sizeof hash, bytes, sizeof bytes, c->key, sizeof c->key);
    return (int64_t)get_u64(hash);
}

static struct store_value name_value(const uint8_t *name)
{
    return store_blob(name, CATALOG_NAME_BYTES);
}

/* --- one stamp --- */

enum status catalog_find_stamp(struct store_link *link, const uint8_t *name, struct stamped *out,
                               struct buf *why)
{
    struct store_rows r;
    bool has_row;
    enum status s = store_query(&r, link, FIND_STAMP, STORE_VALUES(name_value(name)), why);

    *out = (struct stamped){0};
    if (s != OK)
        return s;
    if ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        out->stamp = (struct catalog_stamp){.counter = (uint64_t)store_get_int(&r, 0),
                                            .writer = (uint64_t)store_get_int(&r, 1),
                                            .is_deletion = store_get_int(&r, 2) > 0};
        out->deleted_s = store_get_int(&r, 2);
        out->kind = store_get_int(&r, 3) == CATALOG_PREAMBLE ? CATALOG_PREAMBLE : CATALOG_DOCUMENT;
        out->row = store_get_int(&r, 4);
    }
    store_end(&r);
    return s;
}

static enum status xor_digest(struct catalog *c, struct store_link *link, const uint8_t *name,
                              const struct catalog_stamp *s, struct buf *why)
{
    return store_run(link, XOR_DIGEST,
                     STORE_VALUES(store_int(name[0]), store_int(hash_of(c, name, s))), why);
}

enum status catalog_put_stamp(struct catalog *c, struct store_link *link, const uint8_t *name,
                              const struct stamped *new, struct buf *why)
{
    struct stamped old;
    enum status s = catalog_find_stamp(link, name, &old, why);

    if (s == OK && !c->is_keyed)
        s = buf_why(why, ERR_INVALID, "the digests of the catalog need their key");
    if (s == OK && old.stamp.counter > 0)
        s = xor_digest(c, link, name, &old.stamp, why);
    if (s == OK)
        s = store_run(link, PUT_STAMP,
                      STORE_VALUES(name_value(name), store_int((int64_t) new->stamp.counter),
                                   store_int((int64_t) new->stamp.writer),
                                   store_int(new->deleted_s), store_int(new->kind),
                                   store_int(new->row)),
                      why);
    if (s == OK)
        s = xor_digest(c, link, name, &new->stamp, why);
    return s;
}

enum status catalog_stamp_change(struct catalog *c, struct store_link *link, enum catalog_kind kind,
                                 const char *owner, const char *id, int64_t row, struct buf *why)
{
    struct stamped new = {.kind = kind,
                          .row = row,
                          .deleted_s = row ? 0 : catalog_now_s(),
                          .stamp = {.writer = c->writer, .is_deletion = row == 0}};
    uint8_t name[CATALOG_NAME_BYTES];
    int64_t counter = 0;
    enum status s = store_run_int(link, NEXT_COUNTER, NULL, 0, &counter, why);

    new.stamp.counter = (uint64_t)counter;
    catalog_record_name(kind, owner, id, name);
    return s == OK ? catalog_put_stamp(c, link, name, &new, why) : s;
}

enum status catalog_stamp_expired(struct catalog *c, struct store_link *link,
                                  const struct old_document *old, struct buf *why)
{
    uint8_t name[CATALOG_NAME_BYTES];
    struct stamped stamped;

    catalog_record_name(CATALOG_DOCUMENT, old->owner, old->id, name);
    enum status s = catalog_find_stamp(link, name, &stamped, why);
    if (s != OK)
        return s;
    stamped.row = 0;
    stamped.stamp.is_deletion = true;
    stamped.deleted_s = old->expires_s + CATALOG_EXPIRY_GRACE_S;
    return catalog_put_stamp(c, link, name, &stamped, why);
}

/* --- a file of an older version --- */

static enum status stamp_kind(struct catalog *c, struct store_link *link, enum catalog_kind kind,
                              struct buf *why)
{
    struct store_rows r;
    bool has_row;
    enum status s = store_query(&r, link, kind == CATALOG_DOCUMENT ? EACH_DOCUMENT : EACH_PREAMBLE,
                                NULL, 0, why);

    if (s != OK)
        return s;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        char owner[128], id[DOCUMENT_ID_BYTES_MAX + 1];
        uint8_t name[CATALOG_NAME_BYTES];
        int64_t updated_s = store_get_int(&r, 3);
        /* Of two catalogs that never met, the later change is to win. */
        struct stamped new = {
            .kind = kind,
            .row = store_get_int(&r, 0),
            .stamp = {.counter = updated_s > 0 ? (uint64_t)updated_s : 1, .writer = c->writer}};
        catalog_read_str(&r, 1, owner, sizeof owner);
        catalog_read_str(&r, 2, id, sizeof id);
        catalog_record_name(kind, owner, id, name);
        s = catalog_put_stamp(c, link, name, &new, why);
        if (s == OK)
            s = store_run(link, RAISE_COUNTER, STORE_VALUES(store_int((int64_t) new.stamp.counter)),
                          why);
        if (s != OK)
            break;
    }
    store_end(&r);
    return s;
}

enum status catalog_stamp_all(struct catalog *c, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    int64_t is_unstamped = 0, tag = 0;
    enum status s = store_run_int(link, GET_UNSTAMPED, NULL, 0, &is_unstamped, why);

    if (s == OK)
        s = store_run_int(link, GET_KEY_TAG, NULL, 0, &tag, why);
    store_put_back(c->store, link);
    c->is_keyed = tag == 0;
    if (s != OK || !is_unstamped || (s = store_begin(c->store, &link, why)) != OK)
        return s;
    s = stamp_kind(c, link, CATALOG_DOCUMENT, why);
    if (s == OK)
        s = stamp_kind(c, link, CATALOG_PREAMBLE, why);
    if (s == OK)
        s = store_run(link, SET_STAMPED, NULL, 0, why);
    return catalog_finish(c, s, why);
}

/* --- lists --- */

static enum status list(struct store_link *link, enum catalog_statement statement,
                        const struct store_value *values, size_t n_values,
                        struct catalog_entry *out, uint32_t n_max, uint32_t *n, struct buf *why)
{
    struct store_rows r;
    size_t len;
    bool has_row;
    enum status s = store_query(&r, link, statement, values, n_values, why);

    *n = 0;
    if (s != OK)
        return s;
    while (*n < n_max && (s = store_next(&r, &has_row, why)) == OK && has_row) {
        const void *name = store_get_bytes(&r, 0, &len);
        struct catalog_entry *e = &out[*n];
        if (len != sizeof e->name) {
            s = buf_why(why, ERR_CORRUPT, "the name of a record has %zu bytes", len);
            break;
        }
        memcpy(e->name, name, sizeof e->name);
        e->stamp = (struct catalog_stamp){.counter = (uint64_t)store_get_int(&r, 1),
                                          .writer = (uint64_t)store_get_int(&r, 2),
                                          .is_deletion = store_get_int(&r, 3) > 0};
        ++*n;
    }
    store_end(&r);
    return s;
}

enum status catalog_list_bucket(struct catalog *c, uint8_t bucket, const uint8_t *after,
                                struct catalog_entry *out, uint32_t n_max, uint32_t *n,
                                struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    uint8_t last[CATALOG_NAME_BYTES];

    memset(last, 0xff, sizeof last);
    last[0] = bucket;
    /* A blob of one byte is smaller than all longer ones that begin with it. */
    enum status s = list(link, LIST_BUCKET,
                         STORE_VALUES(after ? name_value(after) : store_blob(&bucket, 1),
                                      name_value(last), store_int(n_max)),
                         out, n_max, n, why);
    store_put_back(c->store, link);
    return s;
}

enum status catalog_list_since(struct catalog *c, uint64_t counter, struct catalog_entry *out,
                               uint32_t n_max, uint32_t *n, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    enum status s =
        list(link, LIST_SINCE, STORE_VALUES(store_int((int64_t)counter), store_int(n_max)), out,
             n_max, n, why);

    store_put_back(c->store, link);
    return s;
}

uint64_t catalog_writer(const struct catalog *c)
{
    return c->writer;
}

enum status catalog_counter(struct catalog *c, uint64_t *out, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    int64_t counter = 0;
    enum status s = store_run_int(link, GET_COUNTER, NULL, 0, &counter, why);

    store_put_back(c->store, link);
    *out = (uint64_t)counter;
    return s;
}

enum status catalog_stamp_of(struct catalog *c, const uint8_t name[CATALOG_NAME_BYTES],
                             struct catalog_stamp *out, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    struct stamped stamped;
    enum status s = catalog_find_stamp(link, name, &stamped, why);

    store_put_back(c->store, link);
    *out = stamped.stamp;
    return s;
}

enum status catalog_forget_deletions(struct catalog *c, int64_t now_s, uint32_t limit,
                                     struct buf *why)
{
    struct catalog_entry *all = calloc(limit, sizeof *all);
    struct store_value values[] = {store_int(now_s - CATALOG_DELETION_S), store_int(limit)};
    struct store_link *link;
    uint32_t n = 0;

    if (!all)
        return buf_why(why, ERR_NOMEM, "out of memory");
    link = store_reader(c->store);
    enum status s = list(link, LIST_DELETIONS, values, 2, all, limit, &n, why);
    store_put_back(c->store, link);
    if (s == OK && n > 0 && (s = store_begin(c->store, &link, why)) == OK) {
        s = list(link, LIST_DELETIONS, values, 2, all, limit, &n, why);
        for (uint32_t i = 0; s == OK && i < n; i++) {
            s = xor_digest(c, link, all[i].name, &all[i].stamp, why);
            if (s == OK)
                s = store_run(link, DROP_STAMP, STORE_VALUES(name_value(all[i].name)), why);
        }
        s = catalog_finish(c, s, why);
    }
    free(all);
    return s;
}

/* --- digests --- */

uint64_t catalog_digest_of(const uint64_t buckets[CATALOG_N_BUCKETS])
{
    uint64_t digest = 0;

    for (uint32_t i = 0; i < CATALOG_N_BUCKETS; i++)
        digest ^= buckets[i];
    return digest;
}

static enum status read_digests(struct store_link *link, uint64_t out[CATALOG_N_BUCKETS],
                                struct buf *why)
{
    struct store_rows r;
    bool has_row;
    enum status s = store_query(&r, link, LIST_DIGESTS, NULL, 0, why);

    memset(out, 0, CATALOG_N_BUCKETS * sizeof *out);
    if (s != OK)
        return s;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row)
        out[(uint8_t)store_get_int(&r, 0)] = (uint64_t)store_get_int(&r, 1);
    store_end(&r);
    return s;
}

enum status catalog_digests(struct catalog *c, uint64_t out[CATALOG_N_BUCKETS], struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    enum status s = read_digests(link, out, why);

    store_put_back(c->store, link);
    return s;
}

/* The digests that the stamps give. */
static enum status compute_digests(struct catalog *c, struct store_link *link,
                                   uint64_t out[CATALOG_N_BUCKETS], struct buf *why)
{
    struct store_rows r;
    size_t len;
    bool has_row;
    enum status s = store_query(&r, link, LIST_STAMPS, NULL, 0, why);

    memset(out, 0, CATALOG_N_BUCKETS * sizeof *out);
    if (s != OK)
        return s;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        const uint8_t *name = store_get_bytes(&r, 0, &len);
        struct catalog_stamp stamp = {.counter = (uint64_t)store_get_int(&r, 1),
                                      .writer = (uint64_t)store_get_int(&r, 2),
                                      .is_deletion = store_get_int(&r, 3) > 0};
        if (len == CATALOG_NAME_BYTES)
            out[name[0]] ^= (uint64_t)hash_of(c, name, &stamp);
    }
    store_end(&r);
    return s;
}

static int64_t key_tag(const uint8_t key[CATALOG_KEY_BYTES])
{
    uint8_t hash[16];

    hash_blake2b(hash, sizeof hash, KEY_TAG_WORDS, sizeof KEY_TAG_WORDS, key, CATALOG_KEY_BYTES);
    return (int64_t)(get_u64(hash) | 1); /* 0: the key that is all zero */
}

static enum status make_digests(struct catalog *c, struct store_link *link, int64_t tag,
                                struct buf *why)
{
    uint64_t digests[CATALOG_N_BUCKETS];
    enum status s = compute_digests(c, link, digests, why);

    for (uint32_t i = 0; s == OK && i < CATALOG_N_BUCKETS; i++)
        s = store_run(link, SET_DIGEST, STORE_VALUES(store_int(i), store_int((int64_t)digests[i])),
                      why);
    return s == OK ? store_run(link, SET_KEY_TAG, STORE_VALUES(store_int(tag)), why) : s;
}

enum status catalog_set_key(struct catalog *c, const uint8_t key[CATALOG_KEY_BYTES],
                            struct buf *why)
{
    static const uint8_t none[CATALOG_KEY_BYTES];
    int64_t tag = memcmp(key, none, sizeof none) == 0 ? 0 : key_tag(key), has = 0;
    struct store_link *link;
    enum status s = store_begin(c->store, &link, why);

    if (s != OK)
        return s;
    memcpy(c->key, key, sizeof c->key);
    s = store_run_int(link, GET_KEY_TAG, NULL, 0, &has, why);
    if (s == OK && has != tag)
        s = make_digests(c, link, tag, why);
    s = catalog_finish(c, s, why);
    c->is_keyed = s == OK;
    return s;
}

enum status catalog_check_digests(struct catalog *c, struct buf *why)
{
    uint64_t are[CATALOG_N_BUCKETS], should[CATALOG_N_BUCKETS];
    struct store_link *link;
    enum status s = store_begin(c->store, &link, why); /* nobody writes meanwhile */

    if (s != OK)
        return s;
    if ((s = read_digests(link, are, why)) == OK)
        s = compute_digests(c, link, should, why);
    store_rollback(c->store);
    if (s == OK && memcmp(are, should, sizeof are) != 0)
        s = buf_why(why, ERR_CORRUPT, "the digests are not those of the records");
    return s;
}
