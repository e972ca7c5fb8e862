/* runtime.cc - the calls about devices, errors, memory and launches: check arguments and
 * enqueue. */
#include "internal.h"
#include "streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

#define STATIC_SHARED_MAX ((size_t)48 << 10)
#define PARAMETER_BYTES_MAX 4096
#define N_SMS 4 /* few, so that small tests fill them */

std::recursive_mutex runtime_lock;

static uint64_t n_calls, fail_at;
static int fail_error, dead_error;
static thread_local cudaError_t last_error; /* as in the real runtime */
static thread_local int current_device;
/* Of each device: the dynamic shared memory that kernels may have; kernels that a call other than a
 * launch has loaded. */
static std::map<const void *, size_t> shared_allowed[DEVICES_MAX];
static std::map<const void *, bool> loaded_kernels[DEVICES_MAX];

unsigned long env_number(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoul(text, nullptr, 0) : otherwise;
}

int device_count(void)
{
    unsigned long n = env_number("TARN_EMULATION_DEVICES", 1);

    return n < DEVICES_MAX ? (int)n : DEVICES_MAX;
}

int device_current(void)
{
    return current_device;
}

static bool is_device(int device)
{
    return device >= 0 && device < device_count();
}

static int compute_capability(void) /* times 10 */
{
    return (int)env_number("TARN_EMULATION_SM", 90);
}

static size_t shared_max(void)
{
    int sm = compute_capability();

    return (size_t)(sm >= 90 ? 227 : sm == 80 ? 163 : 99) << 10;
}

void emulation_fail_call(uint64_t n, int error)
{
    fail_at = n ? n_calls + n : 0;
    fail_error = error;
}

void emulation_kill(int error)
{
    dead_error = error;
    if (error == 0)
        last_error = cudaSuccess; /* of this thread: the next device is a new one */
}

uint64_t emulation_calls(void)
{
    return n_calls;
}

cudaError_t runtime_failed(cudaError_t e)
{
    if (e != cudaSuccess) /* cudaErrorNotReady too, as in the real runtime */
        last_error = e;
    return e;
}

/* Read TARN_EMULATION_FAIL=n:e, once. */
static void read_environment(void)
{
    static bool done;
    const char *text = done ? nullptr : getenv("TARN_EMULATION_FAIL");
    unsigned long n;
    int error;

    done = true;
    if (text && sscanf(text, "%lu:%d", &n, &error) == 2)
        emulation_fail_call(n, error);
}

cudaError_t call_enter(const char *name)
{
    if (grid_is_running())
        emulation_die("%s called inside a kernel", name);
    read_environment();
    n_calls++;
    if (device_count() == 0)
        return runtime_failed(cudaErrorNoDevice);
    if (dead_error)
        return runtime_failed((cudaError_t)dead_error);
    if (n_calls == fail_at)
        return runtime_failed((cudaError_t)fail_error);
    if (stream_capture_forbids(name))
        return runtime_failed(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER();
    *n = device_count();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER();
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER();
    if (!is_device(device))
        return runtime_failed(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    ENTER();
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    ENTER();
    (void)device_flags;
    (void)flags;
    return runtime_failed(is_device(device) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    size_t n_free;

    ENTER();
    if (!is_device(device))
        return runtime_failed(cudaErrorInvalidDevice);
    *prop = {};
    snprintf(prop->name, sizeof prop->name, "emulated GPU");
    memory_info(device, &n_free, &prop->totalGlobalMem);
    prop->sharedMemPerBlock = STATIC_SHARED_MAX;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxGridSize[0] = 0x7fffffff;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = compute_capability() / 10;
    prop->minor = compute_capability() % 10;
    prop->multiProcessorCount = N_SMS;
    prop->l2CacheSize = 1 << 20;
    prop->sharedMemPerMultiprocessor = shared_max() + 1024;
    prop->sharedMemPerBlockOptin = shared_max();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    const std::map<int, int> fixed = {
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)STATIC_SHARED_MAX},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrClockRate, 1000000},
        {cudaDevAttrMultiProcessorCount, N_SMS},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrL2CacheSize, 1 << 20},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrComputeCapabilityMajor, compute_capability() / 10},
        {cudaDevAttrComputeCapabilityMinor, compute_capability() % 10},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)shared_max() + 1024},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)shared_max()}};

    ENTER();
    auto at = fixed.find(attr);
    if (!is_device(device) || at == fixed.end())
        return runtime_failed(is_device(device) ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    *value = at->second;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    ENTER();
    memory_info(current_device, n_free, n_total);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    ENTER();
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    LOCK();
    cudaError_t e = dead_error ? (cudaError_t)dead_error : last_error;

    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    LOCK();
    return dead_error ? (cudaError_t)dead_error : last_error;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    ENTER();
    return runtime_failed(memory_export(p, handle));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    ENTER();
    if (flags != cudaIpcMemLazyEnablePeerAccess)
        return runtime_failed(cudaErrorInvalidValue);
    return runtime_failed(memory_import(out, &handle));
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    ENTER();
    streams_finish(); /* as cudaFree() */
    return runtime_failed(memory_return(p) ? cudaSuccess : cudaErrorInvalidValue);
}

