#include "tests/unit/loadgen/loadgen_test.h"

#include "base/buf.h"
#include "loadgen/load/words.h"

/* A digest of all fields of a request. */
static uint64_t digest(const struct load_request *r)
{
    uint64_t h = r->index;

    h = draw_mix(h, (uint64_t)(r->arrival_s * 1e9));
    h = draw_mix(h, r->session);
    h = draw_mix(h, r->turn + ((uint64_t)r->follows << 32) + ((uint64_t)r->leads << 33));
    h = draw_mix(h, r->n_output_tokens);
    h = draw_mix(h, r->tenant + ((uint64_t)(uint32_t)r->priority << 32));
    h = draw_mix(h, r->disconnect_after + ((uint64_t)r->slow_reader << 32));
    for (uint32_t i = 0; i < r->n_parts; i++) {
        h = draw_mix(h, r->parts[i].id);
        h = draw_mix(h, r->parts[i].n_tokens + ((uint64_t)r->parts[i].role << 32));
    }
    return h;
}

static uint64_t digest_of_run(const struct workload_config *c, int n)
{
    struct workload *w;
    struct load_request r;
    uint64_t h = 0;

    assert_ok(workload_create(&w, c, NULL));
    for (int i = 0; i < n; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.index, i);
        assert_true(r.n_parts > 0);
        h = draw_mix(h, digest(&r));
        load_request_fini(&r);
    }
    workload_destroy(w);
    return h;
}

static void equal_seeds_make_equal_requests(void **state)
{
    static const enum workload_kind kinds[] = {WORKLOAD_RANDOM, WORKLOAD_PREFIX, WORKLOAD_MULTITURN,
                                               WORKLOAD_RAG, WORKLOAD_MIX};

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct workload_config c = usual_config(kinds[i]);
        c.disconnect_share = c.slow_share = 0.1;
        uint64_t h = digest_of_run(&c, 200);
        assert_true(h == digest_of_run(&c, 200));
        c.seed++;
        assert_true(h != digest_of_run(&c, 200));
    }
}

static void prefixes_are_shared_and_what_follows_is_not(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_PREFIX);
    uint64_t prefixes[4];
    struct workload *w;
    struct load_request r;
    int n_prefixes = 0;

    (void)state;
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 100; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.n_parts, 2);
        assert_int_equal(r.parts[0].n_tokens, 64);
        int k = 0;
        while (k < n_prefixes && prefixes[k] != r.parts[0].id)
            k++;
        if (k == n_prefixes) {
            assert_true(n_prefixes < 4);
            prefixes[n_prefixes++] = r.parts[0].id;
        }
        assert_true(r.parts[1].id != r.parts[0].id);
        assert_in_range(r.parts[1].n_tokens, 10, 50);
        assert_in_range(r.n_output_tokens, 5, 9);
        load_request_fini(&r);
    }
    assert_int_equal(n_prefixes, 4);
    workload_destroy(w);
}

/* Turn k's parts are turn k-1's parts, then its answer, then something new. */
static void each_turn_begins_with_the_one_before(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_MULTITURN);
    struct load_request before = {0}, r;
    struct workload *w;
    int n_followed = 0;

    (void)state;
    c.has_system = true;
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 60; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.follows, before.leads);
        assert_int_equal(r.follows, r.turn > 0);
        if (r.follows) {
            n_followed++;
            assert_int_equal(r.session, before.session);
            assert_int_equal(r.tenant, before.tenant);
            assert_int_equal(r.n_parts, before.n_parts + 2);
            for (uint32_t k = 0; k < before.n_parts; k++) {
                assert_true(r.parts[k].id == before.parts[k].id);
                assert_int_equal(r.parts[k].n_tokens, before.parts[k].n_tokens);
            }
            const struct part *answer = &r.parts[before.n_parts];
            assert_int_equal(answer->role, PART_ASSISTANT);
            assert_int_equal(answer->answer_of, before.turn);
            assert_int_equal(answer->n_tokens, before.n_output_tokens);
        }
        load_request_fini(&before);
        before = r;
    }
    assert_true(n_followed > 20);
    load_request_fini(&before);
    workload_destroy(w);
}

