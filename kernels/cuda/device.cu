/* device.cu - the CUDA device: context, memory, streams, events, and the meaning of errors.
 *
 * Everything that a step needs is allocated by open(); a step allocates nothing. The host waits by
 * polling and yielding (cudaDeviceScheduleYield). The engine thread waits once per step, for about
 * a millisecond; an interrupt would add some percent to each token, and spinning without yielding
 * would keep HTTP threads from the core. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/kernel_list.cuh"
#include "kernels/pack.h"

#define COMPUTE_CAPABILITY_MAJOR_MIN 8 /* bf16 on tensor cores, cp.async */
#define ALLOC_BYTES_MIN ((size_t)256)
#define PARTIALS_BYTES_MIN ((size_t)4 << 20)
#define PARTIALS_MEMORY_SHARE 64 /* most of the free memory, as 1 / n */

enum owned_kind { OWNED_MEMORY, OWNED_PINNED, OWNED_EVENT, OWNED_MAPPING };

/* An object to free when the device closes. */
struct owned {
    struct owned *next;
    void *p;
    enum owned_kind kind;
};

struct cuda_device {
    struct cuda_context context; /* first, because the state is a pointer to it */
    pthread_mutex_t lock;        /* protects `owned` and the failure's message */
    struct owned *owned;
};

struct kernel_list cuda_kernel_list;

bool cuda_kernel_list_add(const void *kernel)
{
    ASSERT(cuda_kernel_list.n < KERNELS_MAX);
    cuda_kernel_list.kernels[cuda_kernel_list.n++] = kernel;
    return true;
}

/* The device of the calling thread: a new thread has the first one. */
static __thread uint32_t current_ordinal;

static struct cuda_context *context_of(void *state)
{
    return cuda_context_from(state);
}

static struct cuda_device *device_of(struct cuda_context *c)
{
    return reinterpret_cast<struct cuda_device *>(c);
}

static bool has_failed(const struct cuda_context *c)
{
    return __atomic_load_n(&c->failed, __ATOMIC_ACQUIRE);
}

/* Errors of a call that did nothing and left the context usable: a wrong argument, or too little of
 *         some resource. Any other error, also an unknown one, counts as the end of the context:
 *         otherwise a server with a dead context might run on and answer nothing but errors. */
static bool is_harmless(cudaError_t e)
{
    switch (e) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
        return true;
    default:
        return false;
    }
}

