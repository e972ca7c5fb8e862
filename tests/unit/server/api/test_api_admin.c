/* /cache over a socket, with the fake engine, whose figures all differ. */
#include "tests/unit/server/http/http_test.h"

#include "base/clock.h"

static struct http_test t;

static int64_t number(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    if (!js_is(v, JS_INT))
        fail_msg("%s: no whole number", key);
    return js_int(v);
}

static const char *text(const struct json *o, const char *key)
{
    assert_true(js_is(js_get(o, key), JS_STRING));
    return js_string(js_get(o, key), NULL);
}

static struct json *get(const char *path)
{
    const char *answer = http_test_ask(&t, "GET", path, "");

    if (!strstr(answer, "HTTP/1.1 200"))
        fail_msg("%s: %s", path, answer);
    return http_test_json(&t);
}

static void every_figure_of_the_store_has_its_place(void **state)
{
    struct json *j = get("/cache");
    const struct json *device = js_at(js_get(j, "tiers"), 0), *host = js_at(js_get(j, "tiers"), 1);
    const struct json *blocks = js_get(host, "blocks"), *tree = js_get(j, "tree");

    (void)state;
    assert_string_equal(text(j, "object"), "cache");
    assert_string_equal(text(j, "policy"), "lru");
    assert_string_equal(text(j, "fingerprint"), "0123456789abcdef");
    assert_int_equal(number(j, "block_tokens"), KV_BLOCK_TOKENS);
    assert_int_equal(number(j, "block_bytes"), 4096);
    assert_int_equal(number(j, "format_version"), KV_FORMAT_VERSION);
    assert_int_equal(number(j, "copies_failed"), 4);
    assert_int_equal(js_len(js_get(j, "tiers")), 3);
    assert_string_equal(text(device, "name"), "device");
    assert_int_equal(number(device, "bytes"), 100 * 4096);
    assert_int_equal(number(js_get(device, "blocks"), "total"), 100);
    assert_true(js_is(js_get(device, "order"), JS_NULL));
    assert_string_equal(text(host, "name"), "host");
    assert_int_equal(number(blocks, "total"), 50);
    assert_int_equal(number(blocks, "free") + number(blocks, "cached") + number(blocks, "in_use") +
                         number(blocks, "in_transfer"),
                     50);
    assert_int_equal(number(blocks, "leaked"), 0);
    assert_int_equal(number(host, "nodes"), 14);
    assert_int_equal(number(host, "hit_tokens"), 30);
    assert_int_equal(number(host, "evicted_blocks"), 15);
    assert_int_equal(number(host, "moved_in_blocks"), 16);
    assert_int_equal(number(js_get(j, "tokens"), "queried"), 400);
    assert_int_equal(number(js_get(j, "tokens"), "hit"), 100);
    assert_int_equal(number(js_get(j, "tokens"), "restored"), 3);
    assert_true(js_number(js_get(js_get(j, "tokens"), "hit_rate")) == 0.25);
    assert_int_equal(number(js_get(j, "swapped_blocks"), "spilled_ahead"), 21);
    assert_int_equal(number(js_get(j, "swapped_blocks"), "spilled_on_demand"), 22);
    assert_int_equal(number(js_get(j, "swapped_blocks"), "fetched_ahead"), 23);
    assert_int_equal(number(js_get(j, "swapped_blocks"), "fetched_on_demand"), 24);
    assert_int_equal(number(js_get(j, "swapped_blocks"), "expected_lost"), 25);
    assert_int_equal(number(tree, "nodes"), 5);
    assert_int_equal(number(tree, "spans"), 1000);
    assert_int_equal(number(tree, "holds"), 6);
    assert_int_equal(number(tree, "held_blocks"), 8);
    assert_int_equal(number(tree, "metadata_bytes"), 9000);
    js_unref(j);
}

