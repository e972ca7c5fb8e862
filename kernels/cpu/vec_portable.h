/* vec_portable.h - the vector layer in GCC vector extensions alone: 4 lanes, any machine.
 *
 * An FMA instruction may be missing, so products are rounded before they are added. The bits differ
 * from those of other variants, which the fingerprint allows, but they are as reproducible. */
#include <stdint.h>
#include <string.h>

#include "kernels/pack.h"

#define VW 4
#define ACC_MAX 8
#define ROWS_MAX 4
#define INT_ACC_MAX 4
#define I8_OFFSET 128

typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));
typedef uint8_t vb __attribute__((vector_size(16)));

static inline vf v_load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

static inline vf v_set1(float f)
{
    return (vf){f, f, f, f};
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf v_max(vf a, vf b)
{
    vi m = a > b;

    return (vf)(((vi)a & m) | ((vi)b & ~m));
}

static inline vh h_load(const uint16_t *p)
{
    vh h;

    memcpy(&h, p, sizeof(h));
    return h;
}

static inline vu v_widen(vh h)
{
    return __builtin_convertvector(h, vu);
}

/* Like pack.c's scalar conversion: exact, through a float that is 2^112 too small. */
static inline vf v_from_f16(vh h)
{
    vu u = v_widen(h);
    vu mag = u & 0x7fff;
    vu big = (vu)(mag >= 0x7c00);
    vu bits = (vu)((vf)(mag << 13) * v_set1(0x1p112f));

    bits |= big & (0x7f800000u | mag << 13);
    return (vf)(bits | (u & 0x8000) << 16);
}

static inline vh v_to_f16(vf v)
{
    vh h;

    for (int i = 0; i < VW; i++) {
        uint16_t bits;

        dtype_store(DTYPE_F16, &bits, 0, v[i]);
        h[i] = bits;
    }
    return h;
}

static inline vi v_widen_i8(const void *p)
{
    int8_t b[VW];

    memcpy(b, p, sizeof(b));
    return (vi){b[0], b[1], b[2], b[3]};
}

static inline vf v_from_i32(vi v)
{
    return __builtin_convertvector(v, vf);
}

/* acc + the sum of the four products in each 32-bit lane, w unsigned, a signed; exact. */
static inline vi v_dot_i8(vi acc, vb w, vi a)
{
    vu bytes = (vu)w;

    for (int i = 0; i < 4; i++)
        acc += (vi)(bytes >> 8 * i & 0xff) * (a << (24 - 8 * i) >> 24);
    return acc;
}

static inline vi v_dot_i4(vi acc, vb w, vi a)
{
    return v_dot_i8(acc, w, a);
}

#include "kernels/cpu/vec_partial.h"
