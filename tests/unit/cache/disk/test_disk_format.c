/* test_disk_format.c - the bytes of the disk tier's files, and the bytes that are refused. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/buf.h"
#include "tests/unit/cache/disk/disk_files.h"

static const uint8_t fingerprint[] = "fingerprint of a model in a test";

/* The offsets of DISK_FORMAT.md, written again to test the code's. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_FLAGS = 6,
    AT_EXTENT = 8,
    AT_PAYLOAD_CRC = 12,
    AT_NO = 16,
    AT_FINGERPRINT = 24,
    AT_POS0 = 32,
    AT_N_TOKENS = 36,
    AT_DEPTH = 40,
    AT_N_USES = 44,
    AT_KEY = 48,
    AT_PARENT = 80,
    AT_SCOPE = 112,
    AT_IDS = 144,
    AT_ZEROS = 240,
    AT_CRC = 252
};

static void expect_hex(const uint8_t *bytes, size_t n, const char *want)
{
    char hex[2 * 256 + 1];

    assert_true(n <= 256);
    hash_hex(hex, bytes, n);
    assert_string_equal(hex, want);
}

/* The record of the golden header. Each field has a value that no other field has. */
static struct disk_record golden_record(void)
{
    struct disk_record r = {
        .flags = DISK_STARTS_SEGMENT | DISK_REGISTERED,
        .pos0 = 4000,
        .n_tokens = 3,
        .depth = 7,
        .n_uses = 9,
        .no = UINT64_C(0x0102030405060708),
        .payload_crc = 0xDEADBEEF,
        .ids = {5, KV_ID_MAX, 70001},
    };

    for (int i = 0; i < 32; i++) {
        r.parent.bytes[i] = (uint8_t)(1 + i);
        r.scope.bytes[i] = (uint8_t)(101 + i);
    }
    disk_files_name(&r, fingerprint);
    return r;
}

/* Made from DISK_FORMAT.md with Python's hashlib and a CRC32C of eight lines. If this test fails,
 * the format has changed, and DISK_FORMAT_VERSION must change too. */
static void a_header_has_the_documented_bytes(void **state)
{
    struct disk_record r = golden_record();
    uint8_t header[DISK_HEADER_BYTES];

    (void)state;
    assert_int_equal(DISK_FORMAT_VERSION, 1);
    disk_header_encode(header, &r, fingerprint, 1234567);
    expect_hex(header, sizeof header,
               "544b56520100030087d61200efbeadde080706050403020166696e6765727072"
               "a00f000003000000070000000900000085dc7d967af68b9292661ba537d439f6"
               "c471f86af0e613581254753988acae1c0102030405060708090a0b0c0d0e0f10"
               "1112131415161718191a1b1c1d1e1f2065666768696a6b6c6d6e6f7071727374"
               "75767778797a7b7c7d7e7f8081828384050000ffff7f71110100000000000000"
               "0000000000000000000000000000000000000000000000000000000000000000"
               "0000000000000000000000000000000000000000000000000000000000000000"
               "00000000000000000000000000000000000000000000000000000000370f9b17");
}

static const struct disk_super some_super = {
    .fingerprint = "fingerprint of a model in a test",
    .block_bytes = 393217,
    .extent_bytes = 397312,
    .n_extents = 70001,
    .segment_tokens = 128,
};

static void a_superblock_has_the_documented_bytes(void **state)
{
    uint8_t page[DISK_PAGE_BYTES], zeros[DISK_PAGE_BYTES] = {0};

    (void)state;
    disk_super_encode(page, &some_super);
    expect_hex(page, 80,
               "5441524e4449534b0100000000100000000100002000000066696e6765727072"
               "696e74206f662061206d6f64656c20696e206120746573740100060000000000"
               "00100600000000007111010080000000");
    assert_memory_equal(page + 80, zeros, 4092 - 80);
    expect_hex(page + 4092, 4, "53416a16");
}

/* --- sizes --- */

static void extents_are_whole_pages(void **state)
{
    (void)state;
    assert_int_equal(disk_extent_bytes(1), 4096);
    assert_int_equal(disk_extent_bytes(4096), 4096);
    assert_int_equal(disk_extent_bytes(4097), 8192);
    assert_int_equal(disk_table_bytes(0), 4096);
    assert_int_equal(disk_table_bytes(1), 8192);
    assert_int_equal(disk_table_bytes(16), 8192);
    assert_int_equal(disk_table_bytes(17), 12288);
    assert_int_equal(disk_table_bytes(DISK_EXTENTS_MAX),
                     4096 + (uint64_t)DISK_EXTENTS_MAX * DISK_HEADER_BYTES);
}

