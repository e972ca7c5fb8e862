/* Records of catalogs: stamps, digests, and that catalogs become equal whatever the order in which
 * they exchange what they have. */
#include "base/check.h"
#include "tests/unit/engine/retrieval/catalog_world.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/store.h"
#include "engine/retrieval/catalog_records.h"
#include "tests/temp_dir.h"

#define N_ALL_MAX 512

static int64_t now_s(void)
{
    return (int64_t)(clock_unix_ns() / 1000000000u);
}

static struct catalog *open_catalog(void)
{
    struct catalog *c;

    assert_ok(catalog_open(&c, NULL, 0, NULL));
    return c;
}

static void put_preamble(struct catalog *c, const char *owner, const char *id, const char *system)
{
    struct preamble_record p;
    bool is_new;

    preamble_record_init(&p);
    snprintf(p.tenant, sizeof p.tenant, "%s", owner);
    snprintf(p.id, sizeof p.id, "%s", id);
    assert_ok(buf_printf(&p.body, "{\"system\":\"%s\"}", system));
    assert_ok(catalog_put_preamble(c, &p, &is_new, NULL));
    preamble_record_fini(&p);
}

static struct catalog_stamp stamp_of(struct catalog *c, const char *owner, const char *id)
{
    uint8_t name[CATALOG_NAME_BYTES];
    struct catalog_stamp stamp;

    catalog_record_name(CATALOG_DOCUMENT, owner, id, name);
    assert_ok(catalog_stamp_of(c, name, &stamp, NULL));
    return stamp;
}

static uint32_t list_all(struct catalog *c, struct catalog_entry *out)
{
    uint32_t n = 0, n_more;

    for (uint32_t b = 0; b < CATALOG_N_BUCKETS; b++) {
        const uint8_t *after = NULL;
        do { /* two at a time, so that lists are continued */
            assert_true(n + 2 <= N_ALL_MAX);
            assert_ok(catalog_list_bucket(c, (uint8_t)b, after, out + n, 2, &n_more, NULL));
            for (uint32_t i = 0; i < n_more; i++)
                assert_int_equal(out[n + i].name[0], b);
            n += n_more;
            after = n_more ? out[n - 1].name : NULL;
        } while (n_more == 2);
    }
    return n;
}

static uint64_t digest(struct catalog *c)
{
    uint64_t buckets[CATALOG_N_BUCKETS];

    assert_ok(catalog_digests(c, buckets, NULL));
    return catalog_digest_of(buckets);
}

/* Bring a record from one catalog to another, as bytes. */
static struct catalog_applied carry(struct catalog *from, struct catalog *to, const uint8_t *name)
{
    struct catalog_record record, back;
    struct catalog_applied applied;
    struct buf bytes;
    size_t n_used;

    catalog_record_init(&record);
    catalog_record_init(&back);
    buf_init(&bytes, CATALOG_RECORD_BYTES_MAX);
    assert_ok(catalog_get_record(from, name, &record, NULL));
    assert_ok(catalog_record_write(&bytes, &record));
    assert_ok(catalog_record_read(&back, bytes.data, bytes.len, &n_used));
    assert_int_equal(n_used, bytes.len);
    assert_ok(catalog_apply(to, &back, &applied, NULL));
    buf_fini(&bytes);
    catalog_record_fini(&record);
    catalog_record_fini(&back);
    return applied;
}

static struct catalog_applied carry_document(struct catalog *from, struct catalog *to,
                                             const char *owner, const char *id)
{
    uint8_t name[CATALOG_NAME_BYTES];

    catalog_record_name(CATALOG_DOCUMENT, owner, id, name);
    return carry(from, to, name);
}

static void carry_all(struct catalog *from, struct catalog *to)
{
    static struct catalog_entry all[N_ALL_MAX];
    uint32_t n = list_all(from, all);

    for (uint32_t i = 0; i < n; i++)
        carry(from, to, all[i].name);
}

/* The document's text, title, version and times as one string; "" when it is not there. */
static void describe(struct catalog *c, const char *owner, const char *id, char out[512])
{
    struct document d;

    document_init(&d);
    out[0] = '\0';
    if (catalog_get(c, owner, id, &d, NULL) == OK)
        snprintf(out, 512, "%s|%s|%s|%u|%d|%d|%lld|%lld|%lld|%zu", d.tenant, buf_str(&d.title),
                 buf_str(&d.text), d.version, d.is_pinned, (int)d.prefill, (long long)d.created_s,
                 (long long)d.updated_s, (long long)d.expires_s, d.embedding.len);
    document_fini(&d);
}

