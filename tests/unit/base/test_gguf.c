/* The GGUF reader: what it returns, and that damaged files are refused before anything is used. */
#include "tests/unit/test.h"

#include <unistd.h>

#include "tests/temp_dir.h"
#include "tests/unit/fault.h"
#include "tests/unit/gguf_file.h"

#define PATH_BYTES 128

static struct temp_dir dir;
static char path[PATH_BYTES];
static struct buf why;

static int make_dir(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/model.gguf", dir.path);
    buf_init(&why, BUF_WHY_MAX);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    temp_dir_remove(&dir);
    buf_fini(&why);
    return 0;
}

static enum status open_bytes(struct gguf **g, const void *bytes, size_t n)
{
    gguf_file_save(path, bytes, n);
    return gguf_open(g, path, &why);
}

static void expect_ok(struct gguf **g, struct gguf_file *f)
{
    enum status s = open_bytes(g, f->bytes.data, f->bytes.len);

    if (s != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&f->bytes);
}

static void expect_refused(struct gguf_file *f, enum status s, const char *words)
{
    struct gguf *g;

    assert_int_equal(open_bytes(&g, f->bytes.data, f->bytes.len), s);
    assert_null(g);
    if (!strstr(buf_str(&why), words) || !strstr(buf_str(&why), path))
        fail_msg("expected the words \"%s\" and the path: %s", words, buf_str(&why));
    buf_fini(&f->bytes);
}

/* --- what is read --- */

static void add_numbers(struct gguf_file *f)
{
    gguf_file_key(f, "i8", GGUF_I8);
    gguf_file_add(f, "\xfb", 1); /* -5 */
    gguf_file_key(f, "u16", GGUF_U16);
    gguf_file_add(f, "\x34\x12", 2);
    gguf_file_key(f, "i64", GGUF_I64);
    gguf_file_u64(f, UINT64_C(0) - 7);
    gguf_file_key(f, "huge", GGUF_U64);
    gguf_file_u64(f, UINT64_MAX);
    gguf_file_key(f, "f32", GGUF_F32);
    gguf_file_u32(f, 0x3fc00000); /* 1.5 */
    gguf_file_key(f, "f64", GGUF_F64);
    gguf_file_u64(f, UINT64_C(0xc004000000000000)); /* -2.5 */
    gguf_file_key(f, "yes", GGUF_BOOL);
    gguf_file_add(f, "\1", 1);
}

