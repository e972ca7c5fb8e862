/* planted_async.cu - as planted.cu, for bulk copies and the products of a warpgroup. */
#include "planted.cuh"

#include <vector>

#include "kernels/cuda/ptx_sm90.cuh"

#define LAUNCH_CHOSEN(kernel, grid, block, shared_bytes, stream, ...)                         \
    emulation_launch_kernel(#kernel, (kernel), (grid), (block), (shared_bytes), (stream),     \
                            __VA_ARGS__)

#define N 128  /* threads, and columns of B */
#define K 32   /* two products */
#define ONE 0x3f803f80u

/* The bug that a kernel has. */
enum bug {
    NONE,
    NO_WAIT_FOR_COPY,  /* the product begins before its B is there */
    FEW_BYTES,         /* the barrier's phase ends before all bytes have come */
    NO_WAIT_FOR_SUMS,  /* accumulators are read while the product is under way */
    NO_FENCE,          /* registers were written, and nothing orders that before the product */
    REUSED_REGISTERS,  /* A is written while a product reads it */
    REUSED_SHARED,     /* B is written while a product reads it */
    WRONG_SWIZZLE,     /* the descriptor says that B lies as it would without */
    WRONG_ALIGNMENT,   /* B is aligned to less than its swizzle needs */
    WRONG_PARITY       /* the wait is for a phase that never comes */
};

/* B's transpose [128][64] bf16, of which K elements are used: row n, element k is n + k / 16. */
static uint16_t b_at(unsigned n, unsigned k)
{
    return (uint16_t)emulation_bf16_bits((float)(n + k / 16));
}

