/* metrics.h - from outcomes to numbers. Definitions are vLLM's where vLLM has them:
 *
 *   ttft      first token - intended send time
 *   e2el      last token - intended send time
 *   tpot      (e2el - ttft) / (output tokens - 1), of requests with two or more
 *   itl       each gap between two pieces of text; where a server sends several tokens in one piece
 *             (group.n_piece_tokens above n_pieces), a gap is not the time of one token
 *   normalized_latency   e2el / output tokens
 *   ttft_from_send, e2el_from_send   the same from the time of sending
 *   send_lag  time of sending - (intended time, or when --concurrency allowed the request): the
 *             generator's own delay
 *
 *   program   first turn's intended send time to the last token of the last turn, of conversations
 *             of several turns that ended; counted with the last turn
 *   program_active  the same without the client's pauses: the sum of e2el over the turns
 *
 * Latencies are those of requests of the measured part that ended well. Slow readers and clients
 * that hung up on purpose are counted apart and have no latencies.
 *
 * Owns    groups: metrics_fini().
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   seconds inside, milliseconds in reports. */
#ifndef TARN_LOADGEN_LOAD_METRICS_H
#define TARN_LOADGEN_LOAD_METRICS_H

#include "loadgen/load/outcome.h"
#include "loadgen/load/stats.h"

enum metric {
    METRIC_TTFT,
    METRIC_TPOT,
    METRIC_ITL,
    METRIC_E2EL,
    METRIC_NORMALIZED,
    METRIC_TTFT_SEND,
    METRIC_E2EL_SEND,
    METRIC_LAG,
    METRIC_PROGRAM,
    METRIC_PROGRAM_ACTIVE,
    N_METRICS
};

#define N_PERCENTS_MAX 16

struct percents {
    double p[N_PERCENTS_MAX]; /* [n] */
    uint32_t n;
};

struct summary {
    size_t n;
    double mean, median, std, max; /* s */
    double at[N_PERCENTS_MAX];     /* one per percent asked for */
};

struct group {
    char name[80]; /* "" for all */
    uint64_t n_completed, n_failed, n_disconnected, n_unfinished, n_slow;
    uint64_t n_good; /* met their SLO */
    uint64_t n_with_slo;
    uint64_t prompt_tokens, output_tokens;
    uint64_t cached_tokens, n_said_cached; /* requests whose answer has that number */
    uint64_t cached_by_tier[TARN_N_TIERS], n_said_tiers;
    /* Pieces of text and the tokens in them, of requests that have latencies and a token count of
     * the server's; a token that ends an answer has no text and does not count. */
    uint64_t n_pieces, n_piece_tokens;
    struct summary of[N_METRICS];
};

struct metrics {
    struct group all;
    struct group *tenants; /* [n_tenants] */
    uint32_t n_tenants;
    struct group *priorities; /* [n_priorities] ascending; none when all have one */
    uint32_t n_priorities;
    struct percents percents;
    double duration_s; /* start of the measured part to its last end, or to until_ns */
    uint64_t peak_output_tokens_per_s; /* most tokens in one second since the start */
    uint64_t peak_concurrent;          /* most requests seen in one second */
    uint64_t n_errors[TARN_N_ERRORS];
};

struct metrics_options {
    struct percents percents;
    uint64_t start_ns; /* of the measured part */
    uint64_t until_ns; /* end of the arrivals: the duration is no shorter; 0: not known */
    const char *const *tenant_names; /* [n_tenants] */
    uint32_t n_tenants;
};

NODISCARD enum status metrics_compute(struct metrics *m, const struct outcome *outcomes, size_t n,
                                      const struct metrics_options *options);
/* Add 50, 90, 95 and, always as the last one, 99 to the percentiles asked for. */
void metrics_add_usual_percents(struct percents *p);
void metrics_fini(struct metrics *m); /* also fine on a zeroed struct */
const char *metric_name(enum metric m);

/* Tokens in a piece of text, mean; 0: not known. */
double metrics_tokens_per_piece(const struct group *g);

/* A metric of one request, seconds; *has: whether the request has that metric. */
double metric_of(const struct outcome *o, enum metric m, bool *has);

#endif
