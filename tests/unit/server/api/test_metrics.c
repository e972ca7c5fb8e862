/* GET /metrics over a socket, with the fake engine: which lines each caller gets.
 * tests/integration/test_keys.py checks the format. */
#include "tests/unit/server/http/http_test.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "server/auth/auth.h"
#include "server/api/exposition.h"

static char key_file[] = "/tmp/tarn-test-metrics-XXXXXX";

/* The page that this key gets. */
static const char *get(struct http_test *t, const char *key)
{
    return http_test_ask(t, "GET", "/metrics", key);
}

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;

    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

static void write_keys(unsigned n)
{
    FILE *f = fopen(key_file, "w");

    assert_non_null(f);
    fprintf(f, "{\"keys\": [");
    for (unsigned i = 0; i < n; i++)
        fprintf(f,
                "%s{\"name\": \"k%u\", \"key\": \"sk-%08u\", \"tenant\": \"t%u\","
                "\"weight\": %u.5, \"tokens_per_minute\": %u}",
                i ? "," : "", i, i, i % 200, i % 9 + 1, i + 7);
    fprintf(f, "]}");
    fclose(f);
}

static void each_key_sees_itself_and_an_admin_all(void **state)
{
    struct http_test t;

    (void)state;
    write_keys(3);
    http_test_open(&t, "m", key_file, "boss");
    const char *page = get(&t, "sk-00000001");
    assert_non_null(strstr(page, "HTTP/1.1 200"));
    assert_non_null(strstr(page, "tarn:tenant_requests_total{model_name=\"m\",engine=\"0\","
                                 "tenant=\"t1\"} 0\n"));
    assert_non_null(strstr(page, "tarn:key_weight{model_name=\"m\",engine=\"0\",key=\"k1\","
                                 "tenant=\"t1\"} 2.5\n"));
    assert_non_null(strstr(page, "key=\"k1\",tenant=\"t1\"} 8\n")); /* tokens per minute */
    assert_null(strstr(page, "\"t0\""));
    assert_null(strstr(page, "\"t2\""));
    assert_null(strstr(page, "\"k0\""));
    assert_null(strstr(page, "vllm:"));
    assert_null(strstr(page, "http_"));
    assert_null(strstr(page, "process_"));
    assert_null(strstr(page, "reloads"));
    page = get(&t, "boss");
    assert_non_null(strstr(page, "\nvllm:num_requests_running{"));
    for (int i = 0; i < 3; i++) {
        char label[32];
        snprintf(label, sizeof label, "key=\"k%d\"", i);
        assert_int_equal(count(page, label), 4);
    }
    assert_non_null(strstr(page, "key=\"admin-api-key-1\""));
    page = get(&t, "nobody");
    assert_non_null(strstr(page, "HTTP/1.1 401"));
    assert_null(strstr(page, "vllm:"));
    assert_null(strstr(page, "sk-0000"));
    http_test_close(&t);
}

static void labels_are_bounded(void **state)
{
    struct http_test t;

    (void)state;
    write_keys(1000);
    http_test_open(&t, "m", key_file, "boss");
    const char *page = get(&t, "boss");
    assert_int_equal(count(page, "\ntarn:key_weight{"), 100);
    assert_int_equal(count(page, "\ntarn:tenant_requests_total{"), AUTH_N_TENANTS_MAX + 1);
    assert_int_equal(count(page, "tenant=\"_other\""), 10);
    assert_int_equal(count(page, "tenant=\"_other\",limit=\"owner\""), 1);
    /* Tenants that share the counters of "_other" do not get them. */
    page = get(&t, "sk-00000070");
    assert_non_null(strstr(page, "key=\"k70\",tenant=\"t70\""));
    assert_null(strstr(page, "_other"));
    assert_null(strstr(page, "\ntarn:tenant_requests_total{"));
    http_test_close(&t);
}

static void without_keys_there_is_one_tenant(void **state)
{
    struct http_test t;

    (void)state;
    http_test_open(&t, "a\"b\\c\nd", "", "");
    const char *page = get(&t, "any");
    assert_non_null(strstr(page, "tarn:tenant_requests_total{model_name=\"a\\\"b\\\\c\\nd\","
                                 "engine=\"0\",tenant=\"default\"} 0\n"));
    assert_null(strstr(page, "tarn:key_"));
    assert_null(strstr(page, " nan"));
    assert_int_equal(count(page, "# HELP "), count(page, "# TYPE "));
    http_test_close(&t);
}