static void made_documents_are_zipf_popular_and_different(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_RAG);
    uint64_t ids[40] = {0};
    int counts[40] = {0}, n_ids = 0, top = 0;
    struct workload *w;
    struct load_request r;

    (void)state;
    c.n_documents = 40;
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 2000; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.n_parts, 3);
        assert_true(r.parts[0].id != r.parts[1].id);
        assert_int_equal(r.parts[2].role, PART_USER);
        for (int d = 0; d < 2; d++) {
            assert_int_equal(r.parts[d].role, PART_DOCUMENT);
            int k = 0;
            while (k < n_ids && ids[k] != r.parts[d].id)
                k++;
            if (k == n_ids)
                ids[n_ids++] = r.parts[d].id;
            counts[k]++;
        }
        load_request_fini(&r);
    }
    assert_int_equal(n_ids, 40);
    for (int k = 0; k < 40; k++)
        top = counts[k] > top ? counts[k] : top;
    /* The first of 40 has 23 % of single draws; the second of two different ones a little less. */
    assert_in_range(top, 2000 * 0.38, 2000 * 0.48);
    workload_destroy(w);
}

static const char *const documents =
    "{\"doc_id\": 5, \"title\": \"Five\", \"text\": \"text of five\"}\n"
    "{\"doc_id\": 0, \"title\": \"Zero\", \"text\": \"text of zero\"}\n"
    "{\"doc_id\": 9, \"text\": \"text of nine\"}\n";
static const char *const questions =
    "{\"q_id\": 0, \"question\": \"which?\", \"bm25_top5\": [9, 5, 0]}\n"
    "{\"q_id\": 7, \"question\": \"nothing was found\", \"bm25_top5\": []}\n"
    "{\"q_id\": 1, \"question\": \"what?\", \"bm25_top5\": [0, 5, 9]}\n";

static void the_datas_lists_are_taken_in_order(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_RAG);
    struct scratch x;
    struct workload *w;
    struct load_request r;
    int n_which = 0;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "documents.jsonl", documents);
    scratch_write(&x, "questions.jsonl", questions);
    c.data = x.dir;
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 10; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.n_parts, 3);
        bool which = strcmp(r.parts[2].text, "which?") == 0;
        n_which += which;
        assert_string_equal(r.parts[0].text, which ? "text of nine" : "text of zero");
        assert_string_equal(r.parts[1].text, "text of five");
        assert_string_equal(r.parts[1].title, "Five");
        load_request_fini(&r);
    }
    assert_int_equal(n_which, 5); /* every question comes once before any comes twice */
    workload_destroy(w);
    c.keeps_order = true;
    for (c.seed = 1; c.seed <= 8; c.seed++) {
        assert_ok(workload_create(&w, &c, NULL));
        for (int i = 0; i < 4; i++) {
            assert_ok(workload_next(w, &r));
            assert_string_equal(r.parts[2].text, i % 2 == 0 ? "which?" : "what?");
            load_request_fini(&r);
        }
        workload_destroy(w);
    }
    scratch_fini(&x);
}

static void only_questions_inside_the_first_documents_are_asked(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_RAG);
    struct scratch x;
    struct workload *w;
    struct buf why;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "documents.jsonl", documents);
    scratch_write(&x, "questions.jsonl", questions);
    c.data = x.dir;
    c.n_documents = 2;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(workload_create(&w, &c, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "--retrieval draw"));
    c.draw_documents = true;
    c.popularity = POPULARITY_ZIPF;
    assert_ok(workload_create(&w, &c, NULL));
    workload_destroy(w);
    scratch_write(&x, "documents.jsonl", "{\"doc_id\": 1, \"text\": \"a\"}\n{\"doc_id\": 2}\n");
    assert_int_equal(workload_create(&w, &c, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "documents.jsonl:2: text: expected a string"));
    buf_fini(&why);
    scratch_fini(&x);
}

