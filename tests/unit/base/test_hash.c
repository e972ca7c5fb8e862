#include "tests/unit/test.h"

#include <string.h>

#include "base/hash.h"
#include "base/hist.h"
#include "base/map.h"
#include "base/rng.h"
#include "base/sha1.h"
#include "base/status.h"

static void blake2b_gives_the_published_value(void **state)
{
    uint8_t out[64];
    char hex[129];

    (void)state;
    /* RFC 7693, appendix A: BLAKE2b-512 of "abc". */
    hash_blake2b(out, 64, "abc", 3, NULL, 0);
    hash_hex(hex, out, 64);
    assert_memory_equal(hex, "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1",
                        64);
}

static void hashing_in_pieces_is_hashing_whole(void **state)
{
    struct hash_state h;
    uint8_t whole[32], pieces[32];
    const char key[32] = "a key of thirty-two bytes.......";

    (void)state;
    hash_blake2b(whole, 32, "hello world", 11, key, 32);
    hash_begin(&h, 32, key, 32);
    hash_add(&h, "hello", 5);
    hash_add(&h, " ", 1);
    hash_add(&h, "world", 5);
    hash_end(&h, pieces, 32);
    assert_memory_equal(whole, pieces, 32);
}

static void check_sha256(const char *text, size_t piece, const char *want)
{
    uint8_t out[HASH_SHA256_BYTES];
    char hex[2 * HASH_SHA256_BYTES + 1];
    struct hash_sha256 h;

    hash_sha256_begin(&h);
    for (size_t n = strlen(text), at = 0; at < n; at += piece)
        hash_sha256_add(&h, text + at, n - at < piece ? n - at : piece);
    hash_sha256_end(&h, out);
    hash_hex(hex, out, sizeof out);
    assert_string_equal(hex, want);
}

static void check_sha1(const char *text, size_t n, size_t piece, const char *want)
{
    uint8_t out[SHA1_BYTES];
    char hex[2 * SHA1_BYTES + 1];
    struct sha1 s;

    sha1_begin(&s);
    for (size_t at = 0; at < n; at += piece)
        sha1_add(&s, text + at, n - at < piece ? n - at : piece);
    sha1_end(&s, out);
    hash_hex(hex, out, sizeof out);
    assert_string_equal(hex, want);
}

