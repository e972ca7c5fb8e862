/* Messages between catalogs: what is written is read back, everything else is refused. */
#include "tests/unit/test.h"

#include <string.h>

#include "server/api/follow_message.h"

static struct buf out;

static int set_up(void **state)
{
    (void)state;
    buf_init(&out, 8u << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    buf_fini(&out);
    return 0;
}

static enum status read_out(struct follow_message *m)
{
    return follow_read(m, out.data, out.len);
}

static void digests_are_read_back(void **state)
{
    struct follow_message m;

    (void)state;
    assert_ok(follow_begin(&out, FOLLOW_DIGEST));
    assert_int_equal(read_out(&m), ERR_INVALID);
    assert_ok(follow_add_digest(&out, UINT64_MAX - 1));
    assert_ok(read_out(&m));
    assert_int_equal(follow_digest(&m, 0), UINT64_MAX - 1);
    assert_ok(follow_begin(&out, FOLLOW_DIGESTS));
    for (uint64_t i = 0; i < CATALOG_N_BUCKETS; i++)
        assert_ok(follow_add_digest(&out, i * i));
    assert_ok(read_out(&m));
    assert_int_equal(follow_digest(&m, 255), 255 * 255);
    assert_ok(follow_add_digest(&out, 0)); /* one too many */
    assert_int_equal(read_out(&m), ERR_INVALID);
}

static void stamps_are_read_back(void **state)
{
    struct catalog_entry e = {.name = {1, 2}, .stamp = {CATALOG_COUNTER_MAX - 1, UINT64_MAX, true}},
                         back;
    struct follow_message m;

    (void)state;
    assert_ok(follow_begin(&out, FOLLOW_STAMPS));
    for (uint32_t i = 0; i < FOLLOW_N_STAMPS_MAX; i++) {
        e.name[15] = (uint8_t)i;
        assert_ok(follow_add_stamp(&out, &e));
    }
    assert_ok(read_out(&m));
    assert_int_equal(m.n, FOLLOW_N_STAMPS_MAX);
    follow_stamp(&m, m.n - 1, &back);
    assert_memory_equal(back.name, e.name, sizeof e.name);
    assert_int_equal(catalog_stamp_compare(&back.stamp, &e.stamp), 0);
    assert_ok(follow_add_stamp(&out, &e));
    assert_int_equal(read_out(&m), ERR_INVALID);
}

static void counters_out_of_range_are_refused(void **state)
{
    static const uint64_t counters[] = {0, CATALOG_COUNTER_MAX, UINT64_C(3) << 61};
    struct follow_message m;

    (void)state;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        struct catalog_entry e = {.stamp = {.counter = counters[i]}};
        assert_ok(follow_begin(&out, FOLLOW_STAMPS));
        assert_ok(follow_add_stamp(&out, &e));
        assert_int_equal(read_out(&m), ERR_INVALID);
    }
}

static void lists_have_bounds(void **state)
{
    static const struct {
        enum follow_type type;
        uint32_t n_bytes, n_max;
    } lists[] = {{FOLLOW_WANT, CATALOG_NAME_BYTES, FOLLOW_N_WANTED_MAX},
                 {FOLLOW_ERASE, DOCUMENT_KEY_BYTES, FOLLOW_N_ERASED_MAX}};
    static const uint8_t item[DOCUMENT_KEY_BYTES] = {9, 8, 7};
    struct follow_message m;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_ok(follow_begin(&out, lists[i].type));
        assert_int_equal(read_out(&m), ERR_INVALID);
        for (uint32_t k = 0; k <= lists[i].n_max; k++) {
            assert_ok(buf_append(&out, item, lists[i].n_bytes));
            assert_int_equal(read_out(&m) == OK, k < lists[i].n_max);
        }
        out.len -= lists[i].n_bytes;
        assert_ok(read_out(&m));
        assert_memory_equal(follow_item(&m, m.n - 1), item, lists[i].n_bytes);
        out.len--;
        assert_int_equal(read_out(&m), ERR_INVALID);
    }
}

static void records_say_how_much_they_answer(void **state)
{
    struct follow_message m;

    (void)state;
    assert_ok(follow_begin(&out, FOLLOW_RECORDS));
    assert_int_equal(read_out(&m), ERR_INVALID); /* nothing is answered */
    follow_set_answered(&out, 3);
    assert_ok(buf_puts(&out, "records"));
    assert_ok(read_out(&m));
    assert_int_equal(m.n_answered, 3);
    assert_int_equal(m.n, 7);
    assert_memory_equal(m.items, "records", 7);
    follow_set_answered(&out, FOLLOW_N_WANTED_MAX + 1);
    assert_int_equal(read_out(&m), ERR_INVALID);
    assert_int_equal(follow_read(&m, out.data, 6), ERR_INVALID);
}

static void other_heads_are_refused(void **state)
{
    struct follow_message m;

    (void)state;
    assert_ok(follow_begin(&out, FOLLOW_DIGEST));
    assert_ok(follow_add_digest(&out, 1));
    for (uint32_t at = 0; at < 4; at++)
        for (uint32_t byte = 1; byte < 256; byte++) {
            out.data[at] ^= (char)byte;
            bool is_type = at == 1 && out.data[1] >= FOLLOW_DIGEST && out.data[1] <= FOLLOW_ERASE;
            if (!is_type)
                assert_int_equal(read_out(&m), ERR_INVALID);
            out.data[at] ^= (char)byte;
        }
    for (size_t n = 0; n < out.len; n++)
        assert_int_equal(follow_read(&m, out.data, n), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_read_back),
        cmocka_unit_test(stamps_are_read_back),
        cmocka_unit_test(counters_out_of_range_are_refused),
        cmocka_unit_test(lists_have_bounds),
        cmocka_unit_test(records_say_how_much_they_answer),
        cmocka_unit_test(other_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
