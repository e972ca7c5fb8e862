/* lengths.h - learns how long answers are from those that ended, and ranks unfinished ones.
 *
 * Each class of requests has a histogram of answer lengths. Classes form a tree: all requests, then
 * the band of max_tokens (if the client set it), then the tenant, then the kind of call with the
 * band of prompt lengths, then a quarter of an octave of prompt lengths. Old answers fade:
 * LENGTHS_HALF_LIFE answers later, an answer counts half. A class leans on its parent with a weight
 * of LENGTHS_LEAN answers, so a young class answers as its parent does, and the root leans on a
 * fixed distribution (log-uniform).
 *
 * Rank. For an answer of length S of which `a` tokens exist, behind a prefill that takes as long as
 * p tokens, the Gittins index (Gittins, 1979; for queues: Aalto, Ayesta, Righter, "On the Gittins
 * index in the M/G/1 queue", 2009) is the largest ratio of gain to time over all stopping points d:
 *     G = max over d of E[w(S); S <= a + d | S > a] / (p + E[min(S - a, d) | S > a])
 * with w = 1 for the least mean latency, and w = 1 / S for the least mean of latency / length. The
 * rank is 1 / G, so that lower ranks go first. Where the hazard rate falls, as with heavy tails,
 * the rank rises with `a`, so new answers go first (an MLFQ approximates this order); where the
 * hazard rate rises, the rank falls with `a`, so answers that began are finished first.
 *
 * Owns    its tables, all allocated by lengths_create().
 * Thread  one at a time.
 * Errors  ERR_NOMEM; ERR_INVALID with a message about the field; ERR_NOT_FOUND: no such file, or
 *         the file is for another model.
 * Units   tokens. */
#ifndef TARN_ENGINE_SCHED_LENGTHS_H
#define TARN_ENGINE_SCHED_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define LENGTHS_HALF_LIFE 300
#define LENGTHS_LEAN 30
#define LENGTHS_N_CLASSES_MAX 1024
#define LENGTHS_CALLS 0 /* the class of all calls */

struct lengths;

enum length_kind {
    LENGTH_CALL,       /* no session */
    LENGTH_FIRST_CALL, /* of a session */
    LENGTH_LATER_CALL, /* of a session */
    LENGTH_PROGRAM,    /* the sum over the calls of a session; has a root of its own */
};

struct length_traits {
    uint64_t tenant;
    uint32_t n_prompt;
    uint32_t n_out_max;
    bool has_limit; /* the client set n_out_max; else it is ignored */
    enum length_kind kind;
};

enum latency_objective { OBJECTIVE_NORMALIZED, OBJECTIVE_E2E };

NODISCARD enum status lengths_create(struct lengths **out);
void lengths_destroy(struct lengths *l); /* NULL is fine */

/* The deepest class that exists for these traits. */
uint32_t lengths_class(const struct lengths *l, const struct length_traits *t);
/* The same, but a missing class is made, and none of the path is reused before lengths_leave().
 * When all classes are in use, the parent answers. */
uint32_t lengths_enter(struct lengths *l, const struct length_traits *t);
void lengths_leave(struct lengths *l, uint32_t class);

/* An answer of the class has ended after n_tokens. */
void lengths_note(struct lengths *l, uint32_t class, uint32_t n_tokens);
/* Count of answers noted since the start, in all classes. */
uint64_t lengths_n_noted(const struct lengths *l);

/* While frozen, the questions below change nothing. Otherwise they keep distributions for the next
 * few answers, so that the time of a question has an effect on later ranks. */
void lengths_freeze(struct lengths *l, bool is_frozen);
/* Of an answer with n_generated tokens: the expected number of tokens still to come, and the number
 * that is not exceeded with probability p. At least 1. */
double lengths_mean_left(const struct lengths *l, uint32_t class, uint32_t n_generated);
double lengths_quantile_left(const struct lengths *l, uint32_t class, uint32_t n_generated,
                             double p);
/* The rank, at least 1. prefill: the time of the prefill that is left, in tokens. Between two
 * values of lengths_step() the rank is the same. */
double lengths_rank(const struct lengths *l, uint32_t class, uint32_t n_generated, double prefill,
                    enum latency_objective objective);
uint32_t lengths_step(uint32_t n_generated);

/* --- file --- */

/* {"format": 1, "model": "64 hex digits", "classes": [{"programs": false, "band": 8, "counts":
 * [[bin, answers], ...]}, ...]}. A class without a band is a root. Only roots and bands are kept,
 * so that the file names no tenant. */
NODISCARD enum status lengths_write(struct buf *out, const struct lengths *l,
                                    const uint8_t fingerprint[32]);
/* Replace what was learned, before the first lengths_enter(). *l changes only on OK. */
NODISCARD enum status lengths_read(struct lengths *l, const char *text, size_t len,
                                   const uint8_t fingerprint[32], struct buf *why);
/* The file lengths-<16 hex digits>.json in `dir`; a save replaces the file atomically. */
NODISCARD enum status lengths_save(const struct lengths *l, const char *dir,
                                   const uint8_t fingerprint[32], struct buf *why);
NODISCARD enum status lengths_load(struct lengths *l, const char *dir,
                                   const uint8_t fingerprint[32], struct buf *why);

#endif
