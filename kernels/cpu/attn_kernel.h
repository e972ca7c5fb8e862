/* attn_kernel.h - the inner loops of attention on vectors: scores, softmax, sums over values.
 *
 * A group is up to ROWS_MAX queries on one segment. Each of its loops keeps as many accumulators as
 * the registers hold: few rows (decode) take several blocks of keys, or all dimensions of a value,
 * at once, since each accumulator is a chain of additions that waits for its last one. Many rows
 * (prefill) take few columns at once.
 *
 * Groups of few rows come in sides: those of several KV heads of one sequence, on one segment. A
 * block has the keys of all KV heads behind each other, and then their values. Few rows read them
 * from memory, so a side takes all of a block's before the next block: one long stream of
 * addresses. attn_body.h says why none of this changes a row's bits. */
#ifndef TARN_KERNELS_CPU_ATTN_KERNEL_H
#define TARN_KERNELS_CPU_ATTN_KERNEL_H

#include "kernels/cpu/attn.h"
#include "kernels/cpu/attn_load.h"

/* Most vectors of columns in one loop. */
#define ATTN_COLS_MAX 8
/* Blocks between the one that is read and the one that is prefetched, into the second-level cache.
 * A core needs some 8 KB under way to read at its rate, and blocks of int8 have 2 to 4 KB. Groups
 * of many rows take few columns of V at once, so a block passes before memory answers; their later
 * columns, and later groups, find V in that cache. */
#define ATTN_AHEAD 4

/* Vectors of columns for which n_rows leave accumulators: a power of two. */
ALWAYS_INLINE int attn_cols(int n_rows)
{
    int n = ATTN_COLS_MAX;

    while (n * n_rows > ACC_MAX)
        n /= 2;
    return n;
}

static inline const unsigned char *attn_block_of(const struct attn_task *task,
                                                 const struct attn_segment *seg, int v, uint32_t i)
{
    const struct attention_params *p = task->job->p;

    return kv_at_strides(&p->pool, &task->job->kv, p->blocks[seg->block0 + i], p->layer, v,
                         task->kv_head);
}

static inline const unsigned char *attn_block(const struct attn_group *g, int v, uint32_t i)
{
    return attn_block_of(g->task, g->seg, v, i);
}

static inline uint32_t attn_blocks(uint32_t n_keys)
{
    return (n_keys + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* Bytes from block i of K or V of group g[at] to the one that is read ATTN_AHEAD blocks later by n
 * groups, which take turns: K's blocks come before V's, and those of the next segment behind them.
 * 0: none. */
static ptrdiff_t attn_ahead(const struct attn_group *g, uint32_t n, uint32_t at, int v, uint32_t i)
{
    uint32_t n_blocks = attn_blocks(g->n_any), head = at + ATTN_AHEAD, to = i;
    const unsigned char *place = NULL;

    for (; head >= n; head -= n)
        to++;
    const struct attn_group *h = &g[head];

    if (to < n_blocks)
        place = attn_block(h, v, to);
    else if (v == 0 && to - n_blocks < n_blocks)
        place = attn_block(h, 1, to - n_blocks);
    else if (v == 1 && h->next && to - n_blocks < attn_blocks(h->next->n_tokens))
        place = attn_block_of(h->next_task, h->next, 0, to - n_blocks);
    return place ? place - attn_block(&g[at], v, i) : 0;
}

/* The scales of K (v = 0) or V (v = 1) of block i of the segment. */
static const float *attn_scales(const struct attn_group *g, int v, uint32_t i)
{
    return (const float *)(const void *)(attn_block(g, v, i) + g->task->job->scales_at);
}

/* Prefetch the scales of a block. Those of its keys are read at the end of a walk over them, and
 * those of its values in between: no walk comes by there early enough. */
ALWAYS_INLINE void attn_fetch_scales(const struct attn_group *g, uint32_t block)
{
    const size_t bytes = KV_BLOCK_TOKENS * sizeof(float);

    fetch_lines((const unsigned char *)attn_scales(g, 0, block), bytes, 0);
    fetch_lines_l2((const unsigned char *)attn_scales(g, 1, block), bytes);
}

/* Return v, computed before whatever is written behind this call. Otherwise the compiler loads the
 * broadcasts of all rows first, and then lacks registers for accumulators. */
ALWAYS_INLINE vf attn_in_order(vf v)
{
#if defined(__AVX512F__)
    __asm__ volatile("" : "+v"(v));
#elif defined(__AVX2__)
    __asm__ volatile("" : "+x"(v));
#endif
    return v;
}

/* acc[r][j] += a[r] * w[j] for all rows; acc has nc vectors of each row. */
ALWAYS_INLINE void attn_step(vf *acc, enum dtype t, int n_rows, int nc, const float *a,
                             size_t a_row, const vf *w)
{
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        vf b = v_set1(a[(size_t)r * a_row]);

        UNROLL
        for (int j = 0; j < nc; j++)
            acc[r * nc + j] = attn_in_order(attn_fma(t, b, w[j], acc[r * nc + j]));
    }
}

/* Vector j of acc[r] += a[r] * w: for few rows, where broadcasts stay in registers and a vector is
 * loaded, used and forgotten. */
ALWAYS_INLINE void attn_step_few(vf *acc, enum dtype t, int n_rows, int nc, int j, const vf *a,
                                 vf w)
{
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r * nc + j] = attn_in_order(attn_fma(t, a[r], w, acc[r * nc + j]));
}

