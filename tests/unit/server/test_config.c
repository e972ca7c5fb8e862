/* test_config.c - flags, variables and file: precedence, refusals, and sizes with units. */
#include "tests/unit/test.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "engine/sched/contest.h"
#include "engine/sched/scheduler.h"
#include "server/config.h"

#define N_ARGS_MAX 32

static char *no_env[] = {NULL};

/* `line`: arguments separated by spaces. */
static enum status load(struct config *c, const char *line, char **env, struct buf *why)
{
    static char text[1024];
    char *argv[N_ARGS_MAX] = {(char *)(uintptr_t) "tarn-server"};
    int argc = 1;

    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p && argc < N_ARGS_MAX; p = strtok(NULL, " "))
        argv[argc++] = p;
    buf_reset(why);
    return config_load(c, argc, argv, env, why);
}

static void refuses(const char *line, char **env, const char *words)
{
    struct config c;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_not_equal(load(&c, line, env, &why), OK);
    if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" said \"%s\" instead of \"%s\"", line, buf_str(&why), words);
    config_fini(&c);
    buf_fini(&why);
}

static void defaults_are_those_of_the_table(void **state)
{
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c, "--model m", no_env, &why));
    assert_string_equal(c.model, "m");
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8000);
    assert_int_equal(c.max_body_bytes, 32u << 20);
    assert_true(c.prefix_caching);
    assert_string_equal(c.scheduling_policy, "skip-join-mlfq");
    assert_true(c.max_step_ms == 0 && c.quantum_ms == 0 && c.starvation_ms == 0);
    assert_true(c.level_ratio == 2);
    assert_true(c.profile_cost);
    assert_string_equal(c.mlfq_variant, "learned");
    assert_int_equal(c.kv_reserve_blocks, 0);
    assert_string_equal(c.kv_swap, "proactive");
    assert_int_equal(c.kv_host_bytes, 0);
    assert_true(c.kv_prefetch_share == 0.1 && c.kv_hold_share == 0.25);
    assert_string_equal(c.cache_policy, "contest");
    assert_string_equal(c.kv_disk_path, "");
    assert_true(c.kv_disk_bytes == 0 && c.kv_disk_min_uses == 2 && c.kv_disk_timeout_ms == 1000);
    assert_string_equal(c.kv_preload, "registered");
    config_fini(&c);
    buf_fini(&why);
}

static void flag_wins_over_variable_wins_over_file(void **state)
{
    char path[] = "/tmp/tarn-test-config-XXXXXX", line[256];
    char *env[] = {(char *)(uintptr_t) "TARN_PORT=2", (char *)(uintptr_t) "TARN_HOST=env",
                   (char *)(uintptr_t) "PORT=9", NULL};
    struct config c;
    struct buf why;
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");

    (void)state;
    assert_non_null(f);
    fputs("# a comment\n\n  port = 1\nhost = file\nthreads=7\nmodel = some where \n", f);
    fclose(f);
    buf_init(&why, BUF_WHY_MAX);
    snprintf(line, sizeof line, "--port 3 --config %s", path);
    assert_ok(load(&c, line, env, &why));
    assert_int_equal(c.port, 3);
    assert_string_equal(c.host, "env");
    assert_int_equal(c.threads, 7);
    assert_string_equal(c.model, "some where");
    config_fini(&c);
    unlink(path);
    buf_fini(&why);
}

static void a_share_is_read_and_described(void **state)
{
    struct config c;
    struct buf why, text;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 1u << 16);
    assert_ok(load(&c, "--model m", no_env, &why));
    assert_true(c.gpu_memory_utilization == 0.9);
    config_fini(&c);
    assert_ok(load(&c, "--model m --gpu-memory-utilization=0.25", no_env, &why));
    assert_true(c.gpu_memory_utilization == 0.25);
    config_describe(&c, &text);
    assert_non_null(strstr(buf_str(&text), "gpu-memory-utilization=0.25 "));
    config_fini(&c);
    buf_fini(&text);
    buf_fini(&why);
}