/* The message of the first failure is kept. Returns whether this is the first. */
static bool set_failed(struct cuda_context *c, const char *words)
{
    struct cuda_device *d = device_of(c);

    pthread_mutex_lock(&d->lock);
    bool is_first = !has_failed(c);
    if (is_first) {
        snprintf(c->failure, sizeof(c->failure), "%s", words);
        __atomic_store_n(&c->failed, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&d->lock);
    return is_first;
}

static void mark_failed(struct cuda_context *c, cudaError_t e, const char *what)
{
    char words[sizeof(c->failure)];

    snprintf(words, sizeof(words), "%s: %s (%s)", what, cudaGetErrorName(e),
             cudaGetErrorString(e));
    if (set_failed(c, words))
        log_event(LOG_ERROR, "the GPU failed", "gpu=%u call=\"%s\" error=%s words=\"%s\"",
                  c->config.ordinal, what, cudaGetErrorName(e), cudaGetErrorString(e));
}

void cuda_fail(struct cuda_context *c, const char *words)
{
    if (set_failed(c, words))
        log_event(LOG_ERROR, "the GPU cannot go on", "gpu=%u why=\"%s\"", c->config.ordinal,
                  words);
}

/* Otherwise calls would be about another device. Before select_device() the context has nothing. */
void cuda_make_current(struct cuda_context *c)
{
    if (c->config.ordinal == current_ordinal || c->n_sms == 0)
        return;
    cudaError_t e = cudaSetDevice((int)c->config.ordinal);

    if (e == cudaSuccess) {
        current_ordinal = c->config.ordinal;
        return;
    }
    (void)cudaGetLastError();
    mark_failed(c, e, "cudaSetDevice");
}

enum status cuda_check(struct cuda_context *c, cudaError_t e, const char *what)
{
    if (has_failed(c))
        return ERR_INTERNAL;
    if (e == cudaSuccess)
        return OK;
    (void)cudaGetLastError(); /* otherwise the next launch would report this error */
    if (e == cudaErrorMemoryAllocation)
        return ERR_NOMEM; /* the caller logs the purpose of the memory */
    if (!is_harmless(e))
        mark_failed(c, e, what);
    else
        log_event(LOG_ERROR, "a CUDA call failed", "call=\"%s\" error=%s words=\"%s\"", what,
                  cudaGetErrorName(e), cudaGetErrorString(e));
    return ERR_INTERNAL;
}

enum status cuda_launched(struct cuda_context *c, const char *kernel)
{
    return cuda_check(c, cudaGetLastError(), kernel);
}

/* For failures that the caller cannot handle; cuda_check() has logged them. */
static void check_and_go_on(struct cuda_context *c, cudaError_t e, const char *what)
{
    enum status s = cuda_check(c, e, what);

    (void)s;
}

/* cuda_check() with a message, for open(). */
static enum status check_open(struct cuda_context *c, cudaError_t e, const char *what,
                              struct buf *why)
{
    enum status s = cuda_check(c, e, what);

    if (s != OK)
        buf_why(why, s, "%s failed: %s (%s)", what, cudaGetErrorName(e), cudaGetErrorString(e));
    return s;
}

/* --- memory ---------------------------------------------------------------------------------- */

static cudaError_t release(struct owned *o)
{
    switch (o->kind) {
    case OWNED_MEMORY:
        return cudaFree(o->p);
    case OWNED_PINNED:
        return cudaFreeHost(o->p);
    case OWNED_EVENT:
        return cudaEventDestroy(static_cast<cudaEvent_t>(o->p));
    case OWNED_MAPPING:
        return cudaIpcCloseMemHandle(o->p);
    }
    return cudaErrorInvalidValue;
}

static cudaError_t acquire(struct owned *o, size_t n_bytes)
{
    cudaEvent_t event = NULL;
    cudaError_t e;

    switch (o->kind) {
    case OWNED_MEMORY:
        return cudaMalloc(&o->p, n_bytes);
    case OWNED_PINNED:
        return cudaHostAlloc(&o->p, n_bytes, cudaHostAllocDefault);
    case OWNED_EVENT:
        e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        o->p = event;
        return e;
    case OWNED_MAPPING:
        break; /* cuda_map() */
    }
    return cudaErrorInvalidValue;
}

static void keep(struct cuda_device *d, struct owned *o)
{
    pthread_mutex_lock(&d->lock);
    o->next = d->owned;
    d->owned = o;
    pthread_mutex_unlock(&d->lock);
}

static enum status acquire_owned(struct cuda_context *c, enum owned_kind kind, size_t n_bytes,
                                 const char *what, void **out)
{
    struct cuda_device *d = device_of(c);
    struct owned *o;

    if (has_failed(c))
        return ERR_INTERNAL;
    o = static_cast<struct owned *>(calloc(1, sizeof(*o)));
    if (!o)
        return ERR_NOMEM;
    o->kind = kind;
    enum status s = cuda_check(c, acquire(o, n_bytes), what);
    if (s != OK) {
        free(o);
        return s;
    }
    keep(d, o);
    *out = o->p;
    return OK;
}

/* The caller frees what is returned. */
static struct owned *take_owned(struct cuda_context *c, const void *p)
{
    struct cuda_device *d = device_of(c);
    struct owned **at = &d->owned;

    pthread_mutex_lock(&d->lock);
    while (*at && (*at)->p != p)
        at = &(*at)->next;
    struct owned *o = *at;
    ASSERT(o != NULL); /* not from this device, or already freed */
    *at = o->next;
    pthread_mutex_unlock(&d->lock);
    return o;
}

static void release_owned(struct cuda_context *c, void *p, const char *what)
{
    struct owned *o = take_owned(c, p);

    check_and_go_on(c, release(o), what);
    free(o);
}

static void *cuda_alloc(void *state, size_t n_bytes)
{
    struct cuda_context *c = context_of(state);
    cudaStream_t compute = c->streams[DEVICE_COMPUTE];
    size_t n = n_bytes > ALLOC_BYTES_MIN ? n_bytes : ALLOC_BYTES_MIN;
    void *p = NULL;

    if (n > SIZE_MAX / 2 || acquire_owned(c, OWNED_MEMORY, n, "cudaMalloc", &p) != OK)
        return NULL;
    enum status s = cuda_check(c, cudaMemsetAsync(p, 0, n, compute), "cudaMemsetAsync");
    /* Wait, because the next use may be on another stream. */
    if (s == OK)
        s = cuda_check(c, cudaStreamSynchronize(compute), "cudaStreamSynchronize");
    if (s != OK) {
        release_owned(c, p, "cudaFree");
        return NULL;
    }
    return p;
}

static void cuda_free(void *state, void *p)
{
    release_owned(context_of(state), p, "cudaFree");
}

static void *cuda_alloc_pinned(void *state, size_t n_bytes)
{
    void *p = NULL;
    size_t n = n_bytes > ALLOC_BYTES_MIN ? n_bytes : ALLOC_BYTES_MIN;

    if (n > SIZE_MAX / 2 ||
        acquire_owned(context_of(state), OWNED_PINNED, n, "cudaHostAlloc", &p) != OK)
        return NULL;
    return p;
}

static void cuda_free_pinned(void *state, void *p)
{
    release_owned(context_of(state), p, "cudaFreeHost");
}

static enum status cuda_memory(void *state, size_t *n_free, size_t *n_total)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    return cuda_check(c, cudaMemGetInfo(n_free, n_total), "cudaMemGetInfo");
}

