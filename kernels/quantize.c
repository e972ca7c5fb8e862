/* quantize.c - quantizes float rows to int8, int4 and fp8 weights.
 *
 * A whole checkpoint passes through here while a user waits, so the loops suit the compiler's
 * vectorizer: one output per lane, no early exits, and sums in an order that does not depend on the
 * register width. They are compiled once per instruction set; all give the same bytes. */
#include "kernels/quantize.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Outputs computed together, one per lane: half a panel. */
#define LANES 16
/* Elements of K computed together: a multiple of every group size. */
#define BLOCK_K 128
/* Smallest scale: below it 1 / scale would overflow. The elements of a group with smaller numbers
 * are rounded to multiples of it, which is still within half a scale. */
#define SCALE_MIN 0x1p-126f
/* 1.5 * 2^23: adding it to |x| < 2^22 rounds x to the nearest integer, ties to even, and leaves the
 * integer in the low bits. */
#define ROUNDER 12582912.0f
#define ROUNDER_BITS 0x4b400000
#define INF_BITS 0x7f800000u
#define NAN_BITS 0x7fc00000u

/* The largest number of F8; and 2^14: adding it rounds to a multiple of 2^-9, the unit of the
 * numbers below 2^-6. */
#define F8_MAX 448.0f
#define F8_ROUNDER 16384.0f

/* Scales tried for int4, as shares of m, the group's element of largest magnitude: m / -8 makes m
 * exactly -8; m / -7 avoids using -8; the others are between and beyond. */
static const float i4_shares[] = {-1 / 8.0f, -1 / 7.5f, -1 / 8.5f, -1 / 7.0f, -1 / 9.0f};

/* Fewest steps of the largest element of an int8 group. */
#define I8_STEPS_MIN 124

/* LANES outputs times one block of K, transposed so that lanes are adjacent. */
struct strip {
    _Alignas(64) float x[BLOCK_K][LANES];
    uint32_t lane0, lane1; /* lanes of this call's rows; other lanes' outputs must not be written */
};

ALWAYS_INLINE uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

ALWAYS_INLINE float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* --- reading --- */

/* dtype_load() inlined and without a branch for f16: the 15 bits become exponent and mantissa of a
 * float that is 2^112 too small. Inf and NaN need only remain at least inf. */
ALWAYS_INLINE float load_one(enum dtype from, const char *src)
{
    uint16_t h;
    float f;

    if (from == DTYPE_F32) {
        memcpy(&f, src, sizeof(f));
        return f;
    }
    memcpy(&h, src, sizeof(h));
    if (from == DTYPE_BF16)
        return float_of((uint32_t)h << 16);
    uint32_t mag = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    return float_of(sign | bits_of(float_of(mag << 13) * 0x1p112f) |
                    (mag >= 0x7c00 ? INF_BITS : 0));
}

/* Load n elements of one row into a lane. */
ALWAYS_INLINE void load_row(struct strip *s, uint32_t lane, enum dtype from, const char *src,
                            uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s->x[i][lane] = load_one(from, src + i * dtype_bytes(from));
}

/* --- scales --- */

/* Each lane's largest magnitude as bits, which compare like the numbers: NaN above inf above all
 * others. `sign` gets the sign bit of an element of that magnitude. */
ALWAYS_INLINE void largest(uint32_t *mag, uint32_t *sign, const float (*x)[LANES], uint32_t n)
{
    uint32_t pos[LANES] = {0}, neg[LANES] = {0};

    for (uint32_t i = 0; i < n; i++)
        for (int j = 0; j < LANES; j++) {
            int32_t up = (int32_t)bits_of(x[i][j]), down = up ^ INT32_MIN;

            /* Compared as signed integers, numbers of one sign are in order and above all numbers
             * of the other sign. */
            pos[j] = up > (int32_t)pos[j] ? (uint32_t)up : pos[j];
            neg[j] = down > (int32_t)neg[j] ? (uint32_t)down : neg[j];
        }
    for (int j = 0; j < LANES; j++) {
        mag[j] = pos[j] > neg[j] ? pos[j] : neg[j];
        sign[j] = pos[j] > neg[j] ? 0 : 0x80000000u;
    }
}

