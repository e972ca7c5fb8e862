/* hash.h - keyed BLAKE2b for identity, SHA-256 of downloads, CRC32C for stored bytes, random bytes.
 *
 * ONLY module that includes libsodium.
 *
 * Owns    nothing.
 * Thread  any, once hash_init() has run on the main thread (idempotent).
 * Errors  hash_init(): ERR_INTERNAL when libsodium cannot start.
 * Units   bytes. */
#ifndef TARN_BASE_HASH_H
#define TARN_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

NODISCARD enum status hash_init(void);

/* Write the BLAKE2b of data[0..len) to out[0..out_len), out_len 16 to 64. key: NULL (key_len 0) or
 * 16 to 64 bytes. */
void hash_blake2b(uint8_t *out, size_t out_len, const void *data, size_t len, const void *key,
                  size_t key_len);

#define HASH_DOMAIN_BYTES 32
/* BLAKE2b without a key, in a domain: domain [HASH_DOMAIN_BYTES] becomes the salt (first half) and
 * the personalization of BLAKE2b (RFC 7693). A message of up to 128 bytes then takes one
 * compression; a key would take a second one. */
void hash_blake2b_domain(uint8_t *out, size_t out_len, const void *data, size_t len,
                         const uint8_t *domain);

/* hash_blake2b() over several pieces. */
struct hash_state {
    _Alignas(64) unsigned char opaque[384];
};
void hash_begin(struct hash_state *h, size_t out_len, const void *key, size_t key_len);
void hash_add(struct hash_state *h, const void *data, size_t len);
void hash_end(struct hash_state *h, uint8_t *out, size_t out_len);

/* SHA-256 over several pieces. */
#define HASH_SHA256_BYTES 32
struct hash_sha256 {
    _Alignas(8) unsigned char opaque[128];
};
void hash_sha256_begin(struct hash_sha256 *h);
void hash_sha256_add(struct hash_sha256 *h, const void *data, size_t len);
void hash_sha256_end(struct hash_sha256 *h, uint8_t out[HASH_SHA256_BYTES]);

/* CRC32C (Castagnoli) of data[0..n), continued from `crc` (0 at the start). */
uint32_t hash_crc32c(uint32_t crc, const void *data, size_t n);

void hash_random(void *out, size_t n);
/* Compare in a time that does not depend on where a and b differ. */
bool hash_equal_secret(const void *a, const void *b, size_t n);
/* Write 2 n + 1 characters to out, NUL included. */
void hash_hex(char *out, const uint8_t *bytes, size_t n);

#endif
