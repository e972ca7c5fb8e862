#include "loadgen/sim/fleet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "loadgen/load/draw.h"

#define NEVER UINT64_MAX
#define NO_INSTANCE UINT32_MAX
/* Sessions whose instance is kept; further ones are routed like new sessions. */
#define N_SESSIONS_MAX (1u << 20)
#define N_NAMES 64u /* instances of a sequence that are tried */
#define WEIGHT_PREFIX 3.0
#define WEIGHT_MEMORY 2.0
#define WEIGHT_QUEUE 2.0

struct fleet {
    struct fleet_config config;
    struct instance **instances; /* [n_instances] real ones; NULL: they are light */
    struct cluster *cluster;     /* NULL: they are real */
    uint32_t next_instance;
    struct map session_at; /* session -> instance */
    uint32_t *n_tokens;    /* [n_instances] for one decision */
};

/* --- life --- */

static uint32_t route_again(void *arg, struct job *j, uint64_t now_ns)
{
    struct fleet *f = arg;

    (void)now_ns;
    return fleet_route(f, j, f->config.request_of(j));
}

static enum status open_cluster(struct fleet *f, struct buf *why)
{
    const struct instance_config *in = &f->config.instance;
    struct cluster_config c = f->config.cluster;

    c.n_instances = f->config.n_instances;
    c.bytes_per_token = in->bytes_per_token;
    c.route = route_again;
    c.arg = f;
    c.light.cost = in->cost;
    c.light.n_running_max = in->scheduler.n_running_max;
    c.light.n_tokens_max = in->scheduler.n_tokens_max;
    c.light.step_s_max = in->scheduler.step_s_max;
    c.light.piece_tokens = in->segment_tokens;
    c.light.n_kv_tokens = (uint64_t)in->n_device_blocks * KV_BLOCK_TOKENS;
    c.light.overhead_ns = in->overhead_ns;
    c.light.on_token = in->on_token;
    c.light.on_end = in->on_end;
    c.light.arg = in->arg;
    return cluster_open(&f->cluster, &c, why);
}

enum status fleet_open(struct fleet **out, const struct fleet_config *config, struct buf *why)
{
    struct fleet *f = calloc(1, sizeof *f);
    uint32_t n = config->n_instances;

    ASSERT(n > 0);
    *out = NULL;
    if (!f)
        return buf_why(why, ERR_NOMEM, "out of memory");
    f->config = *config;
    f->n_tokens = calloc(n, sizeof *f->n_tokens);
    enum status s = map_init(&f->session_at, config->routing == ROUTE_SESSION ? N_SESSIONS_MAX : 1);
    if (s != OK || !f->n_tokens)
        s = buf_why(why, ERR_NOMEM, "out of memory");
    if (s == OK && config->is_light)
        s = open_cluster(f, why);
    else if (s == OK && !(f->instances = calloc(n, sizeof *f->instances)))
        s = buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; s == OK && f->instances && i < n; i++)
        s = instance_open(&f->instances[i], &config->instance, why);
    if (s != OK) {
        fleet_close(f);
        return s;
    }
    *out = f;
    return OK;
}

void fleet_close(struct fleet *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; f->instances && i < f->config.n_instances; i++)
        instance_close(f->instances[i]);
    free(f->instances);
    cluster_close(f->cluster);
    map_fini(&f->session_at);
    free(f->n_tokens);
    free(f);
}

/* --- routing --- */

static bool is_alive(const struct fleet *f, uint32_t at)
{
    return !f->cluster || cluster_is_alive(f->cluster, at);
}

uint32_t fleet_n_inside(const struct fleet *f, uint32_t at)
{
    return f->cluster ? cluster_n_inside(f->cluster, at) : instance_n_inside(f->instances[at]);
}

static uint32_t least_loaded(const struct fleet *f)
{
    uint32_t best = NO_INSTANCE;

    for (uint32_t i = 0; i < f->config.n_instances; i++)
        if (is_alive(f, i) &&
            (best == NO_INSTANCE || fleet_n_inside(f, i) < fleet_n_inside(f, best)))
            best = i;
    return best == NO_INSTANCE ? 0 : best;
}

static bool has_place(const struct fleet *f, uint32_t at, double limit)
{
    return is_alive(f, at) && fleet_n_inside(f, at) + 1 <= limit;
}

/* The first instance with a place of a sequence that the name begins: others keep their requests
 * when one dies or is full. */
static uint32_t by_name(const struct fleet *f, uint64_t name, double limit)
{
    for (uint32_t k = 0; k < N_NAMES; k++) {
        uint32_t at = (uint32_t)(draw_mix(name, k) % f->config.n_instances);
        if (has_place(f, at, limit))
            return at;
    }
    return least_loaded(f);
}

static uint32_t by_beginning(const struct fleet *f, const struct load_request *r)
{
    double n_inside = 1, limit = INFINITY;

    for (uint32_t i = 0; f->config.hash_factor > 0 && i < f->config.n_instances; i++)
        n_inside += fleet_n_inside(f, i);
    if (f->config.hash_factor > 0)
        limit = ceil(f->config.hash_factor * n_inside / f->config.n_instances);
    return by_name(f, pieces_beginning(r, f->config.hash_tokens), limit);
}

