/* Reading LoRA adapters, what is refused, and the products against plain ones. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "engine/adapters.h"
#include "engine/model/adapter_config.h"
#include "engine/model/layer.h"
#include "engine/model/model.h"
#include "kernels/pack.h"
#include "tests/adapter_files.h"
#include "tests/engine_test.h"

#define N_LAYERS 2
#define RANK 5
#define N_ROWS 7
#define SCALE 2.0f /* alpha is twice the rank */

static const struct adapter_module modules[] = {{"self_attn.q_proj", 48, 48},
                                                {"self_attn.v_proj", 24, 48},
                                                {"self_attn.o_proj", 48, 48},
                                                {"mlp.up_proj", 100, 48},
                                                {"mlp.down_proj", 48, 100}};
static const struct adapter_files files = {modules, ARRAY_SIZE(modules), N_LAYERS, RANK, 1, 1,
                                           NULL};

/* A model with random weights, and a folder with an adapter. */
struct world {
    char model_dir[ENGINE_TEST_DIR_BYTES], dir[ADAPTER_FILES_DIR_BYTES];
    struct model_config model;
    struct device *device;
    struct weights weights;
    struct buf why;
};

static void world_open(struct world *w, enum device_kind kind)
{
    struct device_config d = {.kind = kind,
                              .n_threads = 2,
                              .max_rows = 64,
                              .max_k = 128,
                              .max_heads = 4,
                              .max_head_dim = 12};

    memset(w, 0, sizeof *w);
    buf_init(&w->why, BUF_WHY_MAX);
    assert_ok(hash_init());
    engine_test_make_model(w->model_dir, NULL);
    adapter_files_make(w->dir, &files);
    assert_ok(model_config_load(&w->model, w->model_dir, &w->why));
    assert_ok(device_open(&w->device, &d, &w->why));
    struct weights_config c = {.device = w->device, .model = &w->model, .dummy = true};
    assert_ok(weights_load(&w->weights, &c, &w->why));
}

static void world_close(struct world *w)
{
    weights_free(&w->weights);
    device_close(w->device);
    engine_test_remove_model(w->model_dir);
    adapter_files_remove(w->dir);
    buf_fini(&w->why);
}

static enum status load(struct world *w, struct adapter **out)
{
    const struct adapter_source source = {.name = "a",
                                          .dir = w->dir,
                                          .model = &w->model,
                                          .weights = &w->weights,
                                          .layout = device_weight_layout(w->device),
                                          .rank_max = 16};

    return adapter_load(out, &source, &w->why);
}

static void set_config(const struct world *w, const char *json)
{
    adapter_files_write(w->dir, "adapter_config.json", json, strlen(json));
}

/* --- reading --- */

static void matrices_are_packed_with_the_scale_in_b(void **state)
{
    struct world w;
    struct adapter *a;

    (void)state;
    world_open(&w, DEVICE_REF);
    assert_ok(load(&w, &a));
    assert_int_equal(a->rank, RANK);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        const struct adapter_product *y = &a->products[layer * ADAPTER_N_PLACES];
        const struct adapter_product *up = &y[ADAPTER_GATE_UP];

        assert_int_equal(y[ADAPTER_QKV].n_ups, 2);
        assert_int_equal(y[ADAPTER_QKV].down.n, 2 * RANK);
        assert_int_equal(y[ADAPTER_QKV].ups[1].col0, 48 + 24); /* V lies behind Q and K */
        assert_int_equal(y[ADAPTER_QKV].ups[1].mid0, RANK);
        assert_int_equal(up->n_ups, 1);
        assert_int_equal(up->ups[0].col0, 100); /* behind the gate */
        for (uint32_t r = 0; r < RANK; r++)
            for (uint32_t k = 0; k < 48; k++)
                assert_float_equal(pack_at(&y[ADAPTER_QKV].down, RANK + r, k),
                                   adapter_files_at(&files, layer, 1, 0, r * 48 + k), 0);
        for (uint32_t n = 0; n < 100; n++)
            for (uint32_t r = 0; r < RANK; r++)
                assert_float_equal(pack_at(&up->ups[0].w, n, r),
                                   SCALE * adapter_files_at(&files, layer, 3, 1, n * RANK + r), 0);
    }
    adapter_free(a);
    world_close(&w);
}

