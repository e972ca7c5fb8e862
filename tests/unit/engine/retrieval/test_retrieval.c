/* test_retrieval.c - words, vectors and both; filters, tenants, stages, files. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "engine/retrieval/retrieval.h"
#include "tests/temp_dir.h"
#include "tests/unit/engine/retrieval/catalog_world.h"

#define DIM 3

static struct temp_dir dir;
static struct catalog *c;
static struct retrieval *r;
static char words[512];
static struct buf why;

static void open_retrieval(const char *factory)
{
    char path[128];
    const struct retrieval_config config = {.catalog = c, .dir = path, .factory = factory};

    snprintf(path, sizeof path, "%s/index", dir.path);
    assert_ok(retrieval_open(&r, &config, &why));
}

static int set_up(void **state)
{
    (void)state;
    buf_init(&why, sizeof words);
    temp_dir_make(&dir);
    if (catalog_open(&c, NULL, 0, NULL) != OK)
        return 1;
    open_retrieval(NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    retrieval_close(r);
    catalog_close(c);
    temp_dir_remove(&dir);
    buf_fini(&why);
    return 0;
}

/* Put a document whose vector has this angle on a circle, in degrees; below 0: without a vector. */
static void put_at(const char *tenant, const char *id, const char *text, double angle)
{
    struct catalog_change change;
    struct document d;

    document_init(&d);
    set_document(&d, tenant, id, "", text);
    assert_ok(buf_printf(&d.metadata, "{\"text\": \"%s\"}", text));
    if (angle >= 0) {
        float v[DIM] = {(float)cos(angle * 0.017453292519943295),
                        (float)sin(angle * 0.017453292519943295), 0.01f};

        assert_ok(buf_append(&d.embedding, v, sizeof v));
    }
    assert_ok(catalog_put(c, &d, &change, &why));
    assert_ok(retrieval_put(r, &d, change.row, &why));
    document_fini(&d);
}

static void drop(const char *tenant, const char *id)
{
    int64_t row;

    assert_ok(catalog_delete(c, tenant, id, &row, &why));
    retrieval_remove(r, tenant, row);
}

static float towards_0[DIM] = {1, 0, 0};

static struct retrieval_query query_of(const char *tenant, const char *text, const float *vector)
{
    return (struct retrieval_query){
        .scope = {.tenant = tenant, .own = true, .public = true},
        .text = text,
        .text_len = text ? strlen(text) : 0,
        .vector = vector,
        .dim = vector ? DIM : 0,
        .top_k = 3,
    };
}

/* The ids of the last stage's list, such as "a b". */
static const char *search(const struct retrieval_query *q)
{
    static char out[1024];
    struct retrieval_hit hits[RETRIEVAL_TOP_K_MAX];
    struct retrieval_search *s;
    bool is_last = false;
    uint32_t n = 0;
    size_t len = 0;

    out[0] = 0;
    assert_ok(retrieval_begin(&s, r, q, &why));
    while (!is_last)
        assert_ok(retrieval_next(s, hits, &n, &is_last, &why));
    retrieval_end(s);
    for (uint32_t i = 0; i < n; i++) {
        struct document d;

        assert_true(i == 0 || hits[i - 1].score >= hits[i].score);
        assert_true(hits[i].lexical_rank || hits[i].vector_rank);
        document_init(&d);
        assert_ok(catalog_get_row(c, hits[i].row, &d, NULL));
        len += (size_t)snprintf(out + len, sizeof out - len, "%s%s", i ? " " : "", d.id);
        document_fini(&d);
    }
    return out;
}

static enum status fail_to_begin(const struct retrieval_query *q)
{
    struct retrieval_search *s;
    enum status status = retrieval_begin(&s, r, q, &why);

    assert_null(s);
    return status;
}

static void words_alone_need_no_vector(void **state)
{
    struct retrieval_query q = query_of("ann", "blue whale", NULL);

    (void)state;
    put_at("ann", "a", "a blue whale in the sea", -1);
    put_at("ann", "b", "a red car", 0);
    assert_string_equal(search(&q), "a");
    q.mode = RETRIEVAL_LEXICAL;
    assert_string_equal(search(&q), "a");
    q.vector = (float[77]){1}; /* of a dimension that no document has: of no matter */
    q.dim = 77;
    assert_string_equal(search(&q), "a");
}

static void vectors_come_in_the_order_of_their_cosine(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);

    (void)state;
    put_at("ann", "far", "x", 80);
    put_at("ann", "near", "x", 5);
    put_at("ann", "middle", "x", 40);
    put_at("ann", "none", "x", -1);
    put_at("", "public", "x", 20);
    put_at("bob", "other", "x", 1);
    assert_string_equal(search(&q), "near public middle");
    q.top_k = 64;
    assert_string_equal(search(&q), "near public middle far");
    q.scope.public = false;
    assert_string_equal(search(&q), "near middle far");
    q.scope.public = true;
    q.scope.own = false;
    assert_string_equal(search(&q), "public");
}

