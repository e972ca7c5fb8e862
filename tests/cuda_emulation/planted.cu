/* planted.cu - small kernels, each in a correct form and with one bug. BUG is a template parameter,
 * so that both forms differ in one line only. */
#include "planted.cuh"

#include <vector>

#include "emulation.h"
#include "kernels/cuda/ptx.cuh"

/* LAUNCH takes a constant; here the kernel is chosen at run time, right or with its bug. */
#define LAUNCH_CHOSEN(kernel, grid, block, shared_bytes, stream, ...)                         \
    emulation_launch_kernel(#kernel, (kernel), (grid), (block), (shared_bytes), (stream),     \
                            __VA_ARGS__)

#define N 128
#define TILES 6

/* The inputs are integers, so that a correct sum has the same bits in any order. */
static int input_at(unsigned i)
{
    return (int)(i * 2654435761u >> 20);
}

/* Device memory of n elements, filled by input_at() or left as it is. */
static int *device_array(unsigned n, bool filled)
{
    std::vector<int> host(n);
    int *p = nullptr;

    cudaMalloc(&p, n * sizeof *p);
    for (unsigned i = 0; i < n; i++)
        host[i] = input_at(i);
    if (filled)
        cudaMemcpy(p, host.data(), n * sizeof *p, cudaMemcpyHostToDevice);
    return p;
}

static bool equals(const int *device, const std::vector<int> &want)
{
    std::vector<int> got(want.size());

    if (cudaMemcpy(got.data(), device, got.size() * sizeof(int), cudaMemcpyDeviceToHost) !=
        cudaSuccess)
        return false;
    return got == want;
}

static std::vector<int> input_sum(unsigned n)
{
    int sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += input_at(i);
    return {sum};
}

template <bool BUG> static __global__ void reduce_kernel(const int *in, int *out)
{
    __shared__ int part[N];

    part[threadIdx.x] = in[threadIdx.x];
    if (!BUG)
        __syncthreads();
    for (unsigned half = N / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[0] = part[0];
}

/* The sum of N inputs by one block. */
static bool sums(void (*kernel)(const int *, int *))
{
    int *in = device_array(N, true), *out = device_array(1, false);

    LAUNCH_CHOSEN(kernel, 1, N, 0, nullptr, in, out);
    return equals(out, input_sum(N));
}

static bool reduction_barrier(bool bug)
{
    return sums(bug ? reduce_kernel<true> : reduce_kernel<false>);
}

/* Threads add up values that other threads loaded. With two buffers one barrier per tile is enough;
 * the bug is to have none. */
template <bool BUG> static __global__ void tiles_kernel(const int *in, int *out)
{
    __shared__ int tile[2][N];
    int sum = 0;

    tile[0][threadIdx.x] = in[threadIdx.x];
    for (unsigned t = 0; t < TILES; t++) {
        if (!BUG || t % 2 == 0)
            __syncthreads();
        if (t + 1 < TILES)
            tile[(t + 1) % 2][threadIdx.x] = in[(t + 1) * N + threadIdx.x];
        sum += tile[t % 2][N - 1 - threadIdx.x];
    }
    out[threadIdx.x] = sum;
}

static bool double_buffer_barrier(bool bug)
{
    int *in = device_array(N * TILES, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? tiles_kernel<true> : tiles_kernel<false>), 1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        for (unsigned t = 0; t < TILES; t++)
            want[i] += input_at(t * N + N - 1 - i);
    return equals(out, want);
}

template <bool BUG> static __global__ void warp_exchange_kernel(const int *in, int *out)
{
    __shared__ int part[N];

    part[threadIdx.x] = in[threadIdx.x];
    if (!BUG)
        __syncwarp();
    out[threadIdx.x] = part[threadIdx.x ^ 1];
}

static bool warp_barrier(bool bug)
{
    int *in = device_array(N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? warp_exchange_kernel<true> : warp_exchange_kernel<false>),
                  1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(i ^ 1);
    return equals(out, want);
}

template <bool BUG> static __global__ void global_bound_kernel(const int *in, int *out, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    if (BUG ? i <= n : i < n)
        out[i] = in[BUG ? i - (i == n) : i];
}

/* The last element ends at a multiple of 256 bytes for one n, and not for the other. */
static bool global_bound_of(bool bug, unsigned n)
{
    int *in = device_array(n, true), *out = device_array(n, false);
    std::vector<int> want(n);

    LAUNCH_CHOSEN((bug ? global_bound_kernel<true> : global_bound_kernel<false>),
                  3, N, 0, nullptr, in, out, n);
    for (unsigned i = 0; i < n; i++)
        want[i] = input_at(i);
    return equals(out, want) && cudaFree(out) == cudaSuccess;
}

static bool global_bound(bool bug)
{
    return global_bound_of(bug, 256);
}

static bool global_bound_inside_a_line(bool bug)
{
    return global_bound_of(bug, 257);
}

template <bool BUG> static __global__ void dynamic_bound_kernel(int *out, unsigned n)
{
    DYNAMIC_SHARED(int, part);

    for (unsigned i = threadIdx.x; BUG ? i <= n : i < n; i += blockDim.x)
        part[i] = (int)i;
    __syncthreads();
    out[threadIdx.x] = part[n - 1 - threadIdx.x];
}

static bool dynamic_shared_bound(bool bug)
{
    int *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? dynamic_bound_kernel<true> : dynamic_bound_kernel<false>), 1, N,
           N * sizeof(int), nullptr, out, N);
    for (unsigned i = 0; i < N; i++)
        want[i] = (int)(N - 1 - i);
    return equals(out, want);
}