static void the_pool_has_a_tier_and_figures_of_its_own(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"instances", 212},      {"peers", 213},        {"segments", 214},
                {"lookups", 300},        {"found", 216},        {"stale", 217},
                {"pulled_blocks", 219},  {"pulled_bytes", 220}, {"read_bytes_per_s", 230},
                {"reads_failed", 672},   {"lent_blocks", 221},  {"lent_bytes", 222},
                {"refused", 226},        {"handed_over", 228},  {"queries", 233},
                {"queries_failed", 234}, {"query_bytes", 235},  {"attended_rows", 237}};
    struct json *j = get("/cache");

    (void)state;
    assert_true(js_is(js_get(j, "pool"), JS_NULL));
    js_unref(j);
    atomic_store(&fake_has_pool, true);
    j = get("/cache");
    atomic_store(&fake_has_pool, false);
    const struct json *tier = js_at(js_get(j, "tiers"), 3), *pool = js_get(j, "pool");
    assert_string_equal(text(tier, "name"), "remote");
    assert_true(js_number(js_get(tier, "saved_s")) == 205.5);
    assert_true(js_number(js_get(tier, "lost_s")) == 206.5);
    assert_string_equal(text(pool, "name"), "default");
    assert_string_equal(text(pool, "transport"), "tcp");
    assert_true(js_bool(js_get(pool, "directory_up")));
    assert_true(js_number(js_get(pool, "lookup_s")) == 0.5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(number(pool, rows[i].key), rows[i].value);
    js_unref(j);
}

static void the_disk_has_a_tier_and_figures_of_its_own(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"extent_bytes", 8192}, {"found_blocks", 70},  {"preloaded_blocks", 85},
                {"read_bytes", 77},     {"written_bytes", 78}, {"read_bytes_per_s", 86},
                {"reads_failed", 79},   {"writes_failed", 81}, {"timeouts", 82},
                {"corrupt_blocks", 83}, {"not_worth", 84}},
      dropped[] = {{"torn", 71},     {"foreign", 72},  {"impossible", 73},
                   {"misnamed", 74}, {"orphaned", 75}, {"doubled", 76}};
    struct json *j = get("/cache");
    const struct json *tier = js_at(js_get(j, "tiers"), 2), *disk = js_get(j, "disk");
    const struct json *blocks = js_get(tier, "blocks"), *why = js_get(disk, "dropped_records");

    (void)state;
    assert_string_equal(text(tier, "name"), "disk");
    assert_int_equal(number(tier, "bytes"), FAKE_N_DISK_BLOCKS * 4096);
    assert_int_equal(number(blocks, "free") + number(blocks, "cached") + number(blocks, "in_use") +
                         number(blocks, "in_transfer"),
                     FAKE_N_DISK_BLOCKS);
    assert_int_equal(number(tier, "hit_tokens"), 47);
    assert_int_equal(number(tier, "evicted_blocks"), 48);
    assert_int_equal(number(tier, "moved_in_blocks"), 49);
    assert_string_equal(text(tier, "order"), "clock");
    assert_string_equal(text(disk, "io"), "io_uring");
    assert_true(js_bool(js_get(disk, "direct")) && js_bool(js_get(disk, "hung")));
    assert_true(js_number(js_get(disk, "index_s")) == 0.25);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(number(disk, rows[i].key), rows[i].value);
    assert_int_equal(js_len(why), 6);
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        assert_int_equal(number(why, dropped[i].key), dropped[i].value);
    js_unref(j);
    atomic_store(&fake_has_disk, false);
    j = get("/cache");
    atomic_store(&fake_has_disk, true);
    assert_int_equal(js_len(js_get(j, "tiers")), 2);
    assert_true(js_is(js_get(j, "disk"), JS_NULL));
    js_unref(j);
}

