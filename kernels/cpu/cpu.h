/* cpu.h - what the CPU kernels need of their device, and the tables of the variants.
 *
 * Owns    scratch memory and the pool, from cpu_init() to cpu_fini().
 * Thread  as ops.h; a worker touches only its own part of the scratch memory and its outputs.
 * Errors  ERR_NOMEM.
 * Units   scratch in floats unless the name says otherwise. */
#ifndef TARN_KERNELS_CPU_CPU_H
#define TARN_KERNELS_CPU_CPU_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/ops.h"

struct pool;
struct device_config;

/* Rows whose activations are packed at once; a longer step is cut (that changes no bit). */
#define CPU_PACK_ROWS_MAX 768
/* Queries (rows x heads that share a KV head) of one task, at most, in any kernel. */
#define CPU_ATTN_QUERIES_MAX 128
/* Queries of one register tile or pair of row blocks, at most, in any kernel. */
#define CPU_ATTN_ROWS_MAX 32

/* Attention's memory of one thread; d is the head size, rounded up to PANEL_COLS. */
struct cpu_attn_scratch {
    float *q;         /* [CPU_ATTN_QUERIES_MAX * d], scaled, packed as the kernel wants them */
    float *score;     /* [CPU_ATTN_ROWS_MAX * KV_SEGMENT_TOKENS_MAX] */
    unsigned char *p; /* as score, in bf16 */
    unsigned char *v; /* [KV_BLOCK_TOKENS * d] in bf16: a block of V that is not full */
    float *tile;      /* [CPU_ATTN_ROWS_MAX * d] */
    float *out;       /* [CPU_ATTN_QUERIES_MAX][d] */
    float *max;       /* [CPU_ATTN_QUERIES_MAX] */
    float *sum;       /* [CPU_ATTN_QUERIES_MAX]; 0: no key seen yet */
};

/* Of one thread: rows by 32 columns of all groups of a task, and a panel of int8 or int4 weights
 * unpacked. */
struct cpu_tile_scratch {
    float *c;         /* [CPU_TILE_ROWS][PANEL_COLS] */
    unsigned char *w; /* [max_k][PANEL_COLS] */
};
#define CPU_TILE_ROWS (CPU_PACK_ROWS_MAX + 32)
/* Bytes that a packed row may take beyond 4 per element of K: scales, sums, padding. */
#define CPU_PACK_ROW_EXTRA 512

/* Panels of a product that one thread walks before it helps the others. */
struct cpu_range {
    _Alignas(64) _Atomic uint32_t next;
    uint32_t end;
};

struct cpu {
    struct pool *pool;
    unsigned char *packed; /* activations of packed_rows rows, as their kernel wants them */
    size_t packed_bytes;
    uint32_t packed_rows;
    uint32_t max_k;
    uint32_t max_head_dim;
    struct cpu_attn_scratch *attn; /* [n_threads] */
    float *attn_memory;
    struct cpu_tile_scratch *tile_scratch; /* [n_threads] */
    float *tile_memory;
    struct cpu_range *ranges; /* [n_threads] */
};

NODISCARD enum status cpu_init(struct cpu *c, const struct device_config *config,
                               uint32_t n_threads);
void cpu_fini(struct cpu *c); /* also fine on a zeroed struct */

/* The CPU side of a device; implemented by device.c. */
struct cpu *device_cpu(struct device *d);

/* A variant: its table, and whether this machine can run it. In order of preference. */
struct cpu_variant {
    const char *name;
    const struct ops *ops;
    bool (*supported)(void);
};
const struct cpu_variant *cpu_variants(uint32_t *n_out);

/* vdpbf16ps must reach this share of the multiply-adds that vfmadd231ps reaches, or weights in
 * bf16 are multiplied as floats. Cores measured so far give 0.5 or 2.0: the bound lies between
 * 0.5 and 1.0, at a third from either, so that no noise changes the choice. */
#define CPU_BF16_RATE_MIN 0.75

/* Return the fastest variant of `all` that this machine supports. For weights in bf16 that is not
 * always the first: without AMX, and with a vdpbf16ps slower than CPU_BF16_RATE_MIN, the variant
 * after "avx512bf16" is faster. `measure` is called only where its answer counts; see
 * bf16_rate_measure(). */
const struct cpu_variant *cpu_variant_choose(const struct cpu_variant *all, uint32_t n,
                                             bool bf16_weights, double (*measure)(void));

#endif
