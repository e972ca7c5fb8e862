#include "tests/unit/loadgen/loadgen_test.h"

#include "base/check.h"
#include "loadgen/load/options.h"

static struct buf why;

/* Words separated by blanks. */
static enum status load(struct options *o, const char *line)
{
    char copy[1024];
    char *argv[64] = {(char *)"tarn-loadgen"}, *save = NULL;
    int argc = 1;

    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    buf_reset(&why);
    return options_load(o, argc, argv, &why);
}

static void defaults_are_vllms(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, ""));
    assert_int_equal(o.config.kind, WORKLOAD_RANDOM);
    assert_int_equal(o.count, 1000);
    assert_int_equal(o.config.arrival.kind, ARRIVAL_AT_ONCE);
    assert_near(dist_mean(&o.config.input), 1024, 0);
    assert_near(dist_mean(&o.config.output), 128, 0);
    assert_false(o.closed);
    options_fini(&o);
}

static void vllms_flags_are_known(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--backend openai --base-url http://h:1 --num-prompts 7 --request-rate 2.5 "
                       "--burstiness 0.5 --max-concurrency 3 --random-input-len 100 "
                       "--random-output-len 10 --random-range-ratio 0.5 --goodput ttft:200 tpot:50 "
                       "--percentile-metrics ttft,e2el --metric-percentiles 50,99.9 --seed 4 "
                       "--ignore-eos --metadata a=1 b=2 --random-prefix-len 0"));
    assert_string_equal(o.url, "http://h:1");
    assert_string_equal(o.endpoint, "completions");
    assert_int_equal(o.count, 7);
    assert_near(o.config.arrival.rate, 2.5, 0);
    assert_near(o.config.arrival.burstiness, 0.5, 0);
    assert_int_equal(o.concurrency, 3);
    assert_false(o.closed); /* with a rate it is a limit */
    assert_int_equal(o.config.input.form[0].kind, DIST_UNIFORM);
    assert_near(o.config.input.form[0].a, 50, 0);
    assert_near(o.config.input.form[0].b, 150, 0);
    assert_near(o.config.slo.limit_ms[SLO_TPOT], 50, 0);
    assert_int_equal(o.percents.n, 2);
    assert_near(o.percents.p[1], 99.9, 0);
    assert_int_equal(o.config.seed, 4);
    assert_true(o.ignore_eos);
    assert_int_equal(o.metadata.n, 2);
    assert_false(o.config.has_prefix);
    options_fini(&o);
}

static void a_dataset_name_is_vllms_workload(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--dataset-name random --random-input-len 100"));
    assert_int_equal(o.config.kind, WORKLOAD_RANDOM);
    assert_true(o.ignore_eos); /* as vLLM's tool does for random prompts */
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name random --no-ignore-eos"));
    assert_false(o.ignore_eos);
    options_fini(&o);
    assert_ok(load(&o, "--no-ignore-eos --dataset-name random"));
    assert_false(o.ignore_eos);
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name prefix_repetition --prefix-repetition-prefix-len 99"));
    assert_int_equal(o.config.kind, WORKLOAD_PREFIX);
    assert_near(dist_mean(&o.config.prefix_len), 99, 0);
    assert_near(dist_mean(&o.config.input), 256, 0);
    assert_false(o.ignore_eos);
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name sharegpt --dataset-path x.json"));
    assert_int_equal(o.config.kind, WORKLOAD_FILE);
    assert_int_equal(o.config.file.format, FILE_SHAREGPT);
    assert_true(o.config.file.shuffle && o.config.file.repeats && !o.config.output_given);
    assert_int_equal(o.count, 1000);
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name custom --dataset-path x.jsonl --disable-shuffle "
                       "--no-oversample"));
    assert_int_equal(o.config.file.format, FILE_LINES);
    assert_false(o.config.file.shuffle || o.config.file.repeats);
    assert_near(dist_mean(&o.config.output), 256, 0);
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name custom --dataset-path x --custom-output-len 9"));
    assert_near(dist_mean(&o.config.output), 9, 0);
    options_fini(&o);
    assert_ok(load(&o, "--workload file --data x.jsonl"));
    assert_false(o.config.file.shuffle || o.config.file.repeats);
    options_fini(&o);
}