static void patterns_give_modules_their_rank_and_scale(void **state)
{
    struct world w;
    struct adapter_config c;

    (void)state;
    world_open(&w, DEVICE_REF);
    set_config(&w, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,"
                   "\"rank_pattern\":{\"layers.1.self_attn.q_proj\":16,\"v_proj\":2},"
                   "\"alpha_pattern\":{\"v_proj\":3.5}}");
    assert_ok(adapter_config_read(&c, w.dir, &w.why));
    assert_int_equal(adapter_config_rank(&c, "model.layers.0.self_attn.q_proj"), 4);
    assert_int_equal(adapter_config_rank(&c, "model.layers.1.self_attn.q_proj"), 16);
    assert_int_equal(adapter_config_rank(&c, "model.layers.11.self_attn.q_proj"), 4);
    assert_float_equal(adapter_config_scale(&c, "model.layers.0.self_attn.v_proj"), 1.75, 0);
    assert_float_equal(adapter_config_scale(&c, "model.layers.0.mlp.wv_proj"), 2, 0);
    adapter_config_fini(&c);
    set_config(&w, "{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":8,\"use_rslora\":true}");
    assert_ok(adapter_config_read(&c, w.dir, &w.why));
    assert_float_equal(adapter_config_scale(&c, "q_proj"), 2, 0);
    adapter_config_fini(&c);
    world_close(&w);
}

/* The hash names the content: KV is found by it. */
static void the_hash_depends_on_matrices_and_scales_alone(void **state)
{
    uint8_t first[ADAPTER_HASH_BYTES];
    struct world w;
    struct adapter *a;

    (void)state;
    world_open(&w, DEVICE_REF);
    assert_ok(load(&w, &a));
    memcpy(first, a->hash, sizeof first);
    adapter_free(a);
    set_config(&w, "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":10,\"lora_dropout\":0.3}");
    assert_ok(load(&w, &a));
    assert_memory_equal(first, a->hash, sizeof first);
    adapter_free(a);
    set_config(&w, "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":11}");
    assert_ok(load(&w, &a));
    assert_memory_not_equal(first, a->hash, sizeof first);
    adapter_free(a);
    world_close(&w);
}

/* --- what is refused --- */

static void check_refused(struct world *w, enum status want, const char *words)
{
    struct adapter *a;
    enum status s = load(w, &a);

    assert_null(a);
    if (s != want || !strstr(buf_str(&w->why), words))
        fail_msg("status %s, \"%s\"; expected %s, \"%s\"", status_name(s), buf_str(&w->why),
                 status_name(want), words);
}

