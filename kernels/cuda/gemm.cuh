/* gemm.cuh - the interface between gemm.cu and Tarn's own matrix products.
 *
 * Order of operations, the same for every number of rows T (promise P1, ARCHITECTURE.md), but for
 * gemm_wgmma.cu, which --batch-invariant does not use. K is cut
 * into at most GEMM_SPLITS ranges of gemm_split(K) elements. Inside a range, sums grow by mma
 * m16n8k16 with ascending k in steps of 32; for quantized weights the sum of each group starts at
 * 0, and then sum = fmaf(scale, group's sum, sum). For A8 and A4 the group's sum is of code - zero,
 * zero being 128 or 8, and sum = fmaf(fmaf(zero, scale, offset), sum of the activations, sum)
 * follows, where the last sum is a product with ones. Then the sums of the ranges are added in
 * order, then the bias, then the old output. Weights are always the first operand of mma. F32: one
 * chain of fmaf over K.
 *
 * Owns    nothing; the pointers are borrowed device memory.
 * Thread  as ops.h.
 * Errors  launches are not checked: the caller uses cuda_launched().
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_CUH
#define TARN_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/context.cuh"

#define GEMM_SPLITS 8
/* Ranges of K are multiples of this, which is a multiple of every group and the padding of a
 * row. */
#define GEMM_CHUNK 128

/* The rows of a product that are sorted by expert: gemm_experts(). */
struct expert_rows {
    const uint32_t *offsets; /* [n_experts + 1], of all rows; NULL: the product has one weight */
    uint32_t n_experts;
    uint32_t row0;           /* the product's first row among all */
    uint32_t n_rows_max;     /* no expert has more */
    size_t expert_bytes;     /* from an expert's weight to the next's */
    const uint32_t *a_rows;  /* [n_rows] the row of the activations that each sorted row is; NULL:
                                row i is sorted row i */
};

struct product {
    uint32_t n_rows;         /* T */
    uint32_t n;              /* N */
    uint32_t k;              /* padded to a multiple of GEMM_CHUNK; both operands are 0 behind K */
    uint32_t split;          /* gemm_split(k) */
    uint32_t n_tiles_min;    /* fewest large tiles that fill the device */
    bool early;              /* the kernel may begin before the one in front has ended */
    const uint16_t *a;       /* [T, k] bf16; f16 for F16 weights */
    const unsigned char *w;  /* [N] rows */
    size_t w_row_bytes;
    const uint16_t *scales;  /* [N, k / group] bf16; of A8 and A4 pairs with offsets, f16; of F8
                                f32 */
    const float *bias;       /* [N] or NULL */
    int accumulate;
    float *out;              /* [T, N], row stride out_stride */
    size_t out_stride;
    struct expert_rows x;    /* w and scales are those of expert 0 */
    float *partials;         /* scratch: sums of ranges of K */
    size_t n_partials_max;   /* floats */
};

static inline uint32_t gemm_split(uint32_t k)
{
    uint32_t n_chunks = k / GEMM_CHUNK;

    return (n_chunks + GEMM_SPLITS - 1) / GEMM_SPLITS * GEMM_CHUNK;
}

/* A product of floats by cuBLASLt; its activations are rounded already. ERR_UNSUPPORTED: cuBLASLt
 * cannot compute it, and nothing was done. */
NODISCARD enum status gemm_cublas(struct cuda_context *c, cudaStream_t stream,
                                  const struct gemm_params *p);
/* A product by one of Tarn's kernels; its activations are rounded already. */
NODISCARD enum status gemm_ours(struct cuda_context *c, cudaStream_t stream,
                                const struct gemm_params *p);
/* BF16 and F16. */
void gemm_rows(cudaStream_t stream, enum dtype t, const struct product *p);
/* F32, directly from the float activations. */
void gemm_f32(cudaStream_t stream, const struct gemm_params *p, const struct expert_rows *x);
/* Quantized types. */
void gemm_int(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p);

/* Allow the kernels their shared memory; call once per context. */
cudaError_t gemm_rows_prepare(void);
cudaError_t gemm_int_prepare(void);

#endif
