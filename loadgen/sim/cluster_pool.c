/* cluster_pool.c - what a request of a pool does before it runs: look up, then read or query. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/balance/cover.h"
#include "engine/sched/cost_model.h"
#include "loadgen/sim/cluster_inner.h"

#define SEGMENT_TOKENS 256u
#define N_PIECES_MAX 2048u /* of one lookup */
#define N_HOLDERS 8u       /* compared for a piece */
#define OUT_RATE 0.02      /* of the mean answer */

/* The result of a lookup: instance from[i] holds piece n_local + i. */
struct found {
    uint32_t from[N_PIECES_MAX];
    uint32_t n_local, n, n_tokens, n_local_tokens;
};

static uint32_t n_segments_of(uint32_t n_tokens)
{
    return (n_tokens + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS;
}

/* --- looking --- */

/* Return the instance's load by other instances, in nanoseconds of its link: bytes that wait for
 * the link, and bytes that were served lately. */
static double served_ns(const struct cluster *c, const struct node *x, uint64_t now_ns)
{
    double lately = x->load * (double)c->config.bytes_per_token / c->config.link_bytes_per_s * 1e9;

    return lately + (x->tx_free_ns > now_ns ? (double)(x->tx_free_ns - now_ns) : 0);
}

/* Choose holders by what the directory names. */
static void choose(struct cluster *c, uint32_t at, const struct pieces *p, struct found *f,
                   uint64_t now_ns)
{
    static _Thread_local uint32_t holders[N_PIECES_MAX][N_HOLDERS];
    static _Thread_local struct cover_segment segments[N_PIECES_MAX];
    uint32_t n = 0;

    for (; n < N_PIECES_MAX && f->n_local + n < p->n; n++) {
        uint32_t n_here = registry_holders(c->registry, p->v[f->n_local + n].key, now_ns,
                                           holders[n], N_HOLDERS),
                 kept = 0;
        for (uint32_t k = 0; k < n_here; k++)
            if (holders[n][k] != at)
                holders[n][kept++] = holders[n][k];
        if (kept == 0)
            break;
        segments[n] = (struct cover_segment){holders[n], kept};
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < segments[i].n; k++) {
            uint32_t h = holders[i][k];
            c->loads[h] = served_ns(c, &c->nodes[h], now_ns);
        }
    struct cover_query q = {.segments = segments,
                            .n = n,
                            .local = COVER_NONE,
                            .load = c->loads,
                            .n_held = c->n_held,
                            .n_instances = c->config.n_instances};
    (void)cover_choose(&q, f->from);
    f->n = n;
}

/* Ask the holders; cut the path where one has not what the directory says. Returns the time of the
 * answers. */
static uint64_t ask_holders(struct cluster *c, const struct pieces *p, struct found *f,
                            uint64_t now_ns)
{
    uint64_t end_ns = now_ns + 2 * c->config.link_ns;

    for (uint32_t i = 0; i < f->n; i++) {
        const struct node *node = &c->nodes[f->from[i]];
        if (!node->is_alive)
            end_ns = now_ns + c->config.lookup_ns;
        if (!node->is_alive || !shelf_has(&node->light.shelf, p->v[f->n_local + i].key)) {
            c->result.n_stale++;
            f->n = i;
            break;
        }
    }
    for (uint32_t i = 0; i < f->n; i++)
        f->n_tokens += p->v[f->n_local + i].n_tokens;
    return end_ns;
}

/* --- reading and querying --- */

/* Tokens and the last piece that come from one instance. */
static uint32_t from_one(const struct found *f, const struct pieces *p, uint32_t instance,
                         uint64_t *last)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        if (f->from[i] == instance) {
            n += p->v[f->n_local + i].n_tokens;
            *last = p->v[f->n_local + i].key;
        }
    return n;
}

static bool is_first(const struct found *f, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (f->from[k] == f->from[i])
            return false;
    return true;
}

static uint64_t read_end(const struct cluster *c, uint32_t at, const struct found *f,
                         const struct pieces *p, uint64_t now_ns)
{
    uint64_t end_ns = now_ns, last;

    for (uint32_t i = 0; i < f->n; i++)
        if (is_first(f, i)) {
            uint64_t one = cluster_send_end(
                c, f->from[i], at, from_one(f, p, f->from[i], &last) * c->config.bytes_per_token,
                now_ns);
            end_ns = one > end_ns ? one : end_ns;
        }
    return end_ns;
}

