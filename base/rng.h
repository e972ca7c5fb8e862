/* rng.h - a seeded, counter-based generator: the n-th number is a function of (seed, n).
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The
 * generator has no state, so a preempted or replayed request draws the same numbers (promise P1,
 * ARCHITECTURE.md), and a GPU kernel can draw them too.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   rng_uniform() is in [0, 1). */
#ifndef TARN_BASE_RNG_H
#define TARN_BASE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__ /* nvcc: also for kernels */
#define RNG_FUNCTION static __host__ __device__ inline
#else
#define RNG_FUNCTION static inline
#endif

RNG_FUNCTION void rng_philox_round(uint32_t c[4], const uint32_t k[2])
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t a = (uint32_t)(p1 >> 32) ^ c[1] ^ k[0], b = (uint32_t)(p0 >> 32) ^ c[3] ^ k[1];

    c[0] = a;
    c[1] = (uint32_t)p1;
    c[2] = b;
    c[3] = (uint32_t)p0;
}

/* Four 32-bit numbers of counter (hi, lo). */
RNG_FUNCTION void rng_philox(uint64_t seed, uint64_t lo, uint64_t hi, uint32_t out[4])
{
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    out[0] = (uint32_t)lo;
    out[1] = (uint32_t)(lo >> 32);
    out[2] = (uint32_t)hi;
    out[3] = (uint32_t)(hi >> 32);
    for (int i = 0; i < 10; i++) {
        rng_philox_round(out, k);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

RNG_FUNCTION uint32_t rng_u32(uint64_t seed, uint64_t n)
{
    uint32_t out[4];

    rng_philox(seed, n, 0, out);
    return out[0];
}

/* 24 random bits as a float in [0, 1). */
RNG_FUNCTION float rng_uniform(uint64_t seed, uint64_t n)
{
    return (float)(rng_u32(seed, n) >> 8) * 0x1p-24f;
}

#endif