ALWAYS_INLINE void attn_broadcast(vf *b, int n_rows, const float *a, size_t a_row)
{
    UNROLL
    for (int r = 0; r < n_rows; r++)
        b[r] = v_set1(a[(size_t)r * a_row]);
}

/* --- scores --- */

/* Reads of one loop of scores: the keys of `nb` groups from `at` on of n that take turns, in one
 * block; or of group `at`, in `nb` blocks. */
struct attn_reads {
    const struct attn_group *g;
    uint32_t n, at;
    uint32_t block;
    uint32_t col; /* the first key of each block */
};

/* Scores of them, vectors [col, col + nv) of each block; `side`: of nb groups. */
KERNEL_BODY void attn_scores_of(struct attn_reads x, enum dtype t, int n_rows, int nb, int nv,
                                bool side)
{
    const int nc = nb * nv, nh = side ? nb : 1;
    const bool few = n_rows <= ATTN_FEW_ROWS;
    const size_t bytes = attn_col_bytes(t), row = KV_BLOCK_TOKENS * bytes;
    const size_t step = row * attn_step_rows(t);
    const uint32_t dim = x.g->task->job->dim;
    const uint32_t per_step = attn_per_step(t), per_word = attn_is_dot(t) ? 2 : 1;
    const unsigned char *k[ATTN_COLS_MAX];
    ptrdiff_t ahead[ATTN_COLS_MAX];
    const float *a[ATTN_COLS_MAX];
    vf acc[ACC_MAX];

    UNROLL
    for (int b = 0; b < nb; b++) {
        uint32_t at = x.at + (side ? (uint32_t)b : 0), block = x.block + (side ? 0 : (uint32_t)b);

        a[b] = x.g[at].q;
        k[b] = attn_block(&x.g[at], 0, block) + x.col * bytes;
        ahead[b] = attn_ahead(x.g, x.n, at, 0, block);
        if (kv_dtype_is_scaled(t))
            attn_fetch_scales(&x.g[at], block);
    }
    UNROLL
    for (int i = 0; i < n_rows * nc; i++)
        acc[i] = v_set1(0);
    for (uint32_t d = 0; d < dim; d += per_step) {
        bool pair = t == DTYPE_BF16 && !attn_is_dot(t) && d + 1 < dim;
        vf w[2][ATTN_COLS_MAX], b0[ATTN_COLS_MAX][ATTN_FEW_ROWS], b1[ATTN_COLS_MAX][ATTN_FEW_ROWS];

        UNROLL
        for (int b = 0; b < nb; b++)
            if (ahead[b])
                fetch_lines_l2(k[b] + ahead[b], (size_t)nv * VW * bytes * attn_step_rows(t));
        UNROLL
        for (int h = 0; few && h < nh; h++) {
            attn_broadcast(b0[h], n_rows, a[h], 1);
            if (per_step > per_word) /* without a second element the first one, unused */
                attn_broadcast(b1[h], n_rows, a[h] + (pair ? n_rows : 0), 1);
        }
        UNROLL
        for (int i = 0; i < nc; i++) {
            attn_load_step(&w[0][i], &w[1][i], t, false, i,
                           k[i / nv] + (size_t)(i % nv) * VW * bytes, row, VW);
            if (attn_is_dot(t) && d + 1 == dim)
                w[0][i] = attn_half(w[0][i], 0);
            if (few)
                attn_step_few(acc, t, n_rows, nc, i, b0[side ? i / nv : 0], w[0][i]);
            if (few && pair)
                attn_step_few(acc, t, n_rows, nc, i, b1[side ? i / nv : 0], w[1][i]);
        }
        if (!few)
            attn_step(acc, t, n_rows, nc, a[0], 1, w[0]);
        if (!few && pair)
            attn_step(acc, t, n_rows, nc, a[0] + n_rows, 1, w[1]);
        UNROLL
        for (int b = 0; b < nb; b++)
            k[b] += step;
        UNROLL
        for (int h = 0; h < nh; h++)
            a[h] += per_step / per_word * (uint32_t)n_rows;
    }
    UNROLL
    for (int i = 0; i < n_rows * nc; i++) {
        uint32_t b = (uint32_t)(i % nc / nv), at = x.col + (uint32_t)(i % nv) * VW;
        const struct attn_group *g = &x.g[x.at + (side ? b : 0)];
        uint32_t block = x.block + (side ? 0 : b);

        if (kv_dtype_is_scaled(t))
            acc[i] *= v_load(attn_scales(g, 0, block) + at);
        v_store(g->task->mem->score + i / nc * KV_SEGMENT_TOKENS_MAX + block * KV_BLOCK_TOKENS + at,
                acc[i]);
    }
}

