/* sha1.h - SHA-1 (FIPS 180-4), only for names that others have given: git's names of files.
 *
 * Nothing may rest on SHA-1 against an attacker, who can make two texts with one sum. Use
 * base/hash.h for all else. libsodium has no SHA-1.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_BASE_SHA1_H
#define TARN_BASE_SHA1_H

#include <stddef.h>
#include <stdint.h>

#define SHA1_BYTES 20

struct sha1 {
    uint32_t h[5];
    uint32_t n_block; /* bytes in block */
    uint64_t n_bytes;
    unsigned char block[64];
};

void sha1_begin(struct sha1 *s);
void sha1_add(struct sha1 *s, const void *data, size_t len);
void sha1_end(struct sha1 *s, uint8_t out[SHA1_BYTES]);

#endif
