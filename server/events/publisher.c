#include "server/events/publisher.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/events/batch.h"

#define SEQUENCE_BYTES 8
#define END_SEQUENCE UINT64_MAX /* -1 */
#define TICK_MS 10
#define REPEAT_NS UINT64_C(1000000000)
#define N_QUEUED_MAX 16384u
#define N_KEPT_MAX 10000u
#define KEPT_BYTES_MAX (64u << 20)
/* Messages that wait for one slow subscriber; further ones are dropped for it, and it sees a gap in
 * the sequence. */
#define HIGH_WATER_MARK 10000
/* A batch ends here. */
#define BATCH_BLOCKS 2048u
#define N_SALTS 1021u

struct kept {
    char *data;
    size_t n;
};

struct salt {
    uint64_t number;
    char *words, *adapter; /* each may be NULL */
};

struct publisher {
    struct publisher_config config;
    void *context, *pub, *replay; /* ZeroMQ's; used by the thread once it runs */
    struct cache_events *queue;
    pthread_t thread;
    bool runs;
    atomic_bool stops;
    pthread_mutex_t lock; /* of salts */
    struct salt *salts;   /* [N_SALTS], each at its number modulo that */
    /* The thread's. */
    char *topic;
    struct blocks *blocks;
    struct batch batch;
    uint64_t n_sequence; /* of the next batch */
    struct kept *kept;   /* [config.n_kept_max], a ring; batch n is at n modulo that */
    uint32_t n_kept;     /* the last ones */
    size_t kept_bytes;
    bool wants_repeat;
    uint64_t repeat_ns; /* not before this time */
    /* Written by the thread, read by any. */
    _Atomic uint64_t n_batches, n_blocks, n_skipped, n_replays, n_repeats;
};

/* --- salts --- */

void publisher_note_salt(struct publisher *p, uint64_t salt, const char *words, size_t len,
                         const char *adapter)
{
    if (!p || len >= PUBLISHER_SALT_BYTES)
        return;
    pthread_mutex_lock(&p->lock);
    struct salt *s = &p->salts[salt % N_SALTS];
    if (s->number != salt) {
        free(s->words);
        free(s->adapter);
        *s = (struct salt){salt, words ? strndup(words, len) : NULL,
                           adapter ? strdup(adapter) : NULL};
    }
    pthread_mutex_unlock(&p->lock);
}

static bool find_salt(void *arg, uint64_t salt, struct batch_salt *out)
{
    struct publisher *p = arg;

    pthread_mutex_lock(&p->lock);
    const struct salt *s = &p->salts[salt % N_SALTS];
    bool found = s->number == salt && (s->words || s->adapter);
    if (found) {
        snprintf(out->words, sizeof out->words, "%s", s->words ? s->words : "");
        snprintf(out->adapter, sizeof out->adapter, "%s", s->adapter ? s->adapter : "");
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* --- batches --- */

static void write_sequence(unsigned char out[SEQUENCE_BYTES], uint64_t v)
{
    for (int i = SEQUENCE_BYTES; i-- > 0; v >>= 8)
        out[i] = (unsigned char)v;
}

static uint64_t read_sequence(const unsigned char *bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < SEQUENCE_BYTES; i++)
        v = v << 8 | bytes[i];
    return v;
}

static struct kept *kept_at(const struct publisher *p, uint64_t sequence)
{
    return &p->kept[sequence % p->config.n_kept_max];
}

static void drop_oldest(struct publisher *p)
{
    struct kept *k = kept_at(p, p->n_sequence - p->n_kept);

    p->kept_bytes -= k->n;
    free(k->data);
    *k = (struct kept){NULL, 0};
    p->n_kept--;
}

/* Keep a copy of the payload of batch n_sequence. Without memory nothing is kept any more. */
static void keep(struct publisher *p, const char *data, size_t n)
{
    char *copy = malloc(n);

    while (p->n_kept > 0 &&
           (!copy || p->n_kept == p->config.n_kept_max || p->kept_bytes + n > KEPT_BYTES_MAX))
        drop_oldest(p);
    if (!copy)
        return;
    memcpy(copy, data, n);
    *kept_at(p, p->n_sequence) = (struct kept){copy, n};
    p->n_kept++;
    p->kept_bytes += n;
}

static void send_batch(struct publisher *p)
{
    unsigned char sequence[SEQUENCE_BYTES];

    if (batch_is_empty(&p->batch))
        return;
    if (batch_pack(&p->batch, (double)clock_unix_ns() * 1e-9) != OK) {
        p->wants_repeat = true; /* events are lost */
        return;
    }
    const struct buf *payload = &p->batch.packed;
    write_sequence(sequence, p->n_sequence);
    zmq_send(p->pub, p->topic, strlen(p->topic), ZMQ_SNDMORE);
    zmq_send(p->pub, sequence, sizeof sequence, ZMQ_SNDMORE);
    zmq_send(p->pub, payload->data, payload->len, 0);
    keep(p, payload->data, payload->len);
    p->n_sequence++;
    atomic_store(&p->n_batches, p->n_sequence);
}

static void send_if_full(struct publisher *p)
{
    if (batch_n_blocks(&p->batch) >= BATCH_BLOCKS)
        send_batch(p);
}

static void on_stored(void *arg, uint32_t tier, const struct blocks_block *block)
{
    struct publisher *p = arg;

    batch_stored(&p->batch, tier, block);
    send_if_full(p);
}

static void on_removed(void *arg, uint32_t tier, uint64_t hash)
{
    struct publisher *p = arg;

    batch_removed(&p->batch, tier, hash);
    send_if_full(p);
}

static void on_cleared(void *arg)
{
    batch_cleared(&((struct publisher *)arg)->batch);
}

/* --- requests --- */

/* A subscription begins with 1. */
static void read_subscription(struct publisher *p)
{
    zmq_msg_t message;

    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, p->pub, ZMQ_DONTWAIT) > 0 &&
        *(unsigned char *)zmq_msg_data(&message) == 1)
        p->wants_repeat = true;
    zmq_msg_close(&message);
}

