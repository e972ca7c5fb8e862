/* test_weights_measure.c - a measurement says what a load takes: for each golden model,
 * quantization and kind of device, in bytes and parameters. */
#include "tests/unit/test.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/checkpoint.h"
#include "engine/model/weights_measure.h"

#define N_KINDS 2
#define N_QUANTIZATIONS 4

static const char *const quantizations[N_QUANTIZATIONS] = {"auto", "none", "int8", "int4"};
static struct device *devices[N_KINDS];

static int open_devices(void **state)
{
    static const enum device_kind kinds[N_KINDS] = {DEVICE_CPU, DEVICE_REF};
    struct buf why;
    bool is_open = true;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (int i = 0; i < N_KINDS; i++) {
        struct device_config c = {.kind = kinds[i],
                                  .n_threads = 1,
                                  .max_rows = 1,
                                  .max_k = 4096,
                                  .max_heads = 64,
                                  .max_head_dim = 256};
        is_open = is_open && device_open(&devices[i], &c, &why) == OK;
    }
    buf_fini(&why);
    return is_open ? 0 : 1;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        device_close(devices[i]);
    return 0;
}

static void compare(const struct weights_config *c, struct checkpoint *file)
{
    static struct weights_measure measured;
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (weights_measure(&measured, c, file, &why) != OK || weights_load(&w, c, &why) != OK)
        fail_msg("%s: %s", c->dir, buf_str(&why));
    assert_int_equal(measured.n_faults, 0);
    assert_true(measured.n_codes > 0);
    if (measured.n_params != w.n_params || measured.n_bytes != w.n_bytes)
        fail_msg("%s: measured %llu bytes and %llu parameters, loaded %llu and %llu", c->dir,
                 (unsigned long long)measured.n_bytes, (unsigned long long)measured.n_params,
                 (unsigned long long)w.n_bytes, (unsigned long long)w.n_params);
    assert_true(measured.n_mapped_bytes == 0 || w.file != NULL);
    weights_free(&w);
    buf_fini(&why);
}

static void check_model(const char *dir)
{
    struct model_config m;
    struct checkpoint *file;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (model_config_load(&m, dir, &why) != OK || checkpoint_open(&file, dir, &why) != OK)
        fail_msg("%s: %s", dir, buf_str(&why));
    for (int k = 0; k < N_KINDS * N_QUANTIZATIONS; k++) {
        struct weights_config c = {
            .device = devices[k % N_KINDS], .dir = dir, .model = &m, .dtype = m.stored_dtype};
        assert_int_equal(quantization_parse(&c.quantization, quantizations[k / N_KINDS], 0, &why),
                         OK);
        compare(&c, file);
    }
    checkpoint_close(file);
    buf_fini(&why);
}

static void a_measurement_is_that_of_a_load(void **state)
{
    glob_t g;

    (void)state;
    assert_int_equal(glob(TARN_SOURCE_DIR "/tests/golden/*/config.json", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 10);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        *strrchr(g.gl_pathv[i], '/') = '\0';
        check_model(g.gl_pathv[i]);
    }
    globfree(&g);
}

/* A model without its tensors: each is told once, and the rest is measured. */
static void missing_tensors_are_faults_and_not_the_end(void **state)
{
    static struct weights_measure measured;
    struct model_config m;
    struct checkpoint *file;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(model_config_load(&m, TARN_SOURCE_DIR "/tests/golden/plain", &why), OK);
    assert_int_equal(checkpoint_open(&file, TARN_SOURCE_DIR "/tests/golden/plain", &why), OK);
    struct weights_config c = {.device = devices[0],
                               .dir = TARN_SOURCE_DIR "/tests/golden/plain",
                               .model = &m,
                               .dtype = DTYPE_F32};
    m.n_layers++; /* nine tensors that the file does not have */
    assert_int_equal(weights_measure(&measured, &c, file, &why), OK);
    assert_int_equal(measured.n_faults, 9);
    assert_non_null(strstr(measured.faults[0], "has no tensor model.layers."));
    m.n_layers--;
    m.ffn_dim += 32; /* gate, up and down of each layer */
    assert_int_equal(weights_measure(&measured, &c, file, &why), OK);
    assert_int_equal(measured.n_faults, 3 * m.n_layers);
    assert_non_null(strstr(measured.faults[0], "has another shape"));
    checkpoint_close(file);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measurement_is_that_of_a_load),
        cmocka_unit_test(missing_tensors_are_faults_and_not_the_end),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