/* Scores of one block for one group. On the diagonal, half a block is often enough; only the
 * largest groups, those of a prefill, have an instance for that. */
ALWAYS_INLINE void attn_scores_block(struct attn_reads x, enum dtype t, int n_rows, int nv)
{
    uint32_t n = min_u32(x.g->n_any - x.block * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS);

    for (x.col = 0; x.col < n; x.col += (uint32_t)nv * VW) {
        if (n_rows == ROWS_MAX && nv > 1 && !attn_is_byte_dot(t) &&
            n - x.col <= (uint32_t)nv / 2 * VW)
            attn_scores_of(x, t, n_rows, 1, nv / 2, false);
        else
            attn_scores_of(x, t, n_rows, 1, nv, false);
    }
}

/* Scores of all keys that some row of the n groups sees, and of keys behind them. Groups that do
 * not fill a loop together walk the blocks alone. */
ALWAYS_INLINE void attn_scores(const struct attn_group *g, uint32_t n, enum dtype t, int n_rows)
{
    const int per_block = KV_BLOCK_TOKENS / VW, nc = attn_cols(n_rows);
    const int nv = nc < per_block ? nc : per_block;
    const uint32_t nb = (uint32_t)(nc / nv), end = attn_blocks(g->n_any);
    const uint32_t together = n / nb * nb;

    for (uint32_t i = g->hidden[0] / KV_BLOCK_TOKENS; i < end; i += nb) {
        uint32_t n_blocks = min_u32(end - i, nb);
        bool whole = n_blocks == nb;

        for (uint32_t b = i; b < i + n_blocks; b++)
            for (uint32_t h = 0; h < together; h += nb) {
                struct attn_reads x = {g, together, h, b, 0};

                if (nb > 1)
                    attn_scores_of(x, t, n_rows, (int)nb, nv, true);
                else
                    attn_scores_block(x, t, n_rows, nv);
            }
        for (uint32_t h = together; h < n; h++) {
            if (whole) {
                attn_scores_of((struct attn_reads){&g[h], 1, 0, i, 0}, t, n_rows, (int)nb, nv,
                               false);
                continue;
            }
            for (uint32_t b = i; b < i + n_blocks; b++)
                attn_scores_block((struct attn_reads){&g[h], 1, 0, b, 0}, t, n_rows, nv);
        }
    }
}