/* The value of a sample, which must exist. */
static double value(const char *page, const char *name, const char *labels)
{
    char want[160];

    snprintf(want, sizeof want, "\n%s{model_name=\"m\",engine=\"0\"%s} ", name, labels);
    const char *at = strstr(page, want);
    if (!at)
        fail_msg("no sample %s", want + 1);
    return strtod(at + strlen(want), NULL);
}

static void the_kv_store_is_told_by_tier_and_state(void **state)
{
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    /* tarn:kv_blocks has the states of the device tier only. */
    assert_int_equal(count(page, "\ntarn:kv_blocks{"), 4);
    assert_true(value(page, "tarn:kv_blocks", ",state=\"free\"") == 80);
    assert_true(value(page, "tarn:kv_blocks", ",state=\"cached\"") == 20);
    assert_true(value(page, "tarn:kv_host_blocks", ",state=\"cached\"") == 29);
    assert_true(value(page, "tarn:kv_host_blocks", ",state=\"in_transfer\"") == 1);
    assert_int_equal(count(page, "\ntarn:kv_disk_blocks{"), 4);
    assert_true(value(page, "tarn:kv_disk_blocks", ",state=\"free\"") == 101);
    assert_true(value(page, "tarn:kv_disk_blocks", ",state=\"cached\"") == 352);
    assert_true(value(page, "tarn:kv_disk_blocks", ",state=\"in_use\"") == 45);
    assert_true(value(page, "tarn:kv_disk_blocks", ",state=\"in_transfer\"") == 2);
    assert_true(value(page, "tarn:kv_blocks_leaked", "") == 0);
    assert_true(value(page, "tarn:kv_blocks_evicted_total", ",tier=\"device\"") == 12);
    assert_true(value(page, "tarn:kv_blocks_evicted_total", ",tier=\"host\"") == 15);
    assert_true(value(page, "tarn:kv_blocks_evicted_total", ",tier=\"disk\"") == 48);
    assert_true(value(page, "tarn:kv_blocks_moved_total", ",to=\"disk\"") == 49);
    assert_true(value(page, "tarn:kv_blocks_moved_total", ",to=\"device\"") == 13);
    assert_true(value(page, "tarn:kv_blocks_moved_total", ",to=\"host\"") == 16);
    assert_true(value(page, "tarn:kv_copies_failed_total", "") == 4);
    assert_true(value(page, "tarn:kv_tokens_restored_total", "") == 3);
    assert_true(value(page, "tarn:kv_tree_nodes", "") == 5);
    assert_true(value(page, "tarn:kv_held_blocks", "") == 8);
    assert_true(value(page, "tarn:kv_metadata_bytes", "") == 9000);
    assert_non_null(strstr(page, "num_gpu_blocks=\"100\",num_cpu_blocks=\"50\""));
    http_test_close(&t);
}

