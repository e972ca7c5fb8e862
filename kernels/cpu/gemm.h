/* gemm.h - the frame of all products: rows in groups, packed activations, panels as tasks.
 *
 * The rows of a step are cut into groups, whose activations are packed in their kernel's order. A
 * task is one panel of weights times a few groups whose activations together fit into the
 * second-level cache. K is never split between tasks. With one row, the walk over panels is a
 * single stream through memory. The kernel is chosen by the weight's type and shape and, where two
 * kernels give equal bits, by the number of rows (gemm_body.h).
 *
 * Owns    nothing; packed activations are in the device's scratch memory.
 * Thread  one product at a time per device; packing and panels run on its pool.
 * Errors  none.
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CPU_GEMM_H
#define TARN_KERNELS_CPU_GEMM_H

#include <string.h>

#include "base/check.h"
#include "kernels/cpu/chain.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/pack.h"

struct gemm_job;

/* One task: groups [begin, end) of rows times one panel. */
struct gemm_panel {
    uint32_t panel;
    uint32_t begin, end;
    uint32_t thread;
    struct chain_fetch fetch; /* prefetched by the first group only */
    /* In its place: the next panel, of which each group prefetches a share; or NULL. */
    const unsigned char *shared;
};

/* Elements converted together; all groups but the last of a row are multiples of it. */
#define QUANT_CHUNK 32

/* The functions that multiply one kind of weight. */
struct gemm_kernel {
    uint32_t rows_max; /* most rows of a group */
    bool even;         /* groups are of even size; else full groups and a rest */
    /* Bytes of one group's packed activations, a multiple of 64. */
    size_t (*slot_bytes)(const struct weight *w, uint32_t n_rows);
    /* Pack the rows of one group, from a on. */
    void (*pack)(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows);
    void (*panel)(const struct gemm_job *j, const struct gemm_panel *b);
    bool shares; /* its groups can share the prefetch of a panel */
};

/* The kernel of gemm_int.h in avx512, which also serves the variants with pairs of bf16: they have
 * no better instruction for it. */
#if VW == 16
extern const struct gemm_kernel gemm_int_avx512;
#endif

/* Rows [row0, row0 + n_rows) of a product. */
struct gemm_job {
    const struct gemm_params *p;
    const struct gemm_kernel *kernel;
    struct cpu *cpu;
    uint32_t row0;
    uint32_t n_rows;
    uint32_t n_groups;
    uint32_t n_blocks; /* blocks of groups; each block is a task per panel */
    uint32_t n_panels;
    size_t panel_bytes;
    size_t slot_bytes;
    unsigned char *packed;     /* [n_groups] slots, or another layout of the kernel's */
    const struct weight *next; /* the weight of the next product, to prefetch; or NULL */
    uint32_t n_threads;
};

/* A group's share of the next panel: the first byte, and lines in each of a walk's steps. */
struct gemm_share {
    const unsigned char *at; /* NULL: none */
    uint32_t n_lines;
};

/* The share of group i of the task, whose walk over the panel has n_steps steps. Otherwise memory
 * would work during the first group's walk and rest during those of the others. */
static inline struct gemm_share gemm_share_of(const struct gemm_job *j, const struct gemm_panel *b,
                                              uint32_t i, uint32_t n_steps)
{
    size_t lines = (j->panel_bytes + 63) / 64, all = (size_t)n_steps * (b->end - b->begin);
    uint32_t n = (uint32_t)((lines + all - 1) / all);

    if (!b->shared)
        return (struct gemm_share){0};
    return (struct gemm_share){b->shared + (size_t)(i - b->begin) * n_steps * n * 64, n};
}

/* The last operations on a group's sums for one panel. */
struct gemm_end {
    uint32_t n_cols;   /* outputs of this panel that exist, 1 .. PANEL_COLS */
    const float *bias; /* [n_cols] or NULL */
    bool accumulate;
    float *out; /* [rows][n_cols] */
    size_t out_stride;
};

/* The i-th boundary of n even parts of [0, total). */
static inline uint32_t even_cut(uint32_t total, uint32_t n, uint32_t i)
{
    return (uint32_t)((uint64_t)total * i / n);
}

/* First row of group i; for i == n_groups the number of rows. */
static inline uint32_t gemm_group_row(const struct gemm_job *j, uint32_t i)
{
    return j->kernel->even ? even_cut(j->n_rows, j->n_groups, i)
                           : min_u32(i * j->kernel->rows_max, j->n_rows);
}

static inline unsigned char *gemm_slot(const struct gemm_job *j, uint32_t group)
{
    return j->packed + group * j->slot_bytes;
}

static inline const unsigned char *gemm_panel_data(const struct gemm_job *j, uint32_t panel)
{
    return (const unsigned char *)j->p->w.data + panel * j->panel_bytes;
}

static inline struct gemm_end gemm_end_of(const struct gemm_job *j, uint32_t panel, uint32_t group)
{
    const struct gemm_params *p = j->p;
    uint32_t n0 = panel * PANEL_COLS;

    return (struct gemm_end){
        .n_cols = min_u32(p->w.n - n0, PANEL_COLS),
        .bias = p->bias ? p->bias + n0 : NULL,
        .accumulate = p->accumulate != 0,
        .out = p->out + (j->row0 + gemm_group_row(j, group)) * p->out_stride + n0,
        .out_stride = p->out_stride,
    };
}

/* Prefetch the outputs of a group for writing: a store that misses every cache holds back those
 * behind it, and a tile takes long enough for the lines to come. */
static inline void gemm_fetch_out(const struct gemm_end *e, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t col = 0; col < e->n_cols; col += 64 / sizeof(float))
            __builtin_prefetch(e->out + r * e->out_stride + col, 1);
}

/* Finish the sums: add the bias, then the old output, and store. Not inlined: it is short beside
 * any product, and dozens of kernel instances call it. */
static __attribute__((noinline)) void gemm_store(const struct gemm_end *e,
                                                 const float *acc /* [n_rows][width] */,
                                                 uint32_t n_rows, uint32_t width, uint32_t col0)
{
    for (uint32_t j = 0; j < width && col0 + j < e->n_cols; j += VW) {
        uint32_t col = col0 + j;
        uint32_t n = min_u32(e->n_cols - col, VW);
        vf bias = e->bias ? v_load_n(e->bias + col, n) : v_set1(0);

        for (uint32_t r = 0; r < n_rows; r++) {
            float *out = e->out + r * e->out_stride + col;
            vf v = v_load(acc + r * width + j);

            if (e->bias)
                v += bias;
            if (e->accumulate)
                v += v_load_n(out, n);
            v_store_n(out, v, n);
        }
    }
}

#endif
