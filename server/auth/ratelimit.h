/* ratelimit.h - token buckets that limit a key's requests and tokens per minute.
 *
 * A bucket holds at most the limit of one minute and fills evenly. A request takes one unit of the
 * request bucket and the prompt's tokens of the token bucket. The tokens of an answer are known
 * only at its end and are charged then, whatever the level is. So the level may fall below zero,
 * and prompts are refused until it has risen again.
 *
 * The functions are pure: the caller passes the time. Levels are integers in units of 1/60000: with
 * a limit of one per minute a bucket gains one of these per millisecond, so no rounding occurs.
 *
 * Owns    nothing.
 * Thread  one at a time (an account's lock, see auth.h).
 * Errors  none; a refusal is a verdict.
 * Units   nanoseconds of any monotonic clock, requests, tokens; a limit of 0 means no limit. */
#ifndef TARN_SERVER_AUTH_RATELIMIT_H
#define TARN_SERVER_AUTH_RATELIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* With this limit no level exceeds 63 bits, debts and long pauses included. */
#define RATELIMIT_PER_MINUTE_MAX UINT64_C(1000000000)

struct bucket {
    uint64_t limit; /* per minute; 0: no limit */
    int64_t level;  /* in 1/60000 of a request or token */
    uint64_t t_ms;  /* time of the last fill */
};

struct limiter {
    struct bucket requests, tokens;
};

/* The state of a bucket, as reported to the client. */
struct bucket_state {
    uint64_t limit;     /* 0: no limit, the other fields have no meaning */
    uint64_t remaining; /* whole units, 0 when the level is negative */
    uint64_t reset_ms;  /* time until the bucket is full */
};

enum verdict {
    VERDICT_YES,
    VERDICT_LATER, /* the bucket will hold enough after *wait_s seconds, if nothing else takes */
    VERDICT_NEVER, /* n is more than a full bucket holds */
};

/* Make full buckets. */
void limiter_init(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                  uint64_t now_ns);
/* Change the limits. What was used of the old limits counts against the new ones. */
void limiter_set(struct limiter *l, uint64_t requests_per_minute, uint64_t tokens_per_minute,
                 uint64_t now_ns);
/* Take n units if the bucket holds them. *wait_s: at least 1, set only with VERDICT_LATER. */
enum verdict bucket_take(struct bucket *b, uint64_t n, uint64_t now_ns, uint64_t *wait_s);
/* Take n units, even if the level becomes negative. */
void bucket_charge(struct bucket *b, uint64_t n, uint64_t now_ns);
struct bucket_state bucket_look(struct bucket *b, uint64_t now_ns);

#endif
