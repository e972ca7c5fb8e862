/* rope.cu - rotates Q in place, rotates K and writes it to the cache, writes V to the cache (RoPE,
 * Su et al. 2021; pairs (i, i + r/2)).
 *
 * One launch, a flat grid of three kinds of blocks, in this order:
 *   Q  (row, Q_HEADS heads, four pairs) per thread: a cosine and a sine are read once for all heads
 *      of a thread, and its loads are in flight together.
 *   K  TILE rows, one head and TILE cells per block. A cell is a contiguous piece of the cache: two
 *      dimensions in bf16, one in f16 and f32. The cache has the cells of a dimension side by side
 *      along tokens, but rows of K are contiguous along dimensions. So the tile is transposed in
 *      shared memory: a warp reads a row and writes one cell of 32 rows, which is one line if the
 *      rows are neighbours in a KV block. A lane writes only the cells of its own row, wherever
 *      that row's slot is.
 *   V  TILE rows, one head and V_DIMS dimensions per block, V_ROWS rows per warp. In bf16 a word of
 *      the cache has two tokens: where the next row has the other half of the word, one warp writes
 *      both. Otherwise 16 bits are written, since another warp may write the other half.
 *
 * KV of one byte has a kernel of its own: the same blocks of Q, then blocks of a warp for each row,
 * head and K or V, since a head's largest magnitude is needed before its elements are rounded.
 *
 * Products and sums are not fused, as in the CPU's kernels. Blocks begin early (LAUNCH_EARLY). */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"

#define THREADS 256
#define N_WARPS (THREADS / WARP)
#define TILE WARP
#define Q_HEADS 4
#define V_DIMS (2 * WARP)
#define V_ROWS (TILE / N_WARPS)

struct rope_grid {
    uint32_t n_q_items;    /* rows * groups of heads * quads of pairs */
    uint32_t n_q, n_k;     /* numbers of blocks; those behind are for V */
    uint32_t k_chunks;     /* of one head: ceil(cells / TILE) */
    uint32_t v_chunks;     /* ceil(d / V_DIMS) */
};

/* Whether the row only fills a batch up: nothing of it is stored. */
static __device__ __forceinline__ bool is_padding(const struct rope_kv_params *p, uint32_t row)
{
    return p->slot_block[row] >= p->pool.n_blocks;
}

static __device__ __forceinline__ const float *angles(const struct rope_kv_params *p, uint32_t row)
{
    return p->cos_sin + (size_t)p->pos[row] * p->rot_dim;
}

static __device__ __forceinline__ float4 rotated_lower(float4 lo, float4 hi, float4 c, float4 s)
{
    return make_float4(lo.x * c.x - hi.x * s.x, lo.y * c.y - hi.y * s.y, lo.z * c.z - hi.z * s.z,
                       lo.w * c.w - hi.w * s.w);
}

static __device__ __forceinline__ float4 rotated_upper(float4 lo, float4 hi, float4 c, float4 s)
{
    return make_float4(hi.x * c.x + lo.x * s.x, hi.y * c.y + lo.y * s.y, hi.z * c.z + lo.z * s.z,
                       hi.w * c.w + lo.w * s.w);
}

/* Rotate four pairs of Q_HEADS heads of one row. */
template <bool VEC>
static __device__ __forceinline__ void rotate_q(const struct rope_kv_params *p, uint32_t item)
{
    uint32_t half = p->rot_dim / 2, per_head = ceil_div(half, 4);
    uint32_t n_groups = ceil_div(p->n_heads, Q_HEADS);
    uint32_t i = item % per_head * 4;
    uint32_t head0 = item / per_head % n_groups * Q_HEADS;
    uint32_t row = item / per_head / n_groups;
    float *q = p->q + row * p->qkv_stride + (size_t)head0 * p->pool.head_dim;
    float4 c = load4<VEC>(angles(p, row), i, half), s = load4<VEC>(angles(p, row) + half, i, half);
    float4 lo[Q_HEADS], hi[Q_HEADS];

#pragma unroll
    for (uint32_t h = 0; h < Q_HEADS; h++)
        if (head0 + h < p->n_heads) {
            lo[h] = load4<VEC>(q + (size_t)h * p->pool.head_dim, i, half);
            hi[h] = load4<VEC>(q + (size_t)h * p->pool.head_dim + half, i, half);
        }
#pragma unroll
    for (uint32_t h = 0; h < Q_HEADS; h++)
        if (head0 + h < p->n_heads) {
            float *at = q + (size_t)h * p->pool.head_dim;

            store4<VEC>(at, i, half, rotated_lower(lo[h], hi[h], c, s));
            store4<VEC>(at + half, i, half, rotated_upper(lo[h], hi[h], c, s));
        }
}