static void every_spelling_of_a_switch_is_read(void **state)
{
    static const struct {
        const char *line;
        bool on;
    } cases[] = {
        {"--model m --no-prefix-caching", false},
        {"--model m --no-enable-prefix-caching", false},
        {"--model m --enable-prefix-caching", true},
        {"--model m --prefix-caching=false", false},
        {"--model m --no-prefix-caching --prefix-caching", true},
    };
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(load(&c, cases[i].line, no_env, &why));
        assert_int_equal(c.prefix_caching, cases[i].on);
        config_fini(&c);
    }
    buf_fini(&why);
}

static void other_words_for_a_choice_become_ours(void **state)
{
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c, "--model m --dtype bfloat16 --kv-cache-dtype half", no_env, &why));
    assert_string_equal(c.dtype, "bf16");
    assert_string_equal(c.kv_cache_dtype, "f16");
    config_fini(&c);
    assert_ok(load(&c, "--model m --kv-cache-dtype fp8_e4m3", no_env, &why));
    assert_string_equal(c.kv_cache_dtype, "fp8");
    config_fini(&c);
    buf_fini(&why);
}

static void the_kv_store_is_configured_by_flags(void **state)
{
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c,
                   "--model m --kv-host-bytes 3G --kv-prefetch-share 0 --kv-hold-share=1 "
                   "--cache-policy lru",
                   no_env, &why));
    assert_int_equal(c.kv_host_bytes, UINT64_C(3) << 30);
    assert_true(c.kv_prefetch_share == 0 && c.kv_hold_share == 1);
    assert_string_equal(c.cache_policy, "lru");
    config_fini(&c);
    buf_fini(&why);
    refuses("--model m --kv-prefetch-share 1.1", no_env, "from 0 to 1, got \"1.1\"");
    refuses("--model m --kv-hold-share -0.1", no_env, "--kv-hold-share: expected a number");
    refuses("--model m --kv-hold-share nan", no_env, "--kv-hold-share: expected a number");
    refuses("--model m --kv-host-bytes lots", no_env, "--kv-host-bytes: expected a size");
    /* Preempted requests are swapped all the same. */
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c, "--model m --kv-host-bytes 1M --no-enable-prefix-caching", no_env, &why));
    assert_true(c.kv_host_bytes == 1u << 20 && !c.prefix_caching);
    config_fini(&c);
    buf_fini(&why);
}

static void the_disk_tier_is_configured_by_flags(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TARN_KV_DISK_PATH=/env",
                   (char *)(uintptr_t) "TARN_KV_DISK_BYTES=1T", NULL};
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c,
                   "--model m --kv-disk-path /d --kv-disk-bytes 100G --kv-disk-min-uses 1 "
                   "--kv-disk-timeout-ms=20 --kv-preload all",
                   no_env, &why));
    assert_string_equal(c.kv_disk_path, "/d");
    assert_int_equal(c.kv_disk_bytes, UINT64_C(100) << 30);
    assert_int_equal(c.kv_disk_min_uses, 1);
    assert_int_equal(c.kv_disk_timeout_ms, 20);
    assert_string_equal(c.kv_preload, "all");
    config_fini(&c);
    assert_ok(load(&c, "--model m --kv-preload none", env, &why));
    assert_string_equal(c.kv_disk_path, "/env");
    assert_int_equal(c.kv_disk_bytes, UINT64_C(1) << 40);
    assert_string_equal(c.kv_preload, "none");
    config_fini(&c);
    buf_fini(&why);
    refuses("--model m --kv-disk-path /d", no_env, "--kv-disk-path: needs --kv-disk-bytes");
    refuses("--model m --kv-disk-path /d --kv-disk-bytes 0", no_env, "needs --kv-disk-bytes");
    refuses("--model m --kv-disk-bytes 1G", no_env, "--kv-disk-bytes: needs --kv-disk-path");
    refuses("--model m --kv-disk-path= --kv-disk-bytes 1G", no_env, "needs --kv-disk-path");
    refuses("--model m --kv-disk-bytes lots", no_env, "--kv-disk-bytes: expected a size");
    refuses("--model m --kv-disk-min-uses 0", no_env, "--kv-disk-min-uses: 0 is outside");
    refuses("--model m --kv-disk-timeout-ms 0", no_env, "--kv-disk-timeout-ms: 0 is outside");
    refuses("--model m --kv-disk-timeout-ms 3600001", no_env, "is outside");
    refuses("--model m --kv-preload some", no_env, "--kv-preload: \"some\" is not known");
    refuses("--model m --kv-preload register", no_env, "did you mean \"registered\"?");
    refuses("--model m --no-prefix-caching", env,
            "--kv-disk-path: keeps computed prompts, and "
            "--no-prefix-caching forgets them");
}