static uint32_t next_in_turn(struct fleet *f)
{
    uint32_t at;

    do {
        at = f->next_instance;
        f->next_instance = (at + 1) % f->config.n_instances;
    } while (!is_alive(f, at));
    return at;
}

static uint32_t by_session(struct fleet *f, uint64_t session)
{
    uint32_t at;

    if (session && map_get(&f->session_at, session, &at) && is_alive(f, at))
        return at;
    at = least_loaded(f);
    if (session && f->session_at.n < N_SESSIONS_MAX)
        map_put(&f->session_at, session, at);
    return at;
}

static void match_all(const struct fleet *f, const struct job *j)
{
    if (f->cluster) {
        cluster_match(f->cluster, &j->pieces, f->n_tokens);
        return;
    }
    for (uint32_t i = 0; i < f->config.n_instances; i++)
        f->n_tokens[i] = instance_match(f->instances[i], &j->prompt);
}

static uint32_t n_waiting(const struct fleet *f, uint32_t at)
{
    return f->cluster ? cluster_n_waiting(f->cluster, at) : instance_n_waiting(f->instances[at]);
}

static double in_use(const struct fleet *f, uint32_t at)
{
    return f->cluster ? cluster_in_use(f->cluster, at) : instance_in_use(f->instances[at]);
}

static uint32_t by_scores(const struct fleet *f, const struct job *j, uint64_t name)
{
    uint32_t n = f->config.n_instances, best = 0, most = 0, longest = 0, shortest = UINT32_MAX;
    double best_score = -1;

    match_all(f, j);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t queue = n_waiting(f, i);
        most = f->n_tokens[i] > most ? f->n_tokens[i] : most;
        longest = queue > longest ? queue : longest;
        shortest = queue < shortest ? queue : shortest;
    }
    uint32_t first = (uint32_t)(draw_mix(name, 1) % n);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (first + k) % n;
        if (!is_alive(f, i))
            continue;
        double score = WEIGHT_MEMORY * (1 - in_use(f, i));
        score += most > 0 ? WEIGHT_PREFIX * f->n_tokens[i] / most : 0;
        score +=
            WEIGHT_QUEUE *
            (longest > shortest ? (double)(longest - n_waiting(f, i)) / (longest - shortest) : 1);
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    return best;
}

uint32_t fleet_route(struct fleet *f, const struct job *j, const struct load_request *r)
{
    uint64_t name = draw_mix(r->index, UINT64_C(0x726F757465));

    switch (f->config.routing) {
    case ROUTE_ROUND_ROBIN: return next_in_turn(f);
    case ROUTE_SESSION: return by_session(f, r->session);
    case ROUTE_RANDOM: return by_name(f, name, INFINITY);
    case ROUTE_HASH: return by_beginning(f, r);
    case ROUTE_PRECISE: return by_scores(f, j, name);
    case ROUTE_LEAST_LOADED: break;
    }
    return least_loaded(f);
}

/* --- jobs and time --- */

void fleet_submit(struct fleet *f, uint32_t at, struct job *j, uint64_t now_ns)
{
    j->at = at;
    if (f->cluster)
        cluster_submit(f->cluster, at, j, now_ns);
    else
        instance_submit(f->instances[at], j, now_ns);
}

void fleet_cancel(struct fleet *f, struct job *j, uint64_t now_ns)
{
    if (f->cluster)
        cluster_cancel(f->cluster, j);
    else
        instance_cancel(f->instances[j->at], j, now_ns);
}

uint64_t fleet_next(const struct fleet *f)
{
    uint64_t t = NEVER;

    if (f->cluster)
        return cluster_next(f->cluster);
    for (uint32_t i = 0; i < f->config.n_instances; i++) {
        uint64_t one = instance_next(f->instances[i]);
        t = one < t ? one : t;
    }
    return t;
}

void fleet_end_steps(struct fleet *f, uint64_t now_ns)
{
    if (f->cluster)
        cluster_end_steps(f->cluster, now_ns);
    for (uint32_t i = 0; f->instances && i < f->config.n_instances; i++)
        instance_end_step(f->instances[i], now_ns);
}

void fleet_begin_steps(struct fleet *f, uint64_t now_ns)
{
    if (f->cluster)
        cluster_begin_steps(f->cluster, now_ns);
    for (uint32_t i = 0; f->instances && i < f->config.n_instances; i++)
        if (instance_next(f->instances[i]) <= now_ns)
            instance_begin_step(f->instances[i], now_ns);
}

void fleet_count(struct fleet *f, struct sim_result *r, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->config.n_instances; i++) {
        ASSERT(fleet_n_inside(f, i) == 0);
        if (f->instances) {
            instance_check(f->instances[i]);
            instance_count(f->instances[i], r);
        }
    }
    if (f->cluster)
        cluster_count(f->cluster, r, now_ns);
}