static void the_pool_has_rows_only_where_there_is_one(void **state)
{
    static const struct {
        const char *name, *labels;
        double value;
    } rows[] = {
        {"tarn:pool_directory_up", "", 1},
        {"tarn:pool_directory_connects_total", "", 207},
        {"tarn:pool_directory_timeouts_total", "", 208},
        {"tarn:pool_directory_round_trip_seconds", "", 0.25},
        {"tarn:pool_announced_total", "", 210},
        {"tarn:pool_announcements_dropped_total", "", 211},
        {"tarn:pool_events_lost_total", "", 229},
        {"tarn:pool_instances", "", 212},
        {"tarn:pool_peers", "", 213},
        {"tarn:pool_segments", "", 214},
        {"tarn:pool_refused_total", "", 226},
        {"tarn:pool_lookups_total", ",result=\"found\"", 216},
        {"tarn:pool_lookups_total", ",result=\"timeout\"", 18},
        {"tarn:pool_lookups_total", ",result=\"not_found\"", 66},
        {"tarn:pool_not_worth_total", "", 204},
        {"tarn:pool_remote_blocks", "", 10},
        {"tarn:pool_stale_total", "", 217},
        {"tarn:pool_lookup_seconds", "", 0.5},
        {"tarn:pool_pulled_blocks_total", "", 219},
        {"tarn:pool_pulled_bytes_total", "", 220},
        {"tarn:pool_reads_failed_total", ",why=\"lost\"", 223},
        {"tarn:pool_reads_failed_total", ",why=\"timeout\"", 225},
        {"tarn:pool_reads_failed_total", ",why=\"corrupt\"", 224},
        {"tarn:pool_peer_timeouts_total", "", 231},
        {"tarn:pool_read_latency_seconds", "", 0.125},
        {"tarn:pool_read_bytes_per_second", "", 230},
        {"tarn:pool_sequences_total", ",way=\"pull\"", 240},
        {"tarn:pool_sequences_total", ",way=\"query\"", 241},
        {"tarn:pool_sequences_total", ",way=\"compute\"", 242},
        {"tarn:pool_queries_total", "", 233},
        {"tarn:pool_queries_failed_total", "", 234},
        {"tarn:pool_device_ipc_instances", "", 254},
        {"tarn:pool_device_ipc_bytes_total", "", 255},
        {"tarn:pool_query_bytes_total", "", 235},
        {"tarn:pool_query_seconds", "", 0.75},
        {"tarn:pool_attended_total", "", 236},
        {"tarn:pool_attended_rows_total", "", 237},
        {"tarn:pool_lent_blocks", "", 215},
        {"tarn:pool_lent_blocks_total", "", 221},
        {"tarn:pool_lent_bytes_total", "", 222},
        {"tarn:pool_lease_timeouts_total", "", 232},
        {"tarn:pool_offered_total", "", 227},
        {"tarn:pool_handed_over_total", "", 228},
        {"tarn:pool_accessed_tokens_total", "", 253},
        {"tarn:pool_load_cv", "", 0.375},
        {"tarn:pool_copies_total", ",result=\"offered\"", 250},
        {"tarn:pool_copies_total", ",result=\"copied\"", 251},
        {"tarn:pool_copies_total", ",result=\"moved\"", 252},
        {"tarn:kv_blocks_evicted_total", ",tier=\"remote\"", 202},
        {"tarn:kv_tier_saved_seconds_total", ",tier=\"remote\"", 205.5},
        {"tarn:kv_tier_lost_seconds_total", ",tier=\"remote\"", 206.5},
    };
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    assert_null(strstr(page, "tarn:pool_"));
    assert_null(strstr(page, "\"remote\""));
    assert_int_equal(count(page, "\ntarn:kv_tier_saved_seconds_total{"), 3);
    atomic_store(&fake_has_pool, true);
    page = get(&t, "");
    atomic_store(&fake_has_pool, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value(page, rows[i].name, rows[i].labels) != rows[i].value)
            fail_msg("%s%s is not %g", rows[i].name, rows[i].labels, rows[i].value);
    http_test_close(&t);
}

static void the_disk_says_what_it_did_and_what_it_dropped(void **state)
{
    static const struct {
        const char *name, *labels;
        double value;
    } rows[] = {
        {"tarn:kv_disk_read_bytes_total", "", 77},
        {"tarn:kv_disk_written_bytes_total", "", 78},
        {"tarn:kv_disk_reads_failed_total", "", 79},
        {"tarn:kv_disk_writes_failed_total", "", 81},
        {"tarn:kv_disk_timeouts_total", "", 82},
        {"tarn:kv_disk_corrupt_total", "", 83},
        {"tarn:kv_disk_not_worth_total", "", 84},
        {"tarn:kv_disk_preloaded_blocks_total", "", 85},
        {"tarn:kv_disk_read_bytes_per_second", "", 86},
        {"tarn:kv_disk_hung", "", 1},
        {"tarn:kv_disk_index_seconds", "", 0.25},
        {"tarn:kv_disk_records_found", "", 70},
        {"tarn:kv_disk_records_dropped", ",why=\"torn\"", 71},
        {"tarn:kv_disk_records_dropped", ",why=\"foreign\"", 72},
        {"tarn:kv_disk_records_dropped", ",why=\"impossible\"", 73},
        {"tarn:kv_disk_records_dropped", ",why=\"misnamed\"", 74},
        {"tarn:kv_disk_records_dropped", ",why=\"orphaned\"", 75},
        {"tarn:kv_disk_records_dropped", ",why=\"doubled\"", 76},
    };
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value(page, rows[i].name, rows[i].labels) != rows[i].value)
            fail_msg("%s%s is not %g", rows[i].name, rows[i].labels, rows[i].value);
    /* Without a disk tier the same metrics exist with the value 0. */
    atomic_store(&fake_has_disk, false);
    page = get(&t, "");
    atomic_store(&fake_has_disk, true);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(value(page, rows[i].name, rows[i].labels) == 0);
    assert_true(value(page, "tarn:kv_disk_blocks", ",state=\"cached\"") == 0);
    http_test_close(&t);
}

