#include "loadgen/sim/registry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "loadgen/sim/table.h"

#define NEVER UINT64_MAX
#define NONE UINT32_MAX
#define N_SEGMENTS_WHOLE 16u /* a lookup of more is made in two steps */
#define N_PER_LIST 128u      /* instances: from so many on, records are read less often */
#define N_ANSWERED_MAX 16u   /* holders in an answer of the directory */

struct holder {
    uint64_t from_ns, until_ns; /* the directory names it; until_ns NEVER: it has the piece */
    uint32_t instance, life;    /* life: how often the instance had died before */
    uint32_t next;              /* of the same key; of free ones */
};

/* A withdrawal, or a death, that becomes visible later. */
struct due {
    uint64_t at_ns, key;
};

struct registry {
    struct registry_config config;
    struct table first;     /* key -> first holder */
    struct holder *holders; /* [cap] */
    uint32_t n, cap, first_free;
    uint32_t *life;    /* [n_instances] */
    uint64_t *died_ns; /* [n_instances] the last time */
    struct due *queue; /* ring [queue_cap] ascending */
    uint32_t queue_first, queue_n, queue_cap;
    uint64_t busy_until_ns;
    double owed_ns; /* parts of commands */
    struct registry_stats stats;
};

enum status registry_create(struct registry **out, const struct registry_config *config)
{
    struct registry *r = calloc(1, sizeof *r);

    *out = NULL;
    if (!r)
        return ERR_NOMEM;
    r->config = *config;
    r->first_free = NONE;
    r->life = calloc(config->n_instances, sizeof *r->life);
    r->died_ns = calloc(config->n_instances, sizeof *r->died_ns);
    if (!r->life || !r->died_ns) {
        registry_destroy(r);
        return ERR_NOMEM;
    }
    *out = r;
    return OK;
}

void registry_destroy(struct registry *r)
{
    if (!r)
        return;
    table_fini(&r->first);
    free(r->holders);
    free(r->life);
    free(r->died_ns);
    free(r->queue);
    free(r);
}

/* --- entries --- */

static bool is_there(const struct registry *r, const struct holder *h)
{
    return h->until_ns == NEVER && h->life == r->life[h->instance];
}

static bool is_named(const struct registry *r, const struct holder *h, uint64_t now_ns)
{
    if (now_ns < h->from_ns || now_ns >= h->until_ns)
        return false;
    return h->life == r->life[h->instance] ||
           (h->life + 1 == r->life[h->instance] &&
            now_ns < r->died_ns[h->instance] + r->config.lifetime_ns);
}

/* Remove the holders of a key that are named no more. */
static void clean(struct registry *r, uint64_t key, uint64_t now_ns)
{
    uint32_t first, *link = &first;

    if (!table_get(&r->first, key, &first))
        return;
    uint32_t before = first;
    while (*link != NONE) {
        struct holder *h = &r->holders[*link];
        bool is_dead = h->life != r->life[h->instance] &&
                       now_ns >= r->died_ns[h->instance] + r->config.lifetime_ns;
        if (now_ns < h->until_ns && !is_dead) {
            link = &h->next;
            continue;
        }
        uint32_t i = *link;
        *link = h->next;
        h->next = r->first_free;
        r->first_free = i;
        r->stats.n_entries--;
    }
    if (first == NONE)
        table_remove(&r->first, key);
    else if (first != before) {
        enum status s = table_put(&r->first, key, first);
        ASSERT(s == OK); /* the key is there */
    }
}

static void run_queue(struct registry *r, uint64_t now_ns)
{
    while (r->queue_n > 0 && r->queue[r->queue_first].at_ns <= now_ns) {
        uint64_t key = r->queue[r->queue_first].key;
        r->queue_first = (r->queue_first + 1) % r->queue_cap;
        r->queue_n--;
        clean(r, key, now_ns);
    }
}

static enum status enqueue(struct registry *r, uint64_t at_ns, uint64_t key)
{
    if (r->queue_n == r->queue_cap) {
        uint32_t cap = r->queue_cap ? 2 * r->queue_cap : 1024;
        struct due *bigger = malloc(cap * sizeof *bigger);
        if (!bigger)
            return ERR_NOMEM;
        for (uint32_t i = 0; i < r->queue_n; i++)
            bigger[i] = r->queue[(r->queue_first + i) % r->queue_cap];
        free(r->queue);
        r->queue = bigger;
        r->queue_first = 0;
        r->queue_cap = cap;
    }
    r->queue[(r->queue_first + r->queue_n++) % r->queue_cap] = (struct due){at_ns, key};
    return OK;
}

static struct holder *find(const struct registry *r, uint64_t key, uint32_t instance)
{
    uint32_t i;

    if (!table_get(&r->first, key, &i))
        return NULL;
    while (i != NONE &&
           (r->holders[i].instance != instance || r->holders[i].life != r->life[instance]))
        i = r->holders[i].next;
    return i == NONE ? NULL : &r->holders[i];
}

static enum status new_holder(struct registry *r, uint32_t *out)
{
    if (r->first_free != NONE) {
        *out = r->first_free;
        r->first_free = r->holders[*out].next;
        return OK;
    }
    if (r->n == r->cap) {
        uint32_t cap = r->cap ? 2 * r->cap : 1024;
        struct holder *bigger = realloc(r->holders, cap * sizeof *bigger);
        if (!bigger)
            return ERR_NOMEM;
        r->holders = bigger;
        r->cap = cap;
    }
    *out = r->n++;
    return OK;
}

