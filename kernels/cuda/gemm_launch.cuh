/* gemm_launch.cuh - which kernel of gemm_tile.cuh and gemm_narrow.cuh computes a product, for
 * gemm_rows.cu and gemm_int.cu. All of them give the same bits.
 *
 * Owns    nothing.
 * Thread  as ops.h.
 * Errors  launches are not checked: the caller uses cuda_launched().
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_LAUNCH_CUH
#define TARN_KERNELS_CUDA_GEMM_LAUNCH_CUH

#include "base/check.h"
#include "kernels/cuda/gemm_narrow.cuh"

/* Most rows of the narrow kernels. */
#define NARROW_ROWS_MAX 64

template <enum dtype W, int GROUP, int MT, int NT>
static void launch_narrow(cudaStream_t stream, const struct product *p)
{
    dim3 grid(ceil_div(p->n_rows, 8 * NT), ceil_div(p->n, 16 * MT));

    ASSERT(grid.y <= 65535); /* N below a million */
    LAUNCH_EARLY((narrow_kernel<W, GROUP, MT, NT>), grid, NARROW_THREADS, 0, stream, p->early,
                 *p);
}

template <enum dtype W, int GROUP, int MT, int NT, int WARPS_N, int WARPS_T>
static void launch_tile(cudaStream_t stream, const struct product *p)
{
    using Tile = struct tile<W, GROUP, MT, NT, WARPS_N, WARPS_T>;
    dim3 grid(ceil_div(p->n_rows, Tile::TT), ceil_div(p->n, Tile::TN));

    ASSERT(grid.y <= 65535); /* N below four million */
    LAUNCH((tile_kernel<W, GROUP, MT, NT, WARPS_N, WARPS_T>), grid, Tile::THREADS,
           Tile::SHARED_BYTES, stream, *p);
}

#define FOLD_THREADS 256

/* Grid (ceil(N / FOLD_THREADS), T): a thread adds the sums of an output over the ranges of K. */
static __global__ void __launch_bounds__(FOLD_THREADS) fold_kernel(struct product p)
{
    uint32_t n = blockIdx.x * FOLD_THREADS + threadIdx.x, t = blockIdx.y;
    const float *from = p.partials + (size_t)t * p.n + n;
    float v = 0;

    let_next_begin(); /* a product, perhaps */
    if (n >= p.n)
        return;
    for (uint32_t s = 0; s * p.split < p.k; s++)
        v += from[(size_t)s * p.n_rows * p.n];
    put_output(p, t, n, v, old_output(p, t, n));
}

/* A block for each tile and range of K, then the sums of the ranges. */
template <enum dtype W, int GROUP, int MT, int NT, int WARPS_N, int WARPS_T>
static void launch_split(cudaStream_t stream, const struct product *p)
{
    using Tile = struct tile<W, GROUP, MT, NT, WARPS_N, WARPS_T>;
    dim3 grid(ceil_div(p->n_rows, Tile::TT), ceil_div(p->n, Tile::TN), ceil_div(p->k, p->split));

    ASSERT(grid.y <= 65535);
    LAUNCH((tile_kernel<W, GROUP, MT, NT, WARPS_N, WARPS_T, false, true>), grid, Tile::THREADS,
           Tile::SHARED_BYTES, stream, *p);
    LAUNCH(fold_kernel, dim3(ceil_div(p->n, FOLD_THREADS), p->n_rows), FOLD_THREADS, 0, stream, *p);
}

/* Large tiles: 128 by 128, or half of that where the sums of groups need registers too. */
template <enum dtype W, int GROUP>
struct large {
    static constexpr int MT = GROUP ? 2 : 4, WARPS_N = GROUP ? 4 : 2, WARPS_T = GROUP ? 2 : 4;
    using Tile = struct tile<W, GROUP, MT, 4, WARPS_N, WARPS_T>;
};

