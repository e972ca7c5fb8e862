#include "tests/unit/loadgen/loadgen_test.h"

#include "loadgen/load/trace.h"

static const struct trace_options plain;

static void mooncake_blocks_become_parts(void **state)
{
    struct scratch x;
    struct trace t;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "t.jsonl",
                  "{\"timestamp\": 3000, \"input_length\": 700, \"output_length\": 5, "
                  "\"hash_ids\": [0, 9]}\n"
                  "\n"
                  "{\"timestamp\": 1000, \"input_length\": 512, \"output_length\": 0, "
                  "\"hash_ids\": [0]}\n"
                  "{\"timestamp\": 1000, \"input_length\": 30, \"output_length\": 7}\n");
    assert_ok(trace_load(&t, x.path, &plain, NULL));
    assert_int_equal(t.n_rows, 3);
    /* Sorted by time from 0; rows of one time keep their order. */
    assert_near(t.rows[0].at_s, 0, 0);
    assert_near(t.rows[1].at_s, 0, 0);
    assert_near(t.rows[2].at_s, 2, 1e-12);
    assert_int_equal(t.rows[0].input_len, 512);
    assert_int_equal(t.rows[0].output_len, 1); /* 0 cannot be asked for */
    assert_int_equal(t.rows[1].n_parts, 0);
    const struct trace_row *last = &t.rows[2];
    assert_int_equal(last->n_parts, 2);
    const struct trace_part *p = &t.parts[last->first_part];
    assert_int_equal(p[0].n_tokens, 512);
    assert_int_equal(p[1].n_tokens, 188);
    assert_true(p[0].id == t.parts[t.rows[0].first_part].id);
    assert_true(p[0].id != p[1].id);
    trace_fini(&t);
    scratch_fini(&x);
}

static void a_block_size_can_be_given(void **state)
{
    const struct trace_options small = {.format = TRACE_MOONCAKE, .block_tokens = 16};
    struct scratch x;
    struct trace t;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "t.jsonl",
                  "{\"timestamp\": 0, \"input_length\": 50, \"output_length\": 5, "
                  "\"hash_ids\": [1, 2]}\n");
    assert_ok(trace_load(&t, x.path, &small, NULL));
    /* Two named blocks; the rest belongs to this row only. */
    assert_int_equal(t.rows[0].n_parts, 3);
    assert_int_equal(t.parts[2].n_tokens, 18);
    trace_fini(&t);
    scratch_fini(&x);
}

/* As `vllm bench serve --dataset-name timed_trace` has it: seconds, 16 tokens an id. */
static void a_timed_trace_counts_in_seconds(void **state)
{
    struct trace_options o = {.format = TRACE_TIMED};
    struct scratch x;
    struct trace t;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "t.jsonl",
                  "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, "
                  "\"input_length\": 40, \"output_length\": 9, \"type\": \"text\", "
                  "\"turn\": 1, \"hash_ids\": [1089, 1090, 4611686018427387904]}\n"
                  "{\"timestamp\": 62, \"input_length\": 48, \"output_length\": 2, "
                  "\"hash_ids\": [1089, 7]}\n"
                  "{\"timestamp\": 63, \"input_length\": 20, \"output_length\": 2, "
                  "\"hash_ids\": []}\n");
    assert_ok(trace_load(&t, x.path, &o, NULL));
    assert_near(t.rows[1].at_s, 62 - 61.114, 1e-9);
    assert_int_equal(t.rows[0].n_parts, 3);
    assert_int_equal(t.parts[1].n_tokens, 16);
    assert_int_equal(t.parts[2].n_tokens, 8);
    assert_true(t.parts[0].id == t.parts[3].id);
    /* Tokens without a hash id belong to this row only. */
    assert_int_equal(t.rows[1].n_parts, 3);
    assert_int_equal(t.parts[5].n_tokens, 16);
    assert_int_equal(t.rows[2].n_parts, 0);
    assert_int_equal(t.rows[2].input_len, 20);
    trace_fini(&t);
    o.time_unit_s = 0.5; /* --timed-trace-sec-multiplier */
    assert_ok(trace_load(&t, x.path, &o, NULL));
    assert_near(t.rows[1].at_s, 0.5 * (62 - 61.114), 1e-9);
    trace_fini(&t);
    o.time_unit_s = 1e6; /* 62e6 s is practically never, but a valid time */
    assert_ok(trace_load(&t, x.path, &o, NULL));
    trace_fini(&t);
    o.time_unit_s = 1e9;
    assert_int_equal(trace_load(&t, x.path, &o, NULL), ERR_INVALID);
    scratch_fini(&x);
}