static void check_text(struct catalog *c, const char *owner, const char *id, const char *text)
{
    struct document d;

    document_init(&d);
    assert_ok(catalog_get(c, owner, id, &d, NULL));
    assert_string_equal(buf_str(&d.text), text);
    document_fini(&d);
}

/* --- tests --- */

static void each_change_gets_a_larger_counter(void **state)
{
    struct catalog *c = open_catalog();
    bool pinned = true;
    uint64_t before = 0;
    int64_t row;

    (void)state;
    for (int i = 0; i < 4; i++) {
        if (i == 0 || i == 1)
            put(c, "t/a", "x", i == 0 ? "one" : "two");
        else if (i == 2)
            assert_ok(catalog_set(c, "t/a", "x", &pinned, NULL, NULL));
        else
            assert_ok(catalog_delete(c, "t/a", "x", &row, NULL));
        struct catalog_stamp stamp = stamp_of(c, "t/a", "x");
        assert_true(stamp.counter > before);
        assert_int_equal(stamp.is_deletion, i == 3);
        before = stamp.counter;
        assert_ok(catalog_check(c, NULL));
    }
    catalog_close(c);
}

static void a_record_arrives_whole(void **state)
{
    struct catalog *a = open_catalog(), *b = open_catalog();
    char here[512], there[512];
    struct catalog_change change;
    const float vector[3] = {1, -2, 0.5f};
    struct document d, back;

    (void)state;
    document_init(&d);
    document_init(&back);
    set_document(&d, "t/a", "x", "a title", "a text");
    set_str(&d.metadata, "{\"year\":7}");
    assert_ok(buf_append(&d.embedding, vector, sizeof vector));
    d.is_pinned = true;
    d.prefill = DOCUMENT_PREFILL_NOW;
    d.expires_s = now_s() + 1000;
    assert_ok(catalog_put(a, &d, &change, NULL));
    set_str(&d.text, "a second text");
    assert_ok(catalog_put(a, &d, &change, NULL));
    struct catalog_applied applied = carry_document(a, b, "t/a", "x");
    assert_true(applied.is_applied && applied.change.is_new && applied.row != 0);
    describe(a, "t/a", "x", here);
    describe(b, "t/a", "x", there);
    assert_string_equal(here, there);
    assert_ok(catalog_get(b, "t/a", "x", &back, NULL));
    assert_int_equal(back.version, 2);
    assert_memory_equal(back.embedding.data, vector, sizeof vector);
    assert_string_equal(buf_str(&back.metadata), "{\"year\":7}");
    assert_int_equal(catalog_get(b, "t/b", "x", &back, NULL), ERR_NOT_FOUND);
    assert_false(carry_document(a, b, "t/a", "x").is_applied);
    assert_int_equal(digest(a), digest(b));
    document_fini(&d);
    document_fini(&back);
    catalog_close(a);
    catalog_close(b);
}

static void two_writers_end_alike(void **state)
{
    struct catalog *a = open_catalog(), *b = open_catalog();
    char here[512], there[512];
    int64_t row_a, row;

    (void)state;
    put(a, "t/a", "x", "the first text");
    carry_all(a, b);
    row_a = put(a, "t/a", "x", "the text of a").row;
    row = put(b, "t/a", "x", "the text of b").row;
    int order = catalog_stamp_compare(
        &(struct catalog_stamp){stamp_of(a, "t/a", "x").counter, stamp_of(a, "t/a", "x").writer, 0},
        &(struct catalog_stamp){stamp_of(b, "t/a", "x").counter, stamp_of(b, "t/a", "x").writer,
                                0});
    assert_true(order != 0);
    struct catalog_applied at_b = carry_document(a, b, "t/a", "x");
    struct catalog_applied at_a = carry_document(b, a, "t/a", "x");
    assert_int_equal(at_b.is_applied, order > 0);
    assert_int_equal(at_a.is_applied, order < 0);
    /* Both texts have version 2: the row of the one that lost is not used for the other. */
    assert_true(order > 0 ? at_b.dropped_row == row && at_b.row != row
                          : at_a.dropped_row == row_a && at_a.row != row_a);
    describe(a, "t/a", "x", here);
    describe(b, "t/a", "x", there);
    assert_string_equal(here, there);
    assert_int_equal(digest(a), digest(b));
    put(a, "t/a", "x", "a has seen both"); /* the larger counter wins */
    assert_true(carry_document(a, b, "t/a", "x").is_applied);
    check_text(b, "t/a", "x", "a has seen both");
    catalog_close(a);
    catalog_close(b);
}