ALWAYS_INLINE float bf16_nearest(float s) /* for finite s */
{
    uint32_t u = bits_of(s);

    return float_of((u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u);
}

/* Raise the magnitude to SCALE_MIN at least; the sign stays. */
ALWAYS_INLINE float not_too_small(float s)
{
    uint32_t u = bits_of(s), mag = u & 0x7fffffffu, min = bits_of(SCALE_MIN);

    return float_of((u & 0x80000000u) | (mag > min ? mag : min));
}

/* ROUNDER_BITS + the integer nearest to t, |t| < 2^22, clamped to [low, high]. */
ALWAYS_INLINE int32_t rounded(float t, int32_t low, int32_t high)
{
    int32_t r = (int32_t)bits_of(t + ROUNDER);

    r = r > ROUNDER_BITS + low ? r : ROUNDER_BITS + low;
    return r < ROUNDER_BITS + high ? r : ROUNDER_BITS + high;
}

/* Squared error of an int4 group for each lane's inverse scale, in units of scale^2. */
ALWAYS_INLINE void errors_i4(float *out, const float *inverse, const float (*x)[LANES], uint32_t n)
{
    float sum[LANES] = {0};

    for (uint32_t i = 0; i < n; i++)
        for (int j = 0; j < LANES; j++) {
            float t = x[i][j] * inverse[j];
            float e = t - (float_of((uint32_t)rounded(t, -8, 7)) - ROUNDER);

            sum[j] += e * e;
        }
    memcpy(out, sum, sizeof(sum));
}

/* The errors are compared in units of the first scale's square, so that none overflows. */
ALWAYS_INLINE void scales_i4(float *scale, const uint32_t *mag, const uint32_t *sign,
                             const float (*x)[LANES], uint32_t n)
{
    float least[LANES], first[LANES];

    for (size_t c = 0; c < ARRAY_SIZE(i4_shares); c++) {
        float s[LANES], inverse[LANES], error[LANES];

        for (int j = 0; j < LANES; j++) {
            float m = mag[j] < INF_BITS ? float_of(mag[j] | sign[j]) : 1;

            s[j] = not_too_small(bf16_nearest(m * i4_shares[c]));
            inverse[j] = 1 / s[j];
        }
        errors_i4(error, inverse, x, n);
        for (int j = 0; j < LANES; j++) {
            if (c == 0)
                first[j] = s[j];
            float ratio = s[j] / first[j];
            float e = error[j] * (ratio * ratio);
            bool better = c == 0 || e < least[j];

            least[j] = better ? e : least[j];
            scale[j] = better ? s[j] : scale[j];
        }
    }
}

/* The largest element gets I8_STEPS_MIN .. 127 steps, whichever the scale rounded to bf16
 * represents best: it weighs most in a product, and with 127 alone it would be off by up to half a
 * step, since half a unit in bf16's last place is 1/256. */
ALWAYS_INLINE void scales_i8(float *scale, const uint32_t *mag)
{
    float least[LANES];

    for (int steps = 127; steps >= I8_STEPS_MIN; steps--)
        for (int j = 0; j < LANES; j++) {
            float m = mag[j] < INF_BITS ? float_of(mag[j]) : 1;
            float s = not_too_small(bf16_nearest(m / (float)steps));
            float e = m - s * (float)steps;
            bool better;

            e = e < 0 ? -e : e;
            better = steps == 127 || e < least[j];
            least[j] = better ? e : least[j];
            scale[j] = better ? s : scale[j];
        }
}

/* --- fp8 --- */

/* The scale of kv_scale_of(), and what elements are multiplied by: 0 for groups of zeros. */
ALWAYS_INLINE void scales_f8(float *scale, float *inverse, const uint32_t *mag)
{
    for (int j = 0; j < LANES; j++) {
        float m = float_of(mag[j] < INF_BITS ? mag[j] : bits_of(1.0f));
        bool is_zero = m < KV_QUANT_MIN;

        scale[j] = is_zero ? 0 : m / F8_MAX;
        inverse[j] = is_zero ? 0 : F8_MAX / (is_zero ? 1 : m);
    }
}

/* kv_round() without a branch. Numbers that are not finite give any byte. */
ALWAYS_INLINE uint32_t round_f8(float y)
{
    uint32_t u = bits_of(y), mag = u & 0x7fffffffu;
    uint32_t small = bits_of(float_of(mag) + F8_ROUNDER) - bits_of(F8_ROUNDER);
    uint32_t large = (mag + 0x7ffffu + (mag >> 20 & 1) - 0x3c000000u) >> 20;

    return (u >> 24 & 0x80) | ((mag >= 0x3c800000u ? large : small) & 0x7f);
}

/* --- writing the weight --- */

/* Store one 4-byte piece per lane; `dst` is that of lane0. */
ALWAYS_INLINE void put_quads(unsigned char *dst, size_t row_step, const struct strip *s,
                             enum dtype to, uint32_t *quad)
{
    if (row_step == 4 && s->lane1 - s->lane0 == LANES) {
        memcpy(dst, quad, 4 * LANES);
    } else if (row_step == 4) {
        memcpy(dst, quad + s->lane0, 4 * (size_t)(s->lane1 - s->lane0));
    } else {
        for (int j = 0; to == DTYPE_I4 && j < LANES; j++)
            quad[j] = pack_row_order_i4(quad[j]);
        for (uint32_t lane = s->lane0; lane < s->lane1; lane++, dst += row_step)
            memcpy(dst, quad + lane, 4);
    }
}

/* Shift of element i of `per_quad` inside its 4 bytes in a panel. */
ALWAYS_INLINE unsigned quad_shift(enum dtype to, uint32_t i)
{
    return to == DTYPE_I4 ? 8 * (i % 4) + 4 * (i / 4) : 8 * i;
}

/* The element as it is stored, from its number of steps. */
ALWAYS_INLINE uint32_t code_of(enum dtype to, float t)
{
    if (to == DTYPE_F8)
        return round_f8(t);
    if (to == DTYPE_I8)
        return (uint32_t)(rounded(t, -127, 127) - ROUNDER_BITS + 128);
    return (uint32_t)(rounded(t, -8, 7) - ROUNDER_BITS + 8);
}

ALWAYS_INLINE void put_group(const struct pack_group *g, const struct strip *s, enum dtype to,
                             const float *inverse, const float (*x)[LANES], uint32_t n)
{
    const uint32_t per_quad = to == DTYPE_I4 ? 8 : 4;
    uint32_t quad[LANES];

    for (uint32_t i0 = 0; i0 < n; i0 += per_quad) {
        uint32_t n_i = n - i0 < per_quad ? n - i0 : per_quad;

        memset(quad, 0, sizeof(quad));
        for (uint32_t i = 0; i < n_i; i++)
            for (int j = 0; j < LANES; j++)
                quad[j] |= code_of(to, x[i0 + i][j] * inverse[j]) << quad_shift(to, i);
        put_quads(g->quad + pack_quad_offset(g, i0 / per_quad), g->row_step, s, to, quad);
    }
}

ALWAYS_INLINE void quantize_group(const struct pack_group *g, const struct strip *s, enum dtype to,
                                  const float (*x)[LANES], uint32_t n)
{
    uint32_t mag[LANES], sign[LANES];
    float scale[LANES], inverse[LANES];
    uint16_t h[LANES];

    largest(mag, sign, x, n);
    if (to == DTYPE_F8)
        scales_f8(scale, inverse, mag);
    else if (to == DTYPE_I8)
        scales_i8(scale, mag);
    else
        scales_i4(scale, mag, sign, x, n);
    for (int j = 0; j < LANES; j++) {
        inverse[j] = to == DTYPE_F8 ? inverse[j] : 1 / scale[j];
        scale[j] = mag[j] < INF_BITS ? scale[j] : float_of(NAN_BITS);
        h[j] = (uint16_t)(bits_of(scale[j]) >> 16);
    }
    for (uint32_t lane = s->lane0; lane < s->lane1; lane++)
        memcpy(g->scale + (lane - s->lane0) * g->scale_step,
               to == DTYPE_F8 ? (const void *)(scale + lane) : h + lane, to == DTYPE_F8 ? 4 : 2);
    put_group(g, s, to, inverse, x, n);
}

/* quantize_group() for one type. */
typedef void group_fn(const struct pack_group *g, const struct strip *s, const float (*x)[LANES],
                      uint32_t n);

/* Rows [first, end) of w, all in one strip. */
ALWAYS_INLINE void quantize_strip(const struct weight *w, group_fn *group, enum dtype from,
                                  const char *src, uint32_t first, uint32_t end)
{
    size_t row_bytes = w->k * dtype_bytes(from);
    struct strip s;

    s.lane0 = first % LANES;
    s.lane1 = s.lane0 + end - first;
    memset(s.x, 0, sizeof(s.x));
    for (uint32_t k0 = 0; k0 < w->k; k0 += BLOCK_K) {
        uint32_t n_k = w->k - k0 < BLOCK_K ? w->k - k0 : BLOCK_K;

        for (uint32_t lane = s.lane0; lane < s.lane1; lane++)
            load_row(&s, lane, from, src + (lane - s.lane0) * row_bytes + k0 * dtype_bytes(from),
                     n_k);
        for (uint32_t k = 0; k < n_k; k += w->group) {
            struct pack_group g = pack_group_of(w, first, k0 + k);

            group(&g, &s, s.x + k, w->group < n_k - k ? w->group : n_k - k);
        }
    }
}

ALWAYS_INLINE void quantize_all(const struct weight *w, group_fn *group, uint32_t n0,
                                enum dtype from, const char *src, uint32_t n_rows)
{
    uint32_t end;

    for (uint32_t first = n0; first < n0 + n_rows; first = end) {
        end = (first / LANES + 1) * LANES;
        end = end < n0 + n_rows ? end : n0 + n_rows;
        quantize_strip(w, group, from, src + (size_t)(first - n0) * w->k * dtype_bytes(from), first,
                       end);
    }
}

#define GROUP(name, attribute, to)                                                                 \
    attribute static void group_##name(const struct pack_group *g, const struct strip *s,          \
                                       const float(*x)[LANES], uint32_t n)                         \
    {                                                                                              \
        quantize_group(g, s, to, x, n);                                                            \
    }