/* --- softmax --- */

/* e^x for x <= 0, with the bits of v_exp(): 0 below -87.33, NaN for NaN. */
ALWAYS_INLINE vf attn_exp(vf x)
{
    return (vf)((vi)v_exp_inside(x) & ~(vi)(x < -87.33f));
}

/* The largest lane, unless one is NaN. */
static inline float attn_top(vf v)
{
    float t[VW];

#if VW == 16
    v = v_max(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13,
                                         14, 15));
    v = v_max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7));
#elif VW == 8
    v = v_max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7));
#endif
    v_store(t, v);
    float a = t[0] > t[1] ? t[0] : t[1], b = t[2] > t[3] ? t[2] : t[3];

    return a > b ? a : b;
}

/* Find the largest of a row's scores of keys [first, n_keys), and put -inf into the other lanes of
 * their vectors. */
static float attn_softmax_top(float *score, uint32_t first, uint32_t n_keys)
{
    const uint32_t begin = first / VW * VW, last = (n_keys - 1) / VW * VW;
    vf max = v_set1(-INFINITY);

    v_store(score + begin, v_select(~v_below((int32_t)first - (int32_t)begin),
                                    v_load(score + begin), v_set1(-INFINITY)));
    v_store(score + last,
            v_select(v_below((int32_t)(n_keys - last)), v_load(score + last), v_set1(-INFINITY)));
    for (uint32_t j = begin; j <= last; j += VW)
        max = v_max(max, v_load(score + j));
    return attn_top(max);
}

/* Store the probabilities of VW keys from j on. Rounded ones take half of the place, before those
 * that are still to be read. */
ALWAYS_INLINE void attn_store_probabilities(enum dtype t, float *row, uint32_t j, vf p)
{
#if ATTN_HAVE_DOT
    if (attn_is_dot(t)) {
        vh h = v_to_bf16_product(p);

        memcpy(row + j / 2, &h, sizeof(h));
        return;
    }
#endif
    (void)t;
    v_store(row + j, p);
}

/* Turn a row's scores of keys [first, n_keys) into exp(score - top), with 0 in the other lanes of
 * their vectors; returns their sum. KV of one byte: then multiply by the scales of the values.
 * Pairs of bf16: then round, in place, so that a word has two keys. A vector without a visible key
 * would add zeros to the sum, so the loops' begin changes no bit. */
KERNEL_BODY float attn_softmax(const struct attn_group *g, enum dtype t, float *score,
                               uint32_t first, uint32_t n_keys, float top)
{
    const uint32_t last = (n_keys - 1) / VW * VW;
    const vf max = v_set1(top);
    vf sum = v_set1(0);

    for (uint32_t j = first / VW * VW; j <= last; j += VW) {
        vf e = attn_exp(v_load(score + j) - max);

        sum += e;
        if (kv_dtype_is_scaled(t))
            e *=
                v_load(attn_scales(g, 1, j / KV_BLOCK_TOKENS) + j % KV_BLOCK_TOKENS) * attn_unit(t);
        if (attn_is_byte_dot(t)) /* the scale of a hidden value may be NaN */
            e = v_select(v_below((int32_t)(n_keys - j)) & ~v_below((int32_t)first - (int32_t)j), e,
                         v_set1(0));
        attn_store_probabilities(t, score, j, e);
    }
    return v_sum(sum);
}

static void attn_cap_scores(const struct attn_group *g, uint32_t row)
{
    float *score = g->task->mem->score + (size_t)row * KV_SEGMENT_TOKENS_MAX;
    float cap = g->task->job->p->soft_cap;

    for (uint32_t j = g->hidden[row] / VW * VW; j < g->n_keys[row]; j += VW)
        v_store(score + j, v_tanh(v_load(score + j) / cap) * cap);
}

/* --- sums over values --- */

/* A row of V at w, or a pair of rows, of which `from` (0, 1) is the first and n the number of
 * those that count, `next` bytes apart; p is the probability of the first, or the word with it.
 * The other half of that word is 0, because its key is not visible; V may hold anything there. */