static void csv_files_of_three_kinds_are_read(void **state)
{
    struct scratch x;
    struct trace t;

    (void)state;
    scratch_init(&x);
    scratch_write(&x, "azure.csv",
                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                  "2023-11-16 18:17:03.9799600,4808,10\n"
                  "2023-11-17 00:00:00.4799600,110,27\n");
    assert_ok(trace_load(&t, x.path, &plain, NULL));
    assert_true(t.has_times);
    assert_int_equal(t.rows[0].input_len, 4808);
    assert_near(t.rows[1].at_s, 20576.5, 1e-6);
    trace_fini(&t);
    scratch_write(&x, "apex.csv",
                  "start_offset_ns,context_tokens,generated_tokens\r\n"
                  "1500000000,156,67\r\n500000000,4,3\r\n");
    assert_ok(trace_load(&t, x.path, &plain, NULL));
    assert_near(t.rows[1].at_s, 1, 1e-9);
    assert_int_equal(t.rows[1].output_len, 67);
    trace_fini(&t);
    scratch_write(&x, "sharegpt.csv",
                  "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
                  "74,918,992,0.08\n");
    assert_ok(trace_load(&t, x.path, &plain, NULL));
    assert_false(t.has_times);
    trace_fini(&t);
    scratch_fini(&x);
}

static void write_ragpulse(struct scratch *x)
{
    scratch_write(x, "1_sys_prompt.jsonl",
                  "{\"sys_prompt_id\": 1, \"token_length\": 512}\n"
                  "{\"sys_prompt_id\": 2, \"token_length\": 100}\n"
                  "{\"sys_prompt_id\": 3, \"token_length\": 437}\n");
    scratch_write(x, "2_passages.jsonl",
                  "{\"passage_id\": 10, \"token_length\": 84}\n"
                  "{\"passage_id\": 11, \"token_length\": 286}\n");
    scratch_write(x, "3_history.jsonl", "{\"history_id\": 20, \"token_length\": 11}\n");
    scratch_write(x, "4_user_input.jsonl", "{\"user_input_id\": 30, \"token_length\": 9}\n");
    scratch_write(x, "5_web_search.jsonl", "{\"web_search_id\": 40, \"token_length\": 0}\n");
    scratch_write(x, "0_trace.jsonl",
                  "{\"timestamp\": \"93\", \"input_length\": 1439, \"output_length\": 86, "
                  "\"hash_ids\": "
                  "{\"sys_prompt\": [1, 2, 3], \"passages_ids\": [11, 10], \"history\": [20], "
                  "\"web_search\": [40], \"user_input\": [30]}, \"session_id\": \"s-1\"}\n\n");
}

static void ragpulse_parts_stand_in_order(void **state)
{
    static const uint32_t given[] = {512, 100, 437, 286, 84, 11, 9};
    static const uint32_t reuse[] = {512, 100, 286, 84, 437, 11, 9};
    struct trace_options o = {.format = TRACE_AUTO};
    struct scratch x;
    struct trace t;

    (void)state;
    scratch_init(&x);
    write_ragpulse(&x);
    assert_ok(trace_load(&t, x.dir, &o, NULL));
    assert_int_equal(t.rows[0].n_parts, 7); /* the empty web search is left out */
    for (int i = 0; i < 7; i++)
        assert_int_equal(t.parts[i].n_tokens, given[i]);
    assert_int_equal(t.parts[3].role, PART_DOCUMENT);
    assert_true(t.rows[0].session != 0);
    trace_fini(&t);
    o.order = TRACE_ORDER_REUSE;
    assert_ok(trace_load(&t, x.dir, &o, NULL));
    for (int i = 0; i < 7; i++)
        assert_int_equal(t.parts[i].n_tokens, reuse[i]);
    trace_fini(&t);
    scratch_fini(&x);
}

