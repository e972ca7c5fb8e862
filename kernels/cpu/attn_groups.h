/* attn_groups.h - the kernels of groups: their instances for numbers of rows and types of KV.
 *
 * Owns    nothing.
 * Thread  a task runs on one thread of the pool.
 * Errors  none.
 * Units   rows, keys. */
#ifndef TARN_KERNELS_CPU_ATTN_GROUPS_H
#define TARN_KERNELS_CPU_ATTN_GROUPS_H

#include "kernels/cpu/attn_kernel.h"

/* Write the tile instead of merging it. */
static void attn_keep(const struct attn_group *g, uint32_t row, const float *tile, float tile_max,
                      float tile_sum)
{
    uint32_t dim = g->task->job->dim;
    float *to = attn_tile(g->task, g->seg, g->first + row);

    memcpy(to, tile, dim * sizeof(*to));
    to[dim] = tile_max;
    to[dim + 1] = tile_sum;
}

static float *attn_row_scores(const struct attn_group *g, int row)
{
    return g->task->mem->score + (size_t)row * KV_SEGMENT_TOKENS_MAX;
}

/* Turn the scores of a group's rows into probabilities, with their maxima and sums. */
ALWAYS_INLINE void attn_probabilities(const struct attn_group *g, enum dtype t, int n_rows,
                                      float *max, float *sum)
{
    for (int r = 0; r < n_rows; r++) {
        if (g->task->job->p->soft_cap > 0)
            attn_cap_scores(g, (uint32_t)r);
        if (g->hidden[r] < g->n_keys[r])
            max[r] = attn_softmax_top(attn_row_scores(g, r), g->hidden[r], g->n_keys[r]);
    }
    for (int r = 0; r < n_rows; r++) /* the rows' maxima do not wait for each other */
        if (g->hidden[r] < g->n_keys[r])
            sum[r] = attn_softmax(g, t, attn_row_scores(g, r), g->hidden[r], g->n_keys[r], max[r]);
}

/* The sums over values from key `begin` on that every row of its group sees. A side goes on block
 * by block. */
ALWAYS_INLINE void attn_values_common(const struct attn_group *g, uint32_t n, enum dtype t,
                                      int n_rows, uint32_t begin)
{
    const uint32_t end = attn_common_end(g, t);
    uint32_t j = begin, next;

    do {
        next = n > 1 ? (j / KV_BLOCK_TOKENS + 1) * KV_BLOCK_TOKENS : KV_SEGMENT_TOKENS_MAX;
        for (uint32_t h = 0; h < n; h++)
            attn_values(g, n, h, t, 0, n_rows, j, min_u32(next, end));
        j = next;
    } while (j < end);
}

/* Keys that single rows see beyond those, and the end of the group's tiles. */
ALWAYS_INLINE void attn_finish(const struct attn_group *g, enum dtype t, int n_rows, uint32_t begin,
                               const float *max, const float *sum)
{
    const struct attn_task *task = g->task;
    const uint32_t common = attn_common_end(g, t), end = begin > common ? begin : common;

    for (int r = 0; r < n_rows; r++) {
        if (g->n_keys[r] <= g->hidden[r])
            continue;
        if (n_rows > 1 && g->n_keys[r] > end)
            attn_values_row(g, r, end, g->n_keys[r]);
        const float *tile = task->mem->tile + (size_t)r * task->job->dim_padded;
        if (task->tiles)
            attn_keep(g, (uint32_t)r, tile, max[r], sum[r]);
        else
            attn_merge(task, g->first + (uint32_t)r, tile, max[r], sum[r]);
    }
}

/* The kernel of n groups, which differ in their KV head only; n_rows and t are constants in every
 * instance. */
KERNEL_BODY void attn_group(const struct attn_group *g, uint32_t n, enum dtype t, int n_rows)
{
    float max[CPU_ATTN_ROWS_MAX] = {0}, sum[CPU_ATTN_ROWS_MAX] = {0};
    const uint32_t rows = (uint32_t)n_rows;
    uint32_t begin = 0; /* of the keys that no window hides from a row */

    attn_scores(g, n, t, n_rows);
    for (uint32_t h = 0; h < n; h++)
        attn_probabilities(&g[h], t, n_rows, max + h * rows, sum + h * rows);
    if (g->hidden[rows - 1] > 0)
        for (uint32_t h = 0; h < n; h++)
            begin = attn_values_begin(&g[h], t, rows);
    if (begin == 0 || begin < attn_common_end(g, t))
        attn_values_common(g, n, t, n_rows, begin);
    for (uint32_t h = 0; h < n; h++)
        attn_finish(&g[h], t, n_rows, begin, max + h * rows, sum + h * rows);
}

/* Only few rows come in sides. */
#define ATTN_INSTANCE(type, t, rows)                                                               \
    static void attn_##type##_##rows(const struct attn_group *g, uint32_t n)                       \
    {                                                                                              \
        attn_group(g, rows <= ATTN_FEW_ROWS ? n : 1, t, rows);                                     \
    }
#define ATTN_PAIRED(rows)                                                                          \
    ATTN_INSTANCE(bf16, DTYPE_BF16, rows)                                                          \
    ATTN_INSTANCE(i8, DTYPE_I8, rows)                                                              \
    ATTN_INSTANCE(f8, DTYPE_F8, rows)
#if ATTN_HAVE_DOT /* the others are those of avx512 */
#define ATTN_GROUPS(rows) ATTN_PAIRED(rows)
#define ATTN_ROW(rows) [rows - 1] = {NULL, NULL, attn_bf16_##rows, attn_i8_##rows, attn_f8_##rows}
#else
#define ATTN_GROUPS(rows)                                                                          \
    ATTN_INSTANCE(f32, DTYPE_F32, rows)                                                            \
    ATTN_INSTANCE(f16, DTYPE_F16, rows)                                                            \
    ATTN_PAIRED(rows)
#define ATTN_ROW(rows)                                                                             \
    [rows - 1] = {attn_f32_##rows, attn_f16_##rows, attn_bf16_##rows, attn_i8_##rows,              \
                  attn_f8_##rows}
#endif

/* Group sizes that have an instance: the usual numbers of query heads per KV head, and the
 * largest. */
ATTN_GROUPS(1)
ATTN_GROUPS(2)
ATTN_GROUPS(3)
ATTN_GROUPS(4)
#if ROWS_MAX >= 6
ATTN_GROUPS(5)
ATTN_GROUPS(6)
#endif
#if ROWS_MAX >= 12
ATTN_GROUPS(7)
ATTN_GROUPS(8)
ATTN_GROUPS(12)
#endif

#ifdef ATTN_GROUPS_NAME
void (*const ATTN_GROUPS_NAME[ROWS_MAX][ATTN_TYPES])(const struct attn_group *, uint32_t) = {
#define attn_groups ATTN_GROUPS_NAME
#else
static void (*const attn_groups[ROWS_MAX][ATTN_TYPES])(const struct attn_group *, uint32_t) = {
#endif
    ATTN_ROW(1), ATTN_ROW(2), ATTN_ROW(3),  ATTN_ROW(4),
#if ROWS_MAX >= 6
    ATTN_ROW(5), ATTN_ROW(6),
#endif
#if ROWS_MAX >= 12
    ATTN_ROW(7), ATTN_ROW(8), ATTN_ROW(12),
#endif
};

#endif
