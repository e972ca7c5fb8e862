/* test_fingerprint.c - every field that stored KV depends on changes the fingerprint. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/model/family.h"
#include "engine/model/fingerprint.h"

#define STRUCT_BYTES_MAX 4096

static struct model_config some_model(void)
{
    return (struct model_config){.family = &family_llama,
                                 .rope = {.theta = 10000, .factor = 1},
                                 .n_layers = 2,
                                 .dim = 48,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 12,
                                 .ffn_dim = 100,
                                 .n_vocab = 300,
                                 .max_pos = 512,
                                 .rms_eps = 1e-5f};
}

static void make(uint8_t out[FINGERPRINT_BYTES], const struct model_config *m,
                 const struct fingerprint_terms *terms)
{
    static const uint8_t content_hash[32] = "weights";
    struct fingerprint_config c = {
        .terms = *terms, .model = m, .ops_name = "ref", .content_hash = content_hash};

    assert_ok(fingerprint_make(out, &c));
}

/* Every byte of the struct belongs to exactly one row. A new member without a row leaves a hole. */
static void check_coverage(struct field_table t, size_t n_bytes)
{
    unsigned char n_rows[STRUCT_BYTES_MAX] = {0};

    assert_true(n_bytes <= sizeof n_rows);
    for (size_t i = 0; i < t.n; i++) {
        assert_true(t.rows[i].offset + t.rows[i].n_bytes <= n_bytes);
        for (uint32_t at = 0; at < t.rows[i].n_bytes; at++)
            n_rows[t.rows[i].offset + at]++;
    }
    for (size_t at = 0; at < n_bytes; at++)
        if (n_rows[at] != 1)
            fail_msg("byte %zu of the struct is covered by %u rows", at, n_rows[at]);
}

static void the_tables_cover_every_byte_of_their_structs(void **state)
{
    (void)state;
    check_coverage(model_config_fields(), sizeof(struct model_config));
    check_coverage(fingerprint_fields(), sizeof(struct fingerprint_terms));
}

/* Change each element of a field, so that an array whose first element alone counts is found. The
 * lowest mantissa bit of a float counts as well. */
static void flip(unsigned char *base, const struct field *f, uint32_t at)
{
    static const char *const other_family = "another";
    static const void *other = &other_family;

    if (f->type == FIELD_NAMED) {
        const void *before;
        memcpy(&before, base + f->offset, sizeof before);
        memcpy(base + f->offset, &other, sizeof other);
        other = before;
    } else {
        base[f->offset + at] ^= 1;
    }
}

static uint32_t element_bytes(const struct field *f)
{
    return f->type == FIELD_F64 || f->type == FIELD_NAMED ? 8 : 4;
}

static void each_field_of_the_config_changes_the_fingerprint(void **state)
{
    struct fingerprint_terms terms = {.format_version = 3};
    struct model_config m = some_model();
    uint8_t before[FINGERPRINT_BYTES], after[FINGERPRINT_BYTES];
    struct field_table t = model_config_fields();

    (void)state;
    make(before, &m, &terms);
    for (size_t i = 0; i < t.n; i++)
        for (uint32_t at = 0; at < t.rows[i].n_bytes; at += element_bytes(&t.rows[i])) {
            flip((unsigned char *)&m, &t.rows[i], at);
            make(after, &m, &terms);
            flip((unsigned char *)&m, &t.rows[i], at);
            if ((memcmp(before, after, sizeof before) == 0) != t.rows[i].not_of_kv)
                fail_msg("%s: the fingerprint is %s", t.rows[i].name,
                         t.rows[i].not_of_kv ? "changed" : "the same");
        }
}

static void each_term_changes_the_fingerprint(void **state)
{
    struct fingerprint_terms terms = {.format_version = 3};
    struct model_config m = some_model();
    uint8_t before[FINGERPRINT_BYTES], after[FINGERPRINT_BYTES];
    struct field_table t = fingerprint_fields();

    (void)state;
    make(before, &m, &terms);
    for (size_t i = 0; i < t.n; i++) {
        flip((unsigned char *)&terms, &t.rows[i], 0);
        make(after, &m, &terms);
        flip((unsigned char *)&terms, &t.rows[i], 0);
        if (memcmp(before, after, sizeof before) == 0)
            fail_msg("%s: the fingerprint is the same", t.rows[i].name);
    }
}

/* The list stands here a second time: leaving out one more field has to be meant. */
static void only_these_fields_are_left_out(void **state)
{
    static const char *const left_out[] = {"max_position_embeddings",
                                           "n_types",
                                           "n_labels",
                                           "torch_dtype",
                                           "eos_token_id",
                                           "n_eos_ids",
                                           "temperature",
                                           "top_p",
                                           "min_p",
                                           "repetition_penalty",
                                           "top_k"};
    struct field_table t = model_config_fields();
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < t.n; i++)
        if (t.rows[i].not_of_kv) {
            assert_true(n < ARRAY_SIZE(left_out));
            assert_string_equal(t.rows[i].name, left_out[n++]);
        }
    assert_int_equal(n, ARRAY_SIZE(left_out));
}

static void kernels_and_weights_change_the_fingerprint(void **state)
{
    uint8_t weights[32] = "weights", first[FINGERPRINT_BYTES], other[FINGERPRINT_BYTES];
    struct model_config m = some_model();
    struct fingerprint_config c = {.model = &m, .ops_name = "ref", .content_hash = weights};

    (void)state;
    assert_ok(fingerprint_make(first, &c));
    c.ops_name = "cpu-avx2";
    assert_ok(fingerprint_make(other, &c));
    assert_memory_not_equal(first, other, sizeof first);
    c.ops_name = "ref";
    weights[31] ^= 1;
    assert_ok(fingerprint_make(other, &c));
    assert_memory_not_equal(first, other, sizeof first);
    weights[31] ^= 1;
    assert_ok(fingerprint_make(other, &c));
    assert_memory_equal(first, other, sizeof first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tables_cover_every_byte_of_their_structs),
        cmocka_unit_test(each_field_of_the_config_changes_the_fingerprint),
        cmocka_unit_test(each_term_changes_the_fingerprint),
        cmocka_unit_test(only_these_fields_are_left_out),
        cmocka_unit_test(kernels_and_weights_change_the_fingerprint),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