static void fields_that_make_another_addition_are_refused_by_name(void **state)
{
    static const struct {
        const char *field;
        enum status status;
        const char *words;
    } cases[] = {
        {"\"use_dora\":true", ERR_UNSUPPORTED, "use_dora"},
        {"\"fan_in_fan_out\":true", ERR_UNSUPPORTED, "fan_in_fan_out"},
        {"\"modules_to_save\":[\"lm_head\"]", ERR_UNSUPPORTED, "modules_to_save"},
        {"\"bias\":\"all\"", ERR_UNSUPPORTED, "bias"},
        {"\"lora_bias\":true", ERR_UNSUPPORTED, "lora_bias"},
        {"\"layer_replication\":[[0,1]]", ERR_UNSUPPORTED, "layer_replication"},
        {"\"trainable_token_indices\":[1]", ERR_UNSUPPORTED, "trainable_token_indices"},
        {"\"a_later_field\":3", ERR_UNSUPPORTED, "a_later_field"},
        {"\"task_type\":\"SEQ_CLS\"", ERR_UNSUPPORTED, "SEQ_CLS"},
        {"\"init_lora_weights\":\"pissa\"", ERR_UNSUPPORTED, "pissa"},
        {"\"rank_pattern\":{\".*q_proj\":2}", ERR_UNSUPPORTED, "rank_pattern"},
        {"\"rank_pattern\":{\"q_proj\":0}", ERR_INVALID, "rank_pattern"},
        {"\"rank_pattern\":[]", ERR_INVALID, "rank_pattern"},
        {"\"target_modules\":3", ERR_INVALID, "target_modules"},
        {"\"lora_alpha\":\"8\"", ERR_INVALID, "lora_alpha"},
        {"\"lora_alpha\":-1", ERR_INVALID, "lora_alpha"},
        {"\"r\":0", ERR_INVALID, "r"},
        {"\"r\":17", ERR_TOO_LARGE, "rank 17"},
        {"\"r\":4", ERR_INVALID, "another shape"},
    };
    char json[256];
    struct world w;

    (void)state;
    world_open(&w, DEVICE_REF);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bool is_rank = strncmp(cases[i].field, "\"r\"", 3) == 0;
        snprintf(json, sizeof json, "{\"peft_type\":\"LORA\",%s%s}", is_rank ? "" : "\"r\":5,",
                 cases[i].field);
        set_config(&w, json);
        check_refused(&w, cases[i].status, cases[i].words);
    }
    set_config(&w, "{\"peft_type\":\"LOHA\"}");
    check_refused(&w, ERR_UNSUPPORTED, "LOHA");
    set_config(&w, "{}");
    check_refused(&w, ERR_INVALID, "peft_type");
    set_config(&w, "[]");
    check_refused(&w, ERR_INVALID, "adapter_config.json");
    world_close(&w);
}

/* Write a tensor file with one pair, whose header is given. */
static void set_tensors(const struct world *w, const char *header, size_t n_data, float value)
{
    size_t n_head = strlen(header), n = 8 + n_head + n_data;
    unsigned char *bytes = calloc(1, n);

    assert_non_null(bytes);
    memcpy(bytes, &(uint64_t){n_head}, 8);
    memcpy(bytes + 8, header, n_head);
    for (size_t i = 0; i + 4 <= n_data; i += 4)
        memcpy(bytes + 8 + n_head + i, &value, 4);
    adapter_files_write(w->dir, "adapter_model.safetensors", bytes, n);
    free(bytes);
}

#define TENSOR(name, dtype, rows, cols, begin, end)                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" #rows "," #cols "],"                       \
    "\"data_offsets\":[" #begin "," #end "]}"
#define Q0 "base_model.model.model.layers.0.self_attn.q_proj"