static void a_deletion_wins_over_what_it_has_seen_only(void **state)
{
    struct catalog *a = open_catalog(), *b = open_catalog(), *c = open_catalog();
    struct document_path path = {.key = {7}, .version = 1, .n_tokens = 32, .used_s = 1}, out[2];
    int64_t row;
    uint32_t n;
    bool dropped;

    (void)state;
    put(a, "t/a", "x", "text");
    row = carry_document(a, b, "t/a", "x").row;
    assert_ok(catalog_add_path(b, row, &path, &out[0], &dropped, NULL));
    assert_ok(catalog_delete(a, "t/a", "x", &row, NULL));
    struct catalog_applied applied = carry_document(a, b, "t/a", "x");
    assert_true(applied.is_applied && applied.is_deletion && applied.row != 0);
    assert_string_equal(applied.owner, "t/a");
    assert_string_equal(applied.id, "x");
    assert_ok(catalog_take_paths(b, out, 2, &n, NULL)); /* its KV is erased there, too */
    assert_int_equal(n, 1);
    assert_int_equal(out[0].key[0], 7);
    applied = carry_document(a, c, "t/a", "x"); /* which never had it */
    assert_true(applied.is_applied && applied.is_deletion && applied.row == 0);
    assert_int_equal(digest(b), digest(c));
    put(b, "t/a", "x", "it comes back");
    assert_true(carry_document(b, c, "t/a", "x").is_applied);
    assert_false(carry_document(a, c, "t/a", "x").is_applied);
    check_text(c, "t/a", "x", "it comes back");
    catalog_close(a);
    catalog_close(b);
    catalog_close(c);
}

static void expiry_is_the_same_deletion_everywhere(void **state)
{
    struct catalog *a = open_catalog(), *b = open_catalog();
    int64_t rows[4], soon = now_s() + 1000;
    uint32_t n;

    (void)state;
    put_with(a, "t/a", "x", "", "text", "", soon);
    put_with(a, "t/a", "y", "", "text", "", soon);
    carry_all(a, b);
    put_with(b, "t/a", "y", "", "kept", "", 0); /* at the same time as the expiry at a */
    assert_ok(catalog_sweep(a, soon + 1, 4, rows, &n, NULL));
    assert_int_equal(n, 2);
    assert_ok(catalog_sweep(b, soon + 5, 4, rows, &n, NULL));
    assert_int_equal(n, 1);
    struct catalog_stamp at_a = stamp_of(a, "t/a", "x"), at_b = stamp_of(b, "t/a", "x");
    assert_int_equal(catalog_stamp_compare(&at_a, &at_b), 0);
    assert_true(at_a.is_deletion);
    assert_false(carry_document(a, b, "t/a", "y").is_applied);
    assert_true(carry_document(b, a, "t/a", "y").is_applied);
    check_text(a, "t/a", "y", "kept");
    assert_int_equal(digest(a), digest(b));
    catalog_close(a);
    catalog_close(b);
}

static void deletions_are_forgotten(void **state)
{
    struct catalog *a = open_catalog(), *b = open_catalog();
    struct catalog_record r;
    struct catalog_applied applied;
    int64_t row;

    (void)state;
    put(a, "t/a", "x", "text");
    assert_ok(catalog_delete(a, "t/a", "x", &row, NULL));
    assert_ok(catalog_forget_deletions(a, now_s() + CATALOG_DELETION_S - 60, 10, NULL));
    assert_int_equal(stamp_of(a, "t/a", "x").counter, 2);
    catalog_record_init(&r);
    catalog_record_name(CATALOG_DOCUMENT, "t/a", "x", r.entry.name);
    assert_ok(catalog_get_record(a, r.entry.name, &r, NULL));
    r.deleted_s = now_s() - CATALOG_DELETION_S - 1; /* b would forget it at once */
    assert_ok(catalog_apply(b, &r, &applied, NULL));
    assert_false(applied.is_applied);
    assert_int_equal(stamp_of(b, "t/a", "x").counter, 0);
    assert_ok(catalog_forget_deletions(a, now_s() + CATALOG_DELETION_S + 60, 10, NULL));
    assert_int_equal(stamp_of(a, "t/a", "x").counter, 0);
    assert_int_equal(digest(a), 0);
    assert_ok(catalog_check(a, NULL));
    catalog_record_fini(&r);
    catalog_close(a);
    catalog_close(b);
}

