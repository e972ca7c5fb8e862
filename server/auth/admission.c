#include "server/auth/admission.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"

#define WORDS_BYTES 256

struct header_names {
    const char *what; /* the limit's name in messages */
    const char *limit, *remaining, *reset;
};

static const struct header_names of_requests = {"requests", "x-ratelimit-limit-requests",
                                                "x-ratelimit-remaining-requests",
                                                "x-ratelimit-reset-requests"};
static const struct header_names of_tokens = {"tokens", "x-ratelimit-limit-tokens",
                                              "x-ratelimit-remaining-tokens",
                                              "x-ratelimit-reset-tokens"};

static void add_number(struct http_exchange *x, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    http_add_header(x, name, text);
}

/* Add a duration in OpenAI's format: "120ms", "1.5s", "6m0s". */
static void add_duration(struct http_exchange *x, const char *name, uint64_t ms)
{
    char text[48];

    if (ms < 1000)
        snprintf(text, sizeof text, "%" PRIu64 "ms", ms);
    else if (ms < 60000)
        snprintf(text, sizeof text, "%.6gs", (double)ms / 1000);
    else
        snprintf(text, sizeof text, "%" PRIu64 "m%" PRIu64 "s", ms / 60000, ms / 1000 % 60);
    http_add_header(x, name, text);
}

static void refuse_later(struct http_exchange *x, const char *what, uint64_t n, uint64_t limit,
                         uint64_t wait_s)
{
    char words[WORDS_BYTES];
    struct buf body;

    snprintf(words, sizeof words,
             "Rate limit reached for this key on %s per minute: limit %" PRIu64 ", wanted %" PRIu64
             ". Please try again in %" PRIu64 "s.",
             what, limit, n, wait_s);
    buf_init(&body, 4096);
    enum status s = error_write_for(x, &body, 429, ERR_BUSY, "rate_limit_exceeded", words);
    http_set_error(x, "rate_limit_exceeded");
    add_number(x, "Retry-After", wait_s);
    http_add_header(x, "x-llm-d-request-dropped-reason", "rejected-rate-limited");
    http_reply(x, 429, "application/json", s == OK ? &body : NULL);
    buf_fini(&body);
}

static void refuse_for_ever(struct http_exchange *x, const char *what, uint64_t n, uint64_t limit)
{
    char words[WORDS_BYTES];

    snprintf(words, sizeof words,
             "This request has %" PRIu64 " %s, more than this key's %" PRIu64
             " per minute: it can never be admitted.",
             n, what, limit);
    error_reply(x, ERR_TOO_LARGE, "rate_limit_too_small", words);
}

static bool take(struct account *a, struct bucket *b, const struct header_names *names, uint64_t n,
                 struct http_exchange *x)
{
    uint64_t now = clock_now_ns(), wait_s = 0;

    pthread_mutex_lock(&a->lock);
    enum verdict verdict = bucket_take(b, n, now, &wait_s);
    struct bucket_state state = bucket_look(b, now);
    pthread_mutex_unlock(&a->lock);
    if (state.limit) {
        add_number(x, names->limit, state.limit);
        add_number(x, names->remaining, state.remaining);
        add_duration(x, names->reset, state.reset_ms);
    }
    if (verdict == VERDICT_YES)
        return true;
    atomic_fetch_add(&a->tenant->n_rate_limited, 1);
    if (verdict == VERDICT_LATER)
        refuse_later(x, names->what, n, state.limit, wait_s);
    else
        refuse_for_ever(x, names->what, n, state.limit);
    return false;
}

bool admission_request(struct account *a, struct http_exchange *x)
{
    return take(a, &a->limiter.requests, &of_requests, 1, x);
}

bool admission_prompt(struct account *a, struct http_exchange *x, uint64_t n_tokens)
{
    return take(a, &a->limiter.tokens, &of_tokens, n_tokens, x);
}

void admission_generated(struct account *a, uint64_t n_tokens)
{
    pthread_mutex_lock(&a->lock);
    bucket_charge(&a->limiter.tokens, n_tokens, clock_now_ns());
    pthread_mutex_unlock(&a->lock);
}