/* --- memory of other processes --------------------------------------------------------------- */

static_assert(sizeof(cudaIpcMemHandle_t) == DEVICE_HANDLE_BYTES, "a handle");

/* Whether a call refused to share memory. Machines, containers and pairs of GPUs refuse with many
 * errors, so the context itself is asked whether it still works, by a stream that is never
 * recorded. */
static enum status refused(struct cuda_context *c, cudaError_t e, const char *what)
{
    cudaError_t health;

    (void)cudaGetLastError();
    health = cudaStreamQuery(c->streams[DEVICE_COPY_PEER]);
    if (health != cudaSuccess && health != cudaErrorNotReady)
        return cuda_check(c, health, what);
    (void)cudaGetLastError();
    log_event(LOG_WARN, "GPU memory is not shared with another process", "call=\"%s\" error=%s "
              "words=\"%s\"", what, cudaGetErrorName(e), cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_UNSUPPORTED;
}

static enum status cuda_export(void *state, void *p, uint8_t handle[DEVICE_HANDLE_BYTES])
{
    struct cuda_context *c = context_of(state);
    cudaIpcMemHandle_t h;

    if (has_failed(c))
        return ERR_INTERNAL;
    cudaError_t e = cudaIpcGetMemHandle(&h, p);
    if (e != cudaSuccess)
        return refused(c, e, "cudaIpcGetMemHandle");
    memcpy(handle, &h, sizeof(h));
    return OK;
}

static enum status cuda_map(void *state, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out)
{
    struct cuda_context *c = context_of(state);
    cudaIpcMemHandle_t h;

