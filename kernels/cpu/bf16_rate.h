/* bf16_rate.h - the speed of the bf16 product instruction on the core that runs us.
 *
 * A core that has `vdpbf16ps` need not be fast at it: one of Sapphire Rapids starts it every
 * other cycle, and a plain multiply-add of floats twice per cycle, so that floats win although
 * each bf16 instruction does twice the work (kernels/cpu/PERFORMANCE.md). No CPUID bit tells.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   a ratio of multiply-adds per second. */
#ifndef TARN_KERNELS_CPU_BF16_RATE_H
#define TARN_KERNELS_CPU_BF16_RATE_H

/* Measure multiply-adds per second of vdpbf16ps over those of vfmadd231ps, in 512-bit registers.
 * 2 where both instructions start equally often, 0.5 on the core above. Takes 1 to 2 ms. The
 * machine must have AVX-512 with BF16. */
double bf16_rate_measure(void);

#endif