static void tenants_have_their_shares_lengths_and_priorities(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_MIX);
    int counts[2] = {0};
    struct workload *w;
    struct load_request r;

    (void)state;
    c.n_tenants = 2;
    assert_ok(
        tenant_parse(&c.tenants[0], "name=a,share=3,priority=-2,input=5,output=6,ttft=100", NULL));
    assert_ok(tenant_parse(&c.tenants[1], "name=b,share=1", NULL));
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 4000; i++) {
        assert_ok(workload_next(w, &r));
        counts[r.tenant]++;
        if (r.tenant == 0) {
            assert_int_equal(r.priority, -2);
            assert_int_equal(r.parts[0].n_tokens, 5);
            assert_int_equal(r.n_output_tokens, 6);
            assert_near(r.slo.limit_ms[SLO_TTFT], 100, 0);
        } else {
            assert_false(r.has_priority);
            assert_false(slo_is_set(&r.slo));
        }
        load_request_fini(&r);
    }
    assert_near(counts[0], 3000, 140);
    assert_string_equal(workload_tenant_name(w, 1), "b");
    workload_destroy(w);
}

static void wrong_tenants_are_refused(void **state)
{
    static const char *const wrong[] = {"",
                                        "share=1",
                                        "name=a,share=x",
                                        "name=a,share=-1",
                                        "name=a,priority=1.5",
                                        "name=a,color=red",
                                        "name",
                                        "name=a,input=0",
                                        "name=a,ttft=0"};
    struct tenant t;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(tenant_parse(&t, wrong[i], &why), ERR_INVALID);
    buf_fini(&why);
}

static void a_file_is_asked_line_by_line(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_FILE);
    struct scratch x;
    struct workload *w;
    struct load_request r;

    (void)state;
    scratch_init(&x);
    c.data = scratch_write(&x, "f.jsonl",
                           "{\"prompt\": \"one\", \"output_len\": 3, \"timestamp\": 7, "
                           "\"priority\": 4}\n"
                           "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": "
                           "\"user\", \"content\": \"u\"}], \"timestamp\": 5, "
                           "\"body\": {\"top_k\": 1}}\n");
    c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE};
    assert_ok(workload_create(&w, &c, NULL));
    assert_int_equal(workload_size(w), 2);
    assert_ok(workload_next(w, &r)); /* sorted by time */
    assert_int_equal(r.n_parts, 2);
    assert_int_equal(r.parts[0].role, PART_SYSTEM);
    assert_string_equal(r.extra, "{\"top_k\":1}");
    assert_near(r.arrival_s, 0, 0);
    load_request_fini(&r);
    assert_ok(workload_next(w, &r));
    assert_string_equal(r.parts[0].text, "one");
    assert_int_equal(r.n_output_tokens, 3);
    assert_int_equal(r.priority, 4);
    assert_near(r.arrival_s, 2, 0);
    load_request_fini(&r);
    assert_int_equal(workload_next(w, &r), ERR_NOT_FOUND);
    workload_destroy(w);
    scratch_fini(&x);
}

static const char *const conversations =
    "[{\"id\": \"a\", \"conversations\": ["
    "{\"from\": \"human\", \"value\": \"the first of three\"}, "
    "{\"value\": \"an answer of 32 bytes, 8 tokens.\"}, {\"value\": \"never asked\"}]},\n"
    " {\"conversations\": [{\"value\": \"a second conversation\"}, "
    "{\"value\": \"an answer of twenty.\"}], \"priority\": \"not ours\", \"documents\": 7},\n"
    " {\"conversations\": [{\"value\": \"nobody answers this one\"}]},\n"
    " {\"conversations\": [{\"value\": \"short\"}, {\"value\": \"too short to be asked\"}]},\n"
    " {\"conversations\": [{\"value\": \"with a short answer\"}, {\"value\": \"No.\"}]}]\n";