template <enum dtype W, int GROUP>
static cudaError_t prepare_product(void)
{
    using Large = struct large<W, GROUP>;
    constexpr int MT = Large::MT, WARPS_N = Large::WARPS_N, WARPS_T = Large::WARPS_T;
    int small = tile<W, GROUP, 2, 4, 2, 2>::SHARED_BYTES, most = Large::Tile::SHARED_BYTES;
    cudaError_t e = allow_shared(tile_kernel<W, GROUP, MT, 4, WARPS_N, WARPS_T>, most);

    if (e == cudaSuccess)
        e = allow_shared(tile_kernel<W, GROUP, 2, 4, 2, 2>, small);
    if (e == cudaSuccess)
        e = allow_shared(tile_kernel<W, GROUP, 2, 4, 2, 2, true>, small);
    if constexpr (GROUP != 0) {
        if (e == cudaSuccess)
            e = allow_shared(tile_kernel<W, GROUP, MT, 4, WARPS_N, WARPS_T, false, true>, most);
        if (e == cudaSuccess)
            e = prefer_shared(narrow_kernel<W, GROUP, 1, 1>);
        if (e == cudaSuccess)
            e = prefer_shared(narrow_kernel<W, GROUP, 1, 1, true>);
    }
    return e;
}

template <enum dtype W, int GROUP, int MT, int NT>
static void launch_narrow_experts(cudaStream_t stream, const struct product *p)
{
    dim3 grid(n_tiles_max(&p->x, p->n_rows, 8 * NT), ceil_div(p->n, 16 * MT));

    ASSERT(grid.y <= 65535);
    LAUNCH_EARLY((narrow_kernel<W, GROUP, MT, NT, true>), grid, NARROW_THREADS, 0, stream,
                 p->early, *p);
}

/* Tiles as high as an expert has rows on average; all kernels give equal bits. */
template <enum dtype W, int GROUP>
static void launch_experts(cudaStream_t stream, const struct product *p)
{
    using Tile = struct tile<W, GROUP, 2, 4, 2, 2>;
    uint32_t n_each = p->n_rows / p->x.n_experts;

    if (n_each <= 4 || p->x.n_rows_max <= 8) {
        launch_narrow_experts<W, GROUP, 1, 1>(stream, p);
    } else if (n_each <= 12) {
        launch_narrow_experts<W, GROUP, 2, 2>(stream, p);
    } else if (GROUP == 0 && n_each <= NARROW_ROWS_MAX) {
        if constexpr (GROUP == 0)
            launch_narrow_experts<W, GROUP, 2, 4>(stream, p);
    } else { /* integers share activations among 64 outputs, as in launch_middle() */
        dim3 grid(n_tiles_max(&p->x, p->n_rows, Tile::TT), ceil_div(p->n, Tile::TN));

        ASSERT(grid.y <= 65535);
        LAUNCH((tile_kernel<W, GROUP, 2, 4, 2, 2, true>), grid, Tile::THREADS, Tile::SHARED_BYTES,
               stream, *p);
    }
}

/* Integers with 17 to 64 rows. The narrow kernel's blocks of 32 outputs read all activations from
 * the second-level cache, seven times the bytes of int4 weights at 64 rows; a large tile shares
 * them among 128 outputs. Where there are too few tiles, each range of K is a block of its own. */
template <enum dtype W, int GROUP>
static void launch_middle(cudaStream_t stream, const struct product *p, uint32_t n_large)
{
    using Large = struct large<W, GROUP>;
    size_t n_partials = (size_t)ceil_div(p->k, p->split) * p->n_rows * p->n;

    if (n_large < p->n_tiles_min && n_partials <= p->n_partials_max)
        launch_split<W, GROUP, Large::MT, 4, Large::WARPS_N, Large::WARPS_T>(stream, p);
    else
        launch_tile<W, GROUP, Large::MT, 4, Large::WARPS_N, Large::WARPS_T>(stream, p);
}

template <enum dtype W, int GROUP>
static void launch_product(cudaStream_t stream, const struct product *p)
{
    using Large = struct large<W, GROUP>;
    uint32_t n_large = ceil_div(p->n_rows, Large::Tile::TT) * ceil_div(p->n, Large::Tile::TN);

    if (p->x.offsets) {
        launch_experts<W, GROUP>(stream, p);
    } else if (p->n_rows <= 8) {
        launch_narrow<W, GROUP, 1, 1>(stream, p);
    } else if (p->n_rows <= 16) {
        launch_narrow<W, GROUP, 2, 2>(stream, p);
    } else if (p->n_rows <= NARROW_ROWS_MAX) {
        if constexpr (GROUP == 0)
            launch_narrow<W, GROUP, 2, 4>(stream, p);
        else
            launch_middle<W, GROUP>(stream, p, n_large);
    } else if (n_large < p->n_tiles_min) {
        launch_tile<W, GROUP, 2, 4, 2, 2>(stream, p);
    } else {
        launch_tile<W, GROUP, Large::MT, 4, Large::WARPS_N, Large::WARPS_T>(stream, p);
    }
}

#endif