static void the_number_of_extents_fits_the_bound_exactly(void **state)
{
    static const uint64_t blocks[] = {1, 4096, 4097, 20480, 393216, 1000003};

    (void)state;
    for (size_t b = 0; b < ARRAY_SIZE(blocks); b++) {
        uint64_t extent = disk_extent_bytes(blocks[b]);
        for (uint64_t bytes = 0; bytes < 100 * extent; bytes += extent / 7 + 1) {
            uint64_t n = disk_extents_in(bytes, blocks[b]);
            assert_true(n == 0 || disk_table_bytes((uint32_t)n) + n * extent <= bytes);
            assert_true(disk_table_bytes((uint32_t)n + 1) + (n + 1) * extent > bytes);
        }
    }
    assert_int_equal(disk_extents_in(UINT64_MAX, 4096), DISK_EXTENTS_MAX);
    assert_int_equal(disk_extents_in(((uint64_t)DISK_EXTENTS_MAX + 99) * (4096 + 256), 4096),
                     DISK_EXTENTS_MAX);
    assert_int_equal(disk_extents_in(UINT64_MAX, 0), 0);
    assert_int_equal(disk_extents_in(UINT64_MAX, UINT64_MAX), 0);
}

/* --- the superblock --- */

static void refuse_super(const uint8_t *page, const char *word)
{
    struct disk_super out;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    memset(&out, 0x5A, sizeof out);
    assert_int_equal(disk_super_decode(&out, page, &why), ERR_CORRUPT);
    if (!strstr(buf_str(&why), word))
        fail_msg("\"%s\" is not in \"%s\"", word, buf_str(&why));
    assert_int_equal(out.n_extents, 0x5A5A5A5A);
    buf_fini(&why);
}

static void a_superblock_comes_back(void **state)
{
    uint8_t page[DISK_PAGE_BYTES];
    struct disk_super out;

    (void)state;
    disk_super_encode(page, &some_super);
    assert_ok(disk_super_decode(&out, page, NULL));
    assert_memory_equal(out.fingerprint, some_super.fingerprint, KV_FINGERPRINT_BYTES);
    assert_int_equal(out.block_bytes, some_super.block_bytes);
    assert_int_equal(out.extent_bytes, some_super.extent_bytes);
    assert_int_equal(out.n_extents, some_super.n_extents);
    assert_int_equal(out.segment_tokens, some_super.segment_tokens);
}

static void any_flipped_bit_of_a_superblock_is_found(void **state)
{
    uint8_t page[DISK_PAGE_BYTES];
    struct disk_super out;

    (void)state;
    disk_super_encode(page, &some_super);
    for (uint32_t bit = 0; bit < 8 * DISK_PAGE_BYTES; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(disk_super_decode(&out, page, NULL), ERR_CORRUPT);
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_ok(disk_super_decode(&out, page, NULL));
}

static void set(uint8_t *at, size_t n, uint64_t v)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(v >> 8 * i);
}

/* Refuse the page with one field changed and its checksum correct. */
static void refuse_super_with(size_t at, size_t n, uint64_t v, const char *word)
{
    uint8_t page[DISK_PAGE_BYTES];

    disk_super_encode(page, &some_super);
    set(page + at, n, v);
    set(page + 4092, 4, hash_crc32c(0, page, 4092));
    refuse_super(page, word);
}

static void a_superblock_that_contradicts_itself_is_refused(void **state)
{
    uint8_t page[DISK_PAGE_BYTES] = {0};

    (void)state;
    refuse_super(page, "never written");
    refuse_super_with(0, 1, 't', "does not begin with");
    refuse_super_with(8, 4, 2, "version 2");
    refuse_super_with(8, 4, 0, "version 0");
    refuse_super_with(12, 4, 8192, "sizes");
    refuse_super_with(16, 4, 512, "sizes");
    refuse_super_with(20, 4, 16, "sizes");
    refuse_super_with(80, 1, 1, "sizes");
    refuse_super_with(4091, 1, 1, "sizes");
    refuse_super_with(56, 8, 0, "extents of 397312 bytes for blocks of 0");
    refuse_super_with(56, 8, 393216, "extents of");
    refuse_super_with(56, 8, UINT64_MAX, "extents of");
    refuse_super_with(64, 8, 393217, "extents of 393217");
    refuse_super_with(72, 4, 0, "0 extents");
    refuse_super_with(72, 4, DISK_EXTENTS_MAX + 1, "extents");
    refuse_super_with(76, 4, 0, "segments of 0");
    refuse_super_with(76, 4, 33, "segments of 33");
    refuse_super_with(76, 4, 288, "segments of 288");
    disk_super_encode(page, &some_super);
    page[100] = 1;
    refuse_super(page, "checksum");
}