/* Count how often each of the texts is asked for by n requests. */
static void count_prompts(const struct workload_config *c, int n, const char *const *texts,
                          int n_texts, int *counts)
{
    struct workload *w;
    struct load_request r;

    assert_ok(workload_create(&w, c, NULL));
    memset(counts, 0, (size_t)n_texts * sizeof *counts);
    for (int i = 0; i < n; i++) {
        assert_ok(workload_next(w, &r));
        assert_int_equal(r.n_parts, 1);
        assert_int_equal(r.parts[0].role, PART_USER);
        int k = 0;
        while (k < n_texts && strcmp(r.parts[0].text, texts[k]) != 0)
            k++;
        assert_true(k < n_texts);
        counts[k]++;
        load_request_fini(&r);
    }
    workload_destroy(w);
}

static void conversations_are_asked_as_vllm_asks_them(void **state)
{
    static const char *const texts[] = {"the first of three", "a second conversation",
                                        "with a short answer"};
    struct workload_config c = usual_config(WORKLOAD_FILE);
    struct scratch x;
    struct workload *w;
    struct load_request r;
    int counts[3];

    (void)state;
    scratch_init(&x);
    c.data = scratch_write(&x, "c.json", conversations);
    c.file.format = FILE_SHAREGPT;
    assert_ok(workload_create(&w, &c, NULL));
    assert_int_equal(workload_size(w), 2);
    assert_ok(workload_next(w, &r));
    assert_string_equal(r.parts[0].text, texts[0]);
    assert_int_equal(r.n_output_tokens, 8); /* four bytes a token */
    load_request_fini(&r);
    assert_ok(workload_next(w, &r));
    assert_int_equal(r.n_output_tokens, 5);
    load_request_fini(&r);
    assert_int_equal(workload_next(w, &r), ERR_NOT_FOUND);
    workload_destroy(w);
    c.output_given = true; /* then a short answer does not matter, and the rows may repeat */
    c.file.repeats = c.file.shuffle = true;
    count_prompts(&c, 3, texts, 3, counts);
    assert_true(counts[0] == 1 && counts[1] == 1 && counts[2] == 1);
    count_prompts(&c, 300, texts, 3, counts);
    for (int i = 0; i < 3; i++)
        assert_in_range(counts[i], 60, 140);
    scratch_fini(&x);
}

static void rows_are_shuffled_by_the_seed(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_FILE);
    struct scratch x;
    char text[4096] = "";
    uint64_t plain, shuffled;

    (void)state;
    scratch_init(&x);
    for (int i = 0; i < 40; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"prompt\": \"row %d\"}\n", i);
    c.data = scratch_write(&x, "f.jsonl", text);
    plain = digest_of_run(&c, 40);
    c.file.shuffle = true;
    shuffled = digest_of_run(&c, 40);
    assert_true(plain != shuffled);
    assert_true(shuffled == digest_of_run(&c, 40));
    c.seed++;
    assert_true(shuffled != digest_of_run(&c, 40));
    scratch_fini(&x);
}

static void wrong_conversations_are_named(void **state)
{
    static const char *const wrong[][2] = {
        {"{}", "expected a JSON array"},
        {"[]", "holds no conversation"},
        {"[{\"conversations\": [{\"value\": 5}, {\"value\": \"x\"}]}]",
         "[0].conversations: expected objects with a text in value"},
        {"[{\"conversations\": [{\"value\": \"a\"}, 5]}]", "[0].conversations"},
        {"[", "c.json"},
    };
    struct workload_config c = usual_config(WORKLOAD_FILE);
    struct scratch x;
    struct workload *w;
    struct buf why;

    (void)state;
    scratch_init(&x);
    buf_init(&why, BUF_WHY_MAX);
    c.file.format = FILE_SHAREGPT;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        c.data = scratch_write(&x, "c.json", wrong[i][0]);
        buf_reset(&why);
        assert_int_equal(workload_create(&w, &c, &why), ERR_INVALID);
        if (!strstr(buf_str(&why), wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], buf_str(&why));
    }
    buf_fini(&why);
    scratch_fini(&x);
}

