/* ratelimit.h - token buckets: how many requests and tokens a key may still use this minute.
 *
 * A bucket holds one minute's worth at most and fills evenly. A request is admitted when both
 * buckets can pay for it, and pays at once; what an answer costs is known only at its end and is
 * charged then, so the level of the token bucket may fall below zero: the next request waits.
 *
 * Pure: time comes in, nothing goes out. Levels are whole numbers of 1/60000 unit, which is what a
 * limit of one per minute gains in a millisecond, so nothing is lost to rounding.
 *
 * Owns    nothing.
 * Thread  one at a time (an account's lock, see auth.h).
 * Errors  none; a refusal is a verdict.
 * Units   nanoseconds of any monotonic clock, requests, tokens; a limit of 0 means none. */
#ifndef TARN_SERVER_AUTH_RATELIMIT_H
#define TARN_SERVER_AUTH_RATELIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* What a level can hold without passing 63 bits, debts and long pauses included. */
#define RATELIMIT_PER_MINUTE_MAX UINT64_C(1000000000)

struct bucket {
    uint64_t limit; /* per minute; 0: no limit */
    int64_t level;  /* in 1/60000 */
    uint64_t t_ms;  /* up to when it was filled */
};

struct limiter {
    struct bucket requests, tokens;
};

/* What the client is told about one bucket. */
struct bucket_state {
    uint64_t limit;     /* 0: no limit, the rest means nothing */
    uint64_t remaining; /* whole units, 0 when in debt */
    uint64_t reset_ms;  /* until it is full again */
};

enum verdict {
    VERDICT_YES,
    VERDICT_LATER, /* it would pass after *wait_s seconds, were it alone */
    VERDICT_NEVER, /* it asks for more than a full bucket holds */
};

/* Full buckets. */
void limiter_init(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                  uint64_t now_ns);
/* New limits; what was used stays used. */
void limiter_set(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                 uint64_t now_ns);
/* Takes n units when they are there. wait_s: at least 1, set only with VERDICT_LATER. */
enum verdict bucket_take(struct bucket *b, uint64_t n, uint64_t now_ns, uint64_t *wait_s);
/* Takes n units, there or not. */
void bucket_charge(struct bucket *b, uint64_t n, uint64_t now_ns);
struct bucket_state bucket_look(struct bucket *b, uint64_t now_ns);

#endif