static void a_pool_is_configured_by_flags(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TARN_POOL=redis://env",
                   (char *)(uintptr_t) "TARN_POOL_SECRET=/env", NULL};
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(load(&c, "--model m", no_env, &why));
    assert_false(config_has_pool(&c));
    assert_string_equal(c.pool_listen, "127.0.0.1:0"); /* no other machine can reach it */
    assert_string_equal(c.pool_name, "default");
    assert_string_equal(c.pool_transport, "auto");
    assert_string_equal(c.instance_name, "");
    assert_true(c.pool_lookup_ms == 50 && c.pool_pull_ms == 2000 && c.pool_query_ms == 250);
    assert_string_equal(c.pool_query, "auto");
    assert_true(c.pool_balance && c.pool_device_ipc);
    config_fini(&c);
    assert_ok(load(&c,
                   "--model m --pool unix:///run/redis.sock --pool-secret /s --pool-name a-1 "
                   "--pool-announce h --pool-listen [fd00::5]:7000 --pool-transport=tcp "
                   "--instance-name me --pool-lookup-ms 7 --pool-pull-ms 8 --pool-query always "
                   "--pool-query-ms 9 --no-pool-balance --no-pool-device-ipc",
                   env, &why));
    assert_true(config_has_pool(&c));
    assert_string_equal(c.pool, "unix:///run/redis.sock");
    assert_string_equal(c.pool_secret, "/s");
    assert_string_equal(c.pool_name, "a-1");
    assert_string_equal(c.pool_announce, "h");
    assert_string_equal(c.pool_listen, "[fd00::5]:7000");
    assert_string_equal(c.pool_transport, "tcp");
    assert_string_equal(c.instance_name, "me");
    assert_true(c.pool_lookup_ms == 7 && c.pool_pull_ms == 8 && c.pool_query_ms == 9);
    assert_string_equal(c.pool_query, "always");
    assert_false(c.pool_balance || c.pool_device_ipc);
    config_fini(&c);
    assert_ok(load(&c, "--model m", env, &why));
    assert_string_equal(c.pool, "redis://env");
    config_fini(&c);
    buf_fini(&why);
}

static void a_pool_that_cannot_work_is_refused(void **state)
{
    static const char *const listens[] = {"7000",         ":7000",         "host",
                                          "host:",        "host:x",        "host:70000",
                                          "fd00::5:7000", "[fd00::5]7000", "host:1:2"};
    char line[128];

    (void)state;
    refuses("--model m --pool redis://h", no_env, "--pool: needs --pool-secret as well");
    refuses("--model m --pool-secret /s", no_env, "--pool-secret: needs --pool as well");
    refuses("--model m --pool-announce h", no_env, "--pool-announce: needs --pool as well");
    refuses("--model m --pool redis://h --pool-secret /s --no-prefix-caching", no_env,
            "--pool: shares computed prompts, and --no-prefix-caching forgets them");
    refuses("--model m --pool-transport rdma", no_env, "--pool-transport: \"rdma\" is not known");
    refuses("--model m --pool-lookup-ms 0", no_env, "--pool-lookup-ms: 0 is outside");
    refuses("--model m --pool-pull-ms 3600001", no_env, "is outside");
    refuses("--model m --pool-name Big", no_env, "--pool-name: expected 1 to 32");
    refuses("--model m --pool-name=", no_env, "--pool-name: expected 1 to 32");
    refuses("--model m --instance-name a\tb", no_env, "--instance-name: expected at most 63");
    for (size_t i = 0; i < sizeof listens / sizeof *listens; i++) {
        snprintf(line, sizeof line, "--model m --pool-listen %s", listens[i]);
        refuses(line, no_env, "--pool-listen: expected HOST:PORT");
    }
}

