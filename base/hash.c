#include "base/hash.h"

#include <sodium.h>
#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

#include "base/check.h"

_Static_assert(sizeof(struct hash_state) >= sizeof(crypto_generichash_state),
               "hash_state must hold libsodium's");

enum status hash_init(void)
{
    return sodium_init() < 0 ? ERR_INTERNAL : OK;
}

void hash_blake2b(uint8_t *out, size_t out_len, const void *data, size_t len, const void *key,
                  size_t key_len)
{
    ASSERT(crypto_generichash(out, out_len, data, len, key, key_len) == 0);
}

void hash_blake2b_domain(uint8_t *out, size_t out_len, const void *data, size_t len,
                         const uint8_t *domain)
{
    _Static_assert(HASH_DOMAIN_BYTES == crypto_generichash_blake2b_SALTBYTES +
                                            crypto_generichash_blake2b_PERSONALBYTES,
                   "salt and personalization");
    ASSERT(crypto_generichash_blake2b_salt_personal(out, out_len, data, len, NULL, 0, domain,
                                                    domain +
                                                        crypto_generichash_blake2b_SALTBYTES) == 0);
}

void hash_begin(struct hash_state *h, size_t out_len, const void *key, size_t key_len)
{
    ASSERT(crypto_generichash_init((crypto_generichash_state *)(void *)h->opaque, key, key_len,
                                   out_len) == 0);
}

void hash_add(struct hash_state *h, const void *data, size_t len)
{
    ASSERT(crypto_generichash_update((crypto_generichash_state *)(void *)h->opaque, data, len) ==
           0);
}

void hash_end(struct hash_state *h, uint8_t *out, size_t out_len)
{
    ASSERT(crypto_generichash_final((crypto_generichash_state *)(void *)h->opaque, out, out_len) ==
           0);
}

_Static_assert(sizeof(struct hash_sha256) >= sizeof(crypto_hash_sha256_state),
               "hash_sha256 must hold libsodium's");

void hash_sha256_begin(struct hash_sha256 *h)
{
    crypto_hash_sha256_init((crypto_hash_sha256_state *)(void *)h->opaque);
}

void hash_sha256_add(struct hash_sha256 *h, const void *data, size_t len)
{
    crypto_hash_sha256_update((crypto_hash_sha256_state *)(void *)h->opaque, data, len);
}

void hash_sha256_end(struct hash_sha256 *h, uint8_t out[HASH_SHA256_BYTES])
{
    crypto_hash_sha256_final((crypto_hash_sha256_state *)(void *)h->opaque, out);
}

/* Four bits at a time: the usual table for bytes has 256 entries that must be built under a lock or
 * written out; this one has 16 (reflected polynomial 0x82F63B78). */
static uint32_t crc32c_portable(uint32_t crc, const unsigned char *p, size_t n)
{
    static const uint32_t nibble[16] = {0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1,
                                        0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
                                        0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
                                        0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75};

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = (crc >> 4) ^ nibble[crc & 15];
        crc = (crc >> 4) ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
/* The crc32 instruction takes 3 cycles but can start in each cycle, so three streams of
 * STREAM_BYTES run side by side. To join them, each state but the last is moved over the n bytes
 * behind it, that is, multiplied by x^(8 n) modulo the polynomial: the carry-less product of the
 * state and x^(8 n - 33), both bit-reflected, is one bit short of 64 and so has an extra factor x;
 * the crc32 instruction multiplies by x^32 and reduces. */
#define STREAM_BYTES 1024u
#define X_8N_33 0x170076FAu /* n = STREAM_BYTES; reflected */
#define X_16N_33 0xA51B6135u

__attribute__((target("sse4.2,pclmul"))) static uint64_t crc32c_move(uint64_t crc, uint32_t by)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc),
                                           _mm_cvtsi64_si128((long long)by), 0);

    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_three(uint32_t crc,
                                                                      const unsigned char *p)
{
    uint64_t a = crc, b = 0, c = 0;

    for (size_t i = 0; i < STREAM_BYTES; i += 8) {
        uint64_t v[3];
        memcpy(&v[0], p + i, 8);
        memcpy(&v[1], p + i + STREAM_BYTES, 8);
        memcpy(&v[2], p + i + (size_t)2 * STREAM_BYTES, 8);
        a = _mm_crc32_u64(a, v[0]);
        b = _mm_crc32_u64(b, v[1]);
        c = _mm_crc32_u64(c, v[2]);
    }
    return (uint32_t)(crc32c_move(a, X_16N_33) ^ crc32c_move(b, X_8N_33) ^ c);
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_one(uint32_t crc, const unsigned char *p,
                                                             size_t n)
{
    uint64_t c = crc;

    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    for (; n; p++, n--)
        c = _mm_crc32_u8((uint32_t)c, *p);
    return (uint32_t)c;
}
#endif

uint32_t hash_crc32c(uint32_t crc, const void *data, size_t n)
{
    const unsigned char *p = data;

    crc = ~crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        for (; n >= 3 * STREAM_BYTES; p += 3 * STREAM_BYTES, n -= 3 * STREAM_BYTES)
            crc = crc32c_three(crc, p);
        return ~crc32c_one(crc, p, n);
    }
#endif
    return ~crc32c_portable(crc, p, n);
}

void hash_random(void *out, size_t n)
{
    randombytes_buf(out, n);
}

bool hash_equal_secret(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}

void hash_hex(char *out, const uint8_t *bytes, size_t n)
{
    sodium_bin2hex(out, 2 * n + 1, bytes, n);
}
