/* pace.h - which request goes out when: the part that a live run and a simulation share.
 *
 * Open loop: each request has an intended time, whatever the server does; with a limit on
 * concurrency the request waits for a place. Closed loop: a request goes out when a place is free.
 * A later turn of a conversation is due when the user has thought about the answer before it.
 *
 * Owns    nothing; a turn is its caller's: turn_fini().
 * Thread  one.
 * Errors  pace_next(): ERR_NOT_FOUND when nothing more is sent, which also sets no_more; others
 *         with words.
 * Units   ns of a clock of the caller's choice; seconds where named so. */
#ifndef TARN_LOADGEN_LOAD_PACE_H
#define TARN_LOADGEN_LOAD_PACE_H

#include "loadgen/load/chain.h"
#include "loadgen/load/outcome.h"

struct turn {
    struct load_request request;
    struct chain *chain; /* later turns of the conversation; NULL: a single request */
    struct outcome outcome;
};
void turn_fini(struct turn *t);

struct pace {
    struct load_source source;
    bool closed;
    uint32_t concurrency;    /* places; 0: no limit */
    uint64_t count;          /* measured requests; 0: no limit */
    double offset_s;         /* subtracted from arrival times */
    bool ends_conversations; /* later turns go out although count or time are used up */
    /* set by pace_begin() */
    uint64_t start_ns, measured_ns, stop_ns; /* stop_ns 0: no limit */
    /* kept by the caller: requests that hold a place, sent or while their user thinks */
    uint32_t n_active, n_thinking;
    uint64_t n_admitted; /* measured requests that will be sent */
    bool no_more;        /* nothing more is generated; the caller may set it */
};

/* from_ns and `s` seconds. */
uint64_t pace_after(uint64_t from_ns, double s);
void pace_begin(struct pace *p, uint64_t start_ns, double warmup_s, double duration_s);
/* Generate the next first turn. */
NODISCARD enum status pace_next(struct pace *p, struct turn *out, struct buf *why);
/* Prepare the turn behind `before`, due at out->outcome.intended_ns. False: there is none, or no
 * time for it. Take `chain`, which may be NULL. */
bool pace_follow(const struct pace *p, struct chain *chain, const struct outcome *before,
                 struct turn *out);
bool pace_has_place(const struct pace *p);
/* Whether the turn's time has come and a closed loop has a place for it. */
bool pace_is_due(const struct pace *p, const struct turn *t, uint64_t now_ns);
/* Count the turn, which is sent or queued now. False: the run's time or count has come to an end
 * since the turn was generated. */
bool pace_admit(struct pace *p, struct turn *t, uint64_t now_ns);

#endif
