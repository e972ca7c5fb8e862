/* Each allocation from the options to the report fails once: every workload with its data files,
 * the bodies, the outcomes, and the report's files. Each time the result is a clear status, with a
 * message if memory suffices. Nothing leaks: as many bytes are allocated after as before.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/loadgen/loadgen_test.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

#include <malloc.h>

#include "loadgen/load/prompt.h"
#include "loadgen/load/report.h"

#define N_FAILURES_MAX 20000
#define N_REQUESTS 12
/* After this many runs without a failure, all allocations have failed once. */
#define N_QUIET 3

static struct scratch scratch;

/* --- the loaded files --- */

static const char *const files[][2] = {
    {"1_sys_prompt.jsonl", "{\"sys_prompt_id\": 1, \"token_length\": 30}\n"},
    {"2_passages.jsonl", "{\"passage_id\": 10, \"token_length\": 20}\n"},
    {"3_history.jsonl", "{\"history_id\": 20, \"token_length\": 5}\n"},
    {"4_user_input.jsonl", "{\"user_input_id\": 30, \"token_length\": 4}\n"},
    {"5_web_search.jsonl", "{\"web_search_id\": 40, \"token_length\": 3}\n"},
    {"0_trace.jsonl", "{\"timestamp\": \"3\", \"input_length\": 62, \"output_length\": 6, "
                      "\"hash_ids\": {\"sys_prompt\": [1], \"passages_ids\": [10], "
                      "\"history\": [20], \"web_search\": [40], \"user_input\": [30]}, "
                      "\"session_id\": \"s\"}\n"},
    {"documents.jsonl", "{\"doc_id\": 1, \"title\": \"A\", \"text\": \"One two three.\"}\n"
                        "{\"doc_id\": 2, \"title\": \"B\", \"text\": \"Four five.\"}\n"},
    {"questions.jsonl", "{\"q_id\": 1, \"question\": \"Why?\", "
                        "\"retrieved\": [2, 1]}\n"},
    {"blocks.jsonl", "{\"timestamp\": 0, \"input_length\": 40, \"output_length\": 5, \"hash_ids\": "
                     "[1, 2]}\n{\"timestamp\": 7, \"input_length\": 9, \"output_length\": 5}\n"},
    {"azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,48,10\n"},
    {"lengths.csv", "num_prefill_tokens,num_decode_tokens\n74,9\n12,3\n"},
    {"file.jsonl", "{\"prompt\": \"Hi\", \"output_len\": 3, \"timestamp\": 1, "
                   "\"body\": {\"n\": 1}}\n"
                   "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": "
                   "\"user\", \"content\": \"Hi\"}], \"documents\": [{\"text\": \"D\"}]}\n"},
    {"sharegpt.json", "[{\"conversations\": [{\"value\": \"A first question\"}, {\"value\": "
                      "\"and what was answered\"}]}]"},
};

static const struct {
    enum workload_kind kind;
    const char *data; /* in the scratch directory; "": the directory itself, NULL: none */
} workloads[] = {
    {WORKLOAD_RANDOM, NULL},
    {WORKLOAD_PREFIX, NULL},
    {WORKLOAD_MULTITURN, NULL},
    {WORKLOAD_RAG, NULL},
    {WORKLOAD_RAG, ""},
    {WORKLOAD_MIX, NULL},
    {WORKLOAD_TRACE, ""},
    {WORKLOAD_TRACE, "blocks.jsonl"},
    {WORKLOAD_TRACE, "azure.csv"},
    {WORKLOAD_LENGTHS, "lengths.csv"},
    {WORKLOAD_FILE, "file.jsonl"},
    {WORKLOAD_FILE, "sharegpt.json"},
};

/* --- everything with one failure --- */

static const struct prompt_style styles[] = {
    {.kind = TARN_CHAT,
     .model = "m",
     .tokens_per_word = 1.5,
     .stream = true,
     .documents_field = true,
     .extra_body = "{\"a\": [1]}",
     .top_p = TARN_UNSET_REAL,
     .sampling_seed = TARN_UNSET},
    {.kind = TARN_CHAT,
     .model = "m",
     .tokens_per_word = 1.5,
     .stream = true,
     .top_p = TARN_UNSET_REAL,
     .sampling_seed = TARN_UNSET},
    {.kind = TARN_COMPLETION,
     .model = "m",
     .tokens_per_word = 1,
     .stream = true,
     .ids = true,
     .id_lo = 300,
     .id_hi = 500,
     .top_p = TARN_UNSET_REAL,
     .sampling_seed = TARN_UNSET},
};

