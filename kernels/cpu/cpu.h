/* cpu.h - the state of a CPU device that its kernels use, and the list of kernel variants.
 *
 * Owns    scratch memory and the pool, from cpu_init() to cpu_fini().
 * Thread  as ops.h; a worker touches only its own part of the scratch memory and its outputs.
 * Errors  ERR_NOMEM.
 * Units   scratch in floats unless the name says otherwise. */
#ifndef TARN_KERNELS_CPU_CPU_H
#define TARN_KERNELS_CPU_CPU_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/cpu/numa.h"
#include "kernels/ops.h"

struct pool;
struct device_config;

/* Most rows whose activations are packed together. A step with more rows is cut, which changes no
 * bit. */
#define CPU_PACK_ROWS_MAX 768
/* Most queries (rows x heads that share a KV head) of one task, in any kernel. */
#define CPU_ATTN_QUERIES_MAX 128
/* Most queries of one register tile or pair of row blocks, in any kernel. */
#define CPU_ATTN_ROWS_MAX 32

/* Floats of each thread for tiles that are merged later. */
#define CPU_ATTN_TILE_FLOATS (96u << 10)

/* Attention's scratch of one thread; d is the head size rounded up to PANEL_COLS. */
struct cpu_attn_scratch {
    float *q;         /* [CPU_ATTN_QUERIES_MAX * d], scaled, in the kernel's packed order */
    float *score;     /* [CPU_ATTN_ROWS_MAX * KV_SEGMENT_TOKENS_MAX] */
    unsigned char *p; /* like score, in bf16 */
    unsigned char *v; /* [KV_BLOCK_TOKENS * d] in bf16: copy of a block of V that is not full */
    float *tile;      /* [CPU_ATTN_ROWS_MAX * d] */
    float *out;       /* [CPU_ATTN_QUERIES_MAX][d] */
    float *max;       /* [CPU_ATTN_QUERIES_MAX] */
    float *sum;       /* [CPU_ATTN_QUERIES_MAX]; 0: no visible key so far */
};

/* A thread's scratch of products: sums of all groups of a task, and an unpacked panel of int8 or
 * int4 weights. */
struct cpu_tile_scratch {
    float *c;         /* [CPU_TILE_ROWS][PANEL_COLS] */
    unsigned char *w; /* [max_k][PANEL_COLS] */
};
#define CPU_TILE_ROWS (CPU_PACK_ROWS_MAX + 32)
/* Bytes of a packed row beyond 4 per element of K: scales, sums, padding. */
#define CPU_PACK_ROW_EXTRA 512

/* The panels of a product that one thread walks before it helps other threads. */
struct cpu_range {
    _Alignas(64) _Atomic uint32_t next;
    uint32_t end;
};

/* How products prefetch the weights that they read from memory. The faster way depends on the
 * machine: one core reached 24 or 45 GB/s with the first, and 44 or 40 of 44 with the second. */
enum cpu_fetch {
    CPU_FETCH_AHEAD,   /* one stream, a few KB ahead */
    CPU_FETCH_QUARTERS /* four streams, panels ahead */
};

struct cpu {
    struct pool *pool;
    struct numa numa; /* n_nodes 0 or 1: not used */
    enum cpu_fetch fetch;
    unsigned char *packed; /* activations of packed_rows rows in the kernel's packed order */
    size_t packed_bytes;
    uint32_t packed_rows;
    uint32_t max_k;
    uint32_t max_head_dim;
    struct cpu_attn_scratch *attn; /* [n_threads] */
    float *attn_memory;
    float *attn_tiles; /* [attn_tile_floats]: tiles of segments that threads compute at once */
    size_t attn_tile_floats;
    struct cpu_tile_scratch *tile_scratch; /* [n_threads] */
    float *tile_memory;
    struct cpu_range *ranges; /* [n_threads] */
};

NODISCARD enum status cpu_init(struct cpu *c, const struct device_config *config,
                               uint32_t n_threads);
void cpu_fini(struct cpu *c); /* a zeroed struct is fine */

/* The CPU state of a device; defined in device.c. */
struct cpu *device_cpu(struct device *d);

/* A kernel variant. The list is in order of preference. */
struct cpu_variant {
    const char *name;
    const struct ops *ops;
    bool (*supported)(void);
};
const struct cpu_variant *cpu_variants(uint32_t *n_out);

#endif