    if (has_failed(c))
        return ERR_INTERNAL;
    struct owned *o = static_cast<struct owned *>(calloc(1, sizeof(*o)));
    if (!o)
        return ERR_NOMEM;
    o->kind = OWNED_MAPPING;
    memcpy(&h, handle, sizeof(h));
    cudaError_t e = cudaIpcOpenMemHandle(&o->p, h, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) {
        free(o);
        return refused(c, e, "cudaIpcOpenMemHandle");
    }
    keep(device_of(c), o);
    *out = o->p;
    return OK;
}

/* The owner of the memory may have ended: whatever the driver says about that is not the end of
 * this context. */
static void cuda_unmap(void *state, void *p)
{
    struct cuda_context *c = context_of(state);
    struct owned *o = take_owned(c, p);
    cudaError_t e = release(o);
    enum status s = e == cudaSuccess ? OK : refused(c, e, "cudaIpcCloseMemHandle");

    (void)s; /* refused() has logged it */
    free(o);
}

/* --- open and close -------------------------------------------------------------------------- */

static enum status no_driver(struct buf *why)
{
    int driver = 0, runtime = 0; /* driver: 0 if there is none */

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaGetLastError();
    if (driver == 0)
        return buf_why(why, ERR_UNSUPPORTED, "no NVIDIA driver is installed: install one for CUDA "
                       "%d.%d or newer, or use the CPU", runtime / 1000, runtime % 1000 / 10);
    return buf_why(why, ERR_UNSUPPORTED, "the NVIDIA driver supports CUDA %d.%d, this build needs "
                   "%d.%d: update the driver, or use the CPU", driver / 1000,
                   driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

/* Check for a device and for a recent driver. The runtime compares the versions, because some older
 * drivers run a newer minor version. */
static enum status find_device(struct cuda_context *c, struct buf *why)
{
    int n = 0;
    /* Must come before the first CUDA call; a setting of the user's has precedence. load_kernels()
     * loads the kernels of the program. */
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    cudaError_t e = cudaGetDeviceCount(&n);

    if (e == cudaErrorInsufficientDriver)
        return no_driver(why);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0)) {
        (void)cudaGetLastError();
        return buf_why(why, ERR_UNSUPPORTED, "no GPU is visible: see what nvidia-smi lists and "
                       "what CUDA_VISIBLE_DEVICES allows, or use the CPU");
    }
    enum status s = check_open(c, e, "cudaGetDeviceCount", why);
    if (s == OK && c->config.ordinal >= (uint32_t)n)
        return buf_why(why, ERR_UNSUPPORTED, "GPU number %u is wanted, and %d are visible: see "
                       "what nvidia-smi lists and what CUDA_VISIBLE_DEVICES allows",
                       c->config.ordinal + 1, n);
    return s;
}

/* Ordinals count the devices that CUDA_VISIBLE_DEVICES names. */
static enum status select_device(struct cuda_context *c, struct buf *why)
{
    struct cudaDeviceProp p;
    int ordinal = (int)c->config.ordinal;
    enum status s = check_open(c, cudaGetDeviceProperties(&p, ordinal), "cudaGetDeviceProperties",
                               why);

    if (s != OK)
        return s;
    if (p.major < COMPUTE_CAPABILITY_MAJOR_MIN)
        return buf_why(why, ERR_UNSUPPORTED, "%s has compute capability %d.%d, Tarn needs %d.0 "
                       "(Ampere) or newer: name another GPU in CUDA_VISIBLE_DEVICES, or use the "
                       "CPU", p.name, p.major, p.minor, COMPUTE_CAPABILITY_MAJOR_MIN);
    c->major = p.major;
    c->minor = p.minor;
    cuda_ops_init(c);
    c->n_sms = p.multiProcessorCount;
    c->shared_max = p.sharedMemPerBlockOptin;
    cuda_make_current(c); /* the flags are those of this thread's device */
    s = check_open(c, cudaSetDeviceFlags(cudaDeviceScheduleYield), "cudaSetDeviceFlags", why);
    if (s == OK) /* creates the context */
        s = check_open(c, cudaSetDevice(ordinal), "cudaSetDevice", why);
    if (s == OK)
        log_event(LOG_INFO, "GPU", "name=\"%s\" compute_capability=%d.%d multiprocessors=%d "
                  "memory_mib=%zu", p.name, p.major, p.minor, c->n_sms, p.totalGlobalMem >> 20);
    return s;
}

/* Load every kernel now, because a kernel's first launch would allocate in the middle of a step.
 * Asking for a kernel's attributes loads it (CUDA Programming Guide, "Lazy Loading"). */
static enum status load_kernels(struct cuda_context *c, struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; i < cuda_kernel_list.n && s == OK; i++) {
        struct cudaFuncAttributes attributes;

