#include "tests/unit/engine/retrieval/catalog_world.h"

#include "base/clock.h"

static struct catalog *c; /* in memory, fresh for each test */
static struct document d;
static char words[512];
static struct buf why;

static int open_catalog(void **state)
{
    (void)state;
    buf_init(&why, sizeof words);
    document_init(&d);
    return catalog_open(&c, NULL, 0, NULL) == OK ? 0 : 1;
}

static int close_catalog(void **state)
{
    (void)state;
    catalog_close(c);
    document_fini(&d);
    buf_fini(&why);
    return 0;
}

static int64_t now_s(void)
{
    return (int64_t)(clock_unix_ns() / 1000000000u);
}

static const char *list(const char *tenant, const char *after, uint32_t limit, bool *has_more)
{
    static struct ids ids;

    memset(&ids, 0, sizeof ids);
    assert_ok(catalog_list(c, tenant, after, limit, NULL, take_id, &ids, has_more, NULL));
    return ids.text;
}

static void a_document_is_read_as_it_was_put(void **state)
{
    const float v[] = {0.5f, -1.0f, 3.25f};
    struct catalog_change change;
    (void)state;

    set_document(&d, "ann", "a/1", "A title", "Some text with \xc3\xa4 and a second line\n");
    set_str(&d.metadata, "{\"lang\": \"en\"}");
    assert_ok(buf_append(&d.embedding, v, sizeof v));
    d.is_pinned = true;
    d.prefill = DOCUMENT_PREFILL_NOW;
    d.expires_s = now_s() + 1000;
    assert_ok(catalog_put(c, &d, &change, NULL));
    assert_true(change.is_new && change.is_text_changed && change.version == 1);

    struct document got;
    document_init(&got);
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            assert_ok(catalog_get(c, "ann", "a/1", &got, NULL));
        else
            assert_ok(catalog_get_row(c, change.row, &got, NULL));
        assert_int_equal(got.row, change.row);
        assert_string_equal(got.tenant, "ann");
        assert_string_equal(got.id, "a/1");
        assert_string_equal(buf_str(&got.title), buf_str(&d.title));
        assert_string_equal(buf_str(&got.text), buf_str(&d.text));
        assert_string_equal(buf_str(&got.metadata), "{\"lang\": \"en\"}");
        assert_int_equal(got.embedding.len, sizeof v);
        assert_memory_equal(got.embedding.data, v, sizeof v);
        assert_true(got.is_pinned && got.prefill == DOCUMENT_PREFILL_NOW);
        assert_int_equal(got.version, 1);
        assert_int_equal(got.expires_s, d.expires_s);
        assert_true(got.created_s > 0 && got.updated_s >= got.created_s);
    }
    document_fini(&got);
}

static void only_a_changed_title_or_text_makes_a_version(void **state)
{
    struct catalog_change first = put_with(c, "t", "x", "T", "one", "", 0);
    struct catalog_change next = put_with(c, "t", "x", "T", "one", "{\"a\": 1}", 0);
    (void)state;

    assert_false(next.is_new || next.is_text_changed);
    assert_int_equal(next.version, 1);
    next = put_with(c, "t", "x", "T", "two", "", 0);
    assert_true(!next.is_new && next.is_text_changed);
    assert_int_equal(next.version, 2);
    next = put_with(c, "t", "x", "U", "two", "", 0);
    assert_int_equal(next.version, 3);
    assert_int_equal(next.row, first.row);
    assert_ok(catalog_get(c, "t", "x", &d, NULL));
    assert_string_equal(buf_str(&d.text), "two");
    assert_int_equal(d.metadata.len, 0);
}

static void a_row_is_never_used_again(void **state)
{
    int64_t row = put(c, "t", "x", "one").row, deleted;
    (void)state;

    assert_ok(catalog_delete(c, "t", "x", &deleted, NULL));
    assert_int_equal(deleted, row);
    assert_true(put(c, "t", "x", "one").row != row);
    assert_int_equal(catalog_get_row(c, row, &d, NULL), ERR_NOT_FOUND);
}

