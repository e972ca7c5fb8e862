/* device.c - open a backend, and pass its calls on; a host device answers them here. */
#include "kernels/device.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/backend.h"
#include "kernels/cpu/choice.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/device_host.h"
#include "kernels/ref/ref.h"

#define THREADS_MAX 1024
/* A synchronous copy goes through two pinned pieces of this size: while one is on its way the host
 * fills or empties the other. Large enough that a piece takes far longer than its launch. */
#define STAGING_BYTES ((size_t)4 << 20)

struct staging {
    unsigned char *memory;     /* pinned, STAGING_BYTES */
    struct device_event *done; /* its copy */
};

struct device {
    const struct ops *ops;
    struct cpu cpu; /* a GPU has only its pool, the reference nothing */
    struct host_memory host;
    atomic_bool placing_failed;           /* device_place() has said so */
    const struct device_backend *backend; /* NULL: a host device */
    void *state;                          /* the backend's */
    struct staging staging[2];
};

struct cpu *device_cpu(struct device *d)
{
    return &d->cpu;
}

void *device_backend_state(struct device *d)
{
    return d->state;
}

static uint32_t usable_cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

/* Return the variant of that name, or the first one for NULL. NULL, with words in `why`, if this
 * machine does not have it. */
static const struct cpu_variant *find_variant(const char *name, struct buf *why)
{
    uint32_t n;
    const struct cpu_variant *all = cpu_variants(&n);
    char list[64] = "";

    for (uint32_t i = 0; i < n; i++) {
        if (!all[i].supported())
            continue;
        if (!name || strcmp(name, all[i].name) == 0)
            return &all[i];
        if (list[0])
            strncat(list, ", ", sizeof(list) - strlen(list) - 1);
        strncat(list, all[i].name, sizeof(list) - strlen(list) - 1);
    }
    buf_why(why, ERR_UNSUPPORTED, "CPU variant '%s' is not available here; available: %s", name,
            list);
    return NULL;
}

static enum status count_threads(uint32_t *out, const struct device_config *config, struct buf *why)
{
    *out = config->n_threads ? config->n_threads : usable_cores();
    if (*out > THREADS_MAX)
        return buf_why(why, ERR_INVALID, "%u threads: at most %d", *out, THREADS_MAX);
    return OK;
}

static enum status open_cpu(struct device *d, const struct device_config *config, struct buf *why)
{
    struct cpu_choice c = {.variant = find_variant(config->cpu_variant, why)};
    uint32_t n_threads;

    if (!c.variant)
        return ERR_UNSUPPORTED;
    enum status s = count_threads(&n_threads, config, why);
    if (s != OK)
        return s;
    if (config->measure)
        cpu_measure(&c, config, n_threads);
    d->ops = c.variant->ops;
    if (cpu_init(&d->cpu, config, n_threads) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory for %u compute threads and their scratch",
                       n_threads);
    d->cpu.fetch = c.fetch;
    if (d->cpu.numa.n_nodes > 1)
        log_event(LOG_INFO, "threads and weights are spread over memory nodes",
                  "nodes=%u threads=%u", d->cpu.numa.n_nodes, n_threads);
    else if (config->numa && strcmp(config->numa, "auto") != 0)
        log_event(LOG_WARN, "no memory nodes that have the CPUs of this process", "folder=\"%s\"",
                  config->numa);
    return OK;
}

static enum status open_staging(struct device *d, struct buf *why)
{
    for (size_t i = 0; i < ARRAY_SIZE(d->staging); i++) {
        enum status s = d->backend->event_create(d->state, &d->staging[i].done);

        if (s != OK)
            return buf_why(why, s, "the GPU gave no event");
        d->staging[i].memory = d->backend->alloc_pinned(d->state, STAGING_BYTES);
        if (!d->staging[i].memory)
            return buf_why(why, ERR_NOMEM,
                           "out of memory: no pinned host memory for copies to the GPU");
    }
    return OK;
}

/* The host pool of a GPU device packs weights; the CPU kernels' scratch memory it does not need. */
static enum status open_cuda(struct device *d, const struct device_config *config, struct buf *why)
{
    struct device_config gpu = *config;
    uint32_t n_threads;