static void a_span_says_what_it_is_and_where_it_lies(void **state)
{
    struct json *j = get("/cache");
    const struct json *spans = js_get(j, "top_spans"), *s = js_at(spans, 1);

    (void)state;
    assert_int_equal(js_len(spans), 20);
    assert_string_equal(text(s, "key"),
                        "0101010101010101010101010101010101010101010101010101010101010101");
    assert_int_equal(number(s, "depth"), 1);
    assert_int_equal(number(s, "tokens"), 64);
    assert_int_equal(number(s, "blocks"), 2);
    assert_int_equal(number(js_get(s, "blocks_by_tier"), "device"), 1);
    assert_int_equal(number(js_get(s, "blocks_by_tier"), "host"), 1);
    assert_int_equal(number(js_get(s, "blocks_by_tier"), "disk"), 2);
    assert_int_equal(number(s, "nodes"), 2);
    assert_int_equal(number(s, "children"), 3);
    assert_int_equal(number(s, "uses"), 999);
    assert_int_equal(number(s, "hit_tokens"), 899);
    assert_true(js_number(js_get(s, "idle_s")) == 1.5);
    assert_false(js_bool(js_get(s, "in_use")));
    assert_true(js_bool(js_get(s, "held")));
    js_unref(j);
}

static void as_many_spans_come_as_were_asked_for(void **state)
{
    static const struct {
        const char *path;
        size_t n;
    } cases[] = {{"/cache?spans=0", 0},
                 {"/cache?spans=3", 3},
                 {"/cache?spans=256", 256},
                 {"/cache?other=3", 20},
                 {"/cache?a=b&spans=0004", 4}};
    static const char *const wrong[] = {"257", "-1", "", "x", "3x", "1e2", "99999999999999999999",
                                        "%2b3"};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *j = get(cases[i].path);
        assert_int_equal(js_len(js_get(j, "top_spans")), cases[i].n);
        js_unref(j);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char path[64];
        snprintf(path, sizeof path, "/cache?spans=%s", wrong[i]);
        const char *answer = http_test_ask(&t, "GET", path, "");
        if (!strstr(answer, "HTTP/1.1 400"))
            fail_msg("%s: %s", path, answer);
        struct json *j = http_test_json(&t);
        assert_string_equal(text(js_get(j, "error"), "param"), "spans");
        js_unref(j);
    }
}

static void an_engine_in_a_long_step_is_503_with_retry_after(void **state)
{
    (void)state;
    atomic_store(&fake_is_stuck, true);
    const char *answer = http_test_ask(&t, "GET", "/cache", "");
    assert_non_null(strstr(answer, "HTTP/1.1 503"));
    assert_non_null(strstr(answer, "Retry-After: "));
    struct json *j = http_test_json(&t);
    assert_string_equal(text(js_get(j, "error"), "code"), "unavailable");
    js_unref(j);
    atomic_store(&fake_is_stuck, false);
    js_unref(get("/cache"));
}

static void looking_at_the_cache_keeps_no_other_client_waiting(void **state)
{
    char byte;

    (void)state;
    atomic_store(&fake_view_ns, UINT64_C(3600000000000));
    int slow = http_test_send(&t, "GET", "/cache", "");
    while (atomic_load(&fake_n_viewing) == 0)
        clock_sleep_ns(100000);
    assert_non_null(strstr(http_test_ask(&t, "GET", "/health", ""), "HTTP/1.1 200"));
    assert_int_equal(recv(slow, &byte, 1, MSG_DONTWAIT), -1); /* the view has not ended */
    atomic_store(&fake_view_ns, 0);
    assert_non_null(strstr(http_test_read(&t, slow), "HTTP/1.1 200"));
}

static void deleting_forgets_and_says_how_much(void **state)
{
    unsigned before = atomic_load(&fake_n_resets);

    (void)state;
    assert_non_null(strstr(http_test_ask(&t, "DELETE", "/cache", ""), "HTTP/1.1 200"));
    struct json *j = http_test_json(&t);
    assert_int_equal(atomic_load(&fake_n_resets), before + 1);
    assert_string_equal(text(j, "object"), "cache.reset");
    assert_string_equal(text(j, "status"), "ok");
    assert_int_equal(number(js_get(j, "cached_blocks"), "device"), 20);
    assert_int_equal(number(js_get(j, "cached_blocks"), "host"), 29);
    assert_int_equal(number(js_get(j, "cached_blocks"), "disk"), 352);
    assert_int_equal(number(j, "holds"), 6);
    js_unref(j);
    /* An engine in a long step cannot report how much is cached, but forgets it after the step. */
    atomic_store(&fake_is_stuck, true);
    assert_non_null(strstr(http_test_ask(&t, "DELETE", "/cache", ""), "HTTP/1.1 200"));
    atomic_store(&fake_is_stuck, false);
    j = http_test_json(&t);
    assert_int_equal(atomic_load(&fake_n_resets), before + 2);
    assert_true(js_is(js_get(j, "cached_blocks"), JS_NULL));
    js_unref(j);
}