template <bool BUG> static __global__ void static_bound_kernel(int *out, unsigned n)
{
    __shared__ int part[N];

    for (unsigned i = threadIdx.x; BUG ? i <= n : i < n; i += blockDim.x)
        part[i] = (int)i;
    __syncthreads();
    out[threadIdx.x] = part[n - 1 - threadIdx.x];
}

static bool static_shared_bound(bool bug)
{
    int *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? static_bound_kernel<true> : static_bound_kernel<false>),
                  1, N, 0, nullptr, out, N);
    for (unsigned i = 0; i < N; i++)
        want[i] = (int)(N - 1 - i);
    return equals(out, want);
}

template <int N_YOUNG> static __global__ void copy_async_kernel(const int *in, int *out)
{
    __shared__ __align__(16) int tile[2][4 * N];
    unsigned at = 4 * threadIdx.x;

    cp_async16(&tile[0][at], in + at, true);
    cp_async_commit();
    cp_async16(&tile[1][at], in + 4 * N + at, true);
    cp_async_commit();
    cp_async_wait<N_YOUNG>();
    __syncthreads();
    out[threadIdx.x] = tile[0][4 * N - 1 - threadIdx.x];
}

static bool copy_wait(bool bug)
{
    int *in = device_array(8 * N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? copy_async_kernel<2> : copy_async_kernel<1>), 1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(4 * N - 1 - i);
    return equals(out, want);
}

template <bool BUG> static __global__ void copy_barrier_kernel(const int *in, int *out)
{
    __shared__ __align__(16) int tile[4 * N];

    cp_async16(&tile[4 * threadIdx.x], in + 4 * threadIdx.x, true);
    cp_async_commit();
    cp_async_wait<0>();
    if (!BUG)
        __syncthreads();
    out[threadIdx.x] = tile[4 * N - 1 - threadIdx.x];
}

static bool copy_barrier(bool bug)
{
    int *in = device_array(4 * N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? copy_barrier_kernel<true> : copy_barrier_kernel<false>),
                  1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(4 * N - 1 - i);
    return equals(out, want);
}

template <bool BUG> static __global__ void divergent_kernel(const int *in, int *out)
{
    __shared__ int part[N];

    part[threadIdx.x] = in[threadIdx.x];
    if (!BUG || threadIdx.x < N / 2)
        __syncthreads();
    else
        __syncthreads_or(0);
    out[threadIdx.x] = part[N - 1 - threadIdx.x];
}

static bool divergent_barrier(bool bug)
{
    int *in = device_array(N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? divergent_kernel<true> : divergent_kernel<false>),
                  1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(N - 1 - i);
    return equals(out, want);
}

/* The bug: half a warp shuffles with the mask of the whole warp, while the others wait at the
 * barrier. */
template <bool BUG> static __global__ void divergent_shuffle_kernel(const int *in, int *out)
{
    int v = in[threadIdx.x];

    if (threadIdx.x % 32 < 16)
        v += __shfl_xor_sync(BUG ? 0xffffffffu : 0x0000ffffu, v, 1);
    __syncthreads();
    out[threadIdx.x] = v;
}