static const std::map<int, std::pair<const char *, const char *>> error_words = {
    {cudaSuccess, {"cudaSuccess", "no error"}},
    {cudaErrorInvalidValue, {"cudaErrorInvalidValue", "invalid argument"}},
    {cudaErrorMemoryAllocation, {"cudaErrorMemoryAllocation", "out of memory"}},
    {cudaErrorInvalidConfiguration,
     {"cudaErrorInvalidConfiguration", "invalid configuration argument"}},
    {cudaErrorInsufficientDriver,
     {"cudaErrorInsufficientDriver",
      "CUDA driver version is insufficient for CUDA runtime version"}},
    {cudaErrorNoDevice, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
    {cudaErrorInvalidDevice, {"cudaErrorInvalidDevice", "invalid device ordinal"}},
    {cudaErrorDeviceUninitialized, {"cudaErrorDeviceUninitialized", "invalid device context"}},
    {cudaErrorMapBufferObjectFailed,
     {"cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"}},
    {cudaErrorInvalidResourceHandle,
     {"cudaErrorInvalidResourceHandle", "invalid resource handle"}},
    {cudaErrorNotReady, {"cudaErrorNotReady", "device not ready"}},
    {cudaErrorIllegalAddress,
     {"cudaErrorIllegalAddress", "an illegal memory access was encountered"}},
    {cudaErrorLaunchFailure, {"cudaErrorLaunchFailure", "unspecified launch failure"}},
    {cudaErrorECCUncorrectable,
     {"cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"}},
};

const char *cudaGetErrorName(cudaError_t e)
{
    auto at = error_words.find(e);

    return at == error_words.end() ? "cudaErrorUnknown" : at->second.first;
}

const char *cudaGetErrorString(cudaError_t e)
{
    auto at = error_words.find(e);

    return at == error_words.end() ? "unknown error" : at->second.second;
}

static cudaError_t allocate(void **out, size_t n_bytes, bool on_device)
{
    if (!out)
        return runtime_failed(cudaErrorInvalidValue);
    *out = nullptr;
    if (n_bytes == 0)
        return cudaSuccess;
    *out = memory_alloc(n_bytes, on_device ? current_device : PINNED_MEMORY);
    return runtime_failed(*out ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t emulation_malloc(void **out, size_t n_bytes)
{
    ENTER_AS("cudaMalloc");
    return allocate(out, n_bytes, true);
}

cudaError_t emulation_host_alloc(void **out, size_t n_bytes)
{
    ENTER_AS("cudaHostAlloc");
    return allocate(out, n_bytes, false);
}

cudaError_t cudaFree(void *p)
{
    ENTER();
    if (!p)
        return cudaSuccess;
    streams_finish(); /* the real cudaFree() waits too */
    return runtime_failed(memory_free(p, true) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER();
    if (!p)
        return cudaSuccess;
    streams_finish();
    return runtime_failed(memory_free(p, false) ? cudaSuccess : cudaErrorInvalidValue);
}

static bool batches_are_missing;
static uint64_t n_batches;

void emulation_miss_batches(int miss)
{
    batches_are_missing = miss != 0;
}

uint64_t emulation_batches(void)
{
    return n_batches;
}

/* The kind of memory at [p, p + n_bytes). */
enum where { ON_DEVICE, PINNED, PAGEABLE, OUT_OF_BOUNDS };

static where find_memory(const void *p, size_t n_bytes)
{
    const allocation *a = memory_find(p, n_bytes);

    if (a)
        return a->device == PINNED_MEMORY ? PINNED : ON_DEVICE;
    return memory_find(p, 0) && n_bytes > 0 && memory_find(p, 1) ? OUT_OF_BOUNDS : PAGEABLE;
}

static bool side_fits(where w, bool on_device, enum cudaMemcpyKind kind)
{
    return w != OUT_OF_BOUNDS && (kind == cudaMemcpyDefault || (w == ON_DEVICE) == on_device);
}

/* A real device reaches the memory of another one by way of the host. Nothing here means to do
 * that, so a copy on a stream of another device is a mistake. */
static void check_owner(const void *p, size_t n_bytes, cudaStream_t s)
{
    const allocation *a = memory_find(p, n_bytes);

    if (a && a->device != PINNED_MEMORY && a->device != stream_device(s))
        emulation_die("device %d copies memory of device %d", stream_device(s), a->device);
}

/* --- copies that stand still --- */

static uint32_t n_held_copies;

bool copies_may_be_held(void)
{
    return n_held_copies > 0;
}

/* Say in the file that a copy stands still. */
static void note_held(const char *file)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC); /* not made: it may be gone */

    if (fd < 0)
        return;
    if (write(fd, "1", 1) != 1)
        emulation_die("cannot write to %s", file);
    close(fd);
}

/* Enqueue the copy in two halves; the second one waits while the file exists. */
static void enqueue_held_copy(char *dst, const char *src, size_t n_bytes, cudaStream_t s,
                              const char *file)
{
    size_t n_first = n_bytes / 2;

    n_held_copies++;
    stream_enqueue(s, [dst, src, n_first, file] {
        memmove(dst, src, n_first);
        note_held(file);
    });
    stream_enqueue_when(
        s, [file] { return access(file, F_OK) != 0; },
        [dst, src, n_first, n_bytes] {
            memmove(dst + n_first, src + n_first, n_bytes - n_first);
            n_held_copies--;
        });
}

/* Copy in stream order. As in the real runtime, pageable sources are read during the call, and
 * pageable destinations are complete when it returns. */
static cudaError_t enqueue_copy(void *dst, const void *src, size_t n_bytes,
                                enum cudaMemcpyKind kind, cudaStream_t s, bool *to_pageable)
{
    where to = find_memory(dst, n_bytes), from = find_memory(src, n_bytes);

    *to_pageable = to == PAGEABLE;
    if (n_bytes == 0)
        return cudaSuccess;
    if (!side_fits(to, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, kind) ||
        !side_fits(from, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, kind))
        return runtime_failed(cudaErrorInvalidValue);
    check_owner(dst, n_bytes, s);
    check_owner(src, n_bytes, s);
    const allocation *lent = memory_find(src, n_bytes);
    const char *hold = lent && lent->is_borrowed ? getenv("TARN_EMULATION_HOLD") : nullptr;
    if (hold) {
        enqueue_held_copy(static_cast<char *>(dst), static_cast<const char *>(src), n_bytes, s,
                          hold);
    } else if (from == PAGEABLE) {
        std::string staged(static_cast<const char *>(src), n_bytes);
        stream_enqueue(s, [dst, staged] { memcpy(dst, staged.data(), staged.size()); });
    } else {
        stream_enqueue(s, [dst, src, n_bytes] { memmove(dst, src, n_bytes); });
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    bool to_pageable;

    ENTER();
    cudaError_t e = enqueue_copy(dst, src, n_bytes, kind, s, &to_pageable);
    if (e == cudaSuccess && to_pageable)
        stream_finish(s);
    return e;
}

/* The copies of a batch have no order, so none may touch what another one writes. */
static bool is_dependent(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t n)
{
    auto overlaps = [](const void *a, size_t n_a, const void *b, size_t n_b) {
        const char *x = static_cast<const char *>(a), *y = static_cast<const char *>(b);
        return x < y + n_b && y < x + n_a;
    };

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != j && (overlaps(dsts[i], sizes[i], srcs[j], sizes[j]) ||
                           overlaps(dsts[i], sizes[i], dsts[j], sizes[j])))
                return true;
    return false;
}

/* With one kind of copies: all access their sources in stream order. */
cudaError_t cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs, const size_t *sizes,
                                 size_t n, struct cudaMemcpyAttributes *attrs, size_t *firsts,
                                 size_t n_attrs, cudaStream_t s)
{
    std::vector<size_t> order;
    bool to_pageable;

    ENTER();
    if (n == 0 || n_attrs != 1 || firsts[0] != 0 || !s || s == reinterpret_cast<cudaStream_t>(1) ||
        attrs->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
        return runtime_failed(cudaErrorInvalidValue);
    if (batches_are_missing)
        return runtime_failed(cudaErrorNotSupported);
    if (is_dependent(dsts, srcs, sizes, n))
        emulation_die("cudaMemcpyBatchAsync: a copy depends on another one");
    for (size_t i = 0; i < n; i++)
        order.insert(order.begin() + random_to((uint32_t)i + 1), i);
    for (size_t i : order) {
        cudaError_t e = enqueue_copy(dsts[i], srcs[i], sizes[i], cudaMemcpyDefault, s,
                                     &to_pageable);
        if (e != cudaSuccess)
            return e;
        if (to_pageable)
            emulation_die("cudaMemcpyBatchAsync: pageable memory");
    }
    n_batches++;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind)
{
    bool to_pageable;

    ENTER();
    cudaError_t e = enqueue_copy(dst, src, n_bytes, kind, nullptr, &to_pageable);
    if (e == cudaSuccess)
        stream_finish(nullptr);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t n_bytes, cudaStream_t s)
{
    ENTER();
    if (n_bytes == 0)
        return cudaSuccess;
    if (find_memory(p, n_bytes) != ON_DEVICE && find_memory(p, n_bytes) != PINNED)
        return runtime_failed(cudaErrorInvalidValue);
    stream_enqueue(s, [p, byte, n_bytes] { memory_set(p, byte, n_bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int byte, size_t n_bytes)
{
    return cudaMemsetAsync(p, byte, n_bytes, nullptr);
}

cudaError_t emulation_func_set_attribute(const void *f, enum cudaFuncAttribute attr, int value)
{
    ENTER_AS("cudaFuncSetAttribute");
    loaded_kernels[current_device][f] = true;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || (size_t)value > shared_max())
        return runtime_failed(cudaErrorInvalidValue);
    shared_allowed[current_device][f] = (size_t)value;
    return cudaSuccess;
}

static size_t shared_allowed_to(const void *f)
{
    const std::map<const void *, size_t> &allowed = shared_allowed[current_device];
    auto at = allowed.find(f);

    return at == allowed.end() || at->second < STATIC_SHARED_MAX ? STATIC_SHARED_MAX : at->second;
}

cudaError_t emulation_func_get_attributes(struct cudaFuncAttributes *out, const void *f)
{
    ENTER_AS("cudaFuncGetAttributes");
    loaded_kernels[current_device][f] = true;
    *out = {0, 0, 1024, 64, (int)shared_allowed_to(f)};
    return cudaSuccess;
}

cudaError_t emulation_occupancy(int *n, const void *f, int block, size_t shared_bytes)
{
    ENTER_AS("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    (void)f;
    if (block <= 0 || block > 1024)
        return runtime_failed(cudaErrorInvalidValue);
    *n = 2048 / block;
    while (*n > 0 && shared_bytes * (size_t)*n > shared_max())
        --*n;
    return cudaSuccess;
}

/* A program that sets lazy loading intends to load its kernels before it launches them. */
static bool is_loaded(const void *kernel)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");

    return !loading || strcmp(loading, "LAZY") != 0 ||
           loaded_kernels[current_device].count(kernel) > 0;
}

static thread_local bool launches_early;

static int fast_wgmma = -1; /* -1: as the environment says */

void emulation_make_wgmma_fast(int fast)
{
    fast_wgmma = fast;
}

/* No clock matters: which of two kernels for the same product is the faster one is told here. */
static double seconds_of(const char *name)
{
    bool fast = fast_wgmma < 0 ? env_number("TARN_EMULATION_WGMMA", 0) != 0 : fast_wgmma != 0;

    if (!fast)
        return strstr(name, "wgmma_kernel") ? 1000 : 0;
    return strstr(name, "tile_kernel") || strstr(name, "attn_prefill_kernel") ? 1000 : 0;
}

void emulation_launch_early(bool early)
{
    launches_early = early;
}

void emulation_launch(const char *name, const void *kernel, dim3 grid, dim3 block,
                      size_t shared_bytes, cudaStream_t s, size_t n_argument_bytes,
                      std::function<void()> body)
{
    LOCK();
    bool early = launches_early;

    launches_early = false;
    if (call_enter(name) != cudaSuccess)
        return;
    if (!is_loaded(kernel))
        emulation_die("%s is loaded by its first launch, which allocates in the middle of a step",
                      name);
    if (stream_device(s) != current_device) {
        runtime_failed(cudaErrorInvalidResourceHandle);
        return;
    }
    uint64_t n_threads = (uint64_t)block.x * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || n_threads == 0 || n_threads > 1024 || block.z > 64) {
        runtime_failed(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared_bytes > shared_allowed_to(kernel) || n_argument_bytes > PARAMETER_BYTES_MAX) {
        runtime_failed(cudaErrorInvalidValue);
        return;
    }
    stream_enqueue(s, [=] {
        grid_run(name, kernel, grid, block, shared_bytes, early, body);
        stream_takes(seconds_of(name));
    });
}