static void the_password_of_a_pool_is_not_described(void **state)
{
    static const struct {
        const char *url, *shown;
    } cases[] = {
        {"redis://h:6379/0", "redis://h:6379/0"},
        {"redis://user:very-secret@h:6379/0", "redis://user:***@h:6379/0"},
        {"redis://:very-secret@h", "redis://:***@h"},
        {"redis://user:very@very-secret:a@h", "redis://user:***@h"},
        {"user:very-secret@h", "user:***@h"},
        {"unix:///a:b/c", "unix:///a:b/c"},
    };
    char line[256], shown[CONFIG_POOL_SHOWN_BYTES];
    struct config c;
    struct buf why, text;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 1u << 16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, "--model m --pool-secret /s --pool %s", cases[i].url);
        assert_ok(load(&c, line, no_env, &why));
        config_pool_shown(&c, shown);
        assert_string_equal(shown, cases[i].shown);
        buf_reset(&text);
        config_describe(&c, &text);
        assert_non_null(strstr(buf_str(&text), cases[i].shown));
        assert_null(strstr(buf_str(&text), "very"));
        config_fini(&c);
    }
    buf_fini(&text);
    buf_fini(&why);
}

static void scheduling_is_configured_by_flags(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TARN_PROFILE_COST=no",
                   (char *)(uintptr_t) "TARN_STARVATION_MS=300", NULL};
    struct config c;
    struct buf why, text;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 1u << 16);
    assert_ok(load(&c,
                   "--model m --max-step-ms 12.5 --quantum-ms=0.75 --level-ratio 1.1 "
                   "--mlfq-variant released --kv-reserve-blocks 7 --kv-swap reactive",
                   env, &why));
    assert_true(c.max_step_ms == 12.5 && c.quantum_ms == 0.75 && c.level_ratio == 1.1);
    assert_true(c.starvation_ms == 300);
    assert_false(c.profile_cost);
    assert_string_equal(c.mlfq_variant, "released");
    assert_int_equal(c.kv_reserve_blocks, 7);
    assert_string_equal(c.kv_swap, "reactive");
    config_describe(&c, &text);
    assert_non_null(strstr(buf_str(&text), "max-step-ms=12.5 quantum-ms=0.75 level-ratio=1.1 "
                                           "starvation-ms=300 mlfq-variant=\"released\" "
                                           "latency-objective=\"normalized\" age-boost-ms=0 "
                                           "profile-cost=false "));
    config_fini(&c);
    assert_ok(load(&c,
                   "--model m --level-ratio 16 --no-profile-cost --profile-cost "
                   "--starvation-ms 86400000 --max-step-ms 3600000",
                   no_env, &why));
    assert_true(c.level_ratio == 16 && c.starvation_ms == 86400000 && c.max_step_ms == 3600000);
    assert_true(c.profile_cost);
    config_fini(&c);
    buf_fini(&text);
    buf_fini(&why);
}