        s = check_open(c, cudaFuncGetAttributes(&attributes, cuda_kernel_list.kernels[i]),
                       "cudaFuncGetAttributes", why);
    }
    return s;
}

static enum status make_streams(struct cuda_context *c, struct buf *why)
{
    enum status s = OK;

    for (int i = 0; i < DEVICE_STREAM_COUNT && s == OK; i++)
        s = check_open(c, cudaStreamCreateWithFlags(&c->streams[i], cudaStreamNonBlocking),
                       "cudaStreamCreateWithFlags", why);
    return s;
}

static enum status make_cublas(struct cuda_context *c, struct buf *why)
{
    cublasStatus_t e = cublasLtCreate(&c->cublas);

    if (e != CUBLAS_STATUS_SUCCESS) {
        c->cublas = NULL;
        return buf_why(why, e == CUBLAS_STATUS_ALLOC_FAILED ? ERR_NOMEM : ERR_INTERNAL,
                       "cublasLtCreate failed: %s", cublasLtGetStatusString(e));
    }
    enum status s = gemm_prepare(c);
    if (s == OK)
        s = gemm_plans_create(c);
    return s == OK ? OK : buf_why(why, s, "the matrix products could not be prepared");
}

static enum status alloc_scratch(struct cuda_context *c, void **out, size_t n_bytes,
                                 const char *words, struct buf *why)
{
    *out = cuda_alloc(c, n_bytes);
    if (*out)
        return OK;
    if (has_failed(c))
        return buf_why(why, ERR_INTERNAL, "%s", c->failure);
    return buf_why(why, ERR_NOMEM, "no %zu bytes of GPU memory for %s", n_bytes, words);
}

static size_t partials_bytes(size_t n_free)
{
    size_t n = n_free / PARTIALS_MEMORY_SHARE;

    n = n < PARTIALS_BYTES_MIN ? PARTIALS_BYTES_MIN : n;
    return n < PARTIALS_BYTES_MAX ? n : PARTIALS_BYTES_MAX;
}

static enum status make_scratch(struct cuda_context *c, struct buf *why)
{
    const struct device_config *g = &c->config;
    size_t act = (size_t)g->max_rows * pack_row_stride(g->max_k) * sizeof(uint16_t);
    size_t segment = (size_t)g->max_heads * (g->max_head_dim + 2) * sizeof(float);
    size_t n_free = 0, n_total = 0;
    enum status s = check_open(c, cudaMemGetInfo(&n_free, &n_total), "cudaMemGetInfo", why);

    if (s != OK)
        return s;
    c->n_partial_segs = segment ? partials_bytes(n_free) / segment : 0;
    s = alloc_scratch(c, &c->workspace, CUBLAS_WORKSPACE_BYTES, "matrix products", why);
    if (s == OK)
        s = alloc_scratch(c, reinterpret_cast<void **>(&c->act), act, "activations", why);
    if (s == OK)
        s = alloc_scratch(c, reinterpret_cast<void **>(&c->partials), c->n_partial_segs * segment,
                          "partial attention", why);
    if (s == OK)
        s = alloc_scratch(c, reinterpret_cast<void **>(&c->n_routed), sizeof(*c->n_routed),
                          "routers", why);
    return s;
}

/* Wait for work under way and free everything, also after a partial open(). After a failure these
 * calls fail too, which was logged before. */