/* Element i of a head after rotation, 0 behind its end. Dimensions from rot_dim on stay as they
 * are. */
static __device__ __forceinline__ float rotated(const struct rope_kv_params *p, const float *x,
                                                uint32_t i, const float *cos_sin)
{
    uint32_t half = p->rot_dim / 2;

    if (i >= p->rot_dim)
        return i < p->pool.head_dim ? x[i] : 0;
    if (i < half)
        return x[i] * cos_sin[i] - x[i + half] * cos_sin[i + half];
    return x[i] * cos_sin[i - half] + x[i - half] * cos_sin[i];
}

/* The cell with first dimension i, in the cache's format. In bf16 the last pair of an odd head has
 * 0 in its second half. */
template <enum dtype TYPE>
static __device__ __forceinline__ uint32_t k_cell(const struct rope_kv_params *p, const float *x,
                                                  uint32_t i, const float *cos_sin)
{
    float v = rotated(p, x, i, cos_sin);

    if (TYPE == DTYPE_BF16)
        return pack_bf16(v, rotated(p, x, i + 1, cos_sin));
    return TYPE == DTYPE_F16 ? pack_f16(v, 0) : __float_as_uint(v);
}

/* Called by all threads of the block. */
template <enum dtype TYPE>
static __device__ __forceinline__ void store_k(const struct rope_kv_params *p, uint32_t row0,
                                               uint32_t head, uint32_t cell0,
                                               uint32_t cells[TILE][TILE + 1])
{
    const uint32_t dims = TYPE == DTYPE_BF16 ? 2 : 1; /* dimensions in a cell */
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    struct kv_pool pool = p->pool;

    pool.layout = kv_layout_of(TYPE); /* a constant for the compiler */
#pragma unroll
    for (uint32_t r = warp; r < TILE; r += N_WARPS)
        if (row0 + r < p->n_rows && (cell0 + lane) * dims < pool.head_dim) {
            const float *x =
                p->k + (row0 + r) * p->qkv_stride + (size_t)head * pool.head_dim;

            cells[r][lane] =
                k_cell<TYPE>(p, x, (cell0 + lane) * dims, angles(p, row0 + r));
        }
    __syncthreads();

    uint32_t row = row0 + lane;

    if (row >= p->n_rows)
        return;
    unsigned char *to = kv_at(&pool, p->slot_block[row], p->layer, 0, head);
    uint32_t offset = p->slot_offset[row];

    if (is_padding(p, row))
        return;
#pragma unroll
    for (uint32_t i = warp; i < TILE; i += N_WARPS) {
        uint32_t dim = (cell0 + i) * dims;

        if (dim >= pool.head_dim)
            break;
        unsigned char *at = to + kv_k_index(&pool, dim, offset) * dtype_bytes(TYPE);

        if (TYPE == DTYPE_F16)
            *reinterpret_cast<uint16_t *>(at) = (uint16_t)cells[lane][i];
        else
            *reinterpret_cast<uint32_t *>(at) = cells[lane][i];
    }
}

/* Whether rows `row` and row + 1 fill one word of V in bf16. */
static __device__ __forceinline__ bool is_v_pair(const struct rope_kv_params *p, uint32_t row)
{
    return row + 1 < p->n_rows && p->slot_offset[row] % 2 == 0 &&
           p->slot_offset[row + 1] == p->slot_offset[row] + 1 &&
           p->slot_block[row + 1] == p->slot_block[row];
}