ALWAYS_INLINE void attn_values_step(vf *acc, enum dtype t, bool part, int n_rows, int nc,
                                    const float *p, const unsigned char *w, size_t next,
                                    int32_t n_cols, int from, int n)
{
    const bool few = n_rows <= ATTN_FEW_ROWS, dot = attn_is_dot(t);
    const bool even = from == 0 || dot, odd = from + n > 1 && !dot;
    const float *p1 = p + 1 - from;
    vf v[2][ATTN_COLS_MAX], b0[ATTN_FEW_ROWS], b1[ATTN_FEW_ROWS];

    if (few && even)
        attn_broadcast(b0, n_rows, p, KV_SEGMENT_TOKENS_MAX);
    if (few && odd)
        attn_broadcast(b1, n_rows, p1, KV_SEGMENT_TOKENS_MAX);
    UNROLL
    for (int i = 0; i < nc; i++) {
        attn_load_step(&v[0][i], &v[1][i], t, part, i, w + (size_t)i * VW * attn_col_bytes(t), next,
                       n_cols - i * VW);
        if (dot && n == 1)
            v[0][i] = attn_half(v[0][i], from);
        if (few && even)
            attn_step_few(acc, t, n_rows, nc, i, b0, v[0][i]);
        if (few && odd)
            attn_step_few(acc, t, n_rows, nc, i, b1, v[1][i]);
    }
    if (!few && even)
        attn_step(acc, t, n_rows, nc, p, KV_SEGMENT_TOKENS_MAX, v[0]);
    if (!few && odd)
        attn_step(acc, t, n_rows, nc, p1, KV_SEGMENT_TOKENS_MAX, v[1]);
}

/* The blocks of V of a segment: first rows, and how far behind them to prefetch. */
struct attn_places {
    const unsigned char *w[KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS];
    ptrdiff_t ahead[KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS]; /* 0: the row itself, harmless */
};

/* Continue the chains of rows [row, row + n_rows) of the group over keys [begin, end), for the nc
 * vectors of columns from `col` on. One loop walks the keys of all blocks: GCC 12 keeps the sums in
 * registers only within an innermost loop. */
KERNEL_BODY void attn_values_cols(const struct attn_group *g, enum dtype t, bool part, int row,
                                  int n_rows, int nc, const struct attn_places *at, uint32_t begin,
                                  uint32_t end, uint32_t col)
{
    const struct attn_job *job = g->task->job;
    const uint32_t per_row = attn_per_step(t);
    const size_t bytes = attn_col_bytes(t), next = job->dim * bytes;
    const size_t stride = next * attn_step_rows(t);
    const size_t width = (size_t)nc * VW * bytes, left = col * bytes;
    const int32_t n_cols = (int32_t)(job->dim - col);
    float *tile = g->task->mem->tile + (size_t)row * job->dim_padded + col;
    const float *p = g->task->mem->score + (size_t)row * KV_SEGMENT_TOKENS_MAX;
    uint32_t j = begin;
    const unsigned char *w =
        at->w[j / KV_BLOCK_TOKENS] + left + j % KV_BLOCK_TOKENS / per_row * stride;
    ptrdiff_t ahead = at->ahead[j / KV_BLOCK_TOKENS];
    vf acc[ACC_MAX];

    UNROLL
    for (int i = 0; i < n_rows * nc; i++)
        acc[i] = begin == 0 ? v_set1(0)
                            : v_load(tile + (size_t)(i / nc) * job->dim_padded + i % nc * VW);
    if (j % per_row) { /* only a window or a row's own keys begin in the middle of a pair */
        attn_values_step(acc, t, part, n_rows, nc, p + attn_index(t, j), w, next, n_cols, 1, 1);
        j++;
        w += stride;
    }
    for (; j + per_row <= end; j += per_row, w += stride) {
        if (j % KV_BLOCK_TOKENS == 0) {
            w = at->w[j / KV_BLOCK_TOKENS] + left;
            ahead = at->ahead[j / KV_BLOCK_TOKENS];
        }
        for (size_t r = 0; r < attn_step_rows(t); r++)
            fetch_lines_l2(w + r * next + ahead, width);
        attn_values_step(acc, t, part, n_rows, nc, p + attn_index(t, j), w, next, n_cols, 0,
                         (int)per_row);
    }
    if (per_row > 1 && j < end) {
        if (j % KV_BLOCK_TOKENS == 0)
            w = at->w[j / KV_BLOCK_TOKENS] + left;
        attn_values_step(acc, t, part, n_rows, nc, p + attn_index(t, j), w, next, n_cols, 0, 1);
    }
    UNROLL
    for (int i = 0; i < n_rows * nc; i++)
        v_store(tile + (size_t)(i / nc) * job->dim_padded + i % nc * VW, acc[i]);
}

