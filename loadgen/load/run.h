/* run.h - sends generated requests to one server and collects their outcomes.
 *
 * One thread drives all connections through the loop of base/http.h; pace.h decides when a request
 * is sent. In an open loop the wait for a place counts in the latency. The next body is built while
 * nothing else is due: at the intended time the bytes are ready.
 *
 * Owns    its requests in flight; the outcomes are handed over by run_take().
 * Thread  one; run_interrupt() also from a signal handler.
 * Errors  ERR_NOMEM, ERR_INVALID with words: the run cannot go on. The errors of a request are in
 *         its outcome.
 * Units   ns of the loop's clock, seconds where named so. */
#ifndef TARN_LOADGEN_LOAD_RUN_H
#define TARN_LOADGEN_LOAD_RUN_H

#include "base/http.h"
#include "loadgen/load/chain.h"
#include "loadgen/load/outcome.h"
#include "loadgen/load/prompt.h"

struct run;

struct run_progress {
    double elapsed_s, of_s;                      /* of_s 0: not known */
    uint64_t n_started, n_ended, n_errors, of_n; /* of_n 0: not known */
    uint64_t n_tokens;
    uint32_t n_active, n_waiting;
};

struct run_config {
    struct http_loop *loop;
    const struct tarn_client *const *clients; /* [n_clients] one per tenant */
    uint32_t n_clients;
    const struct prompt_style *style;
    struct load_source source;

    bool closed;                 /* no arrival times: `concurrency` requests at any time */
    uint32_t concurrency;        /* 0: no limit (open loop only) */
    uint64_t count;              /* measured requests; 0: no limit */
    double warmup_s, duration_s; /* duration 0: no limit */
    double drain_s;              /* limit for requests in flight after the last arrival; 0: none */
    double arrival_offset_s;     /* subtracted from arrival times */
    double slow_pause_s;         /* what a slow reader waits after each piece */
    bool keep_text;              /* of all requests; else only of those to verify */
    bool ends_conversations;     /* as in struct pace */
    bool real_history;           /* answers stand in later turns as they came */

    void (*progress)(void *arg, const struct run_progress *p); /* may be NULL */
    void *progress_arg;
    uint64_t progress_ns; /* how often */
};

/* On OK *out is the caller's: run_destroy(). */
NODISCARD enum status run_create(struct run **out, const struct run_config *config);
NODISCARD enum status run_go(struct run *run, struct buf *why);
/* Run several runs of one loop from one start. An error or interrupt of one ends all. */
NODISCARD enum status run_go_together(struct run *const *runs, uint32_t n, struct buf *why);
/* Send nothing more and cancel the requests in flight. Async-signal-safe. */
void run_interrupt(struct run *run);
bool run_was_interrupted(const struct run *run);
/* Hand the outcomes over to the caller. */
void run_take(struct run *run, struct outcome_list *out);
uint64_t run_start_ns(const struct run *run);    /* of the first arrivals */
uint64_t run_measured_ns(const struct run *run); /* end of the warm-up */
void run_destroy(struct run *run);               /* NULL is fine */

#endif