static void hostile_files_are_named(void **state)
{
    static const char *const lines[] = {
        "{}",
        "{\"prompt\": 5}",
        "{\"prompt\": \"a\", \"messages\": []}",
        "{\"messages\": []}",
        "{\"messages\": [{\"role\": \"user\"}]}",
        "{\"messages\": [5]}",
        "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}",
        "{\"prompt\": \"a\", \"documents\": [{\"title\": \"t\"}]}",
        "{\"prompt\": \"a\", \"output_len\": 0}",
        "{\"prompt\": \"a\", \"body\": []}",
        "{\"prompt\": \"a\", \"tenant\": \"nobody\"}",
        "{\"prompt\": \"a\", \"timestamp\": -1}",
    };
    struct workload_config c = usual_config(WORKLOAD_FILE);
    struct scratch x;
    struct workload *w;
    struct buf why;
    char text[512];

    (void)state;
    scratch_init(&x);
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(text, sizeof text, "{\"prompt\": \"good\"}\n%s\n", lines[i]);
        c.data = scratch_write(&x, "f.jsonl", text);
        assert_int_equal(workload_create(&w, &c, &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), "f.jsonl:2: "));
    }
    buf_fini(&why);
    scratch_fini(&x);
}

static void traces_are_replayed_with_scale_speed_and_limits(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_TRACE);
    struct scratch x;
    struct workload *w;
    struct load_request r;

    (void)state;
    scratch_init(&x);
    c.data = scratch_write(&x, "t.jsonl",
                           "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 50, "
                           "\"hash_ids\": [1, 2]}\n"
                           "{\"timestamp\": 6000, \"input_length\": 600, \"output_length\": 500, "
                           "\"hash_ids\": [1, 3]}\n");
    c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE};
    c.trace_speed = 3;
    c.input_scale = 0.5;
    c.output_max = 100;
    assert_ok(workload_create(&w, &c, NULL));
    assert_ok(workload_next(w, &r));
    uint64_t shared = r.parts[0].id;
    assert_int_equal(r.n_prompt_tokens, 500);
    assert_int_equal(r.n_output_tokens, 50);
    load_request_fini(&r);
    assert_ok(workload_next(w, &r));
    assert_near(r.arrival_s, 2, 1e-12);
    assert_true(r.parts[0].id == shared);
    assert_int_equal(r.n_output_tokens, 100);
    load_request_fini(&r);
    assert_int_equal(workload_next(w, &r), ERR_NOT_FOUND);
    workload_destroy(w);
    scratch_fini(&x);
}

static void a_traces_times_are_scaled_to_a_mean_rate(void **state)
{
    static const char *const texts[] = {
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n"
        "{\"timestamp\": 1000, \"input_length\": 1, \"output_length\": 1}\n"
        "{\"timestamp\": 8000, \"input_length\": 1, \"output_length\": 1}\n",
        "{\"timestamp\": 10, \"prompt\": \"a\"}\n"
        "{\"timestamp\": 11, \"prompt\": \"b\"}\n"
        "{\"timestamp\": 18, \"prompt\": \"c\"}\n"};
    static const double want_s[] = {0, 0.5, 4}; /* two gaps in 4 s */

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct workload_config c = usual_config(k ? WORKLOAD_FILE : WORKLOAD_TRACE);
        struct scratch x;
        struct workload *w;
        struct load_request r;

        scratch_init(&x);
        c.data = scratch_write(&x, "t.jsonl", texts[k]);
        c.trace.format = TRACE_MOONCAKE;
        c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE, .rate = 0.5};
        assert_ok(workload_create(&w, &c, NULL));
        for (int i = 0; i < 3; i++) {
            assert_ok(workload_next(w, &r));
            assert_near(r.arrival_s, want_s[i], 1e-12);
            load_request_fini(&r);
        }
        workload_destroy(w);
        scratch_fini(&x);
    }
}

static void rows_of_one_time_hold_no_rate(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_TRACE);
    struct scratch x;
    struct workload *w;

    (void)state;
    scratch_init(&x);
    c.data = scratch_write(&x, "t.jsonl",
                           "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1}\n"
                           "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1}\n");
    c.trace.format = TRACE_MOONCAKE;
    c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE, .rate = 0.5};
    assert_int_equal(workload_create(&w, &c, NULL), ERR_INVALID);
    scratch_fini(&x);
}