static void boundaries_of_a_superblock_are_accepted(void **state)
{
    struct disk_super super = some_super, out;
    uint8_t page[DISK_PAGE_BYTES];

    (void)state;
    super.block_bytes = super.extent_bytes = DISK_BLOCK_BYTES_MAX;
    super.n_extents = DISK_EXTENTS_MAX;
    super.segment_tokens = KV_SEGMENT_TOKENS_MAX;
    disk_super_encode(page, &super);
    assert_ok(disk_super_decode(&out, page, NULL));
    super.block_bytes = 1;
    super.extent_bytes = 4096;
    super.n_extents = 1;
    super.segment_tokens = KV_BLOCK_TOKENS;
    disk_super_encode(page, &super);
    assert_ok(disk_super_decode(&out, page, NULL));
    assert_int_equal(out.n_extents, 1);
}

/* --- headers --- */

#define EXTENT 1234567

static enum disk_verdict verdict_of(const uint8_t *header, uint32_t extent, const uint8_t *fp)
{
    struct disk_reader reader;
    struct disk_record out, before;

    memset(&out, 0x5A, sizeof out);
    memcpy(&before, &out, sizeof out);
    disk_reader_init(&reader, fp);
    enum disk_verdict v = disk_header_decode(&reader, &out, header, extent);
    if (v != DISK_VALID)
        assert_memory_equal(&out, &before, sizeof out);
    return v;
}

static void expect_verdict(const uint8_t *header, enum disk_verdict want)
{
    enum disk_verdict v = verdict_of(header, EXTENT, fingerprint);

    if (v != want)
        fail_msg("%s, not %s", disk_verdict_name(v), disk_verdict_name(want));
}

static void golden_header(uint8_t *header)
{
    struct disk_record r = golden_record();

    disk_header_encode(header, &r, fingerprint, EXTENT);
}

static void expect_with(size_t at, size_t n, uint64_t v, enum disk_verdict want)
{
    uint8_t header[DISK_HEADER_BYTES];

    golden_header(header);
    set(header + at, n, v);
    disk_files_seal(header);
    expect_verdict(header, want);
}

static void expect_record(const struct disk_record *a, const struct disk_record *b)
{
    assert_memory_equal(&a->key, &b->key, sizeof a->key);
    assert_memory_equal(&a->parent, &b->parent, sizeof a->parent);
    assert_memory_equal(&a->scope, &b->scope, sizeof a->scope);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->pos0, b->pos0);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->depth, b->depth);
    assert_int_equal(a->n_uses, b->n_uses);
    assert_int_equal(a->no, b->no);
    assert_int_equal(a->payload_crc, b->payload_crc);
    assert_memory_equal(a->ids, b->ids, a->n_tokens * sizeof *a->ids);
}

static void a_record_comes_back(void **state)
{
    struct disk_record r = golden_record(), out;
    uint8_t header[DISK_HEADER_BYTES];
    struct disk_reader reader;

    (void)state;
    golden_header(header);
    disk_reader_init(&reader, fingerprint);
    assert_int_equal(disk_header_decode(&reader, &out, header, EXTENT), DISK_VALID);
    expect_record(&out, &r);
}