static void send_replay(struct publisher *p, zmq_msg_t *client, uint64_t sequence,
                        const struct kept *k)
{
    unsigned char bytes[SEQUENCE_BYTES];

    write_sequence(bytes, sequence);
    zmq_send(p->replay, zmq_msg_data(client), zmq_msg_size(client), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->replay, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(p->replay, k ? k->data : "", k ? k->n : 0, ZMQ_DONTWAIT);
}

static void answer_replay(struct publisher *p, zmq_msg_t frames[3])
{
    uint64_t first = p->n_sequence - p->n_kept;
    uint64_t from = read_sequence(zmq_msg_data(&frames[2]));

    p->wants_repeat |= from < first;
    for (uint64_t i = from < first ? first : from; i < p->n_sequence; i++)
        send_replay(p, &frames[0], i, kept_at(p, i));
    send_replay(p, &frames[0], END_SEQUENCE, NULL);
    atomic_fetch_add(&p->n_replays, 1);
}

static void read_replay(struct publisher *p)
{
    zmq_msg_t frames[3], rest;
    bool more = true;
    int n = 0;

    for (int i = 0; i < 3; i++)
        zmq_msg_init(&frames[i]);
    zmq_msg_init(&rest);
    for (; more; n++) {
        zmq_msg_t *frame = n < 3 ? &frames[n] : &rest;
        if (zmq_msg_recv(frame, p->replay, ZMQ_DONTWAIT) < 0)
            break;
        more = zmq_msg_more(frame);
    }
    if (n == 3 && !more && zmq_msg_size(&frames[1]) == 0 &&
        zmq_msg_size(&frames[2]) == SEQUENCE_BYTES)
        answer_replay(p, frames);
    zmq_msg_close(&rest);
    for (int i = 0; i < 3; i++)
        zmq_msg_close(&frames[i]);
}

/* Wait for requests until the next tick, and answer them. */
static void serve_requests(struct publisher *p)
{
    zmq_pollitem_t items[2] = {{.socket = p->pub, .events = ZMQ_POLLIN},
                               {.socket = p->replay, .events = ZMQ_POLLIN}};

    if (zmq_poll(items, p->replay ? 2 : 1, TICK_MS) <= 0)
        return;
    if (items[0].revents & ZMQ_POLLIN)
        read_subscription(p);
    if (p->replay && items[1].revents & ZMQ_POLLIN)
        read_replay(p);
}

/* --- the thread --- */

static void drain_queue(struct publisher *p)
{
    struct cache_event event;

    while (cache_events_next(p->queue, &event))
        if (blocks_apply(p->blocks, &event) != OK)
            cache_events_request_all(p->queue); /* out of memory: an event is lost */
    send_batch(p);
    atomic_store(&p->n_blocks, blocks_n(p->blocks));
    atomic_store(&p->n_skipped, blocks_n_skipped(p->blocks));
}

static void repeat_all(struct publisher *p)
{
    uint64_t now_ns = clock_now_ns();

    if (!p->wants_repeat || now_ns < p->repeat_ns)
        return;
    p->wants_repeat = false;
    p->repeat_ns = now_ns + REPEAT_NS;
    if (blocks_repeat(p->blocks) != OK)
        p->wants_repeat = true;
    send_batch(p);
    atomic_fetch_add(&p->n_repeats, 1);
}

static void *publish(void *arg)
{
    struct publisher *p = arg;

    while (!atomic_load(&p->stops)) {
        serve_requests(p);
        drain_queue(p);
        repeat_all(p);
    }
    drain_queue(p);
    return NULL;
}

/* --- lifecycle --- */

static bool is_bound(const char *endpoint)
{
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strncmp(endpoint, "ipc:", 4) == 0 ||
           strncmp(endpoint, "inproc:", 7) == 0;
}

/* Open a socket at an endpoint. option: the name of the option for the error. */
static enum status open_socket(const struct publisher *p, int type, const char *endpoint, bool bind,
                               const char *option, void **out, struct buf *why)
{
    int none = 0, one = 1;
    int mark = type == ZMQ_ROUTER ? (int)N_KEPT_MAX + HIGH_WATER_MARK : HIGH_WATER_MARK;

    *out = zmq_socket(p->context, type);
    if (!*out)
        return buf_why(why, ERR_NOMEM, "{%s}: no socket: %s", option, zmq_strerror(zmq_errno()));
    zmq_setsockopt(*out, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(*out, ZMQ_SNDHWM, &mark, sizeof mark);
    if (strchr(endpoint, '[') || strstr(endpoint, "::"))
        zmq_setsockopt(*out, ZMQ_IPV6, &one, sizeof one);
    if (type == ZMQ_XPUB)
        zmq_setsockopt(*out, ZMQ_XPUB_VERBOSE, &one, sizeof one);
    if ((bind ? zmq_bind(*out, endpoint) : zmq_connect(*out, endpoint)) != 0)
        return buf_why(why, ERR_INVALID, "{%s}: cannot %s \"%.200s\": %s", option,
                       bind ? "bind" : "connect to", endpoint, zmq_strerror(zmq_errno()));
    return OK;
}

static enum status open_sockets(struct publisher *p, struct buf *why)
{
    const struct publisher_config *c = &p->config;

    p->context = zmq_ctx_new();
    if (!p->context)
        return buf_why(why, ERR_NOMEM, "out of memory");
    enum status s = open_socket(p, ZMQ_XPUB, c->endpoint, is_bound(c->endpoint),
                                "kv_events_endpoint", &p->pub, why);
    if (s == OK && c->replay_endpoint)
        s = open_socket(p, ZMQ_ROUTER, c->replay_endpoint, true, "kv_events_replay_endpoint",
                        &p->replay, why);
    return s;
}

enum status publisher_create(struct publisher **out, const struct publisher_config *c,
                             struct buf *why)
{
    struct publisher *p = calloc(1, sizeof *p);
    const struct blocks_sink sink = {on_stored, on_removed, on_cleared, p};

    *out = NULL;
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    p->config = *c;
    p->config.n_queued_max = c->n_queued_max ? c->n_queued_max : N_QUEUED_MAX;
    p->config.n_kept_max = c->n_kept_max ? c->n_kept_max : N_KEPT_MAX;
    p->wants_repeat = true; /* a router may still know what an earlier process held */
    pthread_mutex_init(&p->lock, NULL);
    batch_init(&p->batch, c->block_tokens, find_salt, p);
    p->kept = calloc(p->config.n_kept_max, sizeof *p->kept);
    p->salts = calloc(N_SALTS, sizeof *p->salts);
    enum status s =
        p->kept && p->salts ? blocks_create(&p->blocks, c->block_tokens, &sink) : ERR_NOMEM;
    if (s == OK)
        s = cache_events_create(&p->queue, p->config.n_queued_max, true);
    if (s != OK)
        buf_why(why, s, "out of memory");
    if (s == OK)
        s = open_sockets(p, why);
    if (s != OK) {
        publisher_destroy(p);
        return s;
    }
    *out = p;
    return OK;
}

struct cache_events *publisher_queue(const struct publisher *p)
{
    return p ? p->queue : NULL;
}

enum status publisher_start(struct publisher *p, const char *topic, struct buf *why)
{
    p->topic = strdup(topic);
    if (!p->topic)
        return buf_why(why, ERR_NOMEM, "out of memory");
    p->runs = pthread_create(&p->thread, NULL, publish, p) == 0;
    if (!p->runs)
        return buf_why(why, ERR_NOMEM, "cannot start the thread of KV events");
    log_event(LOG_WARN, "KV events carry token ids: only routers may reach their sockets",
              "endpoint=\"%s\" replay=\"%s\" topic=\"%s\"", p->config.endpoint,
              p->config.replay_endpoint ? p->config.replay_endpoint : "", p->topic);
    return OK;
}

void publisher_destroy(struct publisher *p)
{
    if (!p)
        return;
    if (p->runs) {
        atomic_store(&p->stops, true);
        pthread_join(p->thread, NULL);
    }
    if (p->pub)
        zmq_close(p->pub);
    if (p->replay)
        zmq_close(p->replay);
    if (p->context)
        zmq_ctx_term(p->context);
    while (p->n_kept > 0)
        drop_oldest(p);
    free(p->kept);
    for (uint32_t i = 0; p->salts && i < N_SALTS; i++) {
        free(p->salts[i].words);
        free(p->salts[i].adapter);
    }
    free(p->salts);
    pthread_mutex_destroy(&p->lock);
    free(p->topic);
    batch_fini(&p->batch);
    blocks_destroy(p->blocks);
    cache_events_destroy(p->queue);
    free(p);
}

void publisher_stats(const struct publisher *p, struct publisher_stats *out)
{
    *out = (struct publisher_stats){0};
    if (!p)
        return;
    out->n_batches = atomic_load(&p->n_batches);
    out->n_blocks = atomic_load(&p->n_blocks);
    out->n_skipped = atomic_load(&p->n_skipped);
    out->n_replays = atomic_load(&p->n_replays);
    out->n_repeats = atomic_load(&p->n_repeats);
    out->n_overflows = cache_events_n_overflows(p->queue);
}