static void tensors_that_do_not_fit_are_refused_by_name(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        float value;
        enum status status;
        const char *words;
    } cases[] = {
        {"{" TENSOR(Q0 ".lora_A.weight", "F32", 5, 48, 0, 960) "}", 960, 1, ERR_INVALID,
         "no lora_B"},
        {"{" TENSOR(Q0 ".lora_B.weight", "F32", 48, 5, 0, 960) "}", 960, 1, ERR_INVALID,
         "no lora_A"},
        {"{" TENSOR(Q0 ".lora_A.weight", "F32", 48, 5, 0, 960) "}", 960, 1, ERR_INVALID,
         "another shape"},
        {"{" TENSOR(Q0 ".lora_A.weight", "I8", 5, 48, 0, 240) "}", 240, 0, ERR_UNSUPPORTED, "I8"},
        {"{" TENSOR(Q0 ".lora_A.weight", "F32", 5, 48, 0,
                    960) "," TENSOR(Q0 ".lora_B.weight", "F32", 48, 5, 960, 1920) "}",
         1920, NAN, ERR_INVALID, "NaN"},
        {"{" TENSOR("base_model.model.lm_head.lora_A.weight", "F32", 5, 48, 0, 960) "}", 960, 1,
         ERR_UNSUPPORTED, "lm_head"},
        {"{" TENSOR("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "F32", 5, 48,
                    0, 960) "}",
         960, 1, ERR_UNSUPPORTED, "layers.2"},
        {"{" TENSOR("base_model.model.model.layers.0.self_attn.x_proj.lora_A.weight", "F32", 5, 48,
                    0, 960) "}",
         960, 1, ERR_UNSUPPORTED, "self_attn.x_proj"},
        {"{" TENSOR(Q0 ".lora_magnitude_vector", "F32", 5, 48, 0, 960) "}", 960, 1, ERR_UNSUPPORTED,
         "lora_magnitude_vector"},
        {"{" TENSOR(Q0 ".lora_A.weight", "F32", 5, 48, 0, 960) "}", 100, 1, ERR_INVALID,
         "cut short"},
        {"{}", 0, 0, ERR_INVALID, "no tensors"},
    };
    struct world w;

    (void)state;
    world_open(&w, DEVICE_REF);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        set_tensors(&w, cases[i].header, cases[i].n_data, cases[i].value);
        check_refused(&w, cases[i].status, cases[i].words);
    }
    adapter_files_write(w.dir, "adapter_model.safetensors", "x", 1);
    check_refused(&w, ERR_INVALID, "safetensors");
    world_close(&w);
}

/* --- files that are none, or change --- */

static const char *cut_path; /* the file is cut off before the next read; NULL: none is */

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (cut_path)
        assert_int_equal(truncate(cut_path, 300), 0);
    return __real_pread(fd, to, n, at);
}

static void files_that_wait_or_shrink_are_refused(void **state)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char path[128], kept[128];
    struct world w;

    (void)state;
    alarm(60); /* a guard: an open() that waits ends the test */
    world_open(&w, DEVICE_REF);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof path, "%s/%s", w.dir, names[i]);
        snprintf(kept, sizeof kept, "%s/kept", w.dir);
        assert_int_equal(rename(path, kept), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        check_refused(&w, ERR_INVALID, "is not a regular file");
        assert_int_equal(rename(kept, path), 0);
    }
    cut_path = path;
    check_refused(&w, ERR_IO, "was cut off");
    cut_path = NULL;
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    check_refused(&w, ERR_TOO_LARGE, "1099511627776 bytes");
    alarm(0);
    world_close(&w);
}

/* --- the end of the list --- */

static struct adapter *held; /* by a request of another thread, which lets go */
static struct adapter trap;  /* what memory of a freed adapter may lead to */
static uint32_t n_displaced;

void __real_adapter_displace(struct adapter *a);
void __wrap_adapter_displace(struct adapter *a)
{
    assert_ptr_not_equal(a, &trap);
    n_displaced++;
    __real_adapter_displace(a);
    if (a != held)
        return;
    held = NULL;
    adapter_unref(a);
}

void __real_adapter_free(struct adapter *a);
void __wrap_adapter_free(struct adapter *a)
{
    if (a)
        a->next = &trap;
    __real_adapter_free(a);
}

static enum status place_here(void *device, struct adapter *a)
{
    return adapter_place(a, device);
}

static void an_adapter_may_end_with_its_last_request_while_the_list_ends(void **state)
{
    struct world w;
    struct adapters *as;

    (void)state;
    world_open(&w, DEVICE_REF);
    const struct adapters_config c = {.model = &w.model,
                                      .weights = &w.weights,
                                      .layout = device_weight_layout(w.device),
                                      .n_max = 2,
                                      .rank_max = 16,
                                      .place = place_here,
                                      .arg = w.device};
    assert_ok(adapters_create(&as, &c));
    assert_ok(adapters_load(as, "a", w.dir, NULL, false, &w.why));
    assert_ok(adapters_load(as, "b", w.dir, NULL, false, &w.why));
    held = adapters_find(as, "b"); /* the first one on the device */
    adapters_destroy(as);
    assert_true(!held && n_displaced == 2);
    world_close(&w);
}

