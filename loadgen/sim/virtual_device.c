#include "loadgen/sim/virtual_device.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/backend.h"

/* Most ranges of memory at once; a cache allocates fewer. */
#define N_RANGES_MAX 16

struct device_event {
    uint64_t at_ns; /* 0: never recorded */
    struct device_event *prev, *next;
};

struct range {
    void *at; /* NULL: free */
    size_t n_bytes;
};

struct virtual_device {
    struct virtual_device_config config;
    uint64_t now_ns;
    uint64_t end_ns[DEVICE_STREAM_COUNT]; /* also what names a stream to the outside */
    struct device_event events;           /* head of the ring of all */
    struct range ranges[N_RANGES_MAX];
    struct virtual_device_stats stats;
};

static uint64_t *end_of(struct virtual_device *v, struct stream *s)
{
    return s ? (uint64_t *)s : &v->end_ns[DEVICE_COMPUTE];
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* --- life --- */

static void vd_close(void *state)
{
    struct virtual_device *v = state;

    for (uint32_t i = 0; i < N_RANGES_MAX; i++)
        if (v->ranges[i].at)
            munmap(v->ranges[i].at, v->ranges[i].n_bytes);
    for (struct device_event *e = v->events.next, *next; e != &v->events; e = next) {
        next = e->next;
        free(e);
    }
    free(v);
}

/* No kernel computes: virtual_device_run() takes their time. */
static const struct ops *vd_ops(const void *state)
{
    (void)state;
    return NULL;
}

static const char *vd_failure(const void *state)
{
    (void)state;
    return NULL;
}

static enum status vd_memory(void *state, size_t *n_free, size_t *n_total)
{
    (void)state;
    (void)n_free;
    (void)n_total;
    return ERR_UNSUPPORTED;
}

/* --- memory --- */

static void *vd_alloc(void *state, size_t n_bytes)
{
    struct virtual_device *v = state;
    struct range *r = v->ranges;

    while (r < v->ranges + N_RANGES_MAX && r->at)
        r++;
    if (r == v->ranges + N_RANGES_MAX)
        return NULL;
    r->n_bytes = n_bytes ? n_bytes : 1;
    void *at =
        mmap(NULL, r->n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    r->at = at;
    return at;
}

static void vd_free(void *state, void *p)
{
    struct virtual_device *v = state;

    for (uint32_t i = 0; i < N_RANGES_MAX; i++)
        if (v->ranges[i].at == p) {
            munmap(p, v->ranges[i].n_bytes);
            v->ranges[i].at = NULL;
            return;
        }
    ASSERT(!"memory of this device");
}

/* --- streams --- */

static struct stream *vd_stream(void *state, enum device_stream which)
{
    return (struct stream *)&((struct virtual_device *)state)->end_ns[which];
}

/* The stream says between which memories the copies are. */
static enum status vd_copies(void *state, struct stream *s, void *const *to,
                             const void *const *from, uint32_t n, size_t n_bytes)
{
    struct virtual_device *v = state;
    uint64_t *end = end_of(v, s);
    bool is_in = end == &v->end_ns[DEVICE_COPY_IN];
    double bytes_per_s = is_in ? v->config.in_bytes_per_s : v->config.out_bytes_per_s;

    (void)to;
    (void)from;
    ASSERT(is_in || end == &v->end_ns[DEVICE_COPY_OUT]);
    *(is_in ? &v->stats.in_bytes : &v->stats.out_bytes) += (uint64_t)n * n_bytes;
    *end = later(*end, v->now_ns);
    for (uint32_t i = 0; i < n; i++)
        *end += (uint64_t)((double)n_bytes / bytes_per_s * 1e9 + 0.5);
    return OK;
}

static void wait_on_host(struct virtual_device *v, uint64_t at_ns)
{
    if (at_ns <= v->now_ns)
        return;
    v->stats.host_waited_ns += at_ns - v->now_ns;
    v->now_ns = at_ns;
}

static enum status vd_stream_wait(void *state, struct stream *s)
{
    struct virtual_device *v = state;

    wait_on_host(v, *end_of(v, s));
    return OK;
}

/* --- events --- */

static enum status vd_event_create(void *state, struct device_event **out)
{
    struct virtual_device *v = state;
    struct device_event *e = calloc(1, sizeof *e);

    *out = e;
    if (!e)
        return ERR_NOMEM;
    e->prev = v->events.prev;
    e->next = &v->events;
    e->prev->next = e;
    v->events.prev = e;
    return OK;
}

static void vd_event_destroy(void *state, struct device_event *e)
{
    (void)state;
    e->prev->next = e->next;
    e->next->prev = e->prev;
    free(e);
}

static enum status vd_event_record(void *state, struct device_event *e, struct stream *s)
{
    struct virtual_device *v = state;

    e->at_ns = later(*end_of(v, s), v->now_ns);
    return OK;
}

static enum status vd_event_order(void *state, struct device_event *e, struct stream *s)
{
    uint64_t *end = end_of(state, s);

    *end = later(*end, e->at_ns);
    return OK;
}

static enum status vd_event_query(void *state, struct device_event *e, bool *done)
{
    *done = ((const struct virtual_device *)state)->now_ns >= e->at_ns;
    return OK;
}

static enum status vd_event_wait(void *state, struct device_event *e)
{
    wait_on_host(state, e->at_ns);
    return OK;
}

static const struct device_backend virtual_backend = {
    .close = vd_close,
    .ops = vd_ops,
    .failure = vd_failure,
    .memory = vd_memory,
    .alloc = vd_alloc,
    .free = vd_free,
    .alloc_pinned = vd_alloc,
    .free_pinned = vd_free,
    .stream = vd_stream,
    .copies = vd_copies,
    .stream_wait = vd_stream_wait,
    .event_create = vd_event_create,
    .event_destroy = vd_event_destroy,
    .event_record = vd_event_record,
    .event_order = vd_event_order,
    .event_query = vd_event_query,
    .event_wait = vd_event_wait,
};

enum status virtual_device_open(struct virtual_device **out, struct device **device,
                                const struct virtual_device_config *config, struct buf *why)
{
    struct virtual_device *v;

    *out = NULL;
    *device = NULL;
    if (!(config->in_bytes_per_s > 0) || !(config->out_bytes_per_s > 0))
        return buf_why(why, ERR_INVALID, "copies need a bandwidth above 0");
    v = calloc(1, sizeof *v);
    if (!v)
        return buf_why(why, ERR_NOMEM, "no memory for a virtual device");
    v->config = *config;
    v->events.prev = v->events.next = &v->events;
    *out = v;
    return device_open_backend(device, &virtual_backend, v, why);
}

/* --- time --- */

uint64_t virtual_device_now(const struct virtual_device *v)
{
    return v->now_ns;
}

void virtual_device_advance(struct virtual_device *v, uint64_t now_ns)
{
    v->now_ns = later(v->now_ns, now_ns);
}

uint64_t virtual_device_run(struct virtual_device *v, uint64_t n_ns)
{
    uint64_t *end = &v->end_ns[DEVICE_COMPUTE], start = later(*end, v->now_ns);

    v->stats.compute_waited_ns += start - v->now_ns;
    *end = start + n_ns;
    return *end;
}

uint64_t virtual_device_next(const struct virtual_device *v)
{
    uint64_t next = UINT64_MAX;

    for (const struct device_event *e = v->events.next; e != &v->events; e = e->next)
        if (e->at_ns > v->now_ns && e->at_ns < next)
            next = e->at_ns;
    return next;
}

void virtual_device_stats(const struct virtual_device *v, struct virtual_device_stats *out)
{
    *out = v->stats;
}
