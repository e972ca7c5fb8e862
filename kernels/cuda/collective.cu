/* collective.cu - collectives of the GPUs that compute one model together: the only user of NCCL.
 *
 * Problem: a sum over the GPUs must not depend on the batch (promise P1). NCCL's all-reduce
 * promises no order of its sums: it chooses rings or trees, and cuts them, by the number of
 * elements.
 *
 * Choice: NCCL only moves bytes. Each GPU gathers the parts of all, in pieces of PIECE_FLOATS, and
 * a kernel of ours adds them in the order of the ranks. So every GPU computes the same bits, and an
 * element's sum depends on its own parts alone. With two GPUs this moves as many bytes as an
 * all-reduce; with n GPUs n / 2 times as many.
 *
 * Failure: NCCL's kernel on one GPU waits for those on the others. The caller gives each GPU every
 * collective, and a launcher that cannot enqueue its part ends the whole group instead. The lock
 * keeps a communicator alive while a rank thread is inside of NCCL.
 *
 * Such a thread must come out again, or nobody could end the group. A launch waits where the
 * stream's queue, of about a thousand launches, is full, and behind a GPU that has failed it stays
 * full. So a thread is fewer than (N_MARKS + 1) * MARK_EVERY collectives ahead of its GPU, and
 * waits for the GPU outside of the lock, where it sees the end of the group. Pieces of each power
 * of two are gathered once when the group begins, because NCCL connects GPUs for an algorithm at
 * its first use, and chooses algorithms by size.
 *
 * Rejected: communicators that do not block (ncclConfig_t.blocking = 0). NCCL then creates a thread
 * for each collective (ncclGroupEndInternal() in its group.cc), and a step of 32 layers has 65. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef TARN_NCCL
#include <nccl.h>
#endif

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"

#define THREADS 256
#define N_PER_SM 4
/* Floats of each GPU in a piece: over NVLink 4 MB take longer than a launch, and eight parts of
 * them are little memory. */
#define PIECE_FLOATS ((size_t)1 << 20)
#define FIRST_FLOATS ((size_t)1 << 10) /* NCCL moves few bytes by other algorithms than many */
/* Between two collectives are up to 12 launches (a mixture of experts), and NCCL's own. */
#define MARK_EVERY 8u
#define N_MARKS 5u
/* A thread that stays inside of NCCL for so long, although its GPU's queue has room, stays. */
#define LOCK_WAIT_S 5

#ifdef TARN_NCCL

struct collective {
    pthread_mutex_t lock; /* protects comm */
    ncclComm_t comm;      /* NULL: the group has ended */
    uint32_t rank, n_ranks;
    uint64_t n_begun;            /* collectives that were enqueued */
    cudaEvent_t marks[N_MARKS];  /* each behind one of MARK_EVERY collectives, in turns */
    float *gathered; /* [n_ranks][PIECE_FLOATS], rank after rank of a piece */
    struct cuda_context *members[DEVICE_GROUP_MAX]; /* [n_ranks] */
};

/* x[i] = ((part 0 + part 1) + part 2) + ... */
static __global__ void __launch_bounds__(THREADS) sum_parts_kernel(float *x, const float *parts,
                                                                   size_t n, uint32_t n_ranks)
{
    size_t step = (size_t)gridDim.x * THREADS;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float sum = parts[i];

        for (uint32_t r = 1; r < n_ranks; r++)
            sum += parts[r * n + i];
        x[i] = sum;
    }
}

/* out[t][r * n_cols + c] = part r [t][c]; out has the first of n_rows rows. */
static __global__ void __launch_bounds__(THREADS) join_parts_kernel(float *out, const float *parts,
                                                                    uint32_t n_rows,
                                                                    uint32_t n_cols,
                                                                    uint32_t n_ranks)
{
    size_t step = (size_t)gridDim.x * THREADS, n = (size_t)n_rows * n_cols;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n * n_ranks; i += step) {
        uint32_t rank = (uint32_t)(i / n);
        size_t at = i % n, row = at / n_cols;

        out[(row * n_ranks + rank) * n_cols + at % n_cols] = parts[i];
    }
}

static uint32_t n_blocks_for(const struct cuda_context *c, size_t n)
{
    size_t n_most = (size_t)c->n_sms * N_PER_SM, n_blocks = (n + THREADS - 1) / THREADS;

    return (uint32_t)(n_blocks < n_most ? n_blocks : n_most);
}

/* End the group of g, whose collectives cannot go on. */
static void end_group(struct collective *g, const char *words)
{
    for (uint32_t i = 0; i < g->n_ranks; i++)
        cuda_end_group(g->members[i], words);
}

/* Take the lock. Where the thread that has it does not come back from NCCL, threads wait for each
 * other for ever, so the process ends, as it would a little later: the group has failed. */
static void lock_or_end(struct collective *g)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOCK_WAIT_S;
    if (pthread_mutex_timedlock(&g->lock, &until) == 0)
        return;
    log_event(LOG_ERROR, "a GPU failed, and NCCL does not let go of another one: the process ends",
              "rank=%u seconds=%d", g->rank, LOCK_WAIT_S);
    log_flush(true);
    _exit(1);
}