static void troubles_come_at_their_rates(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_RANDOM);
    int n_disconnects = 0, n_slow = 0, n_verify = 0;
    struct workload *w;
    struct load_request r;

    (void)state;
    c.disconnect_share = 0.2;
    c.slow_share = 0.1;
    c.verify_share = 0.3;
    assert_ok(workload_create(&w, &c, NULL));
    for (int i = 0; i < 10000; i++) {
        assert_ok(workload_next(w, &r));
        if (r.disconnect_after != NO_DISCONNECT) {
            n_disconnects++;
            assert_true(r.disconnect_after <= r.n_output_tokens);
            assert_false(r.slow_reader || r.verify);
        }
        n_slow += r.slow_reader;
        n_verify += r.verify;
        load_request_fini(&r);
    }
    assert_near(n_disconnects, 2000, 200);
    assert_near(n_slow, 800, 140);
    assert_near(n_verify, 2400, 220);
    workload_destroy(w);
}

static void equal_ids_make_equal_text_and_shorter_is_a_prefix(void **state)
{
    struct buf a, b, c;

    (void)state;
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    buf_init(&c, 1 << 20);
    assert_ok(words_write(&a, 42, 100));
    assert_ok(words_write(&b, 42, 37));
    assert_ok(words_write(&c, 43, 100));
    assert_memory_equal(a.data, b.data, b.len);
    assert_string_not_equal(a.data, c.data);
    int n_blanks = 0;
    for (size_t i = 0; i < a.len; i++)
        n_blanks += a.data[i] == ' ';
    assert_int_equal(n_blanks, 100);
    buf_reset(&a);
    buf_reset(&b);
    assert_ok(words_write_ids(&a, 42, 50, 300, 500));
    assert_ok(words_write_ids(&b, 42, 20, 300, 500));
    assert_memory_equal(a.data, b.data, b.len);
    for (int i = 0; i < 50; i++) {
        uint32_t id;
        memcpy(&id, a.data + 4 * i, 4);
        assert_in_range(id, 300, 499);
    }
    buf_fini(&a);
    buf_fini(&b);
    buf_fini(&c);
}

static void what_cannot_be_is_refused(void **state)
{
    struct workload_config c = usual_config(WORKLOAD_TRACE);
    struct workload *w;

    (void)state;
    assert_int_equal(workload_create(&w, &c, NULL), ERR_INVALID); /* no data */
    c = usual_config(WORKLOAD_RANDOM);
    c.arrival = (struct arrival_config){.kind = ARRIVAL_TRACE};
    assert_int_equal(workload_create(&w, &c, NULL), ERR_INVALID);
    c = usual_config(WORKLOAD_RAG);
    c.n_retrieved = 0;
    assert_int_equal(workload_create(&w, &c, NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_seeds_make_equal_requests),
        cmocka_unit_test(prefixes_are_shared_and_what_follows_is_not),
        cmocka_unit_test(each_turn_begins_with_the_one_before),
        cmocka_unit_test(made_documents_are_zipf_popular_and_different),
        cmocka_unit_test(the_datas_lists_are_taken_in_order),
        cmocka_unit_test(only_questions_inside_the_first_documents_are_asked),
        cmocka_unit_test(tenants_have_their_shares_lengths_and_priorities),
        cmocka_unit_test(wrong_tenants_are_refused),
        cmocka_unit_test(a_file_is_asked_line_by_line),
        cmocka_unit_test(conversations_are_asked_as_vllm_asks_them),
        cmocka_unit_test(rows_are_shuffled_by_the_seed),
        cmocka_unit_test(wrong_conversations_are_named),
        cmocka_unit_test(hostile_files_are_named),
        cmocka_unit_test(traces_are_replayed_with_scale_speed_and_limits),
        cmocka_unit_test(a_traces_times_are_scaled_to_a_mean_rate),
        cmocka_unit_test(rows_of_one_time_hold_no_rate),
        cmocka_unit_test(troubles_come_at_their_rates),
        cmocka_unit_test(equal_ids_make_equal_text_and_shorter_is_a_prefix),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