static enum status build_bodies(const struct load_request *r, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < sizeof styles / sizeof styles[0]; i++) {
        bool has_text = r->parts[0].text != NULL;
        struct tarn_body body;
        if (styles[i].ids && has_text)
            continue; /* these workloads have texts, not ids */
        s = prompt_build(&body, &styles[i], r, NULL, why);
        if (s == OK)
            tarn_body_fini(&body);
    }
    return s;
}

/* An answer of three tokens, or a refusal, made up from the request. */
static enum status answer(struct outcome_list *list, const struct load_request *r)
{
    struct outcome o;
    enum status s = OK;

    outcome_init(&o, r);
    o.measured = true;
    o.intended_ns = o.free_ns = o.sent_ns = 1000000000 + 1000000 * r->index;
    for (uint32_t i = 1; s == OK && i <= 3; i++)
        s = outcome_token(&o, o.intended_ns + i * 5000000);
    if (s == OK) {
        o.first_ns = o.token_ns[0];
        o.last_ns = o.end_ns = o.token_ns[2];
        o.end = r->index % 5 ? OUTCOME_OK : OUTCOME_FAILED;
        o.error = o.end == OUTCOME_OK ? TARN_OK : TARN_ERR_RESET;
        o.priority = (int32_t)(r->index % 2);
        s = outcome_list_push(list, &o);
    }
    if (s != OK)
        outcome_fini(&o);
    return s;
}

static enum status ask(struct outcome_list *list, const struct workload_config *c, struct buf *why)
{
    struct workload *w = NULL;
    struct load_request r;
    enum status s = workload_create(&w, c, why);

    for (int i = 0; s == OK && i < N_REQUESTS; i++) {
        s = workload_next(w, &r);
        if (s != OK)
            break;
        s = build_bodies(&r, why);
        if (s == OK)
            s = answer(list, &r);
        load_request_fini(&r);
    }
    workload_destroy(w);
    return s == ERR_NOT_FOUND && list->n > 0 ? OK : s; /* the data ended */
}

static enum status report_all(const struct outcome_list *list, struct options *o, struct buf *why)
{
    static const char *const names[] = {"a", "b"};
    static const struct http_loop_stats loop;
    static const struct target target = {.url = "http://x", .model = "m"};
    struct metrics m;
    struct metrics_options how = {o->percents, 1000000000, 0, names, 2};
    enum status s = metrics_compute(&m, list->v, list->n, &how);

    if (s != OK)
        return s;
    struct report r = {.options = o,
                       .target = &target,
                       .metrics = &m,
                       .outcomes = list,
                       .loop = &loop,
                       .start_ns = 1000000000};
    s = report_write_files(&r, why);
    metrics_fini(&m);
    return s;
}

static enum status read_options(struct options *o, struct buf *why)
{
    char json[128], raw[128], csv[128];
    char *argv[] = {(char *)"tarn-loadgen",
                    (char *)"--json",
                    json,
                    (char *)"--raw",
                    raw,
                    (char *)"--csv",
                    csv,
                    (char *)"--save-detailed",
                    (char *)"--tenant",
                    (char *)"name=a,share=1,ttft=100",
                    (char *)"--goodput",
                    (char *)"e2el:10",
                    (char *)"--metadata",
                    (char *)"k=v"};

    snprintf(json, sizeof json, "%s/out.json", scratch.dir);
    snprintf(raw, sizeof raw, "%s/out.raw", scratch.dir);
    snprintf(csv, sizeof csv, "%s/out.csv", scratch.dir);
    return options_load(o, sizeof argv / sizeof argv[0], argv, why);
}

static enum status once(long fail_at, const struct workload_config *c, bool *failed,
                        struct buf *why)
{
    struct outcome_list list = {0};
    struct options o = {0};