/* Store V_DIMS dimensions of one row, or of this row and the next. */
template <enum dtype TYPE>
static __device__ __forceinline__ void store_v(const struct rope_kv_params *p, uint32_t row,
                                               uint32_t head, uint32_t dim0)
{
    const float *x = p->v + row * p->qkv_stride + (size_t)head * p->pool.head_dim;
    unsigned char *to = kv_at_as<TYPE>(p->pool, p->slot_block[row], p->layer, 1, head);
    uint32_t offset = p->slot_offset[row];
    bool pair = TYPE == DTYPE_BF16 && is_v_pair(p, row);
    struct kv_pool pool = p->pool;

    if (is_padding(p, row))
        return;
    if (TYPE == DTYPE_BF16 && row > 0 && is_v_pair(p, row - 1))
        return; /* the previous row's warp writes this row too */
    pool.layout = kv_layout_of(TYPE);
#pragma unroll
    for (uint32_t i = dim0 + threadIdx.x % WARP, j = 0; j < V_DIMS / WARP; j++, i += WARP) {
        if (i >= pool.head_dim)
            break;
        size_t at = kv_v_index(&pool, i, offset);

        if (pair)
            *reinterpret_cast<uint32_t *>(to + 2 * at) = pack_bf16(x[i], x[i + p->qkv_stride]);
        else
            store_float(TYPE, to, at, x[i]);
    }
}

template <enum dtype TYPE, bool VEC>
static __global__ void __launch_bounds__(THREADS) rope_kv_kernel(struct rope_kv_params p,
                                                                struct rope_grid g)
{
    __shared__ uint32_t cells[TILE][TILE + 1]; /* [row][cell]; + 1: the cells of a column are in
                                                  distinct banks */
    uint32_t n_heads = p.pool.n_kv_heads, b = blockIdx.x;

    wait_for_inputs();
    if (b < g.n_q) {
        uint32_t item = b * THREADS + threadIdx.x;

        if (item < g.n_q_items)
            rotate_q<VEC>(&p, item);
        return;
    }
    b -= g.n_q;
    if (b < g.n_k) {
        uint32_t rest = b / g.k_chunks;

        store_k<TYPE>(&p, rest / n_heads * TILE, rest % n_heads, b % g.k_chunks * TILE, cells);
        return;
    }
    b -= g.n_k;

    uint32_t rest = b / g.v_chunks;
    uint32_t row0 = rest / n_heads * TILE + threadIdx.x / WARP * V_ROWS;

    for (uint32_t r = row0; r < row0 + V_ROWS && r < p.n_rows; r++)
        store_v<TYPE>(&p, r, rest % n_heads, b % g.v_chunks * V_DIMS);
}

/* One head of K or V of one row as bytes, by one warp. Elements are read twice. */
template <enum dtype TYPE>
static __device__ __forceinline__ void store_scaled(const struct rope_kv_params *p, uint32_t row,
                                                    uint32_t head, int v)
{
    struct kv_pool pool = p->pool;
    uint32_t lane = threadIdx.x % WARP, dim = pool.head_dim, offset = p->slot_offset[row];
    const float *x = (v ? p->v : p->k) + row * p->qkv_stride + (size_t)head * dim;
    const float *cos_sin = angles(p, row);
    float max = 0;
    bool finite = true;

    pool.layout = kv_layout_of(TYPE); /* a constant for the compiler */
    for (uint32_t i = lane; i < dim; i += WARP) {
        float mag = fabsf(v ? x[i] : rotated(p, x, i, cos_sin));

        finite = finite && mag < INFINITY;
        max = fmaxf(max, mag);
    }
    max = warp_max(max);
    if (__any_sync(FULL_WARP, !finite))
        max = NAN;
    const struct kv_scale s = kv_scale_of(TYPE, max);
    unsigned char *to = kv_at(&pool, p->slot_block[row], p->layer, v, head);

    for (uint32_t i = lane; i < dim; i += WARP) {
        float y = (v ? x[i] : rotated(p, x, i, cos_sin)) * s.inverse;

        to[v ? kv_v_index(&pool, i, offset) : kv_k_index(&pool, i, offset)] =
            s.inverse > 0 ? kv_round(TYPE, y) : 0;
    }
    if (lane == 0)
        reinterpret_cast<float *>(to + kv_elements_bytes(&pool))[offset] = s.scale;
}

template <enum dtype TYPE, bool VEC>
static __global__ void __launch_bounds__(THREADS)
    rope_scaled_kernel(struct rope_kv_params p, uint32_t n_q, uint32_t n_q_items)
{
    uint32_t n_heads = p.pool.n_kv_heads;

    wait_for_inputs();
    if (blockIdx.x < n_q) {
        uint32_t item = blockIdx.x * THREADS + threadIdx.x;

        if (item < n_q_items)
            rotate_q<VEC>(&p, item);
        return;
    }
    uint32_t i = (blockIdx.x - n_q) * N_WARPS + threadIdx.x / WARP;

    if (i < 2 * p.n_rows * n_heads && !is_padding(&p, i / (2 * n_heads)))
        store_scaled<TYPE>(&p, i / (2 * n_heads), i / 2 % n_heads, i % 2);
}