static bool begin_read(struct cluster *c, uint32_t at, struct seat *s, const struct found *f,
                       uint64_t now_ns)
{
    const struct pieces *p = &s->job->pieces;
    bool any = false;

    for (uint32_t i = 0; i < f->n; i++) {
        uint64_t last = 0;
        if (!is_first(f, i))
            continue;
        uint32_t n_tokens = from_one(f, p, f->from[i], &last);
        struct transfer *t = calloc(1, sizeof *t);
        if (!t)
            continue;
        link_init(&t->link);
        t->kind = TRANSFER_READ;
        t->from = f->from[i];
        t->to = at;
        t->pin = last;
        uint64_t end_ns =
            cluster_send(c, t->from, at, n_tokens * c->config.bytes_per_token, now_ns);
        if (!cluster_start(c, t, end_ns))
            continue;
        any = true;
        t->seat = s;
        s->n_reads++;
        c->nodes[t->from].n_served += n_tokens;
        c->nodes[t->from].load += n_tokens;
        c->result.n_reads++;
        c->result.read_tokens += n_tokens;
    }
    s->n_read_tokens = f->n_tokens;
    return any;
}

static bool begin_query(struct cluster *c, struct seat *s, const struct found *f)
{
    const struct pieces *p = &s->job->pieces;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        n += is_first(f, i);
    if (n > LIGHT_PEERS_MAX)
        return false;
    for (uint32_t i = 0; i < f->n; i++) {
        struct light_peer *peer = &s->peers[s->n_peers];
        if (!is_first(f, i))
            continue;
        *peer = (struct light_peer){.instance = f->from[i], .life = c->nodes[f->from[i]].life};
        peer->n_tokens = from_one(f, p, f->from[i], &peer->pin);
        shelf_pin(&c->nodes[f->from[i]].light.shelf, peer->pin);
        s->n_peers++;
    }
    s->n_queried = f->n_local + f->n;
    s->n_segments = n_segments_of(f->n_tokens);
    c->result.n_queries++;
    return true;
}

static bool prefers_query(const struct cluster *c, const struct job *j, const struct found *f)
{
    if (c->config.query != CLUSTER_QUERY_AUTO)
        return c->config.query == CLUSTER_QUERY_ALWAYS;
    double n_rows = j->pieces.n_tokens - f->n_local_tokens - f->n_tokens + c->n_out;
    double n_bytes = n_rows * n_segments_of(f->n_tokens) * (double)c->config.query_bytes;

    return n_bytes < (double)f->n_tokens * (double)c->config.bytes_per_token;
}

/* Seconds that computing what was found takes, as part of the whole prompt. */
static double compute_s(const struct cluster *c, const struct pieces *p, const struct found *f)
{
    const struct cost_model *m = c->config.light.cost;
    uint32_t n_rest = p->n_tokens - f->n_local_tokens - f->n_tokens;

    return cost_model_seconds(m, f->n_local_tokens, f->n_tokens + n_rest + 1) -
           cost_model_seconds(m, f->n_local_tokens + f->n_tokens, n_rest + 1);
}

/* Look for what follows the local prefix. False: nothing. *asked_ns: when the holders answered. */
static bool look(struct cluster *c, uint32_t at, const struct pieces *p, struct found *f,
                 uint64_t now_ns, uint64_t *asked_ns)
{
    uint64_t wait_ns;

    f->n = f->n_tokens = f->n_local_tokens = 0;
    f->n_local = shelf_match(&c->nodes[at].light.shelf, p);
    for (uint32_t i = 0; i < f->n_local; i++)
        f->n_local_tokens += p->v[i].n_tokens;
    if (f->n_local == p->n ||
        !registry_look(c->registry, n_segments_of(p->n_tokens - f->n_local_tokens), now_ns,
                       &wait_ns))
        return false;
    wait_ns += 2 * c->config.link_ns;
    if (wait_ns >= c->config.lookup_ns)
        return false;
    choose(c, at, p, f, now_ns);
    if (f->n == 0)
        return false;
    *asked_ns = ask_holders(c, p, f, now_ns + wait_ns);
    return f->n > 0;
}