static void both_lists_are_joined_by_reciprocal_rank(void **state)
{
    struct retrieval_query q = query_of("ann", "whale", towards_0);
    struct retrieval_hit hits[3];
    struct retrieval_search *s;
    bool is_last;
    uint32_t n;

    (void)state;
    put_at("ann", "words", "whale whale whale", 90);                          /* ranks 1 and 3 */
    put_at("ann", "both", "a whale and many further words about a ship", 30); /* 2 and 2 */
    put_at("ann", "vector", "nothing", 0);                                    /* none and 1 */
    assert_string_equal(search(&q), "words both vector");
    q.mode = RETRIEVAL_HYBRID;
    assert_ok(retrieval_begin(&s, r, &q, &why));
    assert_ok(retrieval_next(s, hits, &n, &is_last, &why));
    retrieval_end(s);
    assert_true(is_last && n == 3);
    assert_true(hits[0].lexical_rank == 1 && hits[0].vector_rank == 3);
    assert_true(hits[1].lexical_rank == 2 && hits[1].vector_rank == 2);
    assert_true(hits[2].lexical_rank == 0 && hits[2].vector_rank == 1);
    assert_true(fabs(hits[0].score - (1.0 / 61 + 1.0 / 63)) < 1e-12);
    assert_true(fabs(hits[1].score - 2.0 / 62) < 1e-12);
    assert_true(fabs(hits[2].score - 1.0 / 61) < 1e-12);
    q.mode = RETRIEVAL_VECTOR;
    assert_string_equal(search(&q), "vector both words");
}

static void a_filter_is_searched_to_the_end_of_the_lists(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);
    struct json *filter = parse("{\"text\": \"wanted\"}");
    char id[16];

    (void)state;
    for (int i = 0; i < 400; i++) { /* the two that fit are the farthest */
        snprintf(id, sizeof id, "d%03d", i);
        put_at("ann", id, i >= 398 ? "wanted" : "other", i * 0.2);
    }
    q.filter = filter;
    assert_string_equal(search(&q), "d398 d399");
    q.top_k = 1;
    assert_string_equal(search(&q), "d398");
    js_unref(filter);
    filter = parse("{\"type\": \"nonsense\", \"key\": \"a\", \"value\": 1}");
    q.filter = filter;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    js_unref(filter);
}

static void deleted_and_expired_documents_never_come_out(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);
    const int64_t long_ago = 1;

    (void)state;
    put_at("ann", "keep", "whale", 10);
    put_at("ann", "gone", "whale", 0);
    put_at("ann", "late", "whale", 5);
    assert_string_equal(search(&q), "gone late keep");
    drop("ann", "gone");
    assert_string_equal(search(&q), "late keep");
    assert_ok(catalog_set(c, "ann", "late", NULL, &long_ago, &why));
    assert_string_equal(search(&q), "keep");
    q = query_of("ann", "whale", towards_0);
    assert_string_equal(search(&q), "keep");
    put_at("ann", "keep", "whale", -1); /* without a vector now */
    q.text = NULL;
    assert_string_equal(search(&q), "");
}

static void a_wrong_dimension_is_a_clear_error(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);
    struct catalog_change change;
    struct document d;
    float v[5] = {1, 2, 3, 4, 5};

    (void)state;
    assert_int_equal(retrieval_dim(r, "ann"), 0);
    put_at("ann", "a", "x", 0);
    assert_int_equal(retrieval_dim(r, "ann"), DIM);
    q.vector = v;
    q.dim = 5;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "5 entries"));
    assert_non_null(strstr(buf_str(&why), "have 3"));

    document_init(&d);
    set_document(&d, "ann", "b", "", "x");
    assert_ok(buf_append(&d.embedding, v, sizeof v));
    assert_ok(catalog_put(c, &d, &change, &why));
    assert_int_equal(retrieval_put(r, &d, change.row, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "5 entries"));
    drop("ann", "a"); /* with the last vector the dimension goes */
    assert_int_equal(retrieval_dim(r, "ann"), 0);
    assert_ok(retrieval_put(r, &d, change.row, &why));
    assert_int_equal(retrieval_dim(r, "ann"), 5);
    assert_string_equal(search(&q), "b");
    document_fini(&d);

    put_at("", "public", "x", 0); /* of another dimension: left out, not an error */
    assert_string_equal(search(&q), "b");
    q = query_of("bob", NULL, v);
    q.dim = 5;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
}

static void a_wrong_query_is_refused(void **state)
{
    float nan[DIM] = {1, NAN, 0};
    struct retrieval_query q = query_of("ann", NULL, NULL);

    (void)state;
    put_at("ann", "a", "x", 0);
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    q = query_of("ann", NULL, nan);
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    q = query_of("ann", "x", towards_0);
    q.top_k = 0;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    q.top_k = RETRIEVAL_TOP_K_MAX + 1;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    q = query_of("ann", "x", NULL);
    q.mode = RETRIEVAL_VECTOR;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
    q = query_of("ann", NULL, towards_0);
    q.mode = RETRIEVAL_HYBRID;
    assert_int_equal(fail_to_begin(&q), ERR_INVALID);
}