static void sha_gives_the_published_values(void **state)
{
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static char million[1000000];

    (void)state;
    /* FIPS 180-2, appendices A and B; git's name of an empty file. */
    for (size_t piece = 1; piece <= 64; piece += 7) {
        check_sha256("abc", piece,
                     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check_sha256(two_blocks, piece,
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check_sha1("abc", 3, piece, "a9993e364706816aba3e25717850c26c9cd0d89d");
        check_sha1(two_blocks, strlen(two_blocks), piece,
                   "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        check_sha1("blob 0", 7, piece, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    }
    memset(million, 'a', sizeof million);
    for (size_t piece = 63; piece <= 1000; piece += 937)
        check_sha1(million, sizeof million, piece, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    check_sha1(NULL, 0, 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
}

/* Every length of the last block, against the sum of another cut. */
static void sha1_of_a_whole_is_that_of_its_pieces(void **state)
{
    uint8_t text[200], whole[SHA1_BYTES], pieces[SHA1_BYTES];
    struct sha1 s;

    (void)state;
    for (uint32_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)rng_u32(9, i);
    for (size_t n = 0; n <= sizeof text; n++) {
        sha1_begin(&s);
        sha1_add(&s, text, n);
        sha1_end(&s, whole);
        sha1_begin(&s);
        sha1_add(&s, text, n / 3);
        sha1_add(&s, text + n / 3, n - n / 3);
        sha1_end(&s, pieces);
        assert_memory_equal(whole, pieces, SHA1_BYTES);
    }
}

static void crc32c_gives_the_published_values(void **state)
{
    uint8_t zeros[32] = {0};

    (void)state;
    assert_int_equal(hash_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(hash_crc32c(0, zeros, 32), 0x8A9136AAu); /* RFC 3720, B.4 */
    assert_int_equal(hash_crc32c(hash_crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
}

/* Pieces too short for several streams, against the whole. */
static void crc32c_of_a_whole_is_that_of_its_pieces(void **state)
{
    static uint8_t data[3 * 3072 + 1500];

    (void)state;
    for (uint32_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(rng_u32(5, i) >> 3);
    for (uint32_t n = 3000; n <= sizeof data - 8; n += n % 1024 < 24 ? 1 : 37) {
        uint32_t first = n % 7, crc = 0;
        for (uint32_t at = 0; at < n; at += 100)
            crc = hash_crc32c(crc, data + first + at, n - at < 100 ? n - at : 100);
        assert_int_equal(hash_crc32c(0, data + first, n), crc);
    }
}

static void philox_gives_the_published_values(void **state)
{
    uint32_t out[4];

    (void)state;
    /* Known answers of the Random123 distribution, philox4x32 with 10 rounds. */
    rng_philox(0, 0, 0, out);
    assert_int_equal(out[0], 0x6627e8d5u);
    assert_int_equal(out[1], 0xe169c58du);
    assert_int_equal(out[2], 0xbc57ac4cu);
    assert_int_equal(out[3], 0x9b00dbd8u);
    rng_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, out);
    assert_int_equal(out[0], 0x408f276du);
}

static void uniform_numbers_are_below_one_and_spread(void **state)
{
    double sum = 0;

    (void)state;
    for (uint64_t i = 0; i < 10000; i++) {
        float u = rng_uniform(7, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4800 && sum < 5200);
}

static void map_agrees_with_an_array(void **state)
{
    enum { N_KEYS = 500, N_STEPS = 50000 };
    static uint32_t naive[N_KEYS]; /* 0: absent */
    struct map m;
    uint32_t n = 0, v;

    (void)state;
    assert_ok(map_init(&m, N_KEYS));
    for (uint64_t i = 0; i < N_STEPS; i++) {
        uint32_t r = rng_u32(1, i), k = r % N_KEYS;
        uint64_t key = (uint64_t)k << (k % 40); /* clustered on purpose */
        key |= (uint64_t)k << 50;
        if (r >> 31) {
            n += naive[k] == 0;
            naive[k] = (r >> 16 & 0xff) + 1;
            map_put(&m, key, naive[k]);
        } else {
            assert_int_equal(map_remove(&m, key), naive[k] != 0);
            n -= naive[k] != 0;
            naive[k] = 0;
        }
        assert_int_equal(m.n, n);
        uint32_t other = rng_u32(2, i) % N_KEYS;
        uint64_t other_key = (uint64_t)other << (other % 40) | (uint64_t)other << 50;
        assert_int_equal(map_get(&m, other_key, &v), naive[other] != 0);
        if (naive[other])
            assert_int_equal(v, naive[other]);
    }
    map_fini(&m);
}

static void histogram_counts_each_value_once(void **state)
{
    struct hist h;
    uint64_t n = 0;

    (void)state;
    hist_init(&h, hist_bounds_ttft_s, 22);
    for (int i = 0; i < 1000; i++)
        hist_add(&h, i * 0.001);
    hist_add(&h, 1e9);
    hist_add(&h, 0.0 / 0.0 * (h.n ? 1 : 0));
    for (uint32_t i = 0; i <= h.n_bounds; i++)
        n += h.counts[i];
    assert_int_equal(n, h.n);
    assert_int_equal(h.n, 1001);
    assert_int_equal(h.counts[22], 1);
    assert_true(hist_quantile(&h, 0.5) > 0.4 && hist_quantile(&h, 0.5) < 0.6);
}

static void every_status_has_a_name_and_an_http_code(void **state)
{
    (void)state;
    for (int s = OK; s < STATUS_COUNT; s++) {
        assert_non_null(status_name((enum status)s));
        assert_true(status_http((enum status)s) >= 200 && status_http((enum status)s) < 600);
        assert_non_null(status_error_type((enum status)s));
    }
    assert_string_equal(status_name((enum status)999), "internal");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blake2b_gives_the_published_value),
        cmocka_unit_test(hashing_in_pieces_is_hashing_whole),
        cmocka_unit_test(sha_gives_the_published_values),
        cmocka_unit_test(sha1_of_a_whole_is_that_of_its_pieces),
        cmocka_unit_test(crc32c_gives_the_published_values),
        cmocka_unit_test(crc32c_of_a_whole_is_that_of_its_pieces),
        cmocka_unit_test(philox_gives_the_published_values),
        cmocka_unit_test(uniform_numbers_are_below_one_and_spread),
        cmocka_unit_test(map_agrees_with_an_array),
        cmocka_unit_test(histogram_counts_each_value_once),
        cmocka_unit_test(every_status_has_a_name_and_an_http_code),
    };
    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