static void a_number_out_of_range_is_refused(void **state)
{
    (void)state;
    refuses("--model m --level-ratio 1.09", no_env,
            "--level-ratio: expected a number from 1.1 to 16, got \"1.09\"");
    refuses("--model m --level-ratio 16.001", no_env, "from 1.1 to 16, got \"16.001\"");
    refuses("--model m --level-ratio nan", no_env, "--level-ratio: expected a number");
    refuses("--model m --level-ratio inf", no_env, "--level-ratio: expected a number");
    refuses("--model m --level-ratio 2x", no_env, "--level-ratio: expected a number");
    refuses("--model m --level-ratio=", no_env, "--level-ratio: expected a number");
    refuses("--model m --max-step-ms -1", no_env, "--max-step-ms: expected a number from 0 to");
    refuses("--model m --max-step-ms 3600001", no_env, "from 0 to 3600000, got");
    refuses("--model m --quantum-ms -0.001", no_env, "--quantum-ms: expected a number");
    refuses("--model m --starvation-ms 86400001", no_env, "from 0 to 86400000, got");
    refuses("--model m --kv-reserve-blocks -1", no_env, "--kv-reserve-blocks: expected a whole");
    refuses("--model m --kv-reserve-blocks 4294967296", no_env, "--kv-reserve-blocks: 4294967296");
    refuses("--model m --kv-swap proactiv", no_env, "did you mean \"proactive\"?");
    refuses("--model m --mlfq-variant pape", no_env, "did you mean \"paper\"?");
}

static void preambles_are_files_separated_by_commas(void **state)
{
    struct config c;
    struct buf why, text;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 1u << 16);
    assert_ok(load(&c, "--model m", no_env, &why));
    assert_string_equal(c.preamble, "");
    config_fini(&c);
    assert_ok(load(&c, "--model m --preamble one.txt,/two.txt", no_env, &why));
    assert_string_equal(c.preamble, "one.txt,/two.txt");
    config_describe(&c, &text);
    assert_non_null(strstr(buf_str(&text), "preamble=\"one.txt,/two.txt\" "));
    config_fini(&c);
    buf_fini(&text);
    buf_fini(&why);
}

/* Every name of the list can be chosen; returns how many there are. */
static int take_each(const char *list, const char *flag, size_t offset)
{
    char names[256], line[128];
    struct config c;
    struct buf why;
    int n = 0;

    buf_init(&why, BUF_WHY_MAX);
    snprintf(names, sizeof names, "%s", list);
    for (char *end, *name = strtok_r(names, "|, ", &end); name;
         name = strtok_r(NULL, "|, ", &end)) {
        snprintf(line, sizeof line, "--model m %s %s", flag, name);
        assert_ok(load(&c, line, no_env, &why));
        assert_string_equal(*(char **)((char *)&c + offset), name);
        config_fini(&c);
        n++;
    }
    buf_fini(&why);
    return n;
}

/* The lists of names are in cache/ and in engine/, one each: exactly these names can be chosen. */
static void the_policies_are_those_of_the_scheduler(void **state)
{
    (void)state;
    assert_int_equal(take_each(contest_policies(), "--scheduling-policy",
                               offsetof(struct config, scheduling_policy)),
                     6);
    refuses("--model m --scheduling-policy skip-join-mlfg", no_env,
            "--scheduling-policy: \"skip-join-mlfg\" is not known, did you mean "
            "\"skip-join-mlfq\"?");
    refuses("--model m --scheduling-policy SRPT", no_env, "sjf-prompt");
    refuses("--model m --scheduling-policy fcfs|mlfq", no_env, "is not known");
}

static void the_policies_are_those_of_the_cache(void **state)
{
    (void)state;
    assert_true(
        take_each(cache_policies(), "--cache-policy", offsetof(struct config, cache_policy)) >= 4);
    refuses("--model m --cache-policy contes", no_env, "did you mean \"contest\"?");
    refuses("--model m --cache-policy contest,lru", no_env, cache_policies());
    refuses("--model m --cache-policy ,", no_env, "\",\" is not known");
}

static void an_unknown_name_gets_the_nearest_one(void **state)
{
    (void)state;
    assert_string_equal(config_nearest("modle"), "model");
    assert_string_equal(config_nearest("max-num-seq"), "max-num-seqs");
    assert_string_equal(config_nearest("hepl"), "help");
    assert_null(config_nearest("zzzzzzzz"));
    refuses("--modle m", no_env, "--modle: unknown option, did you mean --model?");
    refuses("--model m --max-num-seq=3", no_env, "did you mean --max-num-seqs?");
    refuses("--model m --pipeline-parallel-size 2", no_env, "--pipeline-parallel-size: unknown");
}