/* --- random histories --- */

#define N_CATALOGS 3
#define N_OWNERS 2
#define N_IDS 6

static void change_something(struct catalog *c, uint64_t seed)
{
    static const char *const owners[N_OWNERS] = {"", "t/a"};
    const char *owner = owners[rng_u32(seed, 1) % N_OWNERS];
    char id[8], text[64];
    bool pinned = rng_u32(seed, 4) % 2;
    int64_t row, expires = now_s() + 100000;

    snprintf(id, sizeof id, "%u", rng_u32(seed, 2) % N_IDS);
    snprintf(text, sizeof text, "text %u", rng_u32(seed, 3) % 4);
    enum status s = OK;
    switch (rng_u32(seed, 5) % 6) {
    case 0: s = catalog_delete(c, owner, id, &row, NULL); break;
    case 1: s = catalog_set(c, owner, id, &pinned, &expires, NULL); break;
    case 2: put_preamble(c, owner, id, text); break;
    case 3: s = catalog_delete_preamble(c, owner, id, NULL); break;
    default: put(c, owner, id, text); break;
    }
    assert_true(s == OK || s == ERR_NOT_FOUND);
}

static void check_equal(struct catalog *a, struct catalog *b)
{
    static struct catalog_entry of_a[N_ALL_MAX], of_b[N_ALL_MAX];
    struct preamble_record p, q;
    char id[8], here[512], there[512];
    uint32_t n = list_all(a, of_a);

    assert_int_equal(n, list_all(b, of_b));
    assert_memory_equal(of_a, of_b, n * sizeof *of_a);
    assert_int_equal(digest(a), digest(b));
    for (uint32_t i = 0; i < 2 * N_IDS; i++) {
        snprintf(id, sizeof id, "%u", i / 2);
        describe(a, i % 2 ? "t/a" : "", id, here);
        describe(b, i % 2 ? "t/a" : "", id, there);
        assert_string_equal(here, there);
        preamble_record_init(&p);
        preamble_record_init(&q);
        assert_int_equal(catalog_get_preamble(a, i % 2 ? "t/a" : "", id, &p, NULL),
                         catalog_get_preamble(b, i % 2 ? "t/a" : "", id, &q, NULL));
        assert_string_equal(buf_str(&p.body), buf_str(&q.body));
        assert_int_equal(p.version, q.version);
        assert_int_equal(p.created_s, q.created_s);
        preamble_record_fini(&p);
        preamble_record_fini(&q);
    }
}

/* Three catalogs get random changes and exchange some records in between. Once each catalog has
 * seen all records, in any order, the three are equal, and their digests are those of the records.
 * */
static void catalogs_become_equal_in_any_order(void **state)
{
    static struct catalog_entry all[N_ALL_MAX];

    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        struct catalog *c[N_CATALOGS];
        for (uint32_t i = 0; i < N_CATALOGS; i++)
            c[i] = open_catalog();
        for (uint64_t step = 0; step < 60; step++) {
            uint64_t seed = round * 1000 + step;
            uint32_t from = rng_u32(seed, 10) % N_CATALOGS, to = rng_u32(seed, 11) % N_CATALOGS;
            change_something(c[from], seed);
            uint32_t n = from != to && rng_u32(seed, 12) % 3 == 0 ? list_all(c[from], all) : 0;
            if (n > 0)
                carry(c[from], c[to], all[rng_u32(seed, 13) % n].name);
        }
        uint32_t first = rng_u32(round, 20) % N_CATALOGS;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t i = 0; i < N_CATALOGS; i++)
                for (uint32_t k = 1; k < N_CATALOGS; k++)
                    carry_all(c[(first + i) % N_CATALOGS], c[(first + i + k) % N_CATALOGS]);
        for (uint32_t i = 0; i < N_CATALOGS; i++) {
            check_equal(c[0], c[i]);
            assert_ok(catalog_check(c[i], NULL));
        }
        for (uint32_t i = 0; i < N_CATALOGS; i++)
            catalog_close(c[i]);
    }
}