static void charge(struct registry *r, double n_commands, double ns, uint64_t now_ns)
{
    r->owed_ns += ns;
    uint64_t whole = (uint64_t)r->owed_ns;
    r->owed_ns -= (double)whole;
    if (r->busy_until_ns < now_ns)
        r->busy_until_ns = now_ns;
    r->busy_until_ns += whole;
    r->stats.busy_ns += whole;
    r->stats.n_commands += (uint64_t)n_commands;
}

static bool is_away(const struct registry *r, uint64_t now_ns)
{
    return r->busy_until_ns > now_ns + r->config.away_ns;
}

enum status registry_add(struct registry *r, uint64_t key, uint32_t instance, uint32_t n_tokens,
                         uint64_t now_ns)
{
    struct holder *old = find(r, key, instance);
    uint32_t i, first = NONE;

    run_queue(r, now_ns);
    if (is_away(r, now_ns)) {
        /* The instance announces it later. */
    } else {
        double n = 2.0 * n_tokens / r->config.segment_tokens;
        charge(r, ceil(n), n * (double)r->config.command_ns, now_ns);
        r->stats.n_announced++;
    }
    uint64_t from_ns = (r->busy_until_ns > now_ns ? r->busy_until_ns : now_ns) + r->config.delay_ns;
    old = find(r, key, instance);
    if (old) {
        old->until_ns = NEVER;
        return OK;
    }
    enum status s = new_holder(r, &i);
    if (s != OK)
        return s;
    (void)table_get(&r->first, key, &first);
    r->holders[i] = (struct holder){from_ns, NEVER, instance, r->life[instance], first};
    r->stats.n_entries++;
    return table_put(&r->first, key, i);
}

void registry_remove(struct registry *r, uint64_t key, uint32_t instance, uint64_t now_ns)
{
    struct holder *h = find(r, key, instance);

    if (!h || h->until_ns != NEVER)
        return;
    h->until_ns = now_ns + r->config.delay_ns;
    if (!is_away(r, now_ns)) {
        charge(r, 1, (double)r->config.command_ns, now_ns);
        r->stats.n_withdrawn++;
    }
    if (enqueue(r, h->until_ns, key) != OK)
        h->until_ns = now_ns; /* without memory it is only forgotten sooner */
    run_queue(r, now_ns);
}

void registry_die(struct registry *r, uint32_t instance, uint64_t now_ns)
{
    r->life[instance]++;
    r->died_ns[instance] = now_ns;
}

uint32_t registry_holders(const struct registry *r, uint64_t key, uint64_t now_ns, uint32_t *out,
                          uint32_t n_max)
{
    uint32_t i, n = 0;

    if (!table_get(&r->first, key, &i))
        return 0;
    n_max = n_max < N_ANSWERED_MAX ? n_max : N_ANSWERED_MAX;
    for (; i != NONE && n < n_max; i = r->holders[i].next)
        if (is_named(r, &r->holders[i], now_ns))
            out[n++] = r->holders[i].instance;
    return n;
}

uint32_t registry_exact(const struct registry *r, uint64_t key, uint32_t *out, uint32_t n_max)
{
    uint32_t i, n = 0;

    if (!table_get(&r->first, key, &i))
        return 0;
    for (; i != NONE && n < n_max; i = r->holders[i].next)
        if (is_there(r, &r->holders[i]))
            out[n++] = r->holders[i].instance;
    return n;
}

/* --- costs --- */

bool registry_look(struct registry *r, uint32_t n_segments, uint64_t now_ns, uint64_t *wait_ns)
{
    double n = n_segments <= N_SEGMENTS_WHOLE ? n_segments : 2 * sqrt(n_segments);

    run_queue(r, now_ns);
    if (is_away(r, now_ns)) {
        r->stats.n_refused++;
        return false;
    }
    charge(r, ceil(n), n * (double)r->config.command_ns, now_ns);
    r->stats.n_lookups++;
    *wait_ns = r->busy_until_ns - now_ns;
    return true;
}

void registry_keep_alive(struct registry *r, uint32_t n_alive, uint64_t n_segments,
                         uint64_t elapsed_ns, uint64_t now_ns)
{
    double s = (double)elapsed_ns / 1e9, n_beats = n_alive * s;
    double n_records = n_beats * n_alive / (1 + n_alive / N_PER_LIST);
    double n_again = (double)n_segments * (double)elapsed_ns / (double)r->config.again_ns;

    if (is_away(r, now_ns))
        return;
    charge(r, 4 * n_beats + 2 * n_again,
           (4 * n_beats + 2 * n_again) * (double)r->config.command_ns +
               n_records * (double)r->config.record_ns,
           now_ns);
}

void registry_stats(const struct registry *r, struct registry_stats *out)
{
    *out = r->stats;
    out->n_bytes = (uint64_t)r->cap * sizeof *r->holders +
                   (uint64_t)r->first.n_slots * sizeof *r->first.slots +
                   (uint64_t)r->queue_cap * sizeof *r->queue;
}