static void numbers_of_every_type_are_read_within_limits(void **state)
{
    struct gguf_file f;
    struct gguf *g;
    uint64_t n = 1;
    double v = 0;
    bool yes = false;

    (void)state;
    gguf_file_begin(&f, 0, 7);
    add_numbers(&f);
    expect_ok(&g, &f);
    assert_ok(gguf_get_u64(g, "u16", 0, 0x1234, &n, &why));
    assert_int_equal(n, 0x1234);
    assert_int_equal(gguf_get_u64(g, "u16", 0, 0x1233, &n, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "key u16: expected a number from 0 to 4659");
    assert_int_equal(gguf_get_u64(g, "u16", 0x1235, UINT64_MAX, &n, &why), ERR_INVALID);
    assert_int_equal(gguf_get_u64(g, "i8", 0, UINT64_MAX, &n, &why), ERR_INVALID);
    assert_int_equal(gguf_get_u64(g, "f32", 0, 9, &n, &why), ERR_INVALID);
    assert_ok(gguf_get_u64(g, "huge", 0, UINT64_MAX, &n, &why));
    assert_true(n == UINT64_MAX);
    assert_ok(gguf_get_u64(g, "absent", 0, 9, &n, &why));
    assert_true(n == UINT64_MAX);
    assert_ok(gguf_get_f64(g, "i8", &v, &why));
    assert_true(v == -5);
    assert_ok(gguf_get_f64(g, "i64", &v, &why));
    assert_true(v == -7);
    assert_ok(gguf_get_f64(g, "huge", &v, &why));
    assert_true(v == 18446744073709551616.0);
    assert_ok(gguf_get_f64(g, "f32", &v, &why));
    assert_true(v == 1.5);
    assert_ok(gguf_get_f64(g, "f64", &v, &why));
    assert_true(v == -2.5);
    assert_int_equal(gguf_get_f64(g, "yes", &v, &why), ERR_INVALID);
    assert_ok(gguf_get_bool(g, "yes", &yes, &why));
    assert_true(yes);
    assert_int_equal(gguf_get_bool(g, "i8", &yes, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "key i8: expected a bool, found i8");
    assert_true(gguf_has(g, "yes") && !gguf_has(g, "no"));
    gguf_close(g);
}

static void strings_and_arrays_are_read(void **state)
{
    struct gguf_file f;
    struct gguf *g;
    struct gguf_array a;
    const char *text = NULL;
    size_t len = 0;

    (void)state;
    gguf_file_begin(&f, 0, 4);
    gguf_file_key(&f, "text", GGUF_STRING);
    gguf_file_string(&f, "some text");
    gguf_file_key(&f, "nul", GGUF_STRING);
    gguf_file_u64(&f, 3);
    gguf_file_add(&f, "a\0b", 3);
    gguf_file_key(&f, "words", GGUF_ARRAY);
    gguf_file_u32(&f, GGUF_STRING);
    gguf_file_u64(&f, 3);
    gguf_file_string(&f, "one");
    gguf_file_string(&f, "");
    gguf_file_string(&f, "three");
    gguf_file_key(&f, "halves", GGUF_ARRAY);
    gguf_file_u32(&f, GGUF_F32);
    gguf_file_u64(&f, 2);
    gguf_file_u32(&f, 0x3f000000);
    gguf_file_u32(&f, 0xbf000000);
    expect_ok(&g, &f);
    assert_ok(gguf_get_str(g, "text", &text, &len, &why));
    assert_string_equal(text, "some text");
    assert_int_equal(len, 9);
    assert_int_equal(gguf_get_str(g, "nul", &text, NULL, &why), ERR_INVALID);
    assert_int_equal(gguf_get_str(g, "words", &text, NULL, &why), ERR_INVALID);
    assert_ok(gguf_get_array(g, "words", &a, &why));
    assert_int_equal(a.n, 3);
    assert_memory_equal(gguf_array_str(g, &a, 2, &len), "three", 5);
    assert_int_equal(len, 5);
    assert_non_null(gguf_array_str(g, &a, 1, &len));
    assert_int_equal(len, 0);
    assert_null(gguf_array_str(g, &a, 3, &len));
    assert_true(gguf_array_number(&a, 0) == 0);
    assert_ok(gguf_get_array(g, "halves", &a, &why));
    assert_true(gguf_array_number(&a, 0) == 0.5 && gguf_array_number(&a, 1) == -0.5);
    assert_true(gguf_array_number(&a, 2) == 0);
    assert_null(gguf_array_str(g, &a, 0, &len));
    assert_ok(gguf_get_array(g, "absent", &a, &why));
    assert_int_equal(a.n, 0);
    assert_int_equal(gguf_get_array(g, "text", &a, &why), ERR_INVALID);
    gguf_close(g);
}

/* Two tensors, the second one first in the data, with a gap between them. */
static void make_tensors(struct gguf_file *f)
{
    gguf_file_begin(f, 2, 1);
    gguf_file_key_u32(f, "general.alignment", 64);
    gguf_file_info(f, "b.weight", 0, 3, 2, 128);
    gguf_file_info(f, "a.weight", 8, 64, 1, 0); /* Q8_0: 68 bytes */
    gguf_file_data(f, 64, 128 + 24);
}

static void tensors_are_found_with_their_bytes(void **state)
{
    struct gguf_file f;
    struct gguf *g;
    uint64_t offset;
    uint8_t found[2];
    int fd;

    (void)state;
    make_tensors(&f);
    expect_ok(&g, &f);
    assert_int_equal(gguf_n_tensors(g), 2);
    const struct gguf_tensor *a = gguf_find(g, "a.weight"), *b = gguf_find(g, "b.weight");
    assert_ptr_equal(gguf_tensor(g, 0), a);
    assert_ptr_equal(gguf_tensor(g, 1), b);
    assert_null(gguf_tensor(g, 2));
    assert_null(gguf_find(g, "c.weight"));
    assert_string_equal(a->code->name, "Q8_0");
    assert_int_equal(a->n_bytes, 68);
    assert_int_equal(a->shape[0], 64);
    assert_int_equal(a->shape[3], 1);
    assert_int_equal(b->n_bytes, 24);
    assert_int_equal(*(const uint8_t *)b->data, 128);
    assert_ok(gguf_file(g, b, &fd, &offset, &why));
    assert_int_equal(pread(fd, found, 2, (off_t)offset), 2);
    assert_memory_equal(found, b->data, 2);
    gguf_close(g);
    assert_true(gguf_is(path));
    assert_false(gguf_is(dir.path));
}

/* --- what is refused --- */

static void a_file_cut_anywhere_is_refused(void **state)
{
    struct gguf_file f;
    struct gguf *g;

    (void)state;
    gguf_file_begin(&f, 2, 3);
    gguf_file_key(&f, "words", GGUF_ARRAY);
    gguf_file_u32(&f, GGUF_STRING);
    gguf_file_u64(&f, 2);
    gguf_file_string(&f, "one");
    gguf_file_string(&f, "two");
    gguf_file_key(&f, "text", GGUF_STRING);
    gguf_file_string(&f, "text");
    gguf_file_key(&f, "bytes", GGUF_ARRAY);
    gguf_file_u32(&f, GGUF_U16);
    gguf_file_u64(&f, 5);
    gguf_file_add(&f, "0123456789", 10);
    gguf_file_info(&f, "a", 0, 3, 2, 0);
    gguf_file_info(&f, "b", 1, 3, 2, 32);
    gguf_file_data(&f, 32, 32 + 12);
    for (size_t n = 0; n < f.bytes.len; n++) {
        assert_int_equal(open_bytes(&g, f.bytes.data, n), ERR_INVALID);
        assert_null(g);
    }
    expect_ok(&g, &f);
    gguf_close(g);
}

static void counts_and_lengths_beyond_the_file_are_refused(void **state)
{
    static const uint64_t counts[] = {2, 1000, UINT32_MAX, UINT64_MAX / 8, UINT64_MAX};
    struct gguf_file f;

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gguf_file_begin(&f, counts[i], 0);
        gguf_file_info(&f, "a", 0, 1, 1, 0);
        expect_refused(&f, ERR_INVALID, i ? "do not fit" : "");
        gguf_file_begin(&f, 0, counts[i]);
        gguf_file_key_u32(&f, "a", 1);
        expect_refused(&f, ERR_INVALID, i ? "do not fit" : "");
        gguf_file_begin(&f, 0, 1);
        gguf_file_key(&f, "a", GGUF_ARRAY);
        gguf_file_u32(&f, GGUF_STRING);
        gguf_file_u64(&f, counts[i]);
        gguf_file_string(&f, "x");
        expect_refused(&f, ERR_INVALID, "key a: the file is cut short");
        gguf_file_begin(&f, 0, 1);
        gguf_file_key(&f, "a", GGUF_ARRAY);
        gguf_file_u32(&f, GGUF_F64);
        gguf_file_u64(&f, counts[i]);
        gguf_file_u64(&f, 0);
        expect_refused(&f, ERR_INVALID, "key a: the file is cut short");
        gguf_file_begin(&f, 0, 1);
        gguf_file_key(&f, "a", GGUF_STRING);
        gguf_file_u64(&f, counts[i]);
        gguf_file_add(&f, "x", 1);
        expect_refused(&f, ERR_INVALID, "key a: the file is cut short");
    }
}

static void a_name_of_no_or_too_many_or_strange_bytes_is_refused(void **state)
{
    char name[200];
    struct gguf_file f;

    (void)state;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    gguf_file_begin(&f, 1, 0);
    gguf_file_info(&f, name, 0, 1, 1, 0);
    expect_refused(&f, ERR_INVALID, "a name of a tensor has 199 bytes");
    gguf_file_begin(&f, 0, 1);
    gguf_file_key_u32(&f, "", 1);
    expect_refused(&f, ERR_INVALID, "a name of a key");
    gguf_file_begin(&f, 0, 1);
    gguf_file_key_u32(&f, "a\nb", 1);
    expect_refused(&f, ERR_INVALID, "control characters");
}

static void a_name_that_stands_twice_is_refused(void **state)
{
    struct gguf_file f;

    (void)state;
    gguf_file_begin(&f, 0, 3);
    gguf_file_key_u32(&f, "a", 1);
    gguf_file_key_u32(&f, "b", 1);
    gguf_file_key_u32(&f, "a", 1);
    expect_refused(&f, ERR_INVALID, "key a stands twice");
    gguf_file_begin(&f, 2, 0);
    gguf_file_info(&f, "t", 0, 1, 1, 0);
    gguf_file_info(&f, "t", 0, 1, 1, 32);
    gguf_file_data(&f, 32, 36);
    expect_refused(&f, ERR_INVALID, "tensor t stands twice");
}

static void unknown_types_and_versions_are_refused(void **state)
{
    struct gguf_file f;

    (void)state;
    gguf_file_begin(&f, 0, 1);
    gguf_file_key(&f, "a", (enum gguf_type)13);
    gguf_file_add(&f, "x", 1);
    expect_refused(&f, ERR_INVALID, "key a: type 13 is unknown");
    gguf_file_begin(&f, 0, 1);
    gguf_file_key(&f, "a", GGUF_ARRAY);
    gguf_file_u32(&f, GGUF_ARRAY);
    gguf_file_u64(&f, 0);
    expect_refused(&f, ERR_UNSUPPORTED, "key a: an array of arrays");
    gguf_file_begin(&f, 0, 1);
    gguf_file_key(&f, "a", GGUF_ARRAY);
    gguf_file_u32(&f, UINT32_MAX);
    gguf_file_u64(&f, 0);
    expect_refused(&f, ERR_INVALID, "key a: an array of type 4294967295");
    gguf_file_begin(&f, 0, 1);
    gguf_file_key(&f, "a", GGUF_BOOL);
    gguf_file_add(&f, "\2", 1);
    expect_refused(&f, ERR_INVALID, "key a: a bool is 2");
    gguf_file_begin(&f, 0, 0);
    f.bytes.data[4] = 1;
    expect_refused(&f, ERR_UNSUPPORTED, "GGUF version 1 is not supported");
    gguf_file_begin(&f, 0, 0);
    memcpy(f.bytes.data + 4, "\0\0\0\3", 4);
    expect_refused(&f, ERR_UNSUPPORTED, "big-endian");
    gguf_file_begin(&f, 0, 0);
    f.bytes.data[3] = 'E';
    expect_refused(&f, ERR_INVALID, "not a GGUF file");
}

static void alignments_that_are_no_powers_of_two_are_refused(void **state)
{
    static const uint32_t wrong[] = {0, 3, 48, UINT32_MAX, 1u << 31};
    struct gguf_file f;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gguf_file_begin(&f, 0, 1);
        gguf_file_key_u32(&f, "general.alignment", wrong[i]);
        expect_refused(&f, ERR_INVALID, "key general.alignment: expected a power of two");
    }
    gguf_file_begin(&f, 0, 1);
    gguf_file_key(&f, "general.alignment", GGUF_STRING);
    gguf_file_string(&f, "32");
    expect_refused(&f, ERR_INVALID, "key general.alignment");
}