static void cuda_close(void *state)
{
    struct cuda_context *c = context_of(state);
    struct cuda_device *d = device_of(c);

    for (int i = 0; i < DEVICE_STREAM_COUNT; i++)
        if (c->streams[i])
            check_and_go_on(c, cudaStreamSynchronize(c->streams[i]), "cudaStreamSynchronize");
    collective_destroy(c);
    gemm_plans_destroy(c);
    if (c->arranged)
        check_and_go_on(c, cudaFree(c->arranged), "cudaFree");
    if (c->cublas) {
        cublasStatus_t e = cublasLtDestroy(c->cublas);

        if (e != CUBLAS_STATUS_SUCCESS && !has_failed(c))
            log_event(LOG_ERROR, "a CUDA call failed", "call=cublasLtDestroy words=\"%s\"",
                      cublasLtGetStatusString(e));
    }
    while (d->owned) {
        struct owned *o = d->owned;

        d->owned = o->next;
        check_and_go_on(c, release(o), "giving memory and events back");
        free(o);
    }
    for (int i = 0; i < DEVICE_STREAM_COUNT; i++)
        if (c->streams[i])
            check_and_go_on(c, cudaStreamDestroy(c->streams[i]), "cudaStreamDestroy");
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static enum status cuda_open(void **state, const struct device_config *config, struct buf *why)
{
    struct cuda_device *d = static_cast<struct cuda_device *>(calloc(1, sizeof(*d)));

    if (!d)
        return buf_why(why, ERR_NOMEM, "out of memory for a device");
    struct cuda_context *c = &d->context;
    c->config = *config;
    pthread_mutex_init(&d->lock, NULL);
    enum status s = find_device(c, why);
    if (s == OK)
        s = select_device(c, why);
    if (s == OK)
        s = load_kernels(c, why);
    if (s == OK)
        s = make_streams(c, why);
    if (s == OK)
        s = make_scratch(c, why);
    if (s == OK)
        s = make_cublas(c, why);
    if (s == OK)
        s = gemm_choose(c, why);
    if (s == OK)
        s = attn_choose(c, why);
    if (s != OK) {
        cuda_close(c);
        return s;
    }
    cuda_ops_init(c); /* again, as the name has the choice */
    *state = c;
    return OK;
}

static const struct ops *cuda_ops_of(const void *state)
{
    return &static_cast<const struct cuda_context *>(state)->ops;
}

static const char *cuda_failure(const void *state)
{
    const struct cuda_context *c = static_cast<const struct cuda_context *>(state);

    return has_failed(c) ? c->failure : NULL;
}

/* --- streams and events ---------------------------------------------------------------------- */

static struct stream *cuda_stream(void *state, enum device_stream which)
{
    ASSERT(which >= 0 && which < DEVICE_STREAM_COUNT);
    return reinterpret_cast<struct stream *>(context_of(state)->streams[which]);
}

static enum status copy(struct cuda_context *c, struct stream *s, void *dst, const void *src,
                        size_t n_bytes, enum cudaMemcpyKind kind)
{
    if (has_failed(c))
        return ERR_INTERNAL;
    if (n_bytes == 0)
        return OK;
    return cuda_check(c, cudaMemcpyAsync(dst, src, n_bytes, kind, cuda_stream_of(c, s)),
                      "cudaMemcpyAsync");
}

static enum status cuda_upload(void *state, struct stream *s, void *dst, const void *src,
                               size_t n_bytes)
{
    return copy(context_of(state), s, dst, src, n_bytes, cudaMemcpyHostToDevice);
}

static enum status cuda_download(void *state, struct stream *s, void *dst, const void *src,
                                 size_t n_bytes)
{
    return copy(context_of(state), s, dst, src, n_bytes, cudaMemcpyDeviceToHost);
}

#if CUDART_VERSION >= 13000
/* ERR_UNSUPPORTED: the driver has no such call. */
static enum status copy_batch(struct cuda_context *c, cudaStream_t s, void *const *to,
                              const void *const *from, uint32_t n, size_t n_bytes)
{
    struct cudaMemcpyAttributes attributes = {};
    size_t sizes[DEVICE_COPIES_MAX], first = 0;

    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    for (uint32_t i = 0; i < n; i++)
        sizes[i] = n_bytes;
    cudaError_t e = cudaMemcpyBatchAsync(to, from, sizes, n, &attributes, &first, 1, s);
    if (e != cudaErrorNotSupported)
        return cuda_check(c, e, "cudaMemcpyBatchAsync");
    (void)cudaGetLastError();
    return ERR_UNSUPPORTED;
}
#else /* the call came with CUDA 12.8, with other parameters */
static enum status copy_batch(struct cuda_context *, cudaStream_t, void *const *,
                              const void *const *, uint32_t, size_t)
{
    return ERR_UNSUPPORTED;
}
#endif

static enum status cuda_copies(void *state, struct stream *s, void *const *to,
                               const void *const *from, uint32_t n, size_t n_bytes)
{
    struct cuda_context *c = context_of(state);
    enum status status = ERR_UNSUPPORTED;

    if (has_failed(c))
        return ERR_INTERNAL;
    if (n > 1 && n_bytes > 0)
        status = copy_batch(c, cuda_stream_of(c, s), to, from, n, n_bytes);
    if (status != ERR_UNSUPPORTED)
        return status;
    status = OK;
    for (uint32_t i = 0; status == OK && i < n; i++)
        status = copy(c, s, to[i], from[i], n_bytes, cudaMemcpyDefault);
    return status;
}

static enum status cuda_crc32c(void *state, struct stream *s, const void *const *pieces,
                               uint32_t n, size_t n_bytes, uint32_t *sums)
{
    struct cuda_context *c = context_of(state);

    return has_failed(c) ? ERR_INTERNAL : cuda_sums(c, s, pieces, n, n_bytes, sums);
}

static enum status cuda_stream_wait(void *state, struct stream *s)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    return cuda_check(c, cudaStreamSynchronize(cuda_stream_of(c, s)), "cudaStreamSynchronize");
}

