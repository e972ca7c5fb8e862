#include "server/auth/ratelimit.h"

#define SCALE INT64_C(60000) /* levels per unit: the milliseconds of a minute */
#define NS_PER_MS UINT64_C(1000000)
/* Longer pauses count as this one (11 days), so that the product with a limit does not overflow. */
#define ELAPSED_MS_MAX UINT64_C(1000000000)
#define DEBT_MAX (INT64_C(1) << 61)

static int64_t full(const struct bucket *b)
{
    return (int64_t)b->limit * SCALE;
}

/* Fill the bucket up to now. A clock that stands still or goes back fills nothing. The fraction of
 * a millisecond is not lost: t_ms is in whole milliseconds, so the next fill includes it. */
static void fill(struct bucket *b, uint64_t now_ns)
{
    uint64_t now_ms = now_ns / NS_PER_MS;

    if (now_ms <= b->t_ms)
        return;
    uint64_t elapsed = now_ms - b->t_ms;
    b->t_ms = now_ms;
    if (elapsed > ELAPSED_MS_MAX)
        elapsed = ELAPSED_MS_MAX;
    b->level += (int64_t)(elapsed * b->limit);
    if (b->level > full(b))
        b->level = full(b);
}

static struct bucket bucket_of(uint64_t limit, uint64_t now_ns)
{
    struct bucket b = {.limit = limit, .t_ms = now_ns / NS_PER_MS};

    b.level = full(&b);
    return b;
}

void limiter_init(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                  uint64_t now_ns)
{
    l->requests = bucket_of(requests_per_minute, now_ns);
    l->tokens = bucket_of(tokens_per_minute, now_ns);
}

static void set_limit(struct bucket *b, uint64_t limit, uint64_t now_ns)
{
    fill(b, now_ns);
    int64_t used = full(b) - b->level;
    b->limit = limit;
    b->level = full(b) - used;
}

void limiter_set(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                 uint64_t now_ns)
{
    set_limit(&l->requests, requests_per_minute, now_ns);
    set_limit(&l->tokens, tokens_per_minute, now_ns);
}

enum verdict bucket_take(struct bucket *b, uint64_t n, uint64_t now_ns, uint64_t *wait_s)
{
    fill(b, now_ns);
    if (b->limit == 0)
        return VERDICT_YES;
    if (n > b->limit)
        return VERDICT_NEVER;
    int64_t missing = (int64_t)n * SCALE - b->level;
    if (missing <= 0) {
        b->level -= (int64_t)n * SCALE;
        return VERDICT_YES;
    }
    uint64_t ms = ((uint64_t)missing + b->limit - 1) / b->limit;
    *wait_s = (ms + 999) / 1000;
    return VERDICT_LATER;
}

void bucket_charge(struct bucket *b, uint64_t n, uint64_t now_ns)
{
    fill(b, now_ns);
    if (b->limit == 0)
        return;
    if (n > (uint64_t)(DEBT_MAX / SCALE))
        n = (uint64_t)(DEBT_MAX / SCALE);
    b->level -= (int64_t)n * SCALE;
    if (b->level < -DEBT_MAX)
        b->level = -DEBT_MAX;
}

struct bucket_state bucket_look(struct bucket *b, uint64_t now_ns)
{
    struct bucket_state state = {.limit = b->limit};

    fill(b, now_ns);
    if (b->limit == 0)
        return state;
    state.remaining = b->level > 0 ? (uint64_t)(b->level / SCALE) : 0;
    state.reset_ms = ((uint64_t)(full(b) - b->level) + b->limit - 1) / b->limit;
    return state;
}