static void a_timed_trace_keeps_its_times(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--dataset-name timed_trace --dataset-path x --max-concurrency 4"));
    assert_int_equal(o.config.trace.format, TRACE_TIMED);
    assert_int_equal(o.config.arrival.kind, ARRIVAL_TRACE);
    assert_false(o.closed);
    assert_true(o.ignore_eos);
    options_fini(&o);
    assert_ok(load(&o, "--dataset-name timed_trace --dataset-path x --no-self-timed "
                       "--request-rate 2"));
    assert_int_equal(o.config.arrival.kind, ARRIVAL_GAMMA);
    options_fini(&o);
}

static void vllms_routes_are_known(void **state)
{
    static const char *const routes[][2] = {
        {"--endpoint /v1/completions", "completions"},
        {"--endpoint /v1/chat/completions", "chat"},
        {"--endpoint completions", "completions"},
        {"--backend openai-chat --endpoint /v1/chat/completions", "chat"},
        {"--backend openai-chat", "chat"},
        {"--endpoint=/v1/completions --backend=vllm", "completions"},
        {"--backend openai", "completions"},
        {"", ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
        struct options o;
        assert_ok(load(&o, routes[i][0]));
        assert_string_equal(o.endpoint, routes[i][1]);
        options_fini(&o);
    }
}

static void options_of_vllm_are_accepted(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--tokenizer t/k --tokenizer-mode auto --trust-remote-code --disable-tqdm "
                       "--skip-chat-template --served-model-name served --save-result "
                       "--result-dir d --result-filename f --top-k 4 --min-p 0.1 "
                       "--extra-body {\"min_p\":0.5,\"a\":1} --header X-A=b=c Y:d=e "
                       "--repetition-penalty 1.5"));
    assert_string_equal(o.tokenizer, "t/k");
    assert_string_equal(o.served_model, "served");
    assert_false(o.progress);
    assert_true(o.save_result);
    assert_string_equal(o.result_dir, "d");
    assert_string_equal(o.result_filename, "f");
    assert_string_equal(o.extra_body,
                        "{\"min_p\":0.5,\"a\":1,\"top_k\":4,\"repetition_penalty\":1.5}");
    assert_string_equal(o.headers.v[0], "X-A: b=c");
    assert_string_equal(o.headers.v[1], "Y:d=e");
    options_fini(&o);
}

static void concurrency_alone_is_a_closed_loop(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--concurrency 8 --duration 5"));
    assert_true(o.closed);
    assert_int_equal(o.count, 0);
    options_fini(&o);
    assert_ok(load(&o, "--rate inf --concurrency 8"));
    assert_true(o.closed);
    options_fini(&o);
    assert_ok(load(&o, "--workload=trace --data=x.jsonl"));
    assert_int_equal(o.config.arrival.kind, ARRIVAL_TRACE);
    assert_near(o.config.arrival.rate, 0, 0);
    options_fini(&o);
    assert_ok(load(&o, "--workload trace --data x.jsonl --rate 3"));
    assert_int_equal(o.config.arrival.kind, ARRIVAL_GAMMA);
    options_fini(&o);
    assert_ok(load(&o, "--workload trace --data x.jsonl --arrival trace --rate 3"));
    assert_int_equal(o.config.arrival.kind, ARRIVAL_TRACE);
    assert_near(o.config.arrival.rate, 3, 0);
    options_fini(&o);
    assert_ok(load(&o, "sim --workload trace --data x.jsonl --arrival trace --load 0.9"));
    assert_int_equal(o.config.arrival.kind, ARRIVAL_TRACE);
    options_fini(&o);
}

