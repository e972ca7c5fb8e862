/* limits.h - the highest rates of this machine, measured with N threads at once.
 *
 * Memory: plain vector loads over buffers far larger than the last-level cache. Arithmetic: loops
 * in registers only, with enough independent accumulators. Each loop's figure is compared with its
 * instructions per cycle times the clock of the same moment (measured as limits_loops.h says); a
 * figure far below means that other processes used the cores.
 *
 * Owns    limits_create(): the buffers and threads' places of a measurement, until destroyed.
 * Thread  one caller; it starts and joins threads of its own.
 * Errors  ERR_NOMEM; ERR_INTERNAL when no thread can be started. A bad measurement is no error: it
 *         is marked void.
 * Units   bytes per second, operations per second (a multiply-add is two), hertz. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_LIMITS_H
#define TARN_LOADGEN_BENCH_ENGINE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum limit_kind {
    LIMIT_READ,
    LIMIT_FP32, /* widest fp32 multiply-add of the machine */
    LIMIT_BF16, /* vdpbf16ps */
    LIMIT_INT8, /* vpdpbusd, 512 bits */
    LIMIT_AMX_BF16,
    LIMIT_AMX_INT8,
    LIMIT_AVX2_FP32, /* the limit for kernels without AVX-512 */
    LIMIT_AVX2_INT8, /* vpmaddubsw, vpmaddwd, vpaddd */
    LIMIT_COUNT
};

struct limits {
    double rate[LIMIT_COUNT];      /* 0: not on this machine */
    double per_cycle[LIMIT_COUNT]; /* operations per cycle and core */
    double expected[LIMIT_COUNT];  /* the same by arithmetic */
    double clock_hz;               /* mean of the cores while they computed */
    uint32_t n_threads;
    bool is_void;
    char void_why[160];
};

struct limit_meter;

/* n_threads 0: one per core that this process may use. */
NODISCARD enum status limits_create(struct limit_meter **out, uint32_t n_threads, struct buf *why);
void limits_destroy(struct limit_meter *m); /* NULL is fine */
/* One measurement of everything, repeated a few times where it does not pass the check. */
NODISCARD enum status limits_measure(struct limit_meter *m, struct limits *out);
/* The median of each figure over n measurements; void when more than half of them are. */
void limits_median(const struct limits *all, uint32_t n, struct limits *out);

const char *limits_name(enum limit_kind k); /* "read", "bf16", "amx_int8", ... */

#endif