/* Queries are looked for only where they would be sent if all of the prompt was found. */
void cluster_ask(void *pool, uint32_t at, struct seat *s, uint64_t now_ns)
{
    static _Thread_local struct found f;
    struct cluster *c = pool;
    uint64_t asked_ns;

    f.n_local_tokens = 0;
    f.n_tokens = s->job->pieces.n_tokens;
    if (c->config.query != CLUSTER_QUERY_NEVER && prefers_query(c, s->job, &f) &&
        look(c, at, &s->job->pieces, &f, now_ns, &asked_ns) && prefers_query(c, s->job, &f))
        (void)begin_query(c, s, &f);
}

bool cluster_read(void *pool, uint32_t at, struct seat *s, uint64_t now_ns)
{
    static _Thread_local struct found f;
    struct cluster *c = pool;
    const struct pieces *p = &s->job->pieces;
    uint64_t asked_ns;

    if (!look(c, at, p, &f, now_ns, &asked_ns))
        return false;
    double read_s = (double)(read_end(c, at, &f, p, asked_ns) - now_ns) / 1e9;
    if (read_s >= compute_s(c, p, &f))
        return false;
    return begin_read(c, at, s, &f, asked_ns);
}

static bool is_wanted(const struct cluster *c, uint64_t key)
{
    uint32_t n;

    return table_get(&c->wanted, key, &n) && n > 1;
}

void cluster_end_read(struct cluster *c, struct transfer *t)
{
    struct seat *s = t->seat;

    if (t->from_life == c->nodes[t->from].life && t->pin && !is_wanted(c, t->pin))
        shelf_demote(&c->nodes[t->from].light.shelf, t->pin);
    /* A read from an instance that died meanwhile counts as done: its KV was sent. */
    if (s->n_reads == 1 && s->job)
        light_end_reads(&c->nodes[t->to].light, s);
}

void cluster_release(void *pool, struct seat *s)
{
    struct cluster *c = pool;

    for (uint32_t i = 0; i < s->n_peers; i++) {
        struct node *node = &c->nodes[s->peers[i].instance];
        if (node->life != s->peers[i].life)
            continue;
        shelf_unpin(&node->light.shelf, s->peers[i].pin);
        cluster_wake(c, s->peers[i].instance);
    }
}

double cluster_query_s(void *pool, const struct seat *s, uint32_t n_rows)
{
    struct cluster *c = pool;
    const struct cost_model *m = c->config.light.cost;
    double n_bytes = (double)n_rows * s->n_segments * (double)c->config.query_bytes;

    for (uint32_t i = 0; i < s->n_peers; i++) { /* attention there */
        struct node *node = &c->nodes[s->peers[i].instance];
        node->light.debt_s += n_rows * (cost_model_decode_seconds(m, s->peers[i].n_tokens, 1) -
                                        cost_model_decode_seconds(m, 0, 1));
        node->load += s->peers[i].n_tokens;
        node->n_served += s->peers[i].n_tokens;
    }
    c->result.query_bytes += (uint64_t)n_bytes;
    c->result.link_busy_ns += (uint64_t)(n_bytes / c->config.link_bytes_per_s * 1e9);
    return 2e-9 * (double)c->config.link_ns * c->config.n_layers +
           n_bytes / c->config.link_bytes_per_s;
}

void cluster_used(void *owner, uint32_t at, struct seat *s, uint32_t n_pieces)
{
    struct cluster *c = owner;
    const struct pieces *p = &s->job->pieces;
    uint32_t n_tokens = 0;

    for (uint32_t i = 0; i < n_pieces; i++) {
        if (c->config.is_pool)
            heavy_add(c->heavy, p->v[i].key, p->v[i].n_tokens);
        n_tokens += p->v[i].n_tokens;
    }
    c->nodes[at].n_served += n_tokens;
    c->nodes[at].load += n_tokens;
    c->n_out += OUT_RATE * (s->job->n_out - c->n_out);
}