void cuda_end_group(void *state, const char *words)
{
    struct cuda_context *c = static_cast<struct cuda_context *>(state);
    struct collective *g = c->collective;

    cuda_fail(c, words);
    if (!g)
        return;
    lock_or_end(g);
    ncclComm_t comm = g->comm;
    g->comm = NULL;
    pthread_mutex_unlock(&g->lock);
    if (comm)
        (void)ncclCommAbort(comm); /* the group has failed anyway */
}

/* Wait until the GPU is not too far behind, or has failed, as all do when the group ends. */
static enum status wait_for_gpu(struct cuda_context *c)
{
    const struct collective *g = c->collective;

    if (g->n_begun % MARK_EVERY != 0 || g->n_begun < MARK_EVERY * N_MARKS)
        return OK;
    while (!__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE)) {
        cudaError_t e = cudaEventQuery(g->marks[g->n_begun / MARK_EVERY % N_MARKS]);

        if (e != cudaErrorNotReady)
            return cuda_check(c, e, "cudaEventQuery");
        (void)cudaGetLastError(); /* the runtime records "not ready" as an error */
        sched_yield();
    }
    return ERR_INTERNAL;
}

/* Enqueue a collective of n floats of each GPU, and a mark behind one of MARK_EVERY. */
static ncclResult_t gather(struct cuda_context *c, cudaStream_t stream, const float *x, size_t n)
{
    struct collective *g = c->collective;
    ncclResult_t e = ncclInvalidUsage;

    if (wait_for_gpu(c) != OK)
        return ncclUnhandledCudaError;
    pthread_mutex_lock(&g->lock);
    if (g->comm)
        e = ncclAllGather(x, g->gathered, n, ncclFloat, g->comm, stream);
    pthread_mutex_unlock(&g->lock);
    if (e == ncclSuccess && g->n_begun % MARK_EVERY == 0 &&
        cudaEventRecord(g->marks[g->n_begun / MARK_EVERY % N_MARKS], stream) != cudaSuccess)
        e = ncclUnhandledCudaError;
    g->n_begun++;
    return e;
}

/* Enqueue the gathering of n floats of each GPU. A failure is the end of the group. */
static enum status gather_parts(struct cuda_context *c, cudaStream_t stream, const float *x,
                                size_t n)
{
    ncclResult_t e = gather(c, stream, x, n);
    char words[128];

    if (e == ncclSuccess)
        return OK;
    snprintf(words, sizeof(words), "ncclAllGather on GPU %u: %s", c->config.ordinal,
             ncclGetErrorString(e));
    end_group(c->collective, words);
    return ERR_INTERNAL;
}

/* A piece whose kernel cannot be launched fails the op; the pieces behind it are gathered all the
 * same, since the other GPUs wait for them. */
static enum status cuda_all_reduce(struct device *d, struct stream *s,
                                   const struct all_reduce_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    const struct collective *g = c->collective;
    cudaStream_t stream = cuda_stream_of(c, s);
    enum status status = OK;

    for (size_t at = 0; at < p->n; at += PIECE_FLOATS) {
        size_t n = p->n - at < PIECE_FLOATS ? p->n - at : PIECE_FLOATS;

        if (gather_parts(c, stream, p->x + at, n) != OK)
            return ERR_INTERNAL;
        LAUNCH(sum_parts_kernel, n_blocks_for(c, n), THREADS, 0, stream, p->x + at, g->gathered, n,
               g->n_ranks);
        enum status launched = cuda_launched(c, "sum_parts");
        status = status == OK ? launched : status;
    }
    return status;
}

/* A piece has whole rows. */
enum status cuda_all_gather(void *state, struct stream *s, const struct all_gather_params *p)
{
    struct cuda_context *c = cuda_context_from(state);
    const struct collective *g = c->collective;
    cudaStream_t stream = cuda_stream_of(c, s);
    uint32_t n_most = p->n_cols ? (uint32_t)(PIECE_FLOATS / p->n_cols) : 0;
    enum status status = OK;

    ASSERT(n_most > 0 || p->n_rows == 0 || p->n_cols == 0);
    for (uint32_t row = 0; n_most > 0 && row < p->n_rows; row += n_most) {
        uint32_t n_rows = p->n_rows - row < n_most ? p->n_rows - row : n_most;
        size_t n = (size_t)n_rows * p->n_cols;

        if (gather_parts(c, stream, p->x + (size_t)row * p->n_cols, n) != OK)
            return ERR_INTERNAL;
        if (!p->out)
            continue;
        LAUNCH(join_parts_kernel, n_blocks_for(c, n * g->n_ranks), THREADS, 0, stream,
               p->out + (size_t)row * p->n_cols * g->n_ranks, g->gathered, n_rows, p->n_cols,
               g->n_ranks);
        enum status launched = cuda_launched(c, "join_parts");
        status = status == OK ? launched : status;
    }
    return status;
}

