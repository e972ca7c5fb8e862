/* vector_json.c: numbers and base64 of vectors, and shortened vectors. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "server/api/vector_json.h"

#define N_FLOATS 1000 /* more than a group of base64 */

static void floats_parse_back_to_the_same_bits(void **state)
{
    float v[N_FLOATS] = {0.0f, -0.0f, 1.0f, 1e-38f, -1e-45f, 3.4028235e38f, 0.1f};
    struct json *j = NULL;
    struct buf out;
    struct writer w = {&out, OK};

    (void)state;
    buf_init(&out, 1u << 20);
    for (uint32_t i = 7; i < N_FLOATS; i++)
        v[i] = sinf((float)i) * ldexpf(1, (int)(i % 40) - 30);
    vector_write(&w, v, N_FLOATS);
    assert_ok(w.status);
    assert_ok(js_parse(&j, buf_str(&out), out.len, NULL));
    assert_int_equal(js_len(j), N_FLOATS);
    for (uint32_t i = 0; i < N_FLOATS; i++) {
        float back = (float)js_number(js_at(j, i));
        if (i != 1) /* "-0" may be read as a whole number */
            assert_memory_equal(&back, &v[i], sizeof back);
    }
    js_unref(j);
    buf_fini(&out);
}

static void base64_is_that_of_little_endian_floats(void **state)
{
    static const struct {
        float v[4];
        uint32_t n;
        const char *text;
    } cases[] = {{{1.0f}, 1, "\"AACAPw==\""},
                 {{1.0f, -2.0f}, 2, "\"AACAPwAAAMA=\""},
                 {{1.0f, -2.0f, 0.15625f}, 3, "\"AACAPwAAAMAAACA+\""},
                 {{0.0f}, 0, "\"\""}};
    struct buf out;

    (void)state;
    buf_init(&out, 1u << 20);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct writer w = {&out, OK};
        buf_reset(&out);
        vector_write_base64(&w, cases[i].v, cases[i].n);
        assert_ok(w.status);
        assert_string_equal(buf_str(&out), cases[i].text);
    }
    buf_fini(&out);
}

static void long_base64_has_padding_at_its_end_only(void **state)
{
    static float v[N_FLOATS];
    struct buf out;
    struct writer w = {&out, OK};

    (void)state;
    buf_init(&out, 1u << 20);
    vector_write_base64(&w, v, N_FLOATS);
    assert_ok(w.status);
    assert_int_equal(out.len, (N_FLOATS * 4 + 2) / 3 * 4 + 2);
    assert_ptr_equal(strchr(buf_str(&out), '='), buf_str(&out) + out.len - 3);
    buf_fini(&out);
}

static void a_shortened_vector_has_length_1(void **state)
{
    float v[4] = {3, 4, 100, 7};

    (void)state;
    assert_true(vector_cut(v, 4, 2));
    assert_float_equal(v[0], 0.6f, 1e-7);
    assert_float_equal(v[1], 0.8f, 1e-7);
}

static void a_whole_vector_keeps_its_bits(void **state)
{
    float v[2] = {0.1f, 0.2f}, same[2] = {0.1f, 0.2f};

    (void)state;
    assert_true(vector_cut(v, 2, 2));
    assert_memory_equal(v, same, sizeof v);
}

static void zeros_have_no_direction(void **state)
{
    float v[3] = {0, 0, 1};

    (void)state;
    assert_false(vector_cut(v, 3, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_parse_back_to_the_same_bits),
        cmocka_unit_test(base64_is_that_of_little_endian_floats),
        cmocka_unit_test(long_base64_has_padding_at_its_end_only),
        cmocka_unit_test(a_shortened_vector_has_length_1),
        cmocka_unit_test(a_whole_vector_keeps_its_bits),
        cmocka_unit_test(zeros_have_no_direction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