/* --- records that are refused --- */

static enum status apply_changed(struct catalog *to, void (*spoil)(struct catalog_record *r))
{
    struct catalog_record r;
    struct catalog_applied applied;

    catalog_record_init(&r);
    set_document(&r.document, "t/a", "x", "title", "text");
    r.document.version = 1;
    r.entry.stamp.counter = 5;
    spoil(&r);
    catalog_record_name(CATALOG_DOCUMENT, r.document.tenant, r.document.id, r.entry.name);
    enum status s = catalog_apply(to, &r, &applied, NULL);
    assert_false(s != OK && applied.is_applied);
    catalog_record_fini(&r);
    return s;
}

static void nothing(struct catalog_record *r)
{
    (void)r;
}
static void far_counter(struct catalog_record *r)
{
    r->entry.stamp.counter = CATALOG_COUNTER_JUMP_MAX + 1;
}
static void last_counter(struct catalog_record *r)
{
    r->entry.stamp.counter = UINT64_MAX;
}
static void no_text(struct catalog_record *r)
{
    buf_reset(&r->document.text);
}
static void bad_text(struct catalog_record *r)
{
    set_str(&r->document.text, "\xff\xfe");
}
static void bad_metadata(struct catalog_record *r)
{
    set_str(&r->document.metadata, "[1");
}
static void bad_vector(struct catalog_record *r)
{
    assert_ok(buf_append(&r->document.embedding, "\xff\xff\xff\x7f", 4));
}
static void bad_id(struct catalog_record *r)
{
    snprintf(r->document.id, sizeof r->document.id, "a\nb");
}

static void broken_records_are_refused(void **state)
{
    void (*const spoils[])(struct catalog_record *) = {
        far_counter, last_counter, no_text, bad_text, bad_metadata, bad_vector, bad_id};
    struct catalog *c = open_catalog();

    (void)state;
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++)
        assert_int_not_equal(apply_changed(c, spoils[i]), OK);
    assert_int_equal(digest(c), 0);
    assert_ok(apply_changed(c, nothing));
    check_text(c, "t/a", "x", "text");
    assert_ok(catalog_check(c, NULL));
    catalog_close(c);
}

static void bytes_that_are_no_record_are_refused(void **state)
{
    struct catalog *c = open_catalog();
    struct catalog_record r;
    struct buf bytes;
    size_t n_used;

    (void)state;
    put(c, "t/a", "x", "some text");
    catalog_record_init(&r);
    buf_init(&bytes, CATALOG_RECORD_BYTES_MAX);
    catalog_record_name(CATALOG_DOCUMENT, "t/a", "x", r.entry.name);
    assert_ok(catalog_get_record(c, r.entry.name, &r, NULL));
    assert_ok(catalog_record_write(&bytes, &r));
    for (size_t n = 0; n < bytes.len; n++)
        assert_int_not_equal(catalog_record_read(&r, bytes.data, n, &n_used), OK);
    for (size_t i = 0; i < bytes.len; i++) {
        bytes.data[i] ^= 0x80;
        /* The name is a hash of owner and id; lengths and flags are checked. */
        if (i < CATALOG_NAME_BYTES || (i >= 32 && i < 36) || (i >= 64 && i < 68) ||
            (i >= 84 && i < 88))
            assert_int_not_equal(catalog_record_read(&r, bytes.data, bytes.len, &n_used), OK);
        bytes.data[i] ^= 0x80;
    }
    buf_fini(&bytes);
    catalog_record_fini(&r);
    catalog_close(c);
}

/* --- files --- */

