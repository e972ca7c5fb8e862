/* bf16_rate.h - measures the speed of the bf16 product instruction on this core.
 *
 * A core with `vdpbf16ps` is not always fast at it. One Sapphire Rapids starts it every other cycle
 * but starts two float multiply-adds per cycle, so that floats are faster although each bf16
 * instruction does twice the work (kernels/cpu/PERFORMANCE.md). No CPUID bit tells.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   a ratio of multiply-adds per second. */
#ifndef TARN_KERNELS_CPU_BF16_RATE_H
#define TARN_KERNELS_CPU_BF16_RATE_H

/* Measure the multiply-adds per second of vdpbf16ps relative to vfmadd231ps, in 512-bit registers:
 * 2 if both instructions start equally often, 0.5 on the core above. Takes 1 to 2 ms. The machine
 * must have AVX-512 with BF16. */
double bf16_rate_measure(void);

#endif