static void a_bad_value_names_its_option(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TARN_PORT=x", NULL};

    (void)state;
    refuses("--model m --port 70000", no_env, "--port: 70000 is outside of [0, 65535]");
    refuses("--model m --port -1", no_env, "--port: expected a whole number");
    refuses("--model m --port", no_env, "--port: needs a value");
    refuses("--model m", env, "TARN_PORT: expected a whole number");
    refuses("--model m --dtype bf61", no_env, "did you mean \"bf16\"?");
    refuses("--model m --log-level loud", no_env, "one of debug, info, warn, error");
    refuses("--model m --max-body-bytes 1Q", no_env, "expected a size");
    refuses("--model m --kv-segment-tokens 33", no_env, "no multiple of 32");
    refuses("--model m --prefix-caching=maybe", no_env, "expected true or false");
    refuses("--model m --gpu-memory-utilization 1.01", no_env, "above 0 and at most 1");
    refuses("--model m --gpu-memory-utilization 0", no_env, "above 0 and at most 1");
    refuses("--model m --gpu-memory-utilization 0.5x", no_env, "above 0 and at most 1");
    refuses("--model m --gpu-memory-utilization nan", no_env, "above 0 and at most 1");
    refuses("--port 1", no_env, "--model: which model?");
    refuses("model", no_env, "expected an option");
    refuses("--config /nowhere/at/all --model m", no_env, "cannot open /nowhere/at/all");
}

static void an_empty_key_is_refused(void **state)
{
    static const char *const values[] = {"TARN_API_KEY=",       "TARN_API_KEY= \n",
                                         "TARN_API_KEY=a,,b",   "TARN_API_KEY=a,",
                                         "TARN_ADMIN_API_KEY=", "TARN_API_KEY_FILE="};

    (void)state;
    refuses("--model m --api-key=", no_env,
            "--api-key: is empty; give a key, or leave the option out");
    refuses("--model m --api-key=,", no_env, "--api-key: one of the keys is empty; give a key");
    refuses("--model m --admin-api-key=", no_env, "--admin-api-key: is empty; give a key");
    refuses("--model m --api-key-file=", no_env, "--api-key-file: is empty; give a file");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char *env[] = {(char *)(uintptr_t)values[i], NULL}, words[64];
        snprintf(words, sizeof words, "%.*s: ", (int)strcspn(values[i], "="), values[i]);
        refuses("--model m", env, words);
    }
}

static void names_of_the_model_are_a_list_without_empty_items(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TARN_SERVED_MODEL_NAME= ", NULL};
    char *fine[] = {(char *)(uintptr_t) "TARN_SERVED_MODEL_NAME=a, b", NULL};
    char *unset[] = {(char *)(uintptr_t) "TARN_SERVED_MODEL_NAME=", NULL};
    char line[512] = "--model m --served-model-name=0";
    struct config c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    refuses("--model m --served-model-name=,", no_env,
            "--served-model-name: \",\" has an empty name; expected names separated by commas");
    refuses("--model m --served-model-name=a,,b", no_env, "--served-model-name: \"a,,b\" has an");
    refuses("--model m", env, "TARN_SERVED_MODEL_NAME: ");
    for (int i = 1; i <= CONFIG_N_MODEL_NAMES_MAX; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), ",%d", i);
    refuses(line, no_env, "--served-model-name: 65 names, at most 64 are taken");
    assert_ok(load(&c, "--model m", fine, &why));
    assert_string_equal(c.served_model_name, "a, b");
    config_fini(&c);
    assert_ok(load(&c, "--model m", unset, &why)); /* the name of --model */
    config_fini(&c);
    buf_fini(&why);
}

