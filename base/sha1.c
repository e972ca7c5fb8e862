#include "base/sha1.h"

#include <string.h>

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

void sha1_begin(struct sha1 *s)
{
    static const uint32_t start[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};

    memset(s, 0, sizeof *s);
    memcpy(s->h, start, sizeof start);
}

/* Compute f plus k of one of the 80 steps; both depend on the step's quarter. */
static uint32_t mix(unsigned step, uint32_t b, uint32_t c, uint32_t d)
{
    if (step < 20)
        return ((b & c) | (~b & d)) + 0x5A827999;
    if (step < 40)
        return (b ^ c ^ d) + 0x6ED9EBA1;
    if (step < 60)
        return ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC;
    return (b ^ c ^ d) + 0xCA62C1D6;
}

static void add_block(struct sha1 *s, const unsigned char *p)
{
    uint32_t w[80], v[5];

    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    memcpy(v, s->h, sizeof v);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t next = rotate(v[0], 5) + mix(i, v[1], v[2], v[3]) + v[4] + w[i];
        v[4] = v[3];
        v[3] = v[2];
        v[2] = rotate(v[1], 30);
        v[1] = v[0];
        v[0] = next;
    }
    for (unsigned i = 0; i < 5; i++)
        s->h[i] += v[i];
}

void sha1_add(struct sha1 *s, const void *data, size_t len)
{
    const unsigned char *p = data;

    s->n_bytes += len;
    while (len > 0) {
        if (s->n_block == 0 && len >= sizeof s->block) {
            add_block(s, p);
            p += sizeof s->block;
            len -= sizeof s->block;
            continue;
        }
        size_t n = sizeof s->block - s->n_block < len ? sizeof s->block - s->n_block : len;
        memcpy(s->block + s->n_block, p, n);
        s->n_block += (uint32_t)n;
        p += n;
        len -= n;
        if (s->n_block == sizeof s->block) {
            add_block(s, s->block);
            s->n_block = 0;
        }
    }
}

void sha1_end(struct sha1 *s, uint8_t out[SHA1_BYTES])
{
    unsigned char end[72] = {0x80};
    uint64_t n_bits = s->n_bytes * 8;
    size_t n_zeros = (s->n_block < 56 ? 56 : 120) - s->n_block;

    for (unsigned i = 0; i < 8; i++)
        end[n_zeros + i] = (unsigned char)(n_bits >> (56 - 8 * i));
    sha1_add(s, end, n_zeros + 8);
    for (unsigned i = 0; i < SHA1_BYTES; i++)
        out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