/* --- products --- */

/* Inputs and outputs of the products at one place of a layer. */
struct product {
    float in[N_ROWS * 100], out[N_ROWS * 200], mid[N_ROWS * ADAPTER_N_UPS_MAX * RANK];
    uint32_t k, n;
};

static void run(const struct world *w, struct product *p, enum adapter_place place,
                const struct adapter_run *runs, uint32_t n_runs)
{
    struct layer_step s = {.device = w->device,
                           .ops = device_ops(w->device),
                           .model = &w->model,
                           .weights = &w->weights,
                           .n_rows = N_ROWS,
                           .adapter_runs = runs,
                           .n_adapter_runs = n_runs,
                           .adapter_mid = p->mid};

    for (size_t i = 0; i < N_ROWS * p->k; i++)
        p->in[i] = (float)((double)rng_u32(7, i) / 2147483648.0 - 1);
    for (size_t i = 0; i < N_ROWS * p->n; i++)
        p->out[i] = (float)i;
    assert_ok(adapter_add(&s, 1, place, p->in, p->out, p->n));
}

/* B A x of module m, times the scale, in double. */
static double plain(const struct product *p, uint32_t m, uint32_t row, uint32_t col)
{
    double sum = 0;

    for (uint32_t r = 0; r < RANK; r++) {
        double mid = 0;
        for (uint32_t k = 0; k < p->k; k++)
            mid += (double)p->in[row * p->k + k] *
                   adapter_files_at(&files, 1, m, 0, r * (size_t)p->k + k);
        sum += mid * adapter_files_at(&files, 1, m, 1, col * (size_t)RANK + r);
    }
    return SCALE * sum;
}

static void check_products(enum device_kind kind)
{
    static struct product all, alone, down;
    struct world w;
    struct adapter *a;

    world_open(&w, kind);
    assert_ok(load(&w, &a));
    all = alone = (struct product){.k = 48, .n = 96};
    const struct adapter_run runs[] = {{1, 3, a}, {5, 1, a}}, one = {2, 1, a};
    run(&w, &all, ADAPTER_QKV, runs, 2);
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t col = 0; col < 96; col++) {
            bool has = (row >= 1 && row < 4) || row == 5, is_v = col >= 72;
            double add = !has || (col >= 48 && !is_v) ? 0
                         : is_v                       ? plain(&all, 1, row, col - 72)
                                                      : plain(&all, 0, row, col);
            float got = all.out[row * 96 + col], old = (float)(row * 96 + col);

            if (add == 0)
                assert_true(got == old); /* not touched */
            assert_float_equal(got, old + add, 1e-4 * (1 + fabs(old)));
        }
    run(&w, &alone, ADAPTER_QKV, &one, 1);
    assert_memory_equal(alone.out + 2 * 96, all.out + 2 * 96, 96 * sizeof(float));
    down = (struct product){.k = 100, .n = 48};
    run(&w, &down, ADAPTER_DOWN, runs, 2);
    assert_float_equal(down.out[5 * 48 + 7], 5 * 48 + 7 + plain(&down, 4, 5, 7), 1e-3);
    adapter_free(a);
    world_close(&w);
}

static void products_equal_plain_ones_and_do_not_depend_on_other_rows(void **state)
{
    (void)state;
    check_products(DEVICE_REF);
    check_products(DEVICE_CPU);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_packed_with_the_scale_in_b),
        cmocka_unit_test(patterns_give_modules_their_rank_and_scale),
        cmocka_unit_test(the_hash_depends_on_matrices_and_scales_alone),
        cmocka_unit_test(fields_that_make_another_addition_are_refused_by_name),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(files_that_wait_or_shrink_are_refused),
        cmocka_unit_test(an_adapter_may_end_with_its_last_request_while_the_list_ends),
        cmocka_unit_test(products_equal_plain_ones_and_do_not_depend_on_other_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