static void a_restart_keeps_stamps_and_counters(void **state)
{
    static const uint8_t key[CATALOG_KEY_BYTES] = {1, 2, 3};
    struct temp_dir dir;
    struct catalog *c;
    char file[128];
    int64_t row;
    uint64_t counter, without;

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/catalog.db", dir.path);
    assert_ok(catalog_open(&c, file, 0, NULL));
    put(c, "t/a", "x", "one");
    put(c, "t/a", "y", "one");
    assert_ok(catalog_delete(c, "t/a", "y", &row, NULL));
    without = digest(c);
    assert_ok(catalog_set_key(c, key, NULL)); /* other digests of the same records */
    uint64_t with = digest(c);
    assert_true(with != without && with != 0);
    assert_ok(catalog_check(c, NULL));
    struct catalog_stamp before = stamp_of(c, "t/a", "x");
    catalog_close(c);

    assert_ok(catalog_open(&c, file, 0, NULL));
    assert_ok(catalog_set_key(c, key, NULL));
    assert_int_equal(digest(c), with);
    struct catalog_stamp after = stamp_of(c, "t/a", "x");
    assert_int_equal(catalog_stamp_compare(&before, &after), 0);
    assert_true(stamp_of(c, "t/a", "y").is_deletion);
    assert_ok(catalog_counter(c, &counter, NULL));
    put(c, "t/a", "x", "two");
    assert_int_equal(stamp_of(c, "t/a", "x").counter, counter + 1);
    assert_true(stamp_of(c, "t/a", "x").writer !=
                before.writer); /* a copy of the file is no twin */
    assert_ok(catalog_check(c, NULL));
    catalog_close(c);
    temp_dir_remove(&dir);
}

/* Make the file one of the version before stamps. */
static void take_stamps_away(const char *file)
{
    static const char *const migrations[] = {"SELECT 1", "SELECT 1", "SELECT 1"};
    static const char *const statements[] = {"DROP TABLE stamps", "DROP TABLE counters",
                                             "DROP TABLE digests", "PRAGMA user_version = 1"};
    const struct store_config config = {.file = file,
                                        .noun = "the documents",
                                        .application_id = 0x5461726e,
                                        .migrations = migrations,
                                        .n_migrations = ARRAY_SIZE(migrations),
                                        .statements = statements,
                                        .n_statements = 4,
                                        .n_readers = 1};
    struct store_link *link;
    struct store *store;

    assert_ok(store_open(&store, &config, NULL));
    assert_ok(store_begin(store, &link, NULL));
    for (unsigned i = 0; i < 4; i++)
        assert_ok(store_run(link, i, NULL, 0, NULL));
    assert_ok(store_commit(store, NULL));
    store_close(store);
}

static void a_file_without_stamps_gets_them(void **state)
{
    struct temp_dir dir;
    struct catalog *c, *other = open_catalog();
    char file[128];

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/catalog.db", dir.path);
    assert_ok(catalog_open(&c, file, 0, NULL));
    put(c, "t/a", "x", "one");
    put_preamble(c, "", "p", "words");
    catalog_close(c);
    take_stamps_away(file);

    assert_ok(catalog_open(&c, file, 0, NULL));
    assert_ok(catalog_check(c, NULL));
    assert_int_not_equal(digest(c), 0);
    assert_true(stamp_of(c, "t/a", "x").counter > 1000000); /* the time of its last change */
    carry_all(c, other);
    check_equal(c, other);
    put(c, "t/a", "x", "two");
    assert_true(carry_document(c, other, "t/a", "x").is_applied);
    catalog_close(c);
    catalog_close(other);
    temp_dir_remove(&dir);
}

static void changes_are_listed_since_a_counter(void **state)
{
    struct catalog *c = open_catalog();
    struct catalog_entry e[4];
    uint32_t n;

    (void)state;
    put(c, "t/a", "x", "one");
    put(c, "t/a", "y", "one");
    put(c, "t/a", "x", "two");
    assert_ok(catalog_list_since(c, 0, e, 4, &n, NULL));
    assert_int_equal(n, 2);
    assert_int_equal(e[0].stamp.counter, 2);
    assert_int_equal(e[1].stamp.counter, 3);
    assert_ok(catalog_list_since(c, 2, e, 4, &n, NULL));
    assert_int_equal(n, 1);
    assert_ok(catalog_list_since(c, 3, e, 4, &n, NULL));
    assert_int_equal(n, 0);
    catalog_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_change_gets_a_larger_counter),
        cmocka_unit_test(a_record_arrives_whole),
        cmocka_unit_test(two_writers_end_alike),
        cmocka_unit_test(a_deletion_wins_over_what_it_has_seen_only),
        cmocka_unit_test(expiry_is_the_same_deletion_everywhere),
        cmocka_unit_test(deletions_are_forgotten),
        cmocka_unit_test(catalogs_become_equal_in_any_order),
        cmocka_unit_test(broken_records_are_refused),
        cmocka_unit_test(bytes_that_are_no_record_are_refused),
        cmocka_unit_test(a_restart_keeps_stamps_and_counters),
        cmocka_unit_test(a_file_without_stamps_gets_them),
        cmocka_unit_test(changes_are_listed_since_a_counter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