/* A device_event is a cudaEvent_t. */
static cudaEvent_t event_of(struct device_event *e)
{
    return reinterpret_cast<cudaEvent_t>(e);
}

static enum status cuda_event_create(void *state, struct device_event **out)
{
    void *p = NULL;
    enum status s = acquire_owned(context_of(state), OWNED_EVENT, 0, "cudaEventCreateWithFlags",
                                  &p);

    if (s == OK)
        *out = static_cast<struct device_event *>(p);
    return s;
}

static void cuda_event_destroy(void *state, struct device_event *e)
{
    release_owned(context_of(state), e, "cudaEventDestroy");
}

static enum status cuda_event_record(void *state, struct device_event *e, struct stream *s)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    return cuda_check(c, cudaEventRecord(event_of(e), cuda_stream_of(c, s)), "cudaEventRecord");
}

static enum status cuda_event_order(void *state, struct device_event *e, struct stream *s)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    return cuda_check(c, cudaStreamWaitEvent(cuda_stream_of(c, s), event_of(e), 0),
                      "cudaStreamWaitEvent");
}

static enum status cuda_event_query(void *state, struct device_event *e, bool *done)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    cudaError_t answer = cudaEventQuery(event_of(e));
    *done = answer == cudaSuccess;
    if (answer == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* the runtime records "not ready" as an error */
        return OK;
    }
    return cuda_check(c, answer, "cudaEventQuery");
}

static enum status cuda_event_wait(void *state, struct device_event *e)
{
    struct cuda_context *c = context_of(state);

    if (has_failed(c))
        return ERR_INTERNAL;
    return cuda_check(c, cudaEventSynchronize(event_of(e)), "cudaEventSynchronize");
}

const struct device_backend tarn_cuda_backend = {
    cuda_open,          cuda_close,        cuda_ops_of,        cuda_failure,
    cuda_memory,        cuda_alloc,        cuda_free,          cuda_alloc_pinned,
    cuda_free_pinned,   cuda_stream,       cuda_upload,        cuda_download,
    cuda_stream_wait,   cuda_event_create, cuda_event_destroy, cuda_event_record,
    cuda_event_order,   cuda_event_query,  cuda_event_wait,    cuda_graph_begin,
    cuda_graph_end,     cuda_graph_launch, cuda_graph_destroy, cuda_tune,
    cuda_copies,        cuda_crc32c,       cuda_export,        cuda_map,
    cuda_unmap,         cuda_connect,      cuda_end_group,     cuda_all_gather,
};