    if (gpu.max_rows_gpu)
        gpu.max_rows = gpu.max_rows_gpu;
    if (!&tarn_cuda_backend)
        return buf_why(why, ERR_UNSUPPORTED,
                       "this build has no CUDA: build with -DTARN_CUDA=ON, or use the CPU");
    enum status s = count_threads(&n_threads, config, why);
    if (s != OK)
        return s;
    s = tarn_cuda_backend.open(&d->state, &gpu, why);
    if (s != OK)
        return s;
    d->backend = &tarn_cuda_backend;
    d->ops = d->backend->ops(d->state);
    s = open_staging(d, why);
    if (s == OK && pool_create(&d->cpu.pool, n_threads, NULL) != OK)
        s = buf_why(why, ERR_NOMEM, "out of memory for %u host threads", n_threads);
    return s;
}

/* A GPU if this build can drive one and the machine has one that works; who names a CPU variant
 * means the CPU. */
static enum status open_auto(struct device *d, const struct device_config *config, struct buf *why)
{
    struct buf reason;

    if (!&tarn_cuda_backend || config->cpu_variant)
        return open_cpu(d, config, why);
    buf_init(&reason, BUF_WHY_MAX);
    enum status s = open_cuda(d, config, &reason);
    if (s == ERR_UNSUPPORTED) {
        s = open_cpu(d, config, why);
        if (s == OK)
            log_event(LOG_WARN, "no GPU, computing on the CPU", "reason=\"%s\" kernels=%s",
                      buf_str(&reason), d->ops->name);
    } else if (s != OK) {
        buf_why(why, s, "%s", buf_str(&reason));
    }
    buf_fini(&reason);
    return s;
}

enum status device_open(struct device **out, const struct device_config *config, struct buf *why)
{
    struct device *d = calloc(1, sizeof(*d));
    enum status s = OK;

    if (!d)
        return buf_why(why, ERR_NOMEM, "out of memory for a device");
    host_memory_init(&d->host);
    switch (config->kind) {
    case DEVICE_REF: d->ops = &ref_ops; break;
    case DEVICE_CPU: s = open_cpu(d, config, why); break;
    case DEVICE_CUDA: s = open_cuda(d, config, why); break;
    case DEVICE_AUTO: s = open_auto(d, config, why); break;
    }
    if (s != OK) {
        device_close(d);
        return s;
    }
    *out = d;
    return OK;
}

enum status device_open_backend(struct device **out, const struct device_backend *backend,
                                void *state, struct buf *why)
{
    struct device *d = calloc(1, sizeof(*d));

    if (!d) {
        backend->close(state);
        return buf_why(why, ERR_NOMEM, "out of memory for a device");
    }
    host_memory_init(&d->host);
    d->backend = backend;
    d->state = state;
    d->ops = backend->ops(state);
    *out = d;
    return OK;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    cpu_fini(&d->cpu);
    if (d->backend)
        d->backend->close(d->state); /* the staging memory too */
    host_memory_fini(&d->host);
    free(d);
}

const struct ops *device_ops(const struct device *d)
{
    return d->ops;
}

struct device_group device_group_of(struct device *d)
{
    return (struct device_group){.devices = {d}, .n = 1};
}

enum status device_group_connect(const struct device_group *g, struct buf *why)
{
    void *states[DEVICE_GROUP_MAX];

    ASSERT(g->n >= 1 && g->n <= DEVICE_GROUP_MAX);
    if (g->n == 1)
        return OK;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct device *d = g->devices[i];

        if (!d->backend || !d->backend->connect)
            return buf_why(why, ERR_UNSUPPORTED, "a model runs on several GPUs only");
        states[i] = d->state;
    }
    return g->devices[0]->backend->connect(states, g->n, why);
}

void device_group_fail(const struct device_group *g, const char *words)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (g->devices[i]->backend && g->devices[i]->backend->fail)
            g->devices[i]->backend->fail(g->devices[i]->state, words);
}

enum status device_all_gather(struct device *d, struct stream *s, const struct all_gather_params *p)
{
    return d->backend && d->backend->all_gather ? d->backend->all_gather(d->state, s, p)
                                                : ERR_UNSUPPORTED;
}

int device_is_host(const struct device *d)
{
    return d->backend == NULL;
}

enum weight_layout device_weight_layout(const struct device *d)
{
    return d->backend ? WEIGHT_ROWS : WEIGHT_PANELS;
}

const char *device_failure(const struct device *d)
{
    return d->backend ? d->backend->failure(d->state) : NULL;
}

enum status device_memory(struct device *d, size_t *n_free, size_t *n_total)
{
    return d->backend ? d->backend->memory(d->state, n_free, n_total) : ERR_UNSUPPORTED;
}

uint32_t device_n_threads(const struct device *d)
{
    return d->cpu.pool ? pool_n_threads(d->cpu.pool) : 1;
}