/* One block of a warpgroup: sums [64][128] of A, which is ones, times B. */
template <enum bug BUG> static __global__ void __launch_bounds__(N)
product_kernel(const unsigned char *b, float *out)
{
    __shared__ uint64_t full;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *tile = shared + (0u - shared_address(shared)) % 1024;
    uint32_t a[2][4] = {{ONE, ONE, ONE, ONE}, {ONE, ONE, ONE, ONE}};
    float d[64];

    if (BUG == WRONG_ALIGNMENT)
        tile = shared + 16;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        barrier_inits_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expecting(&full, BUG == FEW_BYTES ? 8192 : 16384);
        bulk_copy(tile, b, 8192, &full);
        bulk_copy(tile + 8192, b + 8192, 8192, &full);
    }
    if (BUG != NO_WAIT_FOR_COPY || threadIdx.x == 0) /* else the copy would outlive its block */
        barrier_wait(&full, 0);
    if (BUG == WRONG_PARITY)
        barrier_wait(&full, 1);
    uint64_t descriptor = (uint64_t)(BUG == WRONG_SWIZZLE ? 0 : 1) << 62 |
                          (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
                          shared_address(tile) >> 4;
    if (BUG != NO_FENCE)
        wgmma_fence();
    wgmma_bf16(d, a[0], descriptor, false);
    wgmma_bf16(d, a[1], descriptor + 2, true);
    wgmma_commit();
    if (BUG == REUSED_REGISTERS)
        a[1][threadIdx.x % 4] = 0;
    if (BUG == REUSED_SHARED && threadIdx.x == 7)
        tile[20] ^= 1;
    if (BUG != NO_WAIT_FOR_SUMS)
        wgmma_wait<0>();
    for (unsigned i = 0; i < 64; i++) {
        unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;

        out[row * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    }
    if (BUG == NO_WAIT_FOR_SUMS)
        wgmma_wait<0>();
}

template <enum bug BUG> static bool product(bool bug)
{
    std::vector<uint16_t> host(N * 64);
    std::vector<float> got(64 * N);
    unsigned char *b = nullptr;
    float *out = nullptr;
    bool right = true;

    for (unsigned n = 0; n < N; n++)
        for (unsigned k = 0; k < 64; k++) /* unit k / 8 of row n lies at k / 8 ^ n % 8 */
            host[n * 64 + (k / 8 ^ n % 8) * 8 + k % 8] = b_at(n, k);
    if (allow_shared(product_kernel<NONE>, 17 << 10) != cudaSuccess ||
        allow_shared(product_kernel<BUG>, 17 << 10) != cudaSuccess ||
        cudaMalloc(&b, 2 * host.size()) != cudaSuccess ||
        cudaMalloc(&out, 4 * got.size()) != cudaSuccess ||
        cudaMemcpy(b, host.data(), 2 * host.size(), cudaMemcpyHostToDevice) != cudaSuccess)
        return false;
    LAUNCH_CHOSEN((bug ? product_kernel<BUG> : product_kernel<NONE>), 1, N, 17 << 10, nullptr, b,
                  out);
    if (cudaMemcpy(got.data(), out, 4 * got.size(), cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (unsigned i = 0; i < 64 * N; i++) /* 16 times n, and 16 times n + 1 */
        right = right && got[i] == (float)(32 * (i % N) + 16);
    return right;
}

/* The bug of a product with both operands in shared memory, 64 columns. */
enum shared_bug { RIGHT, WRITTEN_A, WRONG_ROWS };

/* Sums [64][64] of A times B; A's row m is m, B's transpose has the numbers of b_at(). */
template <enum shared_bug BUG> static __global__ void __launch_bounds__(N)
shared_product_kernel(float *out)
{
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *a = shared + (0u - shared_address(shared)) % 1024, *b = a + 8192;
    float d[32];

    for (unsigned i = threadIdx.x; i < 64 * 64; i += N) {
        unsigned row = i / 64, k = i % 64, at = row * 64 + (k / 8 ^ row % 8) * 8 + k % 8;

        reinterpret_cast<uint16_t *>(a)[at] = (uint16_t)emulation_bf16_bits((float)row);
        reinterpret_cast<uint16_t *>(b)[at] = b_at(row, k);
    }
    fence_stores_for_products();
    __syncthreads();
    uint64_t mode = (uint64_t)1 << 62 | (uint64_t)1 << 16;
    uint64_t of_a = mode | (uint64_t)((BUG == WRONG_ROWS ? 512 : 1024) >> 4) << 32 |
                    shared_address(a) >> 4;
    uint64_t of_b = mode | (uint64_t)(1024 >> 4) << 32 | shared_address(b) >> 4;
    wgmma_fence();
    wgmma_bf16_shared(d, of_a, of_b, false);
    wgmma_commit();
    if (BUG == WRITTEN_A && threadIdx.x == 7)
        a[2 * 128 + 2 * 16 + 9] ^= 1; /* row 2, unit 0 */
    wgmma_wait<0>();
    for (unsigned i = 0; i < 32; i++) {
        unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;

        out[row * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    }
}

template <enum shared_bug BUG> static bool shared_product(bool bug)
{
    std::vector<float> got(64 * 64);
    float *out = nullptr;
    bool right = true;

    if (allow_shared(shared_product_kernel<RIGHT>, 18 << 10) != cudaSuccess ||
        allow_shared(shared_product_kernel<BUG>, 18 << 10) != cudaSuccess ||
        cudaMalloc(&out, 4 * got.size()) != cudaSuccess)
        return false;
    LAUNCH_CHOSEN((bug ? shared_product_kernel<BUG> : shared_product_kernel<RIGHT>), 1, N, 18 << 10,
                  nullptr, out);
    if (cudaMemcpy(got.data(), out, 4 * got.size(), cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (unsigned i = 0; i < 64 * 64; i++) /* 16 elements of K, all m and n */
        right = right && got[i] == (float)(16 * (i / 64) * (i % 64));
    return right;
}

/* The bug: a consumer gives a stage back before it has read it. */
template <bool BUG> static __global__ void ring_kernel(const int *in, int *out, unsigned n)
{
    __shared__ uint64_t full, empty;
    __shared__ __align__(16) int stage[N];
    int sum = 0;

    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        barrier_init(&empty, N);
        barrier_inits_done();
    }
    __syncthreads();
    for (unsigned i = 0; i < n; i++) {
        if (threadIdx.x == 0) {
            if (i > 0)
                barrier_wait(&empty, (i - 1) % 2);
            barrier_arrive_expecting(&full, sizeof stage);
            bulk_copy(stage, in + i * N, sizeof stage, &full);
        }
        barrier_wait(&full, i % 2);
        if (BUG)
            barrier_arrive(&empty);
        sum += stage[N - 1 - threadIdx.x];
        if (!BUG)
            barrier_arrive(&empty);
    }
    out[threadIdx.x] = sum;
}

static bool ring(bool bug)
{
    std::vector<int> host(6 * N), got(N);
    int *in = nullptr, *out = nullptr;
    bool right = true;

    for (unsigned i = 0; i < 6 * N; i++)
        host[i] = (int)(i * 7);
    if (cudaMalloc(&in, 4 * host.size()) != cudaSuccess ||
        cudaMalloc(&out, 4 * got.size()) != cudaSuccess ||
        cudaMemcpy(in, host.data(), 4 * host.size(), cudaMemcpyHostToDevice) != cudaSuccess)
        return false;
    LAUNCH_CHOSEN((bug ? ring_kernel<true> : ring_kernel<false>), 1, N, 0, nullptr, in, out, 6);
    if (cudaMemcpy(got.data(), out, 4 * got.size(), cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (unsigned t = 0; t < N; t++) {
        int want = 0;

        for (unsigned i = 0; i < 6; i++)
            want += host[i * N + N - 1 - t];
        right = right && got[t] == want;
    }
    return right;
}

const struct planted_case planted_async_cases[] = {
    {"a product before its bulk copy", product<NO_WAIT_FOR_COPY>, ANYWHERE},
    {"a barrier that expects too few bytes", product<FEW_BYTES>, ANYWHERE},
    {"accumulators read before the wait", product<NO_WAIT_FOR_SUMS>, ANYWHERE},
    {"a product without a fence", product<NO_FENCE>, ANYWHERE},
    {"registers written while a product reads them", product<REUSED_REGISTERS>, ANYWHERE},
    {"shared memory written while a product reads it", product<REUSED_SHARED>, ANYWHERE},
    {"a descriptor with another swizzle", product<WRONG_SWIZZLE>, ANYWHERE},
    {"a swizzled tile that is not aligned", product<WRONG_ALIGNMENT>, ANYWHERE},
    {"a wait for a phase that never comes", product<WRONG_PARITY>, ANYWHERE},
    {"a shared A written while a product reads it", shared_product<WRITTEN_A>, ANYWHERE},
    {"a descriptor of A with another distance of rows", shared_product<WRONG_ROWS>, ANYWHERE},
    {"a stage given back before it is read", ring, ANYWHERE},
};
const unsigned n_planted_async_cases = sizeof planted_async_cases / sizeof planted_async_cases[0];