static void a_tenant_sees_its_own_documents_and_public_ones(void **state)
{
    int64_t row;
    bool has_more;
    (void)state;

    put(c, "ann", "own", "of ann");
    put(c, "ann", "both", "of ann");
    put(c, "", "both", "public");
    put(c, "", "all", "public");
    put(c, "bob", "secret", "of bob");
    assert_ok(catalog_get(c, "ann", "both", &d, NULL));
    assert_string_equal(buf_str(&d.text), "of ann");
    assert_ok(catalog_get(c, "bob", "both", &d, NULL));
    assert_string_equal(buf_str(&d.text), "public");
    assert_string_equal(d.tenant, "");
    assert_int_equal(catalog_get(c, "ann", "secret", &d, &why), ERR_NOT_FOUND);
    assert_string_equal(why.data, "there is no document \"secret\"");
    assert_int_equal(catalog_get(c, "", "secret", &d, NULL), ERR_NOT_FOUND);
    assert_string_equal(list("ann", NULL, 10, &has_more), "+all both own ");
    assert_string_equal(list("bob", NULL, 10, &has_more), "+all +both secret ");
    assert_string_equal(list("nobody", NULL, 10, &has_more), "+all +both ");
    assert_string_equal(list("", NULL, 10, &has_more), "+all +both ");
    /* A tenant does not delete what is public. */
    assert_int_equal(catalog_delete(c, "ann", "all", &row, NULL), ERR_NOT_FOUND);
    assert_ok(catalog_delete(c, "ann", "both", &row, NULL));
    assert_ok(catalog_get(c, "ann", "both", &d, NULL));
    assert_string_equal(d.tenant, "");
}

static void pages_of_a_list_join_to_all_documents(void **state)
{
    char id[16], all[8192] = "", paged[8192] = "", after[DOCUMENT_ID_BYTES_MAX + 1] = "";
    bool has_more = true;
    (void)state;

    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof id, "d%02d", i * 7 % 40);
        put(c, i % 3 == 0 ? "" : "t", id, "text");
    }
    strcpy(all, list("t", NULL, 1000, &has_more));
    assert_false(has_more);
    has_more = true;
    for (int n = 0; has_more; n++) {
        assert_true(n < 10);
        const char *page = list("t", after, 9, &has_more);
        strcat(paged, page);
        snprintf(after, sizeof after, "%.3s", strrchr(page, 'd'));
    }
    assert_string_equal(paged, all);
}

static void a_list_ends_when_its_reader_says_so(void **state)
{
    struct ids ids = {.stop_at = 2};
    bool has_more;
    (void)state;

    for (int i = 0; i < 5; i++)
        put(c, "t", (char[]){(char)('a' + i), 0}, "text");
    assert_ok(catalog_list(c, "t", NULL, 10, NULL, take_id, &ids, &has_more, NULL));
    assert_string_equal(ids.text, "a b ");
}

struct rows {
    int64_t rows[8];
    uint32_t n, stop_at; /* stop_at 0: never */
};

static bool take_row(void *arg, int64_t row)
{
    struct rows *rows = arg;

    rows->rows[rows->n++] = row;
    return rows->n != rows->stop_at;
}

static void what_is_to_be_prefilled_is_visited_over_all_tenants(void **state)
{
    struct rows rows = {.n = 0};
    struct catalog_change change;
    char tenant[128];
    int64_t wanted[3];
    (void)state;

    put(c, "t", "lazy", "text");
    for (int i = 0; i < 3; i++) {
        set_document(&d, i == 1 ? "" : "t", (char[]){(char)('a' + i), 0}, "", "text");
        d.prefill = i == 2 ? DOCUMENT_PREFILL_LAZY : DOCUMENT_PREFILL_NOW;
        d.is_pinned = i == 2;
        assert_ok(catalog_put(c, &d, &change, NULL));
        wanted[i] = change.row;
    }
    set_document(&d, "t", "over", "", "text");
    d.expires_s = 1;
    assert_ok(catalog_put(c, &d, &change, NULL));
    assert_ok(catalog_each_prefill(c, take_row, &rows, NULL));
    assert_int_equal(rows.n, 3);
    assert_int_equal(rows.rows[0], wanted[1]); /* by row; the public one first */
    assert_true(rows.rows[1] == wanted[0] && rows.rows[2] == wanted[2]);
    rows = (struct rows){.stop_at = 1};
    assert_ok(catalog_each_prefill(c, take_row, &rows, NULL));
    assert_int_equal(rows.n, 1);
    assert_ok(catalog_tenant_of(c, wanted[0], tenant, NULL));
    assert_string_equal(tenant, "t");
    assert_ok(catalog_tenant_of(c, wanted[1], tenant, NULL));
    assert_string_equal(tenant, "");
    assert_ok(catalog_tenant_of(c, change.row, tenant, NULL)); /* expired */
    assert_int_equal(catalog_tenant_of(c, INT64_C(77) << 32, tenant, NULL), ERR_NOT_FOUND);
}