    fail_in = fail_at;
    enum status s = read_options(&o, why);
    if (s == OK)
        s = ask(&list, c, why);
    if (s == OK)
        s = report_all(&list, &o, why);
    *failed = fail_in == 0 && fail_at > 0;
    fail_in = 0;
    outcome_list_fini(&list);
    options_fini(&o);
    return s;
}

/* Allocated bytes. main() turns malloc's per-thread cache off, which would count as allocated. */
static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

/* A hash of the raw results, whose times are constants and so always the same. */
static uint64_t digest_of_results(void)
{
    char path[128];
    uint64_t h = 0;
    int ch;

    snprintf(path, sizeof path, "%s/out.raw", scratch.dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while ((ch = fgetc(f)) != EOF)
        h = draw_mix(h, (uint64_t)ch);
    fclose(f);
    return h;
}

static void check_workload(const struct workload_config *c, const char *name)
{
    long n = 0, n_reported = 0;
    int quiet = 0;
    bool failed;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (once(0, c, &failed, &why) != OK)
        fail_msg("%s: %s", name, buf_str(&why));
    uint64_t digest = digest_of_results();
    assert_ok(once(0, c, &failed, NULL)); /* stdio and jansson have allocated what they keep */
    size_t before = in_use();
    while (n < N_FAILURES_MAX && quiet < N_QUIET) {
        enum status s = once(++n, c, &failed, &why);
        /* Writing a reason may need the memory that is missing; a status does not. A JSON line that
         * could not be read for lack of memory may count as broken, and one that could not be
         * written as too large, because jansson does not tell the difference. */
        if (s != OK && s != ERR_NOMEM && s != ERR_INVALID && s != ERR_IO && s != ERR_TOO_LARGE)
            fail_msg("%s, allocation %ld: status %s", name, n, status_name(s));
        if (s != OK && !failed)
            fail_msg("%s, allocation %ld: %s without a failure: %s", name, n, status_name(s),
                     buf_str(&why));
        if (s == OK && digest_of_results() != digest)
            fail_msg("%s, allocation %ld: other results, and no error", name, n);
        n_reported += s != OK;
        quiet = failed ? 0 : quiet + 1;
        buf_fini(&why);
        buf_init(&why, BUF_WHY_MAX);
        if (in_use() > before)
            fail_msg("%s, allocation %ld: %zu bytes leaked", name, n, in_use() - before);
    }
    assert_ok(once(0, c, &failed, NULL));
    print_message("%s: %ld allocations failed, %ld of them reported\n", name, n - quiet,
                  n_reported);
    assert_true(n_reported > 20 && n < N_FAILURES_MAX);
}

static void every_allocation_may_fail(void **state)
{
    char path[256];

    (void)state;
    for (size_t i = 0; i < sizeof workloads / sizeof workloads[0]; i++) {
        struct workload_config c = usual_config(workloads[i].kind);
        if (workloads[i].data) {
            snprintf(path, sizeof path, "%s/%s", scratch.dir, workloads[i].data);
            c.data = path;
        }
        if (c.kind == WORKLOAD_TRACE)
            c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE};
        if (workloads[i].data && strcmp(workloads[i].data, "sharegpt.json") == 0)
            c.file = (struct file_options){FILE_SHAREGPT, .shuffle = true, .repeats = true};
        if (c.kind == WORKLOAD_MIX) {
            assert_ok(tenant_parse(&c.tenants[0], "name=x,share=2,priority=3", NULL));
            assert_ok(tenant_parse(&c.tenants[1], "name=y,share=1,input=uniform:3:9", NULL));
            c.n_tenants = 2;
        }
        c.n_documents = c.kind == WORKLOAD_RAG && !c.data ? 5 : 0;
        char name[64];
        snprintf(name, sizeof name, "%s %s", workload_kind_name(c.kind),
                 !workloads[i].data     ? ""
                 : workloads[i].data[0] ? workloads[i].data
                                        : "directory");
        check_workload(&c, name);
    }
}

static int set_up(void **state)
{
    (void)state;
    scratch_init(&scratch);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        scratch_write(&scratch, files[i][0], files[i][1]);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_fini(&scratch);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!getenv("GLIBC_TUNABLES")) {
        assert_int_equal(setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1), 0);
        execv("/proc/self/exe", argv);
    }
    mallopt(M_MXFAST, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_allocation_may_fail, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