#define FIVES "0505050505050505050505050505050505050505050505050505050505050505"

/* Check an error. param: its `param`, "" for null. */
static void expect_error(const char *path, const char *line, const char *param)
{
    const char *answer = http_test_ask(&t, "DELETE", path, "");

    if (!strstr(answer, line))
        fail_msg("%s: %s", path, answer);
    struct json *j = http_test_json(&t);
    const struct json *error = js_get(j, "error");
    if (param[0])
        assert_string_equal(text(error, "param"), param);
    else
        assert_true(js_is(js_get(error, "param"), JS_NULL));
    js_unref(j);
}

static void a_span_is_erased_by_its_key(void **state)
{
    unsigned erasures = atomic_load(&fake_n_erasures), resets = atomic_load(&fake_n_resets);

    (void)state;
    assert_non_null(strstr(http_test_ask(&t, "DELETE", "/cache?span=" FIVES, ""), "HTTP/1.1 200"));
    struct json *j = http_test_json(&t);
    assert_string_equal(text(j, "object"), "cache.erase");
    assert_string_equal(text(j, "status"), "ok");
    assert_string_equal(text(j, "span"), FIVES);
    assert_int_equal(number(j, "blocks"), 7);
    js_unref(j);
    assert_int_equal(atomic_load(&fake_n_erasures), erasures + 1);
    /* Upper case is the same key. */
    assert_non_null(strstr(http_test_ask(&t, "DELETE",
                                         "/cache?span=0A0a0A0a0A0a0A0a0A0a0A0a0A0a0A"
                                         "0a0A0a0A0a0A0a0A0a0A0a0A0a0A0a0A0a",
                                         ""),
                           "HTTP/1.1 200"));
    assert_int_equal(atomic_load(&fake_n_erasures), erasures + 2);
    assert_int_equal(atomic_load(&fake_n_resets), resets);
}

static void text_that_is_no_key_erases_nothing(void **state)
{
    static const char *const wrong[] = {"/cache?span=",
                                        "/cache?span=05",
                                        "/cache?span=" FIVES "0",
                                        "/cache?span=" FIVES "00",
                                        "/cache?span=%2b" FIVES,
                                        "/cache?span=x50505050505050505050505050505050505050505050"
                                        "5050505050505050505",
                                        "/cache?span=%00" FIVES};
    /* An unknown parameter, or one without a value, must not forget everything. */
    static const char *const unknown[] = {"/cache?spam=" FIVES, "/cache?span", "/cache?spans=3",
                                          "/cache?" FIVES};
    unsigned erasures = atomic_load(&fake_n_erasures), resets = atomic_load(&fake_n_resets);

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(wrong[i], "HTTP/1.1 400", "span");
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        expect_error(unknown[i], "HTTP/1.1 400", "");
    expect_error("/cache?span=eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
                 "HTTP/1.1 404", "span");
    atomic_store(&fake_is_stuck, true);
    const char *answer = http_test_ask(&t, "DELETE", "/cache?span=" FIVES, "");
    atomic_store(&fake_is_stuck, false);
    assert_non_null(strstr(answer, "HTTP/1.1 503"));
    assert_non_null(strstr(answer, "Retry-After: "));
    assert_int_equal(atomic_load(&fake_n_erasures), erasures);
    assert_int_equal(atomic_load(&fake_n_resets), resets);
}