/* With a GPU the calling thread mostly waits, and its pool only works while weights are loaded: it
 * stays free to run where the system likes. */
void device_adopt_thread(struct device *d)
{
    if (d->cpu.pool && !d->backend)
        pool_pin_caller(d->cpu.pool);
}

void *device_alloc(struct device *d, size_t n_bytes)
{
    return d->backend ? d->backend->alloc(d->state, n_bytes) : host_memory_alloc(&d->host, n_bytes);
}

void device_place(struct device *d, void *p, size_t n_bytes, enum device_place how)
{
    const struct numa *n = &d->cpu.numa;

    if (n->n_nodes <= 1 || n_bytes < HOST_MEMORY_MAP_BYTES)
        return;
    bool placed = how == DEVICE_SPLIT ? numa_split(n, p, n_bytes, device_n_threads(d))
                                      : numa_interleave(n, p, n_bytes);
    if (!placed && !atomic_exchange(&d->placing_failed, true))
        log_event(LOG_WARN,
                  "the system does not place memory on its nodes: memory lies where it "
                  "is touched first",
                  "errno=%d", errno);
}

void device_free(struct device *d, void *p)
{
    if (!p)
        return;
    if (d->backend)
        d->backend->free(d->state, p);
    else
        host_memory_free(&d->host, p);
}

void *device_alloc_pinned(struct device *d, size_t n_bytes)
{
    return d->backend ? d->backend->alloc_pinned(d->state, n_bytes)
                      : host_memory_alloc(&d->host, n_bytes);
}

void device_free_pinned(struct device *d, void *p)
{
    if (!p)
        return;
    if (d->backend)
        d->backend->free_pinned(d->state, p);
    else
        host_memory_free(&d->host, p);
}

struct stream *device_stream(struct device *d, enum device_stream which)
{
    return d->backend ? d->backend->stream(d->state, which) : NULL;
}

static enum status copy_on_host(void *dst, const void *src, size_t n_bytes)
{
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    return OK;
}

enum status device_upload_async(struct device *d, struct stream *s, void *dst, const void *src,
                                size_t n_bytes)
{
    return d->backend ? d->backend->upload(d->state, s, dst, src, n_bytes)
                      : copy_on_host(dst, src, n_bytes);
}

enum status device_download_async(struct device *d, struct stream *s, void *dst, const void *src,
                                  size_t n_bytes)
{
    return d->backend ? d->backend->download(d->state, s, dst, src, n_bytes)
                      : copy_on_host(dst, src, n_bytes);
}

enum status device_copies_async(struct device *d, struct stream *s, void *const *to,
                                const void *const *from, uint32_t n, size_t n_bytes)
{
    enum status status = OK;

    ASSERT(n <= DEVICE_COPIES_MAX);
    if (d->backend)
        return d->backend->copies(d->state, s, to, from, n, n_bytes);
    for (uint32_t i = 0; status == OK && i < n; i++)
        status = copy_on_host(to[i], from[i], n_bytes);
    return status;
}

enum status device_crc32c_async(struct device *d, struct stream *s, const void *const *pieces,
                                uint32_t n, size_t n_bytes, uint32_t *sums)
{
    return d->backend && d->backend->crc32c
               ? d->backend->crc32c(d->state, s, pieces, n, n_bytes, sums)
               : ERR_UNSUPPORTED;
}

enum status device_export(struct device *d, void *p, uint8_t handle[DEVICE_HANDLE_BYTES])
{
    return d->backend && d->backend->export_memory ? d->backend->export_memory(d->state, p, handle)
                                                   : ERR_UNSUPPORTED;
}

enum status device_map(struct device *d, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out)
{
    *out = NULL;
    return d->backend && d->backend->map ? d->backend->map(d->state, handle, out) : ERR_UNSUPPORTED;
}

void device_unmap(struct device *d, void *p)
{
    if (p)
        d->backend->unmap(d->state, p);
}

enum status device_stream_wait(struct device *d, struct stream *s)
{
    return d->backend ? d->backend->stream_wait(d->state, s) : OK;
}

/* On a host device every point is reached when it is recorded, so one event serves all. */
enum status device_event_create(struct device *d, struct device_event **out)
{
    if (d->backend)
        return d->backend->event_create(d->state, out);
    *out = (struct device_event *)d;
    return OK;
}

void device_event_destroy(struct device *d, struct device_event *e)
{
    if (e && d->backend)
        d->backend->event_destroy(d->state, e);
}