static void hostile_lines_are_named(void **state)
{
    static const char *const lines[] = {
        "{\"timestamp\": 0, \"input_length\": 5",
        "[1, 2]",
        "{\"input_length\": 5, \"output_length\": 5}",
        "{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 5}",
        "{\"timestamp\": \"nan\", \"input_length\": 5, \"output_length\": 5}",
        "{\"timestamp\": 0, \"input_length\": -5, \"output_length\": 5}",
        "{\"timestamp\": 0, \"input_length\": 1e9, \"output_length\": 5}",
        "{\"timestamp\": 0, \"input_length\": 99999999999, \"output_length\": 5}",
        "{\"timestamp\": 0, \"input_length\": 5}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": 7}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [-1]}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [\"x\"]}",
        "\xff\xfe",
    };
    struct scratch x;
    struct trace t;
    struct buf why;
    char text[512], where[300];

    (void)state;
    scratch_init(&x);
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(text, sizeof text, "%s\n%s\n",
                 "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}", lines[i]);
        scratch_write(&x, "t.jsonl", text);
        assert_int_equal(trace_load(&t, x.path, &plain, &why), ERR_INVALID);
        snprintf(where, sizeof where, "%s:2: ", x.path);
        assert_non_null(strstr(buf_str(&why), where));
    }
    buf_fini(&why);
    scratch_fini(&x);
}

static void hostile_csv_is_named(void **state)
{
    static const char *const files[] = {
        "a,b\n1,2\n",
        "context_tokens,generated_tokens\n1\n",
        "context_tokens,generated_tokens\n1,2,3\n",
        "context_tokens,generated_tokens\n1,-2\n",
        "context_tokens,generated_tokens\n1,x\n",
        "context_tokens,generated_tokens\n1,99999999999999999999999\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,1,2\n",
        "context_tokens,generated_tokens\n",
        "",
        ",,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n",
    };
    struct scratch x;
    struct trace t;
    struct buf why;

    (void)state;
    scratch_init(&x);
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        scratch_write(&x, "t.csv", files[i]);
        assert_int_equal(trace_load(&t, x.path, &plain, &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), x.path));
    }
    assert_int_equal(trace_load(&t, "/tmp/no/such/file.csv", &plain, &why), ERR_NOT_FOUND);
    buf_fini(&why);
    scratch_fini(&x);
}

static void an_unknown_ragpulse_id_is_named(void **state)
{
    struct scratch x;
    struct trace t;
    struct buf why;

    (void)state;
    scratch_init(&x);
    write_ragpulse(&x);
    scratch_write(&x, "2_passages.jsonl", "{\"passage_id\": 10, \"token_length\": 84}\n");
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(trace_load(&t, x.dir, &plain, &why), ERR_INVALID);
    assert_non_null(
        strstr(buf_str(&why), "0_trace.jsonl:1: hash_ids: no length is known for id 11"));
    buf_fini(&why);
    scratch_fini(&x);
}

/* The shared traces, where they lie beside the clone, against their known figures. */
static void the_shared_traces_have_their_figures(void **state)
{
    static const struct {
        const char *path;
        size_t n_rows;
        double span_s;
    } files[] = {
        {"traces-mooncake/conversation_trace.jsonl", 12031, 3537},
        {"traces-azure-2023/AzureLLMInferenceTrace_code.csv", 8819, 3436},
        {"traces-ragpulse", 7106, 604603},
        {"lengths-sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", 30731, 0},
        {"lengths-lmsys-apex/lmsys_05_llama_lengths.csv", 1024, -1},
    };
    const char *shared = getenv("TARN_SHARED");
    char path[512];
    struct trace t;

    (void)state;
    if (!shared)
        shared = TARN_SOURCE_DIR "/../shared";
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/data/%s", shared, files[i].path);
        if (access(path, R_OK) != 0)
            skip();
        assert_ok(trace_load(&t, path, &plain, NULL));
        assert_int_equal(t.n_rows, files[i].n_rows);
        if (files[i].span_s >= 0)
            assert_near(t.rows[t.n_rows - 1].at_s, files[i].span_s, 60);
        trace_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mooncake_blocks_become_parts),
        cmocka_unit_test(a_block_size_can_be_given),
        cmocka_unit_test(a_timed_trace_counts_in_seconds),
        cmocka_unit_test(csv_files_of_three_kinds_are_read),
        cmocka_unit_test(ragpulse_parts_stand_in_order),
        cmocka_unit_test(hostile_lines_are_named),
        cmocka_unit_test(hostile_csv_is_named),
        cmocka_unit_test(an_unknown_ragpulse_id_is_named),
        cmocka_unit_test(the_shared_traces_have_their_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