static void swapping_is_told_by_when(void **state)
{
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    assert_true(value(page, "tarn:kv_blocks_spilled_total", ",when=\"ahead\"") == 21);
    assert_true(value(page, "tarn:kv_blocks_spilled_total", ",when=\"on_demand\"") == 22);
    assert_true(value(page, "tarn:kv_blocks_fetched_total", ",when=\"ahead\"") == 23);
    assert_true(value(page, "tarn:kv_blocks_fetched_total", ",when=\"on_demand\"") == 24);
    assert_true(value(page, "tarn:kv_blocks_recomputed_total", "") == 25);
    http_test_close(&t);
}

static void scheduling_is_told_by_level_and_reason(void **state)
{
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    /* There is a sample for each level in use, not for each possible one. */
    assert_int_equal(count(page, "\ntarn:sched_level_requests{"), 3);
    assert_int_equal(count(page, "\ntarn:sched_level_quantum_seconds{"), 3);
    assert_true(value(page, "tarn:sched_level_requests", ",level=\"0\"") == 35);
    assert_true(value(page, "tarn:sched_level_requests", ",level=\"2\"") == 37);
    assert_true(value(page, "tarn:sched_level_quantum_seconds", ",level=\"1\"") == 0.5);
    assert_non_null(strstr(page, "tarn:sched_level_quantum_seconds{model_name=\"m\",engine=\"0\","
                                 "level=\"2\"} +Inf\n"));
    assert_true(value(page, "tarn:sched_starvation_seconds", "") == 3);
    assert_true(value(page, "vllm:num_preemptions_total", "") == 66);
    assert_true(value(page, "tarn:preemptions_total", ",reason=\"place\"") == 31);
    assert_true(value(page, "tarn:preemptions_total", ",reason=\"memory\"") == 32);
    assert_true(value(page, "tarn:preemptions_total", ",reason=\"query\"") == 3);
    assert_true(value(page, "tarn:starvation_boosts_total", "") == 38);
    assert_true(value(page, "tarn:demotions_total", "") == 39);
    assert_true(value(page, "tarn:plans_ahead_total", "") == 34);
    assert_true(value(page, "tarn:graph_steps_total", "") == 35);
    assert_true(value(page, "tarn:async_steps_total", "") == 42);
    assert_true(value(page, "tarn:cost_model_relative_error", "") == 0.125);
    assert_true(value(page, "tarn:step_seconds_count", "") == 1);
    assert_true(value(page, "tarn:step_gap_seconds_count", "") == 2);
    assert_true(value(page, "tarn:step_gap_seconds_bucket", ",le=\"0.001\"") == 0);
    assert_true(value(page, "tarn:step_gap_seconds_bucket", ",le=\"+Inf\"") == 2);
    http_test_close(&t);
}

static void exchanges_are_counted_by_route_and_status(void **state)
{
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "boss");
    http_test_ask(&t, "GET", "/v1/models", "boss");
    http_test_ask(&t, "GET", "/v1/models", "wrong");
    http_test_ask(&t, "DELETE", "/v1/models", "boss");
    http_test_ask(&t, "GET", "/a\"b", "boss");
    const char *page = get(&t, "boss");
    assert_non_null(strstr(page, "\nhttp_requests_total{route=\"/v1/models\",status=\"200\"} 1\n"
                                 "http_requests_total{route=\"/v1/models\",status=\"401\"} 1\n"
                                 "http_requests_total{route=\"/v1/models\",status=\"405\"} 1\n"));
    assert_non_null(strstr(page, "\nhttp_requests_total{route=\"other\",status=\"404\"} 1\n"));
    assert_non_null(strstr(page, "\nhttp_request_duration_seconds_count{route=\"/v1/models\"} "
                                 "3\n"));
    /* A path with two methods is one route; each route has a series from the start. */
    assert_int_equal(count(page, "\nhttp_requests_total{route=\"/cache\""), 1);
    assert_non_null(strstr(page, "\nhttp_requests_total{route=\"/v1/models/{id}\","
                                 "status=\"200\"} 0\n"));
    http_test_close(&t);
}

