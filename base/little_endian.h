/* little_endian.h - numbers in little-endian bytes, as files and messages hold them.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes; p may have any alignment. */
#ifndef TARN_BASE_LITTLE_ENDIAN_H
#define TARN_BASE_LITTLE_ENDIAN_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put_u16(uint8_t *p, uint32_t v)
{
    uint16_t le = htole16((uint16_t)v);

    memcpy(p, &le, sizeof le);
}

static inline void put_u32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

static inline void put_u64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static inline uint32_t get_u16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static inline uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t get_u64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

#endif