/* Whether Q and the angles can be accessed by 16 bytes. */
static bool is_vec(const struct rope_kv_params *p)
{
    return rows_are_vec4(p->q, p->qkv_stride) && rows_are_vec4(p->cos_sin, p->rot_dim / 2) &&
           p->pool.head_dim % 4 == 0;
}

template <enum dtype TYPE>
static void rope_launch(const struct rope_kv_params *p, cudaStream_t s, bool early)
{
    uint32_t dims = TYPE == DTYPE_BF16 ? 2 : 1, dim = p->pool.head_dim;
    uint64_t n_items = (uint64_t)p->n_rows * ceil_div(p->n_heads, Q_HEADS) *
                       ceil_div(p->rot_dim / 2, 4);
    uint64_t n_tiles = (uint64_t)ceil_div(p->n_rows, TILE) * p->pool.n_kv_heads;
    struct rope_grid g;

    ASSERT(n_items < (1u << 31) && n_tiles * ceil_div(dim, WARP) < 1u << 30);
    g.n_q_items = (uint32_t)n_items;
    g.n_q = ceil_div(g.n_q_items, THREADS);
    g.k_chunks = ceil_div(ceil_div(dim, dims), TILE);
    g.v_chunks = ceil_div(dim, V_DIMS);
    g.n_k = (uint32_t)n_tiles * g.k_chunks;

    uint32_t n_blocks = g.n_q + g.n_k + (uint32_t)n_tiles * g.v_chunks;

    if (is_vec(p))
        LAUNCH_EARLY((rope_kv_kernel<TYPE, true>), n_blocks, THREADS, 0, s, early, *p, g);
    else
        LAUNCH_EARLY((rope_kv_kernel<TYPE, false>), n_blocks, THREADS, 0, s, early, *p, g);
}

template <enum dtype TYPE>
static void rope_scaled_launch(const struct rope_kv_params *p, cudaStream_t s, bool early)
{
    uint64_t n_items = (uint64_t)p->n_rows * ceil_div(p->n_heads, Q_HEADS) *
                       ceil_div(p->rot_dim / 2, 4);
    uint64_t n_stored = 2 * (uint64_t)p->n_rows * p->pool.n_kv_heads;

    ASSERT(n_items < (1u << 31) && n_stored < 1u << 31);
    uint32_t n_q = ceil_div((uint32_t)n_items, THREADS);
    uint32_t n_blocks = n_q + ceil_div((uint32_t)n_stored, N_WARPS);

    if (is_vec(p))
        LAUNCH_EARLY((rope_scaled_kernel<TYPE, true>), n_blocks, THREADS, 0, s, early, *p, n_q,
               (uint32_t)n_items);
    else
        LAUNCH_EARLY((rope_scaled_kernel<TYPE, false>), n_blocks, THREADS, 0, s, early, *p, n_q,
               (uint32_t)n_items);
}

enum status cuda_rope_kv(struct device *d, struct stream *stream, const struct rope_kv_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    bool early = c->major >= 9;

    if (p->n_rows == 0)
        return OK;
    ASSERT(p->rot_dim <= p->pool.head_dim && p->rot_dim % 2 == 0 && p->layer < p->pool.n_layers);
    if (!kv_layout_is_native(&p->pool.layout))
        return ERR_UNSUPPORTED;
    switch (p->pool.layout.dtype) {
    case DTYPE_F32:
        rope_launch<DTYPE_F32>(p, s, early);
        break;
    case DTYPE_F16:
        rope_launch<DTYPE_F16>(p, s, early);
        break;
    case DTYPE_BF16:
        rope_launch<DTYPE_BF16>(p, s, early);
        break;
    case DTYPE_I8:
        rope_scaled_launch<DTYPE_I8>(p, s, early);
        break;
    case DTYPE_F8:
        rope_scaled_launch<DTYPE_F8>(p, s, early);
        break;
    default:
        ASSERT(!"a KV dtype");
    }
    return cuda_launched(c, "rope_kv");
}