static void the_instances_of_the_pool_are_listed(void **state)
{
    struct json *j = get("/v1/instances");

    (void)state;
    assert_true(js_is(js_get(j, "pool"), JS_NULL));
    assert_int_equal(js_len(js_get(j, "data")), 0);
    js_unref(j);
    atomic_store(&fake_has_pool, true);
    j = get("/v1/instances");
    atomic_store(&fake_has_pool, false);
    const struct json *here = js_at(js_get(j, "data"), 0), *there = js_at(js_get(j, "data"), 1);
    assert_string_equal(text(j, "pool"), "default");
    assert_true(js_bool(js_get(j, "directory_up")));
    assert_int_equal(js_len(js_get(j, "data")), 4);
    assert_string_equal(text(here, "id"), "00000000000000a1");
    assert_string_equal(text(here, "state"), "ready");
    assert_true(js_bool(js_get(here, "self")));
    assert_true(js_is(js_get(here, "http"), JS_NULL));
    assert_int_equal(number(js_get(here, "kv_blocks"), "total"), 100);
    assert_int_equal(number(js_get(here, "kv_blocks"), "free"), 40);
    assert_int_equal(number(here, "running"), 3);
    assert_int_equal(number(here, "waiting"), 2);
    assert_int_equal(number(here, "load"), 7000);
    assert_string_equal(text(here, "fingerprint"), "0100000000000000");
    assert_string_equal(text(here, "version"), "0.1.0");
    assert_string_equal(text(there, "name"), "there \"2\"");
    assert_string_equal(text(there, "state"), "leaving");
    assert_false(js_bool(js_get(there, "self")));
    assert_string_equal(text(there, "address"), "ucx://10.0.0.2:7001");
    assert_string_equal(text(there, "http"), "http://10.0.0.2:8000");
    assert_int_equal(number(js_get(there, "kv_blocks"), "total"), 4294967295);
    assert_string_equal(text(js_at(js_get(j, "data"), 2), "state"), "other_model");
    assert_string_equal(text(js_at(js_get(j, "data"), 3), "state"), "other_secret");
    js_unref(j);
}

static void there_is_one_way_to_forget(void **state)
{
    unsigned before = atomic_load(&fake_n_resets);

    (void)state;
    assert_non_null(strstr(http_test_ask(&t, "POST", "/cache/reset", ""), "HTTP/1.1 404"));
    const char *answer = http_test_ask(&t, "POST", "/cache", "");
    assert_non_null(strstr(answer, "HTTP/1.1 405"));
    assert_non_null(strstr(answer, "Allow: GET, HEAD, DELETE, OPTIONS\r\n"));
    assert_non_null(strstr(answer, "use GET or DELETE"));
    answer = http_test_ask(&t, "OPTIONS", "/cache", "");
    assert_non_null(strstr(answer, "HTTP/1.1 204"));
    assert_non_null(strstr(answer, "Allow: GET, HEAD, DELETE, OPTIONS\r\n"));
    assert_non_null(strstr(http_test_ask(&t, "HEAD", "/cache", ""), "HTTP/1.1 200"));
    assert_int_equal(atomic_load(&fake_n_resets), before);
}

static int start(void **state)
{
    (void)state;
    if (hash_init() != OK)
        return 1;
    http_test_open(&t, "m", "", "");
    return 0;
}

static int end(void **state)
{
    (void)state;
    http_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_figure_of_the_store_has_its_place),
        cmocka_unit_test(the_pool_has_a_tier_and_figures_of_its_own),
        cmocka_unit_test(the_disk_has_a_tier_and_figures_of_its_own),
        cmocka_unit_test(a_span_says_what_it_is_and_where_it_lies),
        cmocka_unit_test(as_many_spans_come_as_were_asked_for),
        cmocka_unit_test(an_engine_in_a_long_step_is_503_with_retry_after),
        cmocka_unit_test(looking_at_the_cache_keeps_no_other_client_waiting),
        cmocka_unit_test(deleting_forgets_and_says_how_much),
        cmocka_unit_test(a_span_is_erased_by_its_key),
        cmocka_unit_test(text_that_is_no_key_erases_nothing),
        cmocka_unit_test(the_instances_of_the_pool_are_listed),
        cmocka_unit_test(there_is_one_way_to_forget),
    };
    return cmocka_run_group_tests(tests, start, end);
}