static void nothing_is_found_where_nothing_is(void **state)
{
    struct retrieval_query q = query_of("ann", "x", towards_0);

    (void)state;
    assert_string_equal(search(&q), "");
    q.text = NULL;
    assert_string_equal(search(&q), "");
}

static void the_last_stage_equals_the_plain_search(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);
    char id[16], plain[1024];

    (void)state;
    retrieval_close(r);
    open_retrieval("IVF8,Flat");
    for (int i = 0; i < 200; i++) {
        snprintf(id, sizeof id, "d%03d", i);
        put_at(i % 2 ? "ann" : "", id, "x", i * 0.4);
    }
    q.top_k = 20;
    snprintf(plain, sizeof plain, "%s", search(&q));
    for (uint32_t n = 2; n < 12; n++) {
        q.n_stages = n;
        assert_string_equal(search(&q), plain);
    }
}

static void an_index_is_brought_up_to_the_catalog_when_it_is_opened(void **state)
{
    struct retrieval_query q = query_of("ann", NULL, towards_0);
    struct retrieval_stats stats;
    int64_t row;

    (void)state;
    put_at("ann", "a", "x", 0);
    put_at("ann", "b", "x", 10);
    put_at("ann", "c", "x", 20);
    retrieval_close(r);
    assert_ok(catalog_delete(c, "ann", "b", &row, &why)); /* while the index was closed */
    open_retrieval(NULL);
    assert_string_equal(search(&q), "a c");
    retrieval_stats(r, &stats);
    assert_int_equal(stats.n_vectors, 2);
    assert_int_equal(stats.n_tombstones, 1); /* so the file was read */
    assert_true(stats.n_searches == 1 && stats.memory_bytes > 0);
}

static void more_tenants_than_open_indexes_are_served(void **state)
{
    char tenant[32];

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < RETRIEVAL_N_OPEN_MAX + 10; i++) {
            snprintf(tenant, sizeof tenant, "tenant %d", i);
            struct retrieval_query q = query_of(tenant, NULL, towards_0);

            if (round == 0)
                put_at(tenant, "a", "x", i);
            assert_string_equal(search(&q), "a");
        }
    struct retrieval_stats stats;
    retrieval_stats(r, &stats);
    assert_in_range(stats.n_vectors, 1, RETRIEVAL_N_OPEN_MAX);
}

static void *search_many_tenants(void *arg)
{
    char tenant[32];

    (void)arg;
    for (int i = 0; i < 3 * RETRIEVAL_N_OPEN_MAX; i++) {
        struct retrieval_hit hits[3];
        struct retrieval_search *s;
        bool is_last;
        uint32_t n;

        snprintf(tenant, sizeof tenant, "tenant %d", i * 7 % (RETRIEVAL_N_OPEN_MAX + 6));
        struct retrieval_query q = query_of(tenant, NULL, towards_0);
        assert_ok(retrieval_begin(&s, r, &q, NULL));
        assert_ok(retrieval_next(s, hits, &n, &is_last, NULL));
        assert_true(is_last && n == 1);
        retrieval_end(s);
    }
    return NULL;
}

static void threads_share_indexes_that_are_opened_and_closed(void **state)
{
    pthread_t threads[2];
    char tenant[32];

    (void)state;
    for (int i = 0; i < RETRIEVAL_N_OPEN_MAX + 6; i++) {
        snprintf(tenant, sizeof tenant, "tenant %d", i);
        put_at(tenant, "a", "x", i);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, search_many_tenants, NULL), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* Without Faiss documents are still found by their words. */
static void without_vectors_words_are_searched(void **state)
{
    struct retrieval_query q = query_of("ann", "whale", towards_0);

    (void)state;
    put_at("ann", "a", "whale", 0);
    assert_int_equal(retrieval_dim(r, "ann"), 0);
    assert_string_equal(search(&q), "a");
    q.mode = RETRIEVAL_VECTOR;
    assert_int_equal(fail_to_begin(&q), ERR_UNSUPPORTED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(words_alone_need_no_vector),
        TEST(vectors_come_in_the_order_of_their_cosine),
        TEST(both_lists_are_joined_by_reciprocal_rank),
        TEST(a_filter_is_searched_to_the_end_of_the_lists),
        TEST(deleted_and_expired_documents_never_come_out),
        TEST(a_wrong_dimension_is_a_clear_error),
        TEST(a_wrong_query_is_refused),
        TEST(nothing_is_found_where_nothing_is),
        TEST(the_last_stage_equals_the_plain_search),
        TEST(an_index_is_brought_up_to_the_catalog_when_it_is_opened),
        TEST(more_tenants_than_open_indexes_are_served),
        TEST(threads_share_indexes_that_are_opened_and_closed),
    };
    const struct CMUnitTest without[] = {TEST(without_vectors_words_are_searched)};

    log_init(LOG_ERROR, false);
    if (hash_init() != OK)
        return 1;
    return vectors_are_supported() ? cmocka_run_group_tests(tests, NULL, NULL)
                                   : cmocka_run_group_tests(without, NULL, NULL);
}