static void refuse_tensor(uint32_t type, uint64_t columns, uint64_t rows, uint64_t offset,
                          const char *words)
{
    struct gguf_file f;

    gguf_file_begin(&f, 1, 0);
    gguf_file_info(&f, "t", type, columns, rows, offset);
    gguf_file_data(&f, 32, 256);
    expect_refused(&f, ERR_INVALID, words);
}

static void shapes_and_places_outside_of_the_file_are_refused(void **state)
{
    (void)state;
    refuse_tensor(0, 65, 1, 0, "tensor t takes 260 bytes, but the file ends after 256");
    refuse_tensor(0, 1, 1, 256, "tensor t takes 4 bytes, but the file ends after 0");
    refuse_tensor(0, 1, 1, 288, "no multiple of 32, or behind the end");
    refuse_tensor(0, 1, 1, UINT64_MAX - 31, "no multiple of 32, or behind the end");
    refuse_tensor(0, 1, 1, 16, "no multiple of 32");
    refuse_tensor(0, 0, 1, 0, "tensor t: no elements, or too many");
    refuse_tensor(0, UINT64_C(1) << 32, UINT64_C(1) << 32, 0, "too many");
    refuse_tensor(0, UINT64_C(1) << 62, 1, 0, "tensor t: too many elements");
    refuse_tensor(8, 33, 1, 0, "tensor t: rows of 33 elements are no blocks of Q8_0");
    refuse_tensor(12, 32, 8, 0, "tensor t: rows of 32 elements are no blocks of Q4_K");
}