static bool divergent_shuffle(bool bug)
{
    int *in = device_array(N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    LAUNCH_CHOSEN((bug ? divergent_shuffle_kernel<true> : divergent_shuffle_kernel<false>),
                  1, N, 0, nullptr, in, out);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(i) + (i % 32 < 16 ? input_at(i ^ 1) : 0);
    return equals(out, want);
}

template <bool BUG> static __global__ void uninitialised_kernel(const int *in, int *out)
{
    __shared__ int sum;

    if (!BUG && threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    atomicAdd(&sum, in[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0)
        out[0] = sum;
}

static bool uninitialised_shared(bool bug)
{
    return sums(bug ? uninitialised_kernel<true> : uninitialised_kernel<false>);
}

static __global__ void large_shared_kernel(const int *in, int *out, unsigned n)
{
    DYNAMIC_SHARED(int, part);

    part[n - 1 - threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = part[n - N + threadIdx.x];
}

/* A kernel with more than 48 KB of shared memory; the bug is not to request them. */
static bool too_much_shared(bool bug)
{
    const unsigned n = 16 << 10;
    int *in = device_array(N, true), *out = device_array(N, false);
    std::vector<int> want(N);

    if (!bug && allow_shared(large_shared_kernel, n * sizeof(int)) != cudaSuccess)
        return false;
    LAUNCH_CHOSEN(large_shared_kernel, 1, N, n * sizeof(int), nullptr, in, out, n);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(N - 1 - i);
    return cudaGetLastError() == cudaSuccess && equals(out, want);
}

static __global__ void increment_kernel(const int *in, int *out)
{
    out[threadIdx.x] = in[threadIdx.x] + 1;
}

/* One stream reads the data that another stream writes; the bug is to wait for no event. */
static bool event_between_streams(bool bug)
{
    int *in = device_array(N, true), *mid = device_array(N, false), *out = device_array(N, false);
    std::vector<int> want(N);
    cudaStream_t a, b;
    cudaEvent_t e;

    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    LAUNCH_CHOSEN(increment_kernel, 1, N, 0, a, in, mid);
    cudaEventRecord(e, a);
    if (!bug)
        cudaStreamWaitEvent(b, e);
    LAUNCH_CHOSEN(increment_kernel, 1, N, 0, b, mid, out);
    cudaStreamSynchronize(b);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(i) + 2;
    return equals(out, want);
}

/* Stream b reads what the one kernel of stream a writes, or overwrites what that one reads, behind
 * kernels that touch neither; the bug is to wait for no event. A random order of the streams would
 * run a's kernel before b's last one. */
static bool unequal_streams(bool bug, enum emulation_order order, bool b_writes)
{
    const unsigned n_before = 64;
    int *in = device_array(N, true), *mid = device_array(N, true), *out = device_array(N, false);
    int *idle = device_array(N, false);
    std::vector<int> want(N);
    cudaStream_t a, b;
    cudaEvent_t e;

    emulation_order(order);
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    LAUNCH_CHOSEN(increment_kernel, 1, N, 0, a, b_writes ? mid : in, b_writes ? out : mid);
    cudaEventRecord(e, a);
    if (!bug)
        cudaStreamWaitEvent(b, e);
    for (unsigned i = 0; i < n_before; i++)
        LAUNCH_CHOSEN(increment_kernel, 1, N, 0, b, in, idle);
    LAUNCH_CHOSEN(increment_kernel, 1, N, 0, b, b_writes ? in : mid, b_writes ? mid : out);
    cudaStreamSynchronize(b_writes ? a : b);
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(i) + (b_writes ? 1 : 2);
    return equals(out, want);
}

static bool late_writer(bool bug)
{
    return unequal_streams(bug, EMULATION_LATE, false);
}

static bool early_writer(bool bug)
{
    return unequal_streams(bug, EMULATION_EARLY, true);
}

/* The bug: the event is recorded before the work that it should mark. */
static bool event_recorded_too_early(bool bug)
{
    int *in = device_array(N, true), *out = device_array(N, false), *host = nullptr;
    cudaStream_t a, b;
    cudaEvent_t e;
    bool right = true;

    cudaMallocHost(&host, N * sizeof *host);
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    if (bug)
        cudaEventRecord(e, a);
    LAUNCH_CHOSEN(increment_kernel, 1, N, 0, a, in, out);
    if (!bug)
        cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e);
    cudaMemcpyAsync(host, out, N * sizeof *host, cudaMemcpyDeviceToHost, b);
    cudaStreamSynchronize(b);
    for (unsigned i = 0; i < N; i++)
        right = right && host[i] == input_at(i) + 1;
    return right;
}

static bool host_reads_too_early(bool bug)
{
    int *in = device_array(N, true), *host = nullptr;
    cudaStream_t s;
    bool right = true;

    cudaMallocHost(&host, N * sizeof *host);
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaMemcpyAsync(host, in, N * sizeof *host, cudaMemcpyDeviceToHost, s);
    if (!bug)
        cudaStreamSynchronize(s);
    for (unsigned i = 0; i < N; i++)
        right = right && host[i] == input_at(i);
    return right;
}

/* The bug: pinned memory is overwritten while a copy from it is under way. */
static bool host_writes_too_early(bool bug)
{
    int *out = device_array(N, false), *host = nullptr;
    std::vector<int> want(N);
    cudaStream_t s;

    cudaMallocHost(&host, N * sizeof *host);
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    for (unsigned i = 0; i < N; i++)
        want[i] = host[i] = input_at(i);
    cudaMemcpyAsync(out, host, N * sizeof *host, cudaMemcpyHostToDevice, s);
    if (!bug)
        cudaStreamSynchronize(s);
    host[3] = -1;
    cudaStreamSynchronize(s);
    return equals(out, want);
}

/* The bug: a copy of a batch reads what another one writes. */
static bool batch_order(bool bug)
{
    int *in = device_array(N, true), *a = device_array(N, false), *b = device_array(N, false);
    void *to[] = {a, b};
    const void *from[] = {in, bug ? a : in};
    size_t sizes[] = {N * sizeof *in, N * sizeof *in}, first = 0;
    struct cudaMemcpyAttributes attributes = {};
    std::vector<int> want(N);
    cudaStream_t s;

    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    for (unsigned i = 0; i < N; i++)
        want[i] = input_at(i);
    return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess &&
           cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, s) == cudaSuccess &&
           cudaStreamSynchronize(s) == cudaSuccess && equals(b, want);
}

static bool host_follows_device_pointer(bool bug)
{
    int *in = device_array(N, true), first = 0;

    if (bug)
        first = *static_cast<volatile int *>(in);
    else
        cudaMemcpy(&first, in, sizeof first, cudaMemcpyDeviceToHost);
    return first == input_at(0);
}

/* The bug: a vector of four is stored one element after an aligned address. */
template <bool BUG> static __global__ void misaligned_global_kernel(int *out)
{
    if (threadIdx.x < N / 8)
        *reinterpret_cast<int4 *>(out + 4 * threadIdx.x + (BUG ? 1 : 0)) = make_int4(1, 1, 1, 1);
}

static bool misaligned_global(bool bug)
{
    int *out = device_array(N, false);

    LAUNCH_CHOSEN((bug ? misaligned_global_kernel<true> : misaligned_global_kernel<false>), 1, N,
                  0, nullptr, out);
    return cudaDeviceSynchronize() == cudaSuccess;
}

/* The same in shared memory. */
template <bool BUG> static __global__ void misaligned_shared_kernel(int *out)
{
    __shared__ __align__(16) int part[2 * N + 4];
    int *at = part + (BUG ? 2 : 4);

    *reinterpret_cast<int4 *>(at + 4 * (threadIdx.x % (N / 4))) = make_int4(1, 1, 1, 1);
    __syncthreads();
    out[threadIdx.x] = at[threadIdx.x];
}

static bool misaligned_shared(bool bug)
{
    int *out = device_array(N, false);

    LAUNCH_CHOSEN((bug ? misaligned_shared_kernel<true> : misaligned_shared_kernel<false>), 1, N,
                  0, nullptr, out);
    return equals(out, std::vector<int>(N, 1));
}

/* The bug: threads behind the end return before they wait. */
template <bool BUG> static __global__ void early_kernel(int *out, unsigned n)
{
    if (BUG && threadIdx.x >= n)
        return;
    wait_for_inputs();
    if (threadIdx.x < n)
        out[threadIdx.x] = 1;
}

static bool early_end(bool bug)
{
    int *out = device_array(N, false);

    emulation_launch_early(true);
    LAUNCH_CHOSEN((bug ? early_kernel<true> : early_kernel<false>), 1, N, 0, nullptr, out, N - 1);
    return cudaDeviceSynchronize() == cudaSuccess;
}

static __global__ void fill_kernel(int *out)
{
    out[threadIdx.x] = 1;
}

/* The bug: a kernel of one device writes to the memory of another one. */
static bool other_device(bool bug)
{
    int *own, *out;

    setenv("TARN_EMULATION_DEVICES", "2", 1);
    own = device_array(N, false);
    if (cudaSetDevice(1) != cudaSuccess)
        return false;
    out = device_array(N, false);
    LAUNCH_CHOSEN(fill_kernel, 1, N, 0, nullptr, bug ? own : out);
    return cudaDeviceSynchronize() == cudaSuccess && (bug || equals(out, std::vector<int>(N, 1)));
}

static __global__ void add_kernel(int *out, const int *n, int fixed)
{
    out[threadIdx.x] += n ? *n : fixed;
}

/* The bug: a replay gets its number as an argument, which is that of the recording. */
static bool recorded_argument(bool bug)
{
    int *out = device_array(N, false), *n = device_array(1, false);
    cudaGraphExec_t replay;
    cudaGraph_t graph;
    cudaStream_t s;
    int value = 1;

    if (cudaMemset(out, 0, N * sizeof *out) != cudaSuccess ||
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return false;
    LAUNCH_CHOSEN(add_kernel, 1, N, 0, s, out, bug ? static_cast<const int *>(nullptr) : n, value);
    if (cudaStreamEndCapture(s, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&replay, graph) != cudaSuccess ||
        cudaGraphDestroy(graph) != cudaSuccess)
        return false;
    for (; value <= 3; value++)
        if (cudaMemcpy(n, &value, sizeof value, cudaMemcpyHostToDevice) != cudaSuccess ||
            cudaGraphLaunch(replay, s) != cudaSuccess || cudaStreamSynchronize(s) != cudaSuccess)
            return false;
    return equals(out, std::vector<int>(N, 6)) && cudaGraphExecDestroy(replay) == cudaSuccess;
}

const struct planted_case planted_cases[] = {
    {"an end without a wait, in a kernel that was launched early", early_end, ANYWHERE},
    {"an argument of a recording", recorded_argument, ANYWHERE},
    {"a kernel on the device of its memory", other_device, ANYWHERE},
    {"a misaligned vector in global memory", misaligned_global, ANYWHERE},
    {"a misaligned vector in shared memory", misaligned_shared, ANYWHERE},
    {"a reduction's __syncthreads", reduction_barrier, ANYWHERE},
    {"a double buffer's __syncthreads", double_buffer_barrier, ANYWHERE},
    {"__syncwarp", warp_barrier, ANYWHERE},
    {"off by one in global memory, at a line's end", global_bound, ANYWHERE},
    {"off by one in global memory, inside a line", global_bound_inside_a_line, ANYWHERE},
    {"off by one in dynamic shared memory", dynamic_shared_bound, ANYWHERE},
    {"off by one in static shared memory", static_shared_bound, NEEDS_ASAN},
    {"cp_async_wait", copy_wait, ANYWHERE},
    {"the barrier after cp_async_wait", copy_barrier, ANYWHERE},
    {"barriers of two kinds", divergent_barrier, ANYWHERE},
    {"a shuffle that half the warp comes to", divergent_shuffle, ANYWHERE},
    {"shared memory that nobody wrote", uninitialised_shared, ANYWHERE},
    {"more shared memory than allowed", too_much_shared, ANYWHERE},
    {"the event between two streams", event_between_streams, ANYWHERE},
    {"the event behind a stream that comes late", late_writer, ANYWHERE},
    {"the event in front of a stream that comes early", early_writer, ANYWHERE},
    {"an event recorded too early", event_recorded_too_early, ANYWHERE},
    {"the host reads before the copy is done", host_reads_too_early, ANYWHERE},
    {"the host writes before the copy is done", host_writes_too_early, ANYWHERE},
    {"copies of a batch without an order", batch_order, ANYWHERE},
    {"the host follows a device pointer", host_follows_device_pointer, ANYWHERE},
};
const unsigned n_planted_cases = sizeof planted_cases / sizeof planted_cases[0];