/* Every loop above is compiled for constant types: those that read for each type of the source,
 * those that quantize for each type of the weight. A call between them costs nothing beside a
 * group, and all pairs would take ten seconds more to compile. */
#define PATH(name, attribute)                                                                      \
    GROUP(i8_##name, attribute, DTYPE_I8)                                                          \
    GROUP(i4_##name, attribute, DTYPE_I4)                                                          \
    GROUP(f8_##name, attribute, DTYPE_F8)                                                          \
    attribute static void quantize_##name(const struct weight *w, uint32_t n0, enum dtype from,    \
                                          const char *src, uint32_t n_rows)                        \
    {                                                                                              \
        group_fn *group = w->dtype == DTYPE_I8   ? group_i8_##name                                 \
                          : w->dtype == DTYPE_I4 ? group_i4_##name                                 \
                                                 : group_f8_##name;                                \
        if (from == DTYPE_F32)                                                                     \
            quantize_all(w, group, n0, DTYPE_F32, src, n_rows);                                    \
        else if (from == DTYPE_F16)                                                                \
            quantize_all(w, group, n0, DTYPE_F16, src, n_rows);                                    \
        else                                                                                       \
            quantize_all(w, group, n0, DTYPE_BF16, src, n_rows);                                   \
    }

PATH(plain, )
#if defined(__x86_64__)
PATH(avx2, __attribute__((target("avx2"))))
PATH(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
#endif

uint32_t quantize_n_paths(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 3;
    if (__builtin_cpu_supports("avx2"))
        return 2;
#endif
    return 1;
}

void quantize_rows_on(uint32_t path, const struct weight *w, uint32_t n0, enum dtype from,
                      const void *src, uint32_t n_rows)
{
    ASSERT(n_rows <= w->n && n0 <= w->n - n_rows);
    ASSERT(w->dtype == DTYPE_I8 || w->dtype == DTYPE_I4 || w->dtype == DTYPE_F8);
    ASSERT(w->group == 128 || (w->group == 32 && w->dtype != DTYPE_F8));
    ASSERT(from < DTYPE_FLOATS && path < quantize_n_paths());
#if defined(__x86_64__)
    if (path == 2) {
        quantize_avx512(w, n0, from, src, n_rows);
        return;
    }
    if (path == 1) {
        quantize_avx2(w, n0, from, src, n_rows);
        return;
    }
#endif
    quantize_plain(w, n0, from, src, n_rows);
}

void pack_quantize_rows(const struct weight *w, uint32_t n0, enum dtype from, const void *src,
                        uint32_t n_rows)
{
    quantize_rows_on(quantize_n_paths() - 1, w, n0, from, src, n_rows);
}