enum status device_event_record(struct device *d, struct device_event *e, struct stream *s)
{
    return d->backend ? d->backend->event_record(d->state, e, s) : OK;
}

enum status device_event_order(struct device *d, struct device_event *e, struct stream *s)
{
    return d->backend ? d->backend->event_order(d->state, e, s) : OK;
}

enum status device_event_query(struct device *d, struct device_event *e, bool *done)
{
    if (d->backend)
        return d->backend->event_query(d->state, e, done);
    *done = true;
    return OK;
}

enum status device_event_wait(struct device *d, struct device_event *e)
{
    return d->backend ? d->backend->event_wait(d->state, e) : OK;
}

void device_tune(struct device *d, bool on)
{
    if (d->backend && d->backend->tune)
        d->backend->tune(d->state, on);
}

enum status device_graph_begin(struct device *d)
{
    return d->backend && d->backend->graph_begin ? d->backend->graph_begin(d->state)
                                                 : ERR_UNSUPPORTED;
}

enum status device_graph_end(struct device *d, struct device_graph **out)
{
    return d->backend->graph_end(d->state, out);
}

enum status device_graph_launch(struct device *d, const struct device_graph *g)
{
    return d->backend->graph_launch(d->state, g);
}

void device_graph_destroy(struct device *d, struct device_graph *g)
{
    if (g)
        d->backend->graph_destroy(d->state, g);
}

static size_t piece_bytes(size_t n_bytes, size_t at)
{
    return n_bytes - at < STAGING_BYTES ? n_bytes - at : STAGING_BYTES;
}

static enum status upload_piece(struct device *d, struct staging *g, unsigned char *dst,
                                const unsigned char *src, size_t n)
{
    enum status s = device_event_wait(d, g->done); /* the piece before the last is out of it */

    if (s != OK)
        return s;
    memcpy(g->memory, src, n);
    s = device_upload_async(d, NULL, dst, g->memory, n);
    return s == OK ? device_event_record(d, g->done, NULL) : s;
}

enum status device_upload(struct device *d, void *dst, const void *src, size_t n_bytes)
{
    if (!d->backend)
        return copy_on_host(dst, src, n_bytes);
    if (!d->staging[0].memory)
        return ERR_UNSUPPORTED;
    for (size_t i = 0, at = 0; at < n_bytes; i++, at += STAGING_BYTES) {
        enum status s = upload_piece(d, &d->staging[i % 2], (unsigned char *)dst + at,
                                     (const unsigned char *)src + at, piece_bytes(n_bytes, at));
        if (s != OK)
            return s;
    }
    return device_stream_wait(d, NULL);
}

static enum status download_piece(struct device *d, struct staging *g, const unsigned char *src,
                                  size_t n)
{
    enum status s = device_download_async(d, NULL, g->memory, src, n);

    return s == OK ? device_event_record(d, g->done, NULL) : s;
}

/* One piece is under way while the one before it is copied out. */
enum status device_download(struct device *d, void *dst, const void *src, size_t n_bytes)
{
    enum status s = OK;

    if (!d->backend)
        return copy_on_host(dst, src, n_bytes);
    if (!d->staging[0].memory)
        return ERR_UNSUPPORTED;
    if (n_bytes)
        s = download_piece(d, &d->staging[0], src, piece_bytes(n_bytes, 0));
    for (size_t i = 0, at = 0; at < n_bytes && s == OK; i++, at += STAGING_BYTES) {
        struct staging *g = &d->staging[i % 2];
        size_t next = at + STAGING_BYTES;

        if (next < n_bytes)
            s = download_piece(d, &d->staging[(i + 1) % 2], (const unsigned char *)src + next,
                               piece_bytes(n_bytes, next));
        if (s == OK)
            s = device_event_wait(d, g->done);
        if (s == OK)
            memcpy((unsigned char *)dst + at, g->memory, piece_bytes(n_bytes, at));
    }
    return s;
}

struct parallel_job {
    void (*fn)(void *arg, uint32_t i);
    void *arg;
};

static void parallel_chunk(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct parallel_job *j = arg;

    (void)thread;
    for (uint32_t i = begin; i < end; i++)
        j->fn(j->arg, i);
}

void device_parallel(struct device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg)
{
    struct parallel_job j = {.fn = fn, .arg = arg};

    if (d->cpu.pool)
        pool_run(d->cpu.pool, n, 1, parallel_chunk, &j);
    else
        parallel_chunk(&j, 0, n, 0);
}