static void secrets_are_not_described(void **state)
{
    struct config c;
    struct buf why, text;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 8192);
    assert_ok(load(&c, "--model m --api-key very-secret", no_env, &why));
    config_describe(&c, &text);
    assert_non_null(strstr(buf_str(&text), "api-key=\"***\""));
    assert_null(strstr(buf_str(&text), "very-secret"));
    assert_non_null(strstr(buf_str(&text), "max-num-seqs=64"));
    config_forget_secrets(&c);
    assert_string_equal(c.api_key, "*");
    assert_string_equal(c.admin_api_key, "");
    assert_memory_equal(c.api_key + 1, "\0\0\0\0\0\0\0\0\0\0", 10);
    buf_reset(&text);
    config_describe(&c, &text); /* still tells that there is a key */
    assert_non_null(strstr(buf_str(&text), " api-key=\"***\""));
    assert_non_null(strstr(buf_str(&text), "admin-api-key=\"\""));
    config_fini(&c);
    buf_fini(&text);
    buf_fini(&why);
}

/* The answer of config_wants_json() to these arguments, after config_load() read them. */
static bool wants_json(const char *line, char **env)
{
    static char text[256];
    char *argv[N_ARGS_MAX] = {(char *)(uintptr_t) "tarn-server"};
    struct config c;
    struct buf why;
    int argc = 1;

    buf_init(&why, BUF_WHY_MAX);
    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p && argc < N_ARGS_MAX; p = strtok(NULL, " "))
        argv[argc++] = p;
    (void)!config_load(&c, argc, argv, env, &why);
    bool json = config_wants_json(&c, argc, argv, env);
    config_fini(&c);
    buf_fini(&why);
    return json;
}

static void the_log_format_is_known_when_the_rest_is_wrong(void **state)
{
    char *json[] = {(char *)(uintptr_t) "TARN_LOG_FORMAT=json", NULL};

    (void)state;
    assert_true(wants_json("--model m --log-format json", no_env));
    assert_true(wants_json("--oops --log-format=json", no_env));
    assert_true(wants_json("--log-format text --log-format json --port x", no_env));
    assert_true(wants_json("--oops", json));
    assert_false(wants_json("--oops --log-format text", json));
    assert_false(wants_json("--oops", no_env));
    assert_false(wants_json("--log-format", no_env));
    assert_false(wants_json("--log-formatter json", no_env));
}

static void help_fits_100_columns(void **state)
{
    char *text = NULL;
    size_t n = 0, column = 0;
    FILE *f = open_memstream(&text, &n);

    (void)state;
    config_print_help(f);
    fclose(f);
    assert_non_null(strstr(text, "--max-num-batched-tokens N"));
    assert_non_null(strstr(text, "--level-ratio X"));
    for (size_t i = 0; i < n; i++) {
        column = text[i] == '\n' ? 0 : column + 1;
        assert_true(column <= 100);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_table),
        cmocka_unit_test(flag_wins_over_variable_wins_over_file),
        cmocka_unit_test(a_share_is_read_and_described),
        cmocka_unit_test(every_spelling_of_a_switch_is_read),
        cmocka_unit_test(other_words_for_a_choice_become_ours),
        cmocka_unit_test(the_kv_store_is_configured_by_flags),
        cmocka_unit_test(the_disk_tier_is_configured_by_flags),
        cmocka_unit_test(a_pool_is_configured_by_flags),
        cmocka_unit_test(a_pool_that_cannot_work_is_refused),
        cmocka_unit_test(the_password_of_a_pool_is_not_described),
        cmocka_unit_test(scheduling_is_configured_by_flags),
        cmocka_unit_test(a_number_out_of_range_is_refused),
        cmocka_unit_test(preambles_are_files_separated_by_commas),
        cmocka_unit_test(the_policies_are_those_of_the_scheduler),
        cmocka_unit_test(the_policies_are_those_of_the_cache),
        cmocka_unit_test(an_unknown_name_gets_the_nearest_one),
        cmocka_unit_test(a_bad_value_names_its_option),
        cmocka_unit_test(an_empty_key_is_refused),
        cmocka_unit_test(names_of_the_model_are_a_list_without_empty_items),
        cmocka_unit_test(secrets_are_not_described),
        cmocka_unit_test(the_log_format_is_known_when_the_rest_is_wrong),
        cmocka_unit_test(help_fits_100_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
