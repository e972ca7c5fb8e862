/* choice.h - which kernels a CPU device runs, by measurement.
 *
 * Two things differ between machines in ways that no CPUID bit tells. A core may have an
 * instruction and be slow at it: one Sapphire Rapids multiplies bf16 by vdpbf16ps at half the rate
 * of floats, Zen 5 at twice. And one core reads memory fastest in four streams, another in one.
 *
 * The variants of this machine multiply a weight of the model's type, many rows and one row at a
 * time, and attend to KV of the model's type, in turns; the best of several samples counts. A
 * variant further down the list must be
 * faster by CPU_CHOICE_MARGIN, so that noise does not change what is chosen: stored KV belongs to
 * one variant (the fingerprint has its name). How memory is prefetched changes no bit.
 *
 * Owns    devices and memory (FETCH_WEIGHT_BYTES) during the call.
 * Thread  any; 10 to 50 ms.
 * Errors  none: what cannot be measured stays as it was.
 * Units   seconds. */
#ifndef TARN_KERNELS_CPU_CHOICE_H
#define TARN_KERNELS_CPU_CHOICE_H

#include "kernels/cpu/cpu.h"
#include "kernels/device.h"

#define CPU_CHOICE_MARGIN 1.25
/* Rows of a prompt for one of an answer: the weights of the two figures. */
#define CPU_CHOICE_PROMPT_ROWS 8

struct cpu_choice {
    const struct cpu_variant *variant;
    enum cpu_fetch fetch;
};

/* The seconds of one row, by candidate. `attention` is of a row of a prompt. */
struct cpu_rate {
    double prefill, decode, attention;
};

/* Index of the candidate to choose, of n > 0 in order of preference. */
uint32_t cpu_choose(const struct cpu_rate *rates, uint32_t n);

/* Choose for the weights and KV of `config`. On entry *c is the choice without a measurement; its
 * variant stays if config->cpu_variant names one. With config->measure_dir the choice of an earlier
 * start on the same machine is read from a file there, or written to it. */
void cpu_measure(struct cpu_choice *c, const struct device_config *config, uint32_t n_threads);

#endif