static void tensors_that_overlap_are_refused(void **state)
{
    struct gguf_file f;

    (void)state;
    gguf_file_begin(&f, 2, 0);
    gguf_file_info(&f, "a", 0, 9, 1, 0);
    gguf_file_info(&f, "b", 0, 1, 1, 32);
    gguf_file_data(&f, 32, 64);
    expect_refused(&f, ERR_INVALID, "tensor a takes 36 bytes, but another tensor begins after 32");
    gguf_file_begin(&f, 2, 0);
    gguf_file_info(&f, "a", 0, 1, 1, 0);
    gguf_file_info(&f, "b", 0, 1, 1, 0);
    gguf_file_data(&f, 32, 64);
    expect_refused(&f, ERR_INVALID, "another tensor begins after 0");
}

static void a_tensor_of_an_unknown_type_reaches_to_the_next(void **state)
{
    struct gguf_file f;
    struct gguf *g;

    (void)state;
    gguf_file_begin(&f, 2, 0);
    gguf_file_info(&f, "a", 999, 7, 1, 0);
    gguf_file_info(&f, "b", 0, 1, 1, 64);
    gguf_file_data(&f, 32, 68);
    expect_ok(&g, &f);
    assert_null(gguf_find(g, "a")->code);
    assert_int_equal(gguf_find(g, "a")->n_bytes, 64);
    gguf_close(g);
}

