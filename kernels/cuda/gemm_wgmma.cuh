/* gemm_wgmma.cuh - the interface of the products on Hopper's own matrix instructions, and of the
 * choice at start whether they are used.
 *
 * Owns    nothing.
 * Thread  as ops.h.
 * Errors  launches are not checked: the caller uses cuda_launched().
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_WGMMA_CUH
#define TARN_KERNELS_CUDA_GEMM_WGMMA_CUH

#include "kernels/cuda/gemm.cuh"

/* Rows of a tile, whose activations are arranged in pieces of GEMM_CHUNK elements of K. */
#define WGMMA_ROWS 128
/* Fewest rows: with fewer, the kernels for few rows read less of the second-level cache. */
#define WGMMA_ROWS_MIN 65
/* Bytes of a piece: bf16 elements and n sums of each row, which must stay aligned to 1024. */
#define WGMMA_PIECE_BYTES(n) \
    (WGMMA_ROWS * GEMM_CHUNK * 2 + ((n) * WGMMA_ROWS * 4 + 1023) / 1024 * 1024)
/* Most sums: one for each 32 elements. */
#define WGMMA_PIECE_BYTES_MAX WGMMA_PIECE_BYTES(GEMM_CHUNK / 32)

/* Load the kernels of a type; on compute capability 9.0 only. */
cudaError_t gemm_wgmma_prepare(enum dtype t, uint32_t group);
/* A product without experts. arranged: scratch, WGMMA_PIECE_BYTES_MAX for each WGMMA_ROWS rows and
 * GEMM_CHUNK elements of K. */
void gemm_wgmma(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p,
                void *arranged);

#endif