static void a_timed_trace_has_vllms_flags(void **state)
{
    struct options o;

    (void)state;
    assert_ok(load(&o, "--workload trace --data x --trace-format timed_trace "
                       "--timed-trace-chunk-hash-size 512 --timed-trace-sec-multiplier 0.001"));
    assert_int_equal(o.config.trace.format, TRACE_TIMED);
    assert_int_equal(o.config.trace.block_tokens, 512);
    assert_near(o.config.trace.time_unit_s, 0.001, 0);
    options_fini(&o);
}

static void seeds_differ_unless_given(void **state)
{
    struct options a, b;

    (void)state;
    assert_ok(load(&a, ""));
    usleep(10);
    assert_ok(load(&b, ""));
    assert_true(a.config.seed != b.config.seed);
    options_fini(&a);
    options_fini(&b);
}

static void wrong_lines_are_refused_with_words(void **state)
{
    static const char *const wrong[][2] = {
        {"--ratee 5", "--ratee: unknown option, did you mean --rate?"},
        {"--zzzzzzzz 5", "--zzzzzzzz: unknown option, see --help"},
        {"--rate", "--rate: needs a value"},
        {"--rate x", "--rate: expected a number above 0, or inf"},
        {"--rate 0", "--rate: expected a number above 0, or inf"},
        {"--rate inf --arrival trace", "--rate: --arrival trace has no such rate"},
        {"--rate 1 --arrival closed", "--rate: --arrival closed has no such rate"},
        {"sim --load 0.9 --arrival trace",
         "--load: is the rate: give no --rate, --concurrency, --ramp-up-strategy or other "
         "--arrival than poisson, gamma, constant, or trace with --workload trace or file"},
        {"--count -5", "--count: expected a whole number, got \"-5\""},
        {"--count 1.5", "--count: expected a whole number, got \"1.5\""},
        {"--workload foo",
         "--workload: \"foo\" is not known (one of random, lengths, prefix, multiturn, "
         "rag, mix, trace, file)"},
        {"--input-len 0", "--input-len: \"0\": lengths are whole numbers in [1, 10000000]"},
        {"--prompt-format ids --endpoint chat",
         "--prompt-format ids: only /v1/completions takes ids"},
        {"--duration 5", "--duration: give a --rate or a --concurrency with it"},
        {"--seed x", "--seed: expected a whole number"},
        {"--goodput ttft", "--goodput: \"ttft\": expected METRIC:MS, as in ttft:200"},
        {"compare --a http://x --count 5", "compare: needs --a URL and --b URL"},
        {"compare --a http://x --b http://y --count 5 --concurrency 2 --interleave requests",
         "--interleave requests: needs a --rate (or times) and no --block; --concurrency 1 sends "
         "pairs, one after the other"},
        {"--a http://x", "--a, --b: belong to `tarn-loadgen compare`"},
        {"stray", "\"stray\": expected an option, see --help"},
        {"--no-rate 5", "--no-rate: unknown option, did you mean --slow-rate?"},
        {"--ignore-eos=maybe", "--ignore-eos: expected true or false, got \"maybe\""},
        {"--arrival closed --rate 5", "--rate: --arrival closed has no such rate"},
        {"--verify 2", "--verify: expected a number from 0 to 1, got \"2\""},
        {"--tenant share=1", "--tenant: a tenant needs name=NAME"},
        {"--endpoint /v2/x", "--endpoint: \"/v2/x\" is none of /v1/completions, "
                             "/v1/chat/completions, completions, chat; what stands before /v1 "
                             "belongs to --url"},
        {"--backend openai-chat --endpoint /v1/completions",
         "--backend openai-chat, --endpoint /v1/completions: they are different routes; "
         "openai-chat asks /v1/chat/completions, the others /v1/completions"},
        {"--backend tgi", "--backend: \"tgi\" is not known (one of openai, openai-chat, vllm)"},
        {"--dataset-name hf",
         "--dataset-name: \"hf\" is not known (one of random, prefix_repetition, "
         "sharegpt, custom, timed_trace)"},
        {"--dataset-name random --dataset-path x",
         "--dataset-name random: makes its prompts and reads no --dataset-path"},
        {"--dataset-name custom", "--dataset-name custom: needs --dataset-path FILE"},
        {"--dataset-name random --workload rag", "--dataset-name, --workload: give one of them"},
        {"--result-dir x", "--result-dir, --result-filename: nothing is saved without "
                           "--save-result"},
        {"compare --a http://x --b http://y --count 1 --save-result",
         "--save-result: compare writes its result with --json"},
        {"--top-k 1.5", "--top-k: expected a whole number, or none"},
        {"--top-k 1e300", "--top-k: expected a whole number, or none"},
        {"--extra-body []", "--extra-body: expected a JSON object"},
        {"--metric-percentiles 101",
         "--metric-percentiles: expected at most 12 numbers in [0, 100]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct options o;
        assert_int_equal(load(&o, wrong[i][0]), ERR_INVALID);
        assert_string_equal(buf_str(&why), wrong[i][1]);
        options_fini(&o);
    }
}

static void a_simulation_has_flags_of_its_own(void **state)
{
    static const char *const refused[] = {"sim --url http://x",
                                          "sim --model m",
                                          "sim --prompt-format ids",
                                          "sim --verify 1",
                                          "sim --backend vllm",
                                          "sim --a http://x",
                                          "--kv-swap off",
                                          "compare --instances 2",
                                          "sim --load 1 --rate 2",
                                          "sim --load 1 --concurrency 2",
                                          "sim --load 1 --arrival trace",
                                          "sim --instances 0",
                                          "sim --kv-device-bytes 0",
                                          "sim --kv-swap maybe",
                                          "sim --starvation-ms -1",
                                          "sim --no-url"};
    struct options o;

    (void)state;
    assert_ok(load(&o, "sim --load 0.9 --kv-device-bytes 3G --starvation-ms 300 --swap reactive "
                       "--ignore-eos --no-token-times --seed 4"));
    assert_true(o.sim && !o.compare && !o.token_times && o.prefix_caching);
    assert_int_equal(o.config.arrival.kind, ARRIVAL_GAMMA);
    assert_int_equal(o.kv_device_bytes, UINT64_C(3) << 30);
    assert_near(o.starvation_s, 0.3, 1e-12);
    assert_string_equal(o.kv_swap, "reactive");
    assert_int_equal(o.n_seqs_max, 64);
    options_fini(&o);
    assert_ok(load(&o, "sim --starvation-ms inf --arrival gamma --burstiness 0.2 --load 1"));
    assert_true(isinf(o.starvation_s));
    assert_near(o.config.arrival.burstiness, 0.2, 0);
    options_fini(&o);
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        if (load(&o, refused[i]) == OK)
            fail_msg("%s was taken", refused[i]);
        assert_true(why.len > 0);
        options_fini(&o);
    }
}

static void help_fits_into_100_columns_and_names_all(void **state)
{
    char *text = NULL;
    size_t size = 0;

    (void)state;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    options_print_help(f);
    fclose(f);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 100);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_vllms),
        cmocka_unit_test(vllms_flags_are_known),
        cmocka_unit_test(a_dataset_name_is_vllms_workload),
        cmocka_unit_test(a_timed_trace_keeps_its_times),
        cmocka_unit_test(vllms_routes_are_known),
        cmocka_unit_test(options_of_vllm_are_accepted),
        cmocka_unit_test(concurrency_alone_is_a_closed_loop),
        cmocka_unit_test(a_timed_trace_has_vllms_flags),
        cmocka_unit_test(seeds_differ_unless_given),
        cmocka_unit_test(wrong_lines_are_refused_with_words),
        cmocka_unit_test(a_simulation_has_flags_of_its_own),
        cmocka_unit_test(help_fits_into_100_columns_and_names_all),
    };
    buf_init(&why, BUF_WHY_MAX);
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_fini(&why);
    return n_failed;
}