static void any_flipped_bit_of_a_header_is_found(void **state)
{
    uint8_t header[DISK_HEADER_BYTES];

    (void)state;
    golden_header(header);
    for (uint32_t bit = 0; bit < 8 * DISK_HEADER_BYTES; bit++) {
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect_verdict(header, DISK_TORN);
        header[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    expect_verdict(header, DISK_VALID);
}

/* Half of one header and half of another, as after a write that was torn inside a sector. */
static void halves_of_two_headers_are_torn(void **state)
{
    struct disk_record r = golden_record();
    uint8_t old[DISK_HEADER_BYTES], new[DISK_HEADER_BYTES], zeros[DISK_HEADER_BYTES] = {0};

    (void)state;
    golden_header(old);
    r.ids[2]++;
    r.no++;
    disk_files_name(&r, fingerprint);
    disk_header_encode(new, &r, fingerprint, EXTENT);
    for (size_t n = 32; n < DISK_HEADER_BYTES; n += 32) {
        uint8_t header[DISK_HEADER_BYTES];
        memcpy(header, new, n);
        memcpy(header + n, old + n, DISK_HEADER_BYTES - n);
        expect_verdict(header, DISK_TORN);
        memcpy(header + n, zeros, DISK_HEADER_BYTES - n);
        expect_verdict(header, DISK_TORN);
    }
    expect_verdict(zeros, DISK_EMPTY);
}

/* No version may take an erased extent for a record. */
static void the_mark_of_what_is_erased_is_no_header(void **state)
{
    uint8_t header[DISK_HEADER_BYTES];

    (void)state;
    assert_string_equal(disk_erase_mark, "Tarn: this extent is being erased");
    memcpy(header, disk_erase_mark, sizeof header);
    expect_verdict(header, DISK_TORN);
}

static void a_header_elsewhere_is_foreign(void **state)
{
    uint8_t header[DISK_HEADER_BYTES], other[KV_FINGERPRINT_BYTES];

    (void)state;
    golden_header(header);
    assert_int_equal(verdict_of(header, EXTENT, fingerprint), DISK_VALID);
    assert_int_equal(verdict_of(header, EXTENT + 1, fingerprint), DISK_FOREIGN);
    assert_int_equal(verdict_of(header, 0, fingerprint), DISK_FOREIGN);
    memcpy(other, fingerprint, sizeof other);
    other[0] ^= 1;
    assert_int_equal(verdict_of(header, EXTENT, other), DISK_FOREIGN);
    expect_with(AT_MAGIC, 4, 0, DISK_FOREIGN);
    expect_with(AT_VERSION, 2, 2, DISK_FOREIGN);
    expect_with(AT_VERSION, 2, 0, DISK_FOREIGN);
}

/* The header has 8 bytes of the fingerprint, but the key is a hash over all bytes of it. */
static void a_fingerprint_with_the_same_beginning_is_found_by_the_key(void **state)
{
    uint8_t header[DISK_HEADER_BYTES], other[KV_FINGERPRINT_BYTES];

    (void)state;
    golden_header(header);
    memcpy(other, fingerprint, sizeof other);
    other[8] ^= 1;
    assert_int_equal(verdict_of(header, EXTENT, other), DISK_MISNAMED);
}

static void contradicting_fields_are_impossible(void **state)
{
    (void)state;
    expect_with(AT_FLAGS, 2, 4, DISK_IMPOSSIBLE);
    expect_with(AT_FLAGS, 2, 0x8001, DISK_IMPOSSIBLE);
    expect_with(AT_POS0, 4, 0, DISK_IMPOSSIBLE);              /* although it has a parent */
    expect_with(AT_POS0, 4, UINT32_MAX - 2, DISK_IMPOSSIBLE); /* the end is beyond 2^32 - 1 */
    expect_with(AT_POS0, 4, 6, DISK_IMPOSSIBLE);              /* less than its depth */
    expect_with(AT_N_TOKENS, 4, 0, DISK_IMPOSSIBLE);
    expect_with(AT_N_TOKENS, 4, 33, DISK_IMPOSSIBLE);
    expect_with(AT_N_TOKENS, 4, UINT32_MAX, DISK_IMPOSSIBLE);
    expect_with(AT_N_TOKENS, 4, 2, DISK_IMPOSSIBLE); /* a third id is present */
    expect_with(AT_DEPTH, 4, 4001, DISK_IMPOSSIBLE);
    expect_with(AT_IDS, 3, KV_ID_MAX + 1, DISK_IMPOSSIBLE);
    expect_with(AT_IDS + 3 * 31, 3, 1, DISK_IMPOSSIBLE);
    expect_with(AT_ZEROS, 1, 1, DISK_IMPOSSIBLE);
    expect_with(AT_CRC - 1, 1, 0x80, DISK_IMPOSSIBLE);
}

static void a_first_block_has_no_parent(void **state)
{
    struct disk_record r = golden_record();
    uint8_t header[DISK_HEADER_BYTES];

    (void)state;
    memset(&r.parent, 0, sizeof r.parent);
    disk_files_name(&r, fingerprint);
    disk_header_encode(header, &r, fingerprint, EXTENT);
    expect_verdict(header, DISK_IMPOSSIBLE);
    r.pos0 = r.depth = 0;
    disk_header_encode(header, &r, fingerprint, EXTENT);
    expect_verdict(header, DISK_VALID);
    r.parent.bytes[31] = 1;
    disk_files_name(&r, fingerprint);
    disk_header_encode(header, &r, fingerprint, EXTENT);
    expect_verdict(header, DISK_IMPOSSIBLE);
}

static void fields_hashed_by_the_key_cannot_change(void **state)
{
    (void)state;
    expect_with(AT_KEY, 1, 0, DISK_MISNAMED);
    expect_with(AT_PARENT + 31, 1, 0, DISK_MISNAMED);
    expect_with(AT_SCOPE, 1, 0, DISK_MISNAMED);
    expect_with(AT_FLAGS, 2, DISK_REGISTERED, DISK_MISNAMED); /* starts no segment */
    expect_with(AT_N_TOKENS, 4, 4, DISK_MISNAMED);            /* a fourth id, 0 */
    expect_with(AT_IDS, 3, 6, DISK_MISNAMED);
}

static void fields_outside_the_key_can_change(void **state)
{
    (void)state;
    expect_with(AT_FLAGS, 2, DISK_STARTS_SEGMENT, DISK_VALID);
    expect_with(AT_NO, 8, UINT64_MAX, DISK_VALID);
    expect_with(AT_PAYLOAD_CRC, 4, 0, DISK_VALID);
    expect_with(AT_N_USES, 4, UINT32_MAX, DISK_VALID);
    expect_with(AT_POS0, 4, UINT32_MAX - 3, DISK_VALID);
    expect_with(AT_POS0, 4, 7, DISK_VALID); /* equal to its depth */
    expect_with(AT_DEPTH, 4, 0, DISK_VALID);
    expect_with(AT_DEPTH, 4, 4000, DISK_VALID);
}

/* A reader caches the hash state of the last scope and must not use it for another one. */
static void scopes_may_alternate(void **state)
{
    uint8_t headers[4][DISK_HEADER_BYTES];
    struct disk_reader reader;
    struct disk_record r = golden_record(), out;

    (void)state;
    disk_reader_init(&reader, fingerprint);
    for (uint32_t i = 0; i < 4; i++) {
        memset(&r.scope, i % 2 ? 0xEE : 0, sizeof r.scope);
        r.ids[0] = i;
        disk_files_name(&r, fingerprint);
        disk_header_encode(headers[i], &r, fingerprint, i);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(disk_header_decode(&reader, &out, headers[i], i), DISK_VALID);
        assert_int_equal(out.scope.bytes[0], i % 2 ? 0xEE : 0);
    }
}

static void a_whole_block_of_the_largest_ids_comes_back(void **state)
{
    struct disk_record r = golden_record(), out;
    uint8_t header[DISK_HEADER_BYTES];
    struct disk_reader reader;

    (void)state;
    r.n_tokens = KV_BLOCK_TOKENS;
    for (uint32_t i = 0; i < KV_BLOCK_TOKENS; i++)
        r.ids[i] = KV_ID_MAX - i;
    disk_files_name(&r, fingerprint);
    disk_header_encode(header, &r, fingerprint, DISK_EXTENTS_MAX - 1);
    disk_reader_init(&reader, fingerprint);
    assert_int_equal(disk_header_decode(&reader, &out, header, DISK_EXTENTS_MAX - 1), DISK_VALID);
    expect_record(&out, &r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_has_the_documented_bytes),
        cmocka_unit_test(a_superblock_has_the_documented_bytes),
        cmocka_unit_test(extents_are_whole_pages),
        cmocka_unit_test(the_number_of_extents_fits_the_bound_exactly),
        cmocka_unit_test(a_superblock_comes_back),
        cmocka_unit_test(any_flipped_bit_of_a_superblock_is_found),
        cmocka_unit_test(a_superblock_that_contradicts_itself_is_refused),
        cmocka_unit_test(boundaries_of_a_superblock_are_accepted),
        cmocka_unit_test(a_record_comes_back),
        cmocka_unit_test(any_flipped_bit_of_a_header_is_found),
        cmocka_unit_test(halves_of_two_headers_are_torn),
        cmocka_unit_test(the_mark_of_what_is_erased_is_no_header),
        cmocka_unit_test(a_header_elsewhere_is_foreign),
        cmocka_unit_test(a_fingerprint_with_the_same_beginning_is_found_by_the_key),
        cmocka_unit_test(contradicting_fields_are_impossible),
        cmocka_unit_test(a_first_block_has_no_parent),
        cmocka_unit_test(fields_hashed_by_the_key_cannot_change),
        cmocka_unit_test(fields_outside_the_key_can_change),
        cmocka_unit_test(scopes_may_alternate),
        cmocka_unit_test(a_whole_block_of_the_largest_ids_comes_back),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