static void label_values_are_escaped_and_valid_utf8(void **state)
{
    struct page p;
    struct buf out;
    char labels[64] = "";

    (void)state;
    buf_init(&out, 4096);
    page_begin(&p, &out, "q\"b\\n\nu\xc3\xa9x\xff");
    assert_string_equal(p.labels,
                        "model_name=\"q\\\"b\\\\n\\nu\xc3\xa9x\xef\xbf\xbd\",engine=\"0\"");
    label_add(labels, sizeof labels, "a", "\"}\n");
    assert_string_equal(labels, ",a=\"\\\"}\\n\"");
    /* A value that does not fit is cut between characters, never inside an escape. */
    for (size_t n = 6; n < 24; n++) {
        char small[24] = "";
        label_add(small, n, "k", "\\\\\xc3\xa9\xc3\xa9\"\"\"\"");
        size_t len = strlen(small);
        assert_true(len < n && strncmp(small, ",k=\"", 4) == 0 && small[len - 1] == '"');
        unsigned n_backslashes = 0;
        for (size_t i = 4; i + 1 < len; i++)
            n_backslashes += small[i] == '\\' && (i++, true);
        assert_true(small[len - 2] != '\\' || small[len - 3] == '\\');
        assert_true(n_backslashes <= 6);
        assert_true((unsigned char)small[len - 2] != 0xc3);
    }
    page_head(&p, "x", "gauge", "help");
    page_bare_sample(&p, "x", "", INFINITY);
    page_bare_sample(&p, "x", ",a=\"1\"", -0.25);
    assert_string_equal(buf_str(&out), "# HELP x help\n# TYPE x gauge\nx +Inf\nx{a=\"1\"} -0.25\n");
    buf_fini(&out);
}

static void tokens_by_tier_and_by_source_add_up_to_the_prompts(void **state)
{
    static const char tier[] = "tarn:prompt_tokens_by_tier_total";
    static const char source[] = "vllm:prompt_tokens_by_source_total";
    struct http_test t;

    (void)state;
    http_test_open(&t, "m", "", "");
    const char *page = get(&t, "");
    double all = value(page, "vllm:prompt_tokens_total", "");
    assert_true(value(page, tier, ",tier=\"device\"") == 40);
    assert_true(value(page, tier, ",tier=\"host\"") == 20);
    assert_true(value(page, tier, ",tier=\"disk\"") == 5);
    assert_true(value(page, tier, ",tier=\"computed\"") == all - 65);
    assert_int_equal(count(page, "\ntarn:prompt_tokens_by_tier_total{"), 4);
    assert_true(value(page, source, ",source=\"local_cache_hit\"") == 65);
    assert_true(value(page, source, ",source=\"local_compute\"") == all - 65);
    http_test_close(&t);
}

static int start(void **state)
{
    int fd = mkstemp(key_file);

    (void)state;
    return fd >= 0 && close(fd) == 0 && hash_init() == OK ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    return unlink(key_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_sees_itself_and_an_admin_all),
        cmocka_unit_test(labels_are_bounded),
        cmocka_unit_test(without_keys_there_is_one_tenant),
        cmocka_unit_test(the_kv_store_is_told_by_tier_and_state),
        cmocka_unit_test(the_pool_has_rows_only_where_there_is_one),
        cmocka_unit_test(the_disk_says_what_it_did_and_what_it_dropped),
        cmocka_unit_test(swapping_is_told_by_when),
        cmocka_unit_test(scheduling_is_told_by_level_and_reason),
        cmocka_unit_test(exchanges_are_counted_by_route_and_status),
        cmocka_unit_test(label_values_are_escaped_and_valid_utf8),
        cmocka_unit_test(tokens_by_tier_and_by_source_add_up_to_the_prompts),
    };
    return cmocka_run_group_tests(tests, start, end);
}