static void dimensions_of_another_number_are_refused(void **state)
{
    static const uint32_t wrong[] = {0, 5, UINT32_MAX};
    struct gguf_file f;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gguf_file_begin(&f, 1, 0);
        gguf_file_string(&f, "t");
        gguf_file_u32(&f, wrong[i]);
        for (int j = 0; j < 8; j++)
            gguf_file_u64(&f, 1);
        expect_refused(&f, ERR_INVALID, "1 to 4 are supported");
    }
}

/* --- split models --- */

static void write_part(uint32_t no, uint32_t count, uint32_t says, const char *tensor)
{
    char name[PATH_BYTES];
    struct gguf_file f;

    gguf_file_begin(&f, 1, 3);
    gguf_file_key_u32(&f, "split.no", no);
    gguf_file_key_u32(&f, "split.count", says);
    gguf_file_key_u32(&f, "split.tensors.count", count);
    gguf_file_info(&f, tensor, 0, 1, 1, 0);
    gguf_file_data(&f, 32, 4);
    snprintf(name, sizeof name, "%s/m-%05u-of-%05u.gguf", dir.path, no + 1, count);
    gguf_file_save(name, f.bytes.data, f.bytes.len);
    buf_fini(&f.bytes);
}

static void expect_split_refused(const char *words)
{
    char name[PATH_BYTES];
    struct gguf *g;

    snprintf(name, sizeof name, "%s/m-00001-of-00002.gguf", dir.path);
    assert_int_not_equal(gguf_open(&g, name, &why), OK);
    if (!strstr(buf_str(&why), words))
        fail_msg("expected the words \"%s\": %s", words, buf_str(&why));
}

static void the_parts_of_a_split_model_are_one(void **state)
{
    char name[PATH_BYTES];
    struct gguf *g;

    (void)state;
    write_part(0, 2, 2, "a");
    expect_split_refused("m-00002-of-00002.gguf");
    write_part(1, 2, 2, "b");
    snprintf(name, sizeof name, "%s/m-00001-of-00002.gguf", dir.path);
    assert_ok(gguf_open(&g, name, &why));
    assert_int_equal(gguf_n_tensors(g), 2);
    assert_int_equal(gguf_find(g, "b")->file, 1);
    gguf_close(g);
    write_part(1, 2, 2, "a");
    expect_split_refused("tensor a stands twice");
    write_part(0, 2, 2000, "a");
    expect_split_refused("key split.count: expected a number from 0 to 1024");
    write_part(0, 2, 3, "a");
    expect_split_refused("-00001-of-00003.gguf");
}

/* --- memory --- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void every_failed_allocation_is_an_answer(void **state)
{
    struct gguf_file f;
    struct gguf *g;
    enum status s = ERR_NOMEM;

    (void)state;
    make_tensors(&f);
    gguf_file_save(path, f.bytes.data, f.bytes.len);
    buf_fini(&f.bytes);
    buf_reset(&why);
    assert_ok(buf_reserve(&why, BUF_WHY_MAX - 1));
    for (long n = 1; s != OK; n++) {
        fail_in = n;
        s = gguf_open(&g, path, &why);
        fail_in = 0;
        assert_true(s == OK || s == ERR_NOMEM);
        assert_true(n < 100);
    }
    gguf_close(g);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_every_type_are_read_within_limits),
        cmocka_unit_test(strings_and_arrays_are_read),
        cmocka_unit_test(tensors_are_found_with_their_bytes),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(counts_and_lengths_beyond_the_file_are_refused),
        cmocka_unit_test(a_name_of_no_or_too_many_or_strange_bytes_is_refused),
        cmocka_unit_test(a_name_that_stands_twice_is_refused),
        cmocka_unit_test(unknown_types_and_versions_are_refused),
        cmocka_unit_test(alignments_that_are_no_powers_of_two_are_refused),
        cmocka_unit_test(shapes_and_places_outside_of_the_file_are_refused),
        cmocka_unit_test(tensors_that_overlap_are_refused),
        cmocka_unit_test(a_tensor_of_an_unknown_type_reaches_to_the_next),
        cmocka_unit_test(dimensions_of_another_number_are_refused),
        cmocka_unit_test(the_parts_of_a_split_model_are_one),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(every_failed_allocation_is_an_answer),
#endif
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
