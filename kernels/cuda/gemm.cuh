/* gemm.cuh - what gemm.cu hands to the matrix products of our own.
 *
 * Order of operations, which no T changes (design P1). K is cut into at most GEMM_SPLITS ranges of
 * gemm_split(K) elements. Inside a range sums grow by mma m16n8k16 with k ascending in steps of 32;
 * for I8 and I4 a group's sum starts at 0, and sum = fmaf(scale, group's sum, sum). Then the
 * ranges' sums are added one after the other, then the bias, then the old out. Weights are always
 * the first operand of mma. F32: one chain of fmaf over K.
 *
 * Owns    nothing; the pointers are borrowed device memory.
 * Thread  as ops.h.
 * Errors  kernels are launched and nothing is checked: cuda_launched() is the caller's.
 * Units   elements unless it says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_CUH
#define TARN_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/context.cuh"

#define GEMM_SPLITS 8
/* Ranges of K are whole multiples of this: of every group, and of what a row is padded to. */
#define GEMM_CHUNK 128

struct product {
    uint32_t n_rows;         /* T */
    uint32_t n;              /* N */
    uint32_t k;              /* padded: a multiple of GEMM_CHUNK, both operands are 0 behind K */
    uint32_t split;          /* gemm_split(k) */
    uint32_t n_tiles_min;    /* least number of large tiles that fills the device */
    const uint16_t *a;       /* [T, k] bf16, for F16 weights f16 */
    const unsigned char *w;  /* [N] rows */
    size_t w_row_bytes;
    const uint16_t *scales;  /* [N, k / group] bf16; I8 and I4 */
    const float *bias;       /* [N] or NULL */
    int accumulate;
    float *out;              /* [T, N], row stride out_stride */
    size_t out_stride;
};

static inline uint32_t gemm_split(uint32_t k)
{
    uint32_t n_chunks = k / GEMM_CHUNK;

    return (n_chunks + GEMM_SPLITS - 1) / GEMM_SPLITS * GEMM_CHUNK;
}

/* BF16, F16. */
void gemm_rows(cudaStream_t stream, enum dtype t, const struct product *p);
/* F32, from the float activations. */
void gemm_f32(cudaStream_t stream, const struct gemm_params *p);
/* I8, I4. */
void gemm_int(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p);

/* Allow the kernels their shared memory; once per context. */
cudaError_t gemm_rows_prepare(void);
cudaError_t gemm_int_prepare(void);

#endif
