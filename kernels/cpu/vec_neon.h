/* vec_neon.h - the vector layer for 64-bit ARM: 4 lanes, 32 registers.
 *
 * Included by cpu_neon.c, cpu_neondot.c and cpu_neonmm.c, whose compiler flags decide which
 * instruction sums products of bytes. No speed of these variants has been measured. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define VW 4
#define ACC_MAX 24
#define ROWS_MAX 6
#ifdef __ARM_FEATURE_MATMUL_INT8
#define HAVE_NEON_MATRIX 1 /* gemm_neonmm.h */
#define INT_ACC_MAX 4      /* for the few products of int_kernel that are left */
#define I8_OFFSET 128
#else
#define INT_ACC_MAX 24
#define INT_ROWS 6
#define I8_OFFSET 0 /* v_dot_i8() subtracts the offset of 128 itself */
#endif

typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));
typedef uint8_t vb __attribute__((vector_size(16)));

static inline vf v_load(const float *p)
{
    return (vf)vld1q_f32(p);
}

static inline void v_store(float *p, vf v)
{
    vst1q_f32(p, (float32x4_t)v);
}

static inline vf v_set1(float f)
{
    return (vf)vdupq_n_f32(f);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

/* The larger lane; NaN where either is NaN. */
static inline vf v_max(vf a, vf b)
{
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}

static inline vh h_load(const uint16_t *p)
{
    return (vh)vld1_u16(p);
}

static inline vu v_widen(vh h)
{
    return (vu)vmovl_u16((uint16x4_t)h);
}

static inline vf v_from_f16(vh h)
{
    return (vf)vcvt_f32_f16((float16x4_t)h);
}

static inline vh v_to_f16(vf v)
{
    return (vh)vcvt_f16_f32((float32x4_t)v);
}

static inline vi v_widen_i8(const void *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return (vi)vmovl_s16(vget_low_s16(vmovl_s8((int8x8_t)vdup_n_u32(four))));
}

static inline vf v_from_i32(vi v)
{
    return (vf)vcvtq_f32_s32((int32x4_t)v);
}

/* acc + the sum of the four products in each 32-bit lane, w in 0 .. 15, a in -127 .. 127; exact.
 * Without the instruction, the sum of two products stays within 16 bits. */
static inline vi v_dot_i4(vi acc, vb w, vi a)
{
#ifdef __ARM_FEATURE_DOTPROD
    return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)a);
#else
    int8x16_t b = (int8x16_t)w, q = (int8x16_t)a;
    int16x8_t low = vmull_s8(vget_low_s8(b), vget_low_s8(q)), high = vmull_high_s8(b, q);

    return (vi)vpadalq_s16((int32x4_t)acc, vpaddq_s16(low, high));
#endif
}

/* The same for any unsigned w, or for w - 128 (I8_OFFSET). */
static inline vi v_dot_i8(vi acc, vb w, vi a)
{
#ifdef HAVE_NEON_MATRIX
    return (vi)vusdotq_s32((int32x4_t)acc, (uint8x16_t)w, (int8x16_t)a);
#else
    return v_dot_i4(acc, w ^ 0x80, a);
#endif
}

/* Products with one lane of a vector, which needs no register for four copies of the lane.
 * HAVE_LANES: loops over rows load the numbers of four rows at once. */
#define HAVE_LANES 1

static inline vf v_fma_lane(vf four, int lane, vf b, vf c)
{
    float32x4_t x = (float32x4_t)four, y = (float32x4_t)b, z = (float32x4_t)c;

    switch (lane) {
    case 0: return (vf)vfmaq_laneq_f32(z, y, x, 0);
    case 1: return (vf)vfmaq_laneq_f32(z, y, x, 1);
    case 2: return (vf)vfmaq_laneq_f32(z, y, x, 2);
    default: return (vf)vfmaq_laneq_f32(z, y, x, 3);
    }
}

#ifdef __ARM_FEATURE_DOTPROD
static inline vi v_dot_i4_lane(vi acc, vb w, vi four, int lane)
{
    int32x4_t c = (int32x4_t)acc;
    int8x16_t b = (int8x16_t)w, a = (int8x16_t)four;

    switch (lane) {
    case 0: return (vi)vdotq_laneq_s32(c, b, a, 0);
    case 1: return (vi)vdotq_laneq_s32(c, b, a, 1);
    case 2: return (vi)vdotq_laneq_s32(c, b, a, 2);
    default: return (vi)vdotq_laneq_s32(c, b, a, 3);
    }
}
#else
static inline vi v_dot_i4_lane(vi acc, vb w, vi four, int lane)
{
    return v_dot_i4(acc, w, (vi)vdupq_n_s32(four[lane]));
}
#endif

#ifdef HAVE_NEON_MATRIX
static inline vi v_dot_i8_lane(vi acc, vb w, vi four, int lane)
{
    int32x4_t c = (int32x4_t)acc;
    uint8x16_t b = (uint8x16_t)w;
    int8x16_t a = (int8x16_t)four;

    switch (lane) {
    case 0: return (vi)vusdotq_laneq_s32(c, b, a, 0);
    case 1: return (vi)vusdotq_laneq_s32(c, b, a, 1);
    case 2: return (vi)vusdotq_laneq_s32(c, b, a, 2);
    default: return (vi)vusdotq_laneq_s32(c, b, a, 3);
    }
}
#else
static inline vi v_dot_i8_lane(vi acc, vb w, vi four, int lane)
{
    return v_dot_i4_lane(acc, w ^ 0x80, four, lane);
}
#endif

#include "kernels/cpu/vec_partial.h"