/* Continue the chains over keys [begin, end) for group groups[i_group] of n that take turns. */
ALWAYS_INLINE void attn_values(const struct attn_group *groups, uint32_t n, uint32_t i_group,
                               enum dtype t, int row, int n_rows, uint32_t begin, uint32_t end)
{
    const struct attn_group *g = &groups[i_group];
    const int most = attn_cols(n_rows), few = most < PANEL_COLS / VW ? most : PANEL_COLS / VW;
    uint32_t dim = g->task->job->dim, col = 0;
    struct attn_places at;

    uint32_t i = begin / KV_BLOCK_TOKENS;

    do {
        at.w[i] = attn_block(g, 1, i);
        at.ahead[i] = attn_ahead(groups, n, i_group, 1, i);
    } while (++i < attn_blocks(end));
    for (; col + (uint32_t)most * VW <= dim; col += (uint32_t)most * VW)
        attn_values_cols(g, t, false, row, n_rows, most, &at, begin, end, col);
    if (most / 2 > few && col + (uint32_t)most / 2 * VW <= dim) {
        attn_values_cols(g, t, false, row, n_rows, most / 2, &at, begin, end, col);
        col += (uint32_t)most / 2 * VW;
    }
    for (; col < dim; col += (uint32_t)few * VW)
        attn_values_cols(g, t, true, row, n_rows, few, &at, begin, end, col);
}

/* The keys that this row sees but some other row of its group does not: those on the diagonal. They
 * are few, so a kernel for one row serves all group sizes. */
static __attribute__((noinline)) void attn_values_row(const struct attn_group *g, int row,
                                                      uint32_t begin, uint32_t end)
{
    switch (g->task->job->p->pool.layout.dtype) {
    case DTYPE_F32: attn_values(g, 1, 0, DTYPE_F32, row, 1, begin, end); break;
    case DTYPE_F16: attn_values(g, 1, 0, DTYPE_F16, row, 1, begin, end); break;
    case DTYPE_BF16: attn_values(g, 1, 0, DTYPE_BF16, row, 1, begin, end); break;
    case DTYPE_I8: attn_values(g, 1, 0, DTYPE_I8, row, 1, begin, end); break;
    default: attn_values(g, 1, 0, DTYPE_F8, row, 1, begin, end);
    }
}

/* The end of the keys whose values are summed for all rows of a group at once. Words of pairs are
 * not divided between that sum and a row's own: a row's bits must not depend on the group. */
ALWAYS_INLINE uint32_t attn_common_end(const struct attn_group *g, enum dtype t)
{
    return attn_is_dot(t) && g->n_common < g->n_any ? g->n_common / 2 * 2 : g->n_common;
}

/* Begin the sums over V with a window: row by row, over the keys that are hidden from some other
 * row. A row's chain begins at its own first key: keys before it count exactly 0, whatever V holds
 * there. Returns the first key that is hidden from none. */
static uint32_t attn_values_begin(const struct attn_group *g, enum dtype t, uint32_t n_rows)
{
    const uint32_t pair = attn_is_dot(t) ? 2 : 1;
    uint32_t begin = g->hidden[n_rows - 1]; /* of the last row, which has most hidden keys */

    if (n_rows > 1)
        begin = (begin + pair - 1) / pair * pair;
    memset(g->task->mem->tile, 0, (size_t)n_rows * g->task->job->dim_padded * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++)
        if (g->hidden[r] < min_u32(begin, g->n_keys[r]))
            attn_values_row(g, (int)r, g->hidden[r], min_u32(begin, g->n_keys[r]));
    return begin;
}

#endif
