/* The profile of a real forward pass: its file, and the state of the engine after it. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/run/cost_profile.h"
#include "engine/engine_internal.h"

static const char config_json[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":24,"
    "\"vocab_size\":40,\"max_position_embeddings\":300,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"float16\"}";

struct fixture {
    char dir[64], cost_dir[96];
    struct engine *e;
    struct cost_model_subject subject;
    struct cost_profile_config config;
};

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void start(struct fixture *x)
{
    struct engine_config c;
    char path[128];

    *x = (struct fixture){.dir = "/tmp/tarn-profile-XXXXXX"};
    assert_non_null(mkdtemp(x->dir));
    snprintf(path, sizeof path, "%s/config.json", x->dir);
    write_file(path, config_json);
    snprintf(x->cost_dir, sizeof x->cost_dir, "%s/a/b", x->dir);
    engine_config_init(&c);
    c.model_dir = x->dir;
    c.load_format = "dummy";
    c.n_threads = 1;
    c.max_num_seqs = 4;
    c.max_batched_tokens = 128;
    c.kv_bytes = 1 << 20;
    c.profile_cost = false; /* the tests do it */
    assert_ok(engine_open(&x->e, &c, NULL));
    x->config = (struct cost_profile_config){.device = x->e->device,
                                             .forward = x->e->forward,
                                             .batch = &x->e->batch,
                                             .pool = cache_pool(x->e->cache),
                                             .segment_tokens = x->e->config.segment_tokens,
                                             .n_vocab = 40,
                                             .n_rows_max = 128,
                                             .n_seqs_max = 4,
                                             .n_tokens_max = 300,
                                             .estimate = {.weight_bytes = 1e4,
                                                          .flops_per_token = 1e4,
                                                          .flops_per_pair = 128,
                                                          .kv_bytes_per_token = 64,
                                                          .bytes_per_s = 1e10,
                                                          .flops_per_s = 1e10},
                                             .budget_s = 0.05,
                                             .dir = x->cost_dir,
                                             .subject = &x->subject};
    cost_profile_subject(&x->subject, x->e->fingerprint, &x->config);
}

static void end(struct fixture *x)
{
    char command[128];

    engine_close(x->e);
    snprintf(command, sizeof command, "rm -r %s", x->dir);
    assert_int_equal(system(command), 0);
}

static void a_measured_profile_is_loaded_at_the_next_start(void **state)
{
    struct cost_model first, second;
    struct cost_profile_result r;
    struct fixture x;

    (void)state;
    start(&x);
    assert_ok(cost_profile_obtain(&first, &x.config, &r, NULL));
    assert_true(r.is_measured && r.is_kept && !r.is_loaded);
    assert_true(r.n_prefill > 0 && r.n_decode > 0 && r.seconds > 0);
    assert_ok(cost_profile_obtain(&second, &x.config, &r, NULL));
    assert_true(r.is_measured && r.is_kept && r.is_loaded);
    assert_int_equal(r.n_prefill + r.n_decode, 0);
    assert_memory_equal(&first, &second, sizeof first);
    end(&x);
}

static void another_engine_measures_for_itself(void **state)
{
    struct cost_model m;
    struct cost_profile_result r;
    struct fixture x;

    (void)state;
    start(&x);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    x.config.n_seqs_max = 3;
    cost_profile_subject(&x.subject, x.e->fingerprint, &x.config);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    assert_true(r.is_measured && !r.is_loaded);
    assert_int_equal(m.batch[m.n_batch - 1], 3);
    end(&x);
}

static void a_broken_file_is_measured_over(void **state)
{
    struct cost_model m;
    struct cost_profile_result r;
    struct fixture x;
    char command[192];

    (void)state;
    start(&x);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    snprintf(command, sizeof command, "for f in %s/*; do echo '{\"format\": 2' > $f; done",
             x.cost_dir);
    assert_int_equal(system(command), 0);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    assert_true(r.is_measured && !r.is_loaded && r.is_kept);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    assert_true(r.is_loaded);
    end(&x);
}

static void a_folder_that_cannot_be_written_costs_the_file_only(void **state)
{
    struct cost_model m;
    struct cost_profile_result r;
    struct fixture x;
    struct buf why;
    char path[128];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    start(&x);
    snprintf(path, sizeof path, "%s/a", x.dir);
    write_file(path, "a file, and no folder");
    assert_int_equal(cost_profile_obtain(&m, &x.config, &r, &why), ERR_IO);
    assert_non_null(strstr(buf_str(&why), x.cost_dir));
    assert_true(r.is_measured && !r.is_loaded && !r.is_kept);
    assert_true(cost_model_decode_seconds(&m, 0, 1) > 0);
    x.config.dir = NULL;
    assert_ok(cost_profile_obtain(&m, &x.config, &r, &why));
    assert_true(r.is_measured && !r.is_kept);
    end(&x);
    buf_fini(&why);
}

static void nothing_of_it_is_in_the_cache(void **state)
{
    struct cost_model m;
    struct cost_profile_result r;
    struct cache_stats cache;
    struct fixture x;

    (void)state;
    start(&x);
    assert_ok(cost_profile_obtain(&m, &x.config, &r, NULL));
    cache_check(x.e->cache);
    cache_stats(x.e->cache, &cache);
    assert_int_equal(cache.tier[CACHE_DEVICE].n_free, cache.tier[CACHE_DEVICE].n_blocks);
    assert_int_equal(cache.n_nodes, 0);
    assert_int_equal(x.e->batch.n_rows, 0);
    end(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_profile_is_loaded_at_the_next_start),
        cmocka_unit_test(another_engine_measures_for_itself),
        cmocka_unit_test(a_broken_file_is_measured_over),
        cmocka_unit_test(a_folder_that_cannot_be_written_costs_the_file_only),
        cmocka_unit_test(nothing_of_it_is_in_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