static void an_expired_document_is_absent(void **state)
{
    int64_t rows[8], soon = now_s() + 1000, row, gone = 1;
    struct catalog_change change;
    bool has_more;
    uint32_t n;
    (void)state;

    put_with(c, "t", "late", "", "text", "", soon);
    change = put_with(c, "t", "old", "", "text", "", 1);
    put_with(c, "", "old", "", "public text", "", 0);
    assert_string_equal(list("t", NULL, 10, &has_more), "late +old ");
    assert_ok(catalog_get(c, "t", "old", &d, NULL));
    assert_string_equal(buf_str(&d.text), "public text");
    assert_int_equal(catalog_get_row(c, change.row, &d, NULL), ERR_NOT_FOUND);
    assert_int_equal(catalog_delete(c, "t", "old", &row, NULL), ERR_NOT_FOUND);

    assert_ok(catalog_sweep(c, now_s(), 8, rows, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(rows[0], change.row);
    assert_ok(catalog_sweep(c, soon, 8, rows, &n, NULL));
    assert_int_equal(n, 1);
    /* One that expired and is put again is new. */
    put_with(c, "t", "again", "", "text", "", 0);
    assert_ok(catalog_set(c, "t", "again", NULL, &gone, NULL));
    change = put_with(c, "t", "again", "", "text", "", 0);
    assert_true(change.is_new && change.is_text_changed);
}

static void pin_and_expiry_change_without_a_version(void **state)
{
    bool yes = true;
    int64_t at = now_s() + 50, never = 0, negative = -1;
    (void)state;

    put(c, "t", "x", "text");
    assert_ok(catalog_set(c, "t", "x", &yes, &at, NULL));
    assert_ok(catalog_get(c, "t", "x", &d, NULL));
    assert_true(d.is_pinned && d.expires_s == at && d.version == 1);
    assert_ok(catalog_set(c, "t", "x", NULL, &never, NULL));
    assert_ok(catalog_get(c, "t", "x", &d, NULL));
    assert_true(d.is_pinned && d.expires_s == 0);
    assert_int_equal(catalog_set(c, "t", "y", &yes, NULL, NULL), ERR_NOT_FOUND);
    assert_int_equal(catalog_set(c, "t", "x", NULL, &negative, NULL), ERR_INVALID);
}

static void uses_are_counted(void **state)
{
    int64_t rows[2], swept[1];
    uint32_t n;
    (void)state;

    rows[0] = put(c, "t", "x", "text").row;
    rows[1] = put(c, "t", "y", "text").row;
    catalog_note_use(c, rows, 2);
    catalog_note_use(c, rows, 1);
    for (int i = 0; i < 2; i++) { /* before they are written, and after */
        assert_ok(catalog_get(c, "t", "x", &d, NULL));
        assert_int_equal(d.n_uses, 2);
        assert_ok(catalog_get(c, "t", "y", &d, NULL));
        assert_int_equal(d.n_uses, 1);
        assert_ok(catalog_sweep(c, now_s(), 1, swept, &n, NULL));
    }
}

static void a_group_of_changes_is_kept_or_lost_as_one(void **state)
{
    int64_t row;
    bool has_more;
    (void)state;

    assert_ok(catalog_begin(c, NULL));
    put(c, "t", "a", "text");
    put(c, "t", "b", "text");
    assert_int_equal(catalog_delete(c, "t", "none", &row, NULL), ERR_NOT_FOUND);
    assert_ok(catalog_get(c, "t", "b", &d, NULL)); /* its own thread sees it already */
    catalog_rollback(c);
    assert_string_equal(list("t", NULL, 10, &has_more), "");
    assert_ok(catalog_begin(c, NULL));
    put(c, "t", "a", "text");
    assert_ok(catalog_commit(c, NULL));
    assert_string_equal(list("t", NULL, 10, &has_more), "a ");
}

static bool add_embedding(void *arg, int64_t row, const float *v, uint32_t dim)
{
    struct ids *ids = arg;
    size_t len = strlen(ids->text);

    (void)row;
    snprintf(ids->text + len, sizeof ids->text - len, "%u:%g ", dim, (double)v[0]);
    return ++ids->n != ids->stop_at;
}

static void embeddings_of_one_tenant_are_visited(void **state)
{
    struct ids ids = {.n = 0};
    struct catalog_change change;
    (void)state;

    for (int i = 0; i < 6; i++) {
        float v[3] = {(float)i, 1, 1};
        set_document(&d, i % 2 ? "t" : "", (char[]){(char)('a' + i), 0}, "", "text");
        buf_reset(&d.embedding);
        if (i != 3)
            assert_ok(buf_append(&d.embedding, v, i == 5 ? 4 : 12));
        assert_ok(catalog_put(c, &d, &change, NULL));
    }
    assert_ok(catalog_each_embedding(c, "t", add_embedding, &ids, NULL));
    assert_string_equal(ids.text, "3:1 1:5 ");
    memset(&ids, 0, sizeof ids);
    assert_ok(catalog_each_embedding(c, "", add_embedding, &ids, NULL));
    assert_string_equal(ids.text, "3:0 3:2 3:4 ");
    memset(&ids, 0, sizeof ids);
    assert_ok(catalog_each_embedding(c, "nobody", add_embedding, &ids, NULL));
    assert_string_equal(ids.text, "");
    ids.stop_at = 1;
    assert_ok(catalog_each_embedding(c, "", add_embedding, &ids, NULL));
    assert_string_equal(ids.text, "3:0 ");
}

static void statistics_follow_the_changes(void **state)
{
    struct preamble_record p;
    struct catalog_stats st;
    bool yes = true, is_new;
    int64_t row;
    (void)state;

    put(c, "t", "a", "text");
    put(c, "t", "a", "other text");
    put(c, "u", "a", "text");
    put(c, "", "a", "text");
    assert_ok(catalog_set(c, "t", "a", &yes, NULL, NULL));
    preamble_record_init(&p);
    strcpy(p.id, "p");
    strcpy(p.tenant, "t");
    set_str(&p.body, "{}");
    assert_ok(catalog_put_preamble(c, &p, &is_new, NULL));
    preamble_record_fini(&p);
    assert_ok(catalog_stats(c, NULL, &st));
    assert_true(st.n_documents == 3 && st.n_public == 1 && st.n_pinned == 1 && st.n_preambles == 1);
    assert_ok(catalog_stats(c, "u", &st));
    assert_true(st.n_documents == 1 && st.n_public == 1 && st.n_pinned == 0 && st.n_preambles == 0);
    assert_ok(catalog_delete(c, "u", "a", &row, NULL));
    assert_ok(catalog_stats(c, "u", &st));
    assert_int_equal(st.n_documents, 0);
    assert_ok(catalog_stats(c, "nobody", &st));
    assert_int_equal(st.n_documents, 0);
}

/* --- wrong input --- */

static enum status try_put(void)
{
    struct catalog_change change;

    return catalog_put(c, &d, &change, &why);
}

static void wrong_documents_are_refused_by_field(void **state)
{
    struct catalog_stats st;
    const float nan = 0.0f / 0.0f;
    (void)state;

    set_document(&d, "t", "", "", "text");
    assert_int_equal(try_put(), ERR_INVALID);
    assert_string_equal(why.data, "id: must not be empty");
    set_document(&d, "t", "a\nb", "", "text");
    assert_int_equal(try_put(), ERR_INVALID);
    set_document(&d, "t", "a\xff", "", "text");
    assert_int_equal(try_put(), ERR_INVALID);
    assert_string_equal(why.data, "id: not UTF-8");
    set_document(&d, "t", "x", "", "");
    assert_int_equal(try_put(), ERR_INVALID);
    assert_string_equal(why.data, "text: must not be empty");
    set_document(&d, "t", "x", "", "a\xc3");
    assert_int_equal(try_put(), ERR_INVALID);
    set_document(&d, "t", "x", "\x80", "a");
    assert_int_equal(try_put(), ERR_INVALID);
    set_document(&d, "t", "x", "", "text");
    set_str(&d.metadata, "[1]");
    assert_int_equal(try_put(), ERR_INVALID);
    assert_string_equal(why.data, "metadata: expected an object");
    set_str(&d.metadata, "{\"a\": ");
    assert_int_equal(try_put(), ERR_INVALID);
    buf_reset(&d.metadata);
    assert_ok(buf_append(&d.embedding, "abc", 3));
    assert_int_equal(try_put(), ERR_INVALID);
    buf_reset(&d.embedding);
    assert_ok(buf_append(&d.embedding, &nan, sizeof nan));
    assert_int_equal(try_put(), ERR_INVALID);
    assert_string_equal(why.data, "embedding[0]: not a finite number");
    buf_reset(&d.embedding);
    d.expires_s = -1;
    assert_int_equal(try_put(), ERR_INVALID);
    assert_ok(catalog_stats(c, NULL, &st));
    assert_int_equal(st.n_documents, 0);
}

static void too_large_fields_are_refused(void **state)
{
    struct buf *fields[] = {&d.title, &d.text, &d.metadata, &d.embedding};
    const size_t max[] = {DOCUMENT_TITLE_BYTES_MAX, DOCUMENT_TEXT_BYTES_MAX,
                          DOCUMENT_METADATA_BYTES_MAX, DOCUMENT_DIM_MAX * 4};
    (void)state;

    for (int i = 0; i < 4; i++) {
        set_document(&d, "t", "x", "", "text");
        fields[i]->max = max[i] + 4;
        buf_reset(fields[i]);
        while (fields[i]->len < max[i] + 4)
            assert_ok(buf_append(fields[i], "    ", 4));
        assert_int_equal(try_put(), ERR_TOO_LARGE);
        buf_reset(fields[i]);
    }
}

static void hostile_text_is_kept_byte_for_byte(void **state)
{
    static const char text[] = "a'; DROP TABLE documents; --\0behind a NUL \"*\" NEAR(x y)";
    struct catalog_change change;
    int64_t row;
    (void)state;

    set_document(&d, "' OR 1=1 --", "%' OR \"1\"=\"1", "?1 :a @b $c", "x");
    buf_reset(&d.text);
    assert_ok(buf_append(&d.text, text, sizeof text));
    assert_ok(catalog_put(c, &d, &change, NULL));
    assert_ok(catalog_get(c, "' OR 1=1 --", "%' OR \"1\"=\"1", &d, NULL));
    assert_int_equal(d.text.len, sizeof text);
    assert_memory_equal(d.text.data, text, sizeof text);
    assert_string_equal(buf_str(&d.title), "?1 :a @b $c");
    assert_int_equal(catalog_get(c, "t", "%", &d, NULL), ERR_NOT_FOUND);
    assert_int_equal(catalog_delete(c, "", "%' OR \"1\"=\"1", &row, NULL), ERR_NOT_FOUND);
    assert_ok(catalog_delete(c, "' OR 1=1 --", "%' OR \"1\"=\"1", &row, NULL));
}

/* --- preambles --- */

static bool take_preamble(void *arg, const struct preamble_record *p)
{
    struct ids *ids = arg;
    size_t len = strlen(ids->text);

    snprintf(ids->text + len, sizeof ids->text - len, "%s%s=%s ", p->tenant[0] ? "" : "+", p->id,
             buf_str(&p->body));
    return ++ids->n != ids->stop_at;
}

static void put_preamble(const char *tenant, const char *id, const char *body, bool is_new)
{
    struct preamble_record p;
    bool was_new;

    preamble_record_init(&p);
    snprintf(p.tenant, sizeof p.tenant, "%s", tenant);
    snprintf(p.id, sizeof p.id, "%s", id);
    set_str(&p.body, body);
    assert_ok(catalog_put_preamble(c, &p, &was_new, NULL));
    assert_int_equal(was_new, is_new);
    preamble_record_fini(&p);
}

static void preambles_are_put_read_listed_and_deleted(void **state)
{
    struct preamble_record p;
    struct ids ids = {.n = 0};
    bool is_new;
    (void)state;

    put_preamble("t", "b", "{\"system\": \"x\"}", true);
    put_preamble("t", "b", "{\"system\": \"x\"}", false);
    put_preamble("", "b", "{}", true);
    put_preamble("", "a", "{\"k\": 1}", true);
    put_preamble("u", "c", "{}", true);
    preamble_record_init(&p);
    assert_ok(catalog_get_preamble(c, "t", "b", &p, NULL));
    assert_true(p.version == 1 && strcmp(p.tenant, "t") == 0);
    put_preamble("t", "b", "{\"system\": \"y\"}", false);
    assert_ok(catalog_get_preamble(c, "t", "b", &p, NULL));
    assert_int_equal(p.version, 2);
    assert_string_equal(buf_str(&p.body), "{\"system\": \"y\"}");
    assert_ok(catalog_list_preambles(c, "t", take_preamble, &ids, NULL));
    assert_string_equal(ids.text, "+a={\"k\": 1} b={\"system\": \"y\"} ");
    memset(&ids, 0, sizeof ids);
    assert_ok(catalog_list_preambles(c, NULL, take_preamble, &ids, NULL));
    assert_int_equal(ids.n, 4);
    assert_int_equal(catalog_delete_preamble(c, "t", "a", &why), ERR_NOT_FOUND);
    assert_string_equal(why.data, "there is no preamble \"a\"");
    assert_ok(catalog_delete_preamble(c, "t", "b", NULL));
    assert_ok(catalog_get_preamble(c, "t", "b", &p, NULL));
    assert_string_equal(p.tenant, "");
    assert_int_equal(catalog_get_preamble(c, "t", "c", &p, NULL), ERR_NOT_FOUND);
    set_str(&p.body, "\"text\"");
    assert_int_equal(catalog_put_preamble(c, &p, &is_new, &why), ERR_INVALID);
    assert_string_equal(why.data, "body: expected an object");
    preamble_record_fini(&p);
}

/* --- paths --- */

static struct document_path path(uint32_t n, uint32_t version, int64_t used_s)
{
    struct document_path p = {.version = version, .place = n % 3, .n_tokens = 700 + n};

    memcpy(p.key, &n, sizeof n);
    p.used_s = used_s;
    snprintf(p.preamble, sizeof p.preamble, "p%u", n);
    return p;
}

static struct document_path oldest, taken[8];

static void add_path(int64_t row, uint32_t n, uint32_t version)
{
    struct document_path p = path(n, version, 100 + n);
    bool dropped;

    assert_ok(catalog_add_path(c, row, &p, &oldest, &dropped, NULL));
    assert_false(dropped);
}

static void paths_of_a_document_are_listed_and_found(void **state)
{
    int64_t row = put_with(c, "t", "x", "Title", "text", "", 0).row;
    struct document_path p = path(1, 1, 900), out[8];
    bool dropped;
    uint32_t n;
    (void)state;

    add_path(row, 1, 1);
    add_path(row, 2, 1);
    assert_ok(catalog_add_path(c, row, &p, &oldest, &dropped, NULL)); /* used again */
    assert_ok(catalog_paths(c, row, out, 8, &n, NULL));
    assert_int_equal(n, 2);
    assert_memory_equal(&out[0], &p, sizeof p);
    assert_int_equal(out[1].n_tokens, 702);
    assert_string_equal(out[1].preamble, "p2");
    assert_ok(catalog_paths(c, row, out, 1, &n, NULL));
    assert_int_equal(n, 1);
    assert_ok(catalog_find_path(c, p.key, &d));
    assert_true(d.row == row && d.version == 1 && strcmp(d.id, "x") == 0);
    assert_string_equal(buf_str(&d.title), "Title");
    p = path(7, 1, 0);
    assert_int_equal(catalog_find_path(c, p.key, &d), ERR_NOT_FOUND);
}

static void paths_of_what_was_deleted_or_replaced_are_taken_once(void **state)
{
    int64_t row = put(c, "t", "x", "text").row, other = put(c, "t", "y", "text").row, deleted;
    uint32_t n, n_all = 0;
    (void)state;

    add_path(row, 1, 1);
    add_path(other, 2, 1);
    add_path(other, 3, 1);
    assert_ok(catalog_take_paths(c, taken, 8, &n, NULL));
    assert_int_equal(n, 0);
    put(c, "t", "x", "new text");
    add_path(row, 4, 1); /* computed before the change */
    add_path(row, 5, 2);
    assert_ok(catalog_delete(c, "t", "y", &deleted, NULL));
    for (int i = 0; i < 4; i++, n_all += n)
        assert_ok(catalog_take_paths(c, taken, 2, &n, NULL));
    assert_int_equal(n_all, 4);
    assert_ok(catalog_paths(c, row, taken, 8, &n, NULL));
    assert_int_equal(n, 1);
    assert_int_equal(taken[0].n_tokens, 705);
}

static void kv_of_a_living_document_is_not_given_away(void **state)
{
    int64_t row = put(c, "t", "x", "text").row, twin = put(c, "t", "y", "text").row, deleted;
    uint32_t n;
    (void)state;

    add_path(row, 1, 1);
    add_path(twin, 1, 1); /* the same text at the same place has the same key */
    assert_ok(catalog_delete(c, "t", "x", &deleted, NULL));
    assert_ok(catalog_take_paths(c, taken, 8, &n, NULL));
    assert_int_equal(n, 0);
    assert_ok(catalog_delete(c, "t", "y", &deleted, NULL));
    assert_ok(catalog_take_paths(c, taken, 8, &n, NULL));
    assert_int_equal(n, 1);
}

static void the_oldest_path_makes_room(void **state)
{
    int64_t row = put(c, "t", "x", "text").row;
    struct document_path p;
    bool dropped;
    (void)state;

    assert_ok(catalog_begin(c, NULL));
    for (uint32_t i = 0; i < DOCUMENT_N_PATHS_MAX; i++)
        add_path(row, i, 1);
    p = path(5000, 1, 5000);
    assert_ok(catalog_add_path(c, row, &p, &oldest, &dropped, NULL));
    assert_ok(catalog_commit(c, NULL));
    assert_true(dropped);
    p = path(0, 1, 100);
    assert_memory_equal(&oldest, &p, sizeof p);
}

#define T(f) cmocka_unit_test_setup_teardown(f, open_catalog, close_catalog)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_document_is_read_as_it_was_put),
        T(only_a_changed_title_or_text_makes_a_version),
        T(a_row_is_never_used_again),
        T(a_tenant_sees_its_own_documents_and_public_ones),
        T(pages_of_a_list_join_to_all_documents),
        T(a_list_ends_when_its_reader_says_so),
        T(what_is_to_be_prefilled_is_visited_over_all_tenants),
        T(an_expired_document_is_absent),
        T(pin_and_expiry_change_without_a_version),
        T(uses_are_counted),
        T(a_group_of_changes_is_kept_or_lost_as_one),
        T(embeddings_of_one_tenant_are_visited),
        T(statistics_follow_the_changes),
        T(wrong_documents_are_refused_by_field),
        T(too_large_fields_are_refused),
        T(hostile_text_is_kept_byte_for_byte),
        T(preambles_are_put_read_listed_and_deleted),
        T(paths_of_a_document_are_listed_and_found),
        T(paths_of_what_was_deleted_or_replaced_are_taken_once),
        T(kv_of_a_living_document_is_not_given_away),
        T(the_oldest_path_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