/* Prepare the context for rank `rank` of n. */
static enum status prepare_rank(struct cuda_context *const *members, uint32_t n, uint32_t rank,
                                struct buf *why)
{
    struct cuda_context *c = members[rank];
    struct collective *g = static_cast<struct collective *>(calloc(1, sizeof(*g)));

    if (!g)
        return buf_why(why, ERR_NOMEM, "out of memory for a group of GPUs");
    pthread_mutex_init(&g->lock, NULL);
    g->rank = rank;
    g->n_ranks = n;
    for (uint32_t i = 0; i < n; i++)
        g->members[i] = members[i];
    c->collective = g;
    cuda_make_current(c);
    for (cudaEvent_t &mark : g->marks)
        if (cudaEventCreateWithFlags(&mark, cudaEventDisableTiming) != cudaSuccess)
            return buf_why(why, ERR_NOMEM, "no events on GPU %u for collectives",
                           c->config.ordinal);
    g->gathered = static_cast<float *>(
        tarn_cuda_backend.alloc(c, n * PIECE_FLOATS * sizeof(float)));
    return g->gathered ? OK : buf_why(why, ERR_NOMEM, "no %zu bytes of memory on GPU %u for "
                                      "collectives", n * PIECE_FLOATS * sizeof(float),
                                      c->config.ordinal);
}

/* Run a first collective of n_floats on all devices from this thread: NCCL connects them now, and
 * not in a step, where each has a thread of its own. */
static enum status run_first(struct cuda_context *const *members, uint32_t n, size_t n_floats)
{
    ncclResult_t e = ncclGroupStart();
    enum status status = OK;

    for (uint32_t i = 0; i < n && e == ncclSuccess; i++) {
        struct collective *g = members[i]->collective;

        cuda_make_current(members[i]);
        e = ncclAllGather(g->gathered + i * n_floats, g->gathered, n_floats, ncclFloat, g->comm,
                          members[i]->streams[DEVICE_COMPUTE]); /* in place */
    }
    ncclResult_t ended = ncclGroupEnd();
    if (e != ncclSuccess || ended != ncclSuccess)
        return ERR_INTERNAL;
    for (uint32_t i = 0; i < n && status == OK; i++) {
        cuda_make_current(members[i]);
        status = cuda_check(members[i], cudaStreamSynchronize(members[i]->streams[DEVICE_COMPUTE]),
                            "cudaStreamSynchronize");
    }
    return status;
}

enum status cuda_connect(void *const *states, uint32_t n, struct buf *why)
{
    struct cuda_context *members[DEVICE_GROUP_MAX];
    int ordinals[DEVICE_GROUP_MAX] = {0};
    ncclComm_t comms[DEVICE_GROUP_MAX] = {NULL};
    enum status status = OK;

    for (uint32_t i = 0; i < n; i++) {
        members[i] = static_cast<struct cuda_context *>(states[i]);
        ordinals[i] = (int)members[i]->config.ordinal;
    }
    for (uint32_t i = 0; i < n && status == OK; i++)
        status = prepare_rank(members, n, i, why);
    if (status != OK)
        return status;
    ncclResult_t e = ncclCommInitAll(comms, (int)n, ordinals);
    if (e != ncclSuccess)
        return buf_why(why, ERR_UNSUPPORTED, "NCCL cannot connect the %u GPUs: %s", n,
                       ncclGetErrorString(e));
    for (uint32_t i = 0; i < n; i++)
        members[i]->collective->comm = comms[i];
    for (size_t n_floats = FIRST_FLOATS; status == OK && n_floats <= PIECE_FLOATS; n_floats *= 2)
        status = run_first(members, n, n_floats);
    if (status != OK) {
        end_group(members[0]->collective, "the first collective of the group failed");
        return buf_why(why, status, "NCCL connected the %u GPUs, and their first collective failed",
                       n);
    }
    for (uint32_t i = 0; i < n; i++)
        members[i]->ops.all_reduce = cuda_all_reduce;
    return OK;
}

/* The memory is the context's, which frees it. */
void collective_destroy(struct cuda_context *c)
{
    struct collective *g = c->collective;

    if (!g)
        return;
    c->collective = NULL;
    cuda_make_current(c);
    if (g->comm)
        (void)ncclCommDestroy(g->comm); /* nobody can do anything about an error */
    for (cudaEvent_t mark : g->marks)
        if (mark)
            (void)cudaEventDestroy(mark);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

#else /* without NCCL there are no groups */

enum status cuda_connect(void *const *states, uint32_t n, struct buf *why)
{
    (void)states;
    return buf_why(why, ERR_UNSUPPORTED, "this build has no NCCL, which connects the %u GPUs: "
                   "install libnccl-dev and build again", n);
}

void cuda_end_group(void *state, const char *words)
{
    cuda_fail(static_cast<struct cuda_context *>(state), words);
}

enum status cuda_all_gather(void *state, struct stream *s, const struct all_gather_params *p)
{
    (void)state;
    (void)s;
    (void)p;
    return ERR_UNSUPPORTED;
}

void collective_destroy(struct cuda_context *c)
{
    (void)c;
}

#endif
