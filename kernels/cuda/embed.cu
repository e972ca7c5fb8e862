/* embed.cu - rows of the embedding table by token ids, and gather.
 *
 * Grid (T, ceil(D / (4 * THREADS)), at most GRID_Y_MAX): a block writes parts of one row, four
 * elements per thread and turn. gather is embed with a table of floats. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"
#include "kernels/pack.h"

#define THREADS 256
#define GRID_Y_MAX 65535

/* The scales of a quantized table, or pairs with offsets (pack.h). */
static __device__ __forceinline__ const uint16_t *scales_of(const struct weight *w)
{
    size_t at = ((size_t)w->n * w->stride + 255) / 256 * 256;

    return reinterpret_cast<const uint16_t *>(static_cast<const unsigned char *>(w->data) + at);
}

/* Elements i .. i + 3 of a row of 8-bit integers, codes or F8. The four elements share a group and
 * its scale, and the row is padded behind D to a multiple of 4. */
template <enum dtype TYPE>
static __device__ __forceinline__ float4 load_quantized(const struct weight *w, uint32_t row,
                                                        uint32_t i)
{
    const unsigned char *u = static_cast<const unsigned char *>(w->data) + (size_t)row * w->stride;
    size_t group = (size_t)row * (w->stride / w->group) + i / w->group;
    uint32_t four = *reinterpret_cast<const uint32_t *>(u + 4 * pack_word_place(TYPE, i / 4));

    if (TYPE == DTYPE_F8) {
        float scale = reinterpret_cast<const float *>(scales_of(w))[group];

        return make_float4(kv_unrounded(TYPE, (unsigned char)four) * scale,
                           kv_unrounded(TYPE, (unsigned char)(four >> 8)) * scale,
                           kv_unrounded(TYPE, (unsigned char)(four >> 16)) * scale,
                           kv_unrounded(TYPE, (unsigned char)(four >> 24)) * scale);
    }
    if (TYPE == DTYPE_A8) {
        float scale = f32_from_f16(scales_of(w)[2 * group]);
        float offset = f32_from_f16(scales_of(w)[2 * group + 1]);

        return make_float4((float)(four & 255) * scale + offset,
                           (float)(four >> 8 & 255) * scale + offset,
                           (float)(four >> 16 & 255) * scale + offset,
                           (float)(four >> 24) * scale + offset);
    }
    float scale = __uint_as_float((uint32_t)scales_of(w)[group] << 16);
    return make_float4((float)((int)(four & 255) - 128) * scale,
                       (float)((int)(four >> 8 & 255) - 128) * scale,
                       (float)((int)(four >> 16 & 255) - 128) * scale,
                       (float)((int)(four >> 24) - 128) * scale);
}

/* Elements i .. i + 3 of a row of n 16-bit floats. */
template <enum dtype TYPE, bool VEC>
static __device__ __forceinline__ float4 load_halves(const uint16_t *x, uint32_t i, uint32_t n)
{
    uint16_t h[4] = {0, 0, 0, 0};

    if (VEC) {
        uint2 four = *reinterpret_cast<const uint2 *>(x + i);

        h[0] = (uint16_t)four.x, h[1] = (uint16_t)(four.x >> 16);
        h[2] = (uint16_t)four.y, h[3] = (uint16_t)(four.y >> 16);
    } else {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (i + j < n)
                h[j] = x[i + j];
    }
    return make_float4(load_float(TYPE, h, 0), load_float(TYPE, h, 1), load_float(TYPE, h, 2),
                       load_float(TYPE, h, 3));
}

template <enum dtype TYPE, bool VEC>
static __device__ __forceinline__ float4 load_table(const struct weight *w, uint32_t row,
                                                    uint32_t i, uint32_t n)
{
    size_t at = (size_t)row * w->stride;

    if (TYPE >= DTYPE_FLOATS)
        return load_quantized<TYPE>(w, row, i);
    if (TYPE == DTYPE_F32)
        return load4<VEC>(static_cast<const float *>(w->data) + at, i, n);
    return load_halves<TYPE, VEC>(static_cast<const uint16_t *>(w->data) + at, i, n);
}

template <enum dtype TYPE, bool VEC>
static __global__ void __launch_bounds__(THREADS) embed_kernel(struct embed_params p)
{
    uint32_t from = p.from ? p.from[blockIdx.x] : UINT32_MAX;
    uint32_t id = from == UINT32_MAX ? p.ids[blockIdx.x] : p.picked[from];
    uint32_t row = id < p.n_vocab ? id : p.n_vocab - 1; /* never read behind the table */
    float *out = p.out + (size_t)blockIdx.x * p.dim;
    uint32_t step = gridDim.y * THREADS * 4;

    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < p.dim; i += step)
        store4<VEC>(out, i, p.dim, load_table<TYPE, VEC>(&p.table, row, i, p.dim));
}

template <enum dtype TYPE>
static void embed_launch(const struct embed_params *p, cudaStream_t s)
{
    const struct weight *w = &p->table;
    /* Bytes of four elements; rows of integers always have this alignment. */
    size_t unit = TYPE >= DTYPE_FLOATS ? 4 : 4 * dtype_bytes(TYPE);
    uint32_t n_y = ceil_div(p->dim, 4 * THREADS);
    dim3 grid(p->n_rows, n_y < GRID_Y_MAX ? n_y : GRID_Y_MAX);

    if (rows_are_vec4(p->out, p->dim) && is_aligned(w->data, unit) && w->stride % 4 == 0)
        LAUNCH((embed_kernel<TYPE, true>), grid, THREADS, 0, s, *p);
    else
        LAUNCH((embed_kernel<TYPE, false>), grid, THREADS, 0, s, *p);
}

enum status cuda_embed(struct device *d, struct stream *stream, const struct embed_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);

    if (p->n_rows == 0)
        return OK;
    ASSERT(p->table.dtype != DTYPE_I4 && p->table.dtype != DTYPE_A4);
    ASSERT(p->table.layout == WEIGHT_ROWS && p->dim <= p->table.stride);
    ASSERT(p->n_vocab > 0 && p->n_vocab <= p->table.n);
    switch (p->table.dtype) {
    case DTYPE_F32:
        embed_launch<DTYPE_F32>(p, s);
        break;
    case DTYPE_F16:
        embed_launch<DTYPE_F16>(p, s);
        break;
    case DTYPE_BF16:
        embed_launch<DTYPE_BF16>(p, s);
        break;
    case DTYPE_I8:
        embed_launch<DTYPE_I8>(p, s);
        break;
    case DTYPE_F8:
        embed_launch<DTYPE_F8>(p, s);
        break;
    default:
        embed_launch<DTYPE_A8>(p, s);
        break;
    }
    return cuda_launched(c, "embed");
}

enum status cuda_gather(struct device *d, struct stream *stream, const struct gather_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    struct embed_params rows = {};

    if (p->n_rows == 0)
        return OK;
    rows.n_rows = p->n_rows;
    rows.dim = p->dim;
    rows.n_vocab = UINT32_MAX;
    rows.table.dtype = DTYPE_F32;
    rows.table.layout = WEIGHT_ROWS;
    rows.table.stride = p->dim;
    rows.table.data = p->x;
    rows.ids = p->rows;
    rows.out = p->out;
    embed_launch<DTYPE_F32>(&rows, cuda_stream_of(c, stream));
    return cuda_launched(c, "gather");
}
