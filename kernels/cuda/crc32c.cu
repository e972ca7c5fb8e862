/* crc32c.cu - the CRC32C of pieces of device memory, equal to hash_crc32c(0, ...).
 *
 * A CRC is linear: with words w of 32 bits it is the sum of w[i] * x^(32 (n - i)) modulo the
 * polynomial, where sums are exclusive ors, and the start value is added to w[0]. So each thread
 * sums every T-th word of a part, which keeps loads coalesced, and multiplies by x^(32 T) from word
 * to word. The thread block joins the sums of its threads pairwise, moves the result over the words
 * behind its part, and adds it to the piece's sum.
 *
 * The multiplication by a constant takes four lookups in shared memory. 32 lanes that read at
 * random take 3 to 4 cycles per lookup, so a multiprocessor takes about 9 bytes per cycle: with 132
 * of them at 1.7 GHz 2 TB/s, as much as memory gives, and far more than comes over NVLink or PCIe.
 * (This is arithmetic; nothing of it was measured.) To have the host compute the sums instead,
 * each block would cross the bus once more and take a core about 0.2 ms per MiB.
 *
 * Owns    nothing.
 * Thread  as ops.h.
 * Errors  as context.cuh.
 * Units   words of 32 bits. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"

#define THREADS 256u
#define THREADS_LOG2 8
#define PART_WORDS 16384u
#define POLYNOMIAL 0x82F63B78u /* reflected */
#define ONE 0x80000000u        /* x^0 */
#define N_POWERS 32
#define POWER_32 5 /* powers[POWER_32 + k] = x^(32 * 2^k) */

struct sums_params {
    const uint32_t *pieces[DEVICE_SUMS_MAX];
    uint32_t powers[N_POWERS]; /* x^(2^k) */
    uint32_t n_words, n_parts; /* of each piece */
    uint32_t *sums;
};

/* The product of two polynomials modulo the polynomial, all reflected. */
static __host__ __device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (int i = 31; i >= 0; i--) {
        product ^= a >> i & 1 ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

/* a * x^(32 n) */
static __device__ __forceinline__ uint32_t move_over(const struct sums_params &p, uint32_t a,
                                                     uint32_t n)
{
    for (int k = 0; n >> k; k++)
        if (n >> k & 1)
            a = multiply(a, p.powers[POWER_32 + k]);
    return a;
}

static __global__ void __launch_bounds__(THREADS) crc32c_kernel(struct sums_params p)
{
    __shared__ uint32_t table[4][256];
    __shared__ uint32_t partial[THREADS];
    uint32_t t = threadIdx.x, part = blockIdx.x % p.n_parts, first = part * PART_WORDS;
    uint32_t n = p.n_words - first < PART_WORDS ? p.n_words - first : PART_WORDS;
    uint32_t n_zeros = (THREADS - n % THREADS) % THREADS; /* before the part: they add nothing */
    const uint32_t *words = p.pieces[blockIdx.x / p.n_parts] + first;
    uint32_t sum = 0;

    for (int k = 0; k < 4; k++)
        table[k][t] = multiply(t << 8 * k, p.powers[POWER_32 + THREADS_LOG2]);
    __syncthreads();
    for (uint32_t at = t; at < n + n_zeros; at += THREADS) {
        uint32_t w = at < n_zeros ? 0 : words[at - n_zeros];

        if (at == n_zeros && first == 0)
            w = ~w; /* the start value */
        sum = table[0][sum & 255] ^ table[1][sum >> 8 & 255] ^ table[2][sum >> 16 & 255] ^
              table[3][sum >> 24] ^ w;
    }
    partial[t] = sum;
    __syncthreads();
    for (int k = 0; k < THREADS_LOG2; k++) {
        uint32_t step = 1u << k;

        if (t % (2 * step) == 0)
            partial[t] = multiply(partial[t], p.powers[POWER_32 + k]) ^ partial[t + step];
        __syncthreads();
    }
    if (t == 0)
        atomicXor(&p.sums[blockIdx.x / p.n_parts],
                  move_over(p, partial[0], p.n_words - first - n + 1));
}

enum status cuda_sums(struct cuda_context *c, struct stream *s, const void *const *pieces,
                      uint32_t n, size_t n_bytes, uint32_t *sums)
{
    struct sums_params p = {};
    cudaStream_t stream = cuda_stream_of(c, s);

    /* move_over() takes numbers of words below 2^27. */
    ASSERT(n >= 1 && n <= DEVICE_SUMS_MAX && n_bytes > 0 && n_bytes % 4 == 0 &&
           n_bytes <= DEVICE_SUM_BYTES_MAX);
    for (uint32_t i = 0; i < n; i++)
        p.pieces[i] = static_cast<const uint32_t *>(pieces[i]);
    p.powers[0] = ONE >> 1;
    for (int k = 1; k < N_POWERS; k++)
        p.powers[k] = multiply(p.powers[k - 1], p.powers[k - 1]);
    p.n_words = (uint32_t)(n_bytes / 4);
    p.n_parts = ceil_div(p.n_words, PART_WORDS);
    p.sums = sums;
    /* The end value: all sums begin with it. */
    enum status status =
        cuda_check(c, cudaMemsetAsync(sums, 0xff, n * sizeof(*sums), stream), "cudaMemsetAsync");
    if (status != OK)
        return status;
    LAUNCH(crc32c_kernel, n * p.n_parts, THREADS, 0, stream, p);
    return cuda_launched(c, "crc32c");
}
