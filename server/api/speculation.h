/* speculation.h - prefills the prompt of a provisional list of documents while the search goes on.
 *
 * Dynamic speculative pipelining (Jin et al., "RAGCache", 2024, arXiv 2404.12457, section 5.3): a
 * list that differs from the last one replaces the running speculative prefill, and a prefill
 * starts only while the engine has room for one, so that requests whose documents are known are
 * served first. A speculative prefill is a request of its own, of class SCHED_SPECULATIVE, with
 * max_tokens 0: its KV goes into the cache under exact keys, so the answer's tokens are the same
 * with it and without it (promise P1), and KV that was computed for nothing is evicted like any
 * other.
 *
 * Owns    the speculative request.
 * Thread  one at a time: the search's thread until it ends, then the call's.
 * Errors  none: what cannot be speculated is not.
 * Units   tokens. */
#ifndef TARN_SERVER_API_SPECULATION_H
#define TARN_SERVER_API_SPECULATION_H

#include <stdint.h>

#include "base/status.h"
#include "cache/cache.h"

struct account;
struct prompt;
struct server;
struct speculation;

/* For one call of this account; scope, salt: of the call's KV, copied. ERR_NOMEM. NULL is fine for
 * all functions below: nothing is speculated. */
NODISCARD enum status speculation_create(struct speculation **out, const struct server *srv,
                                         struct account *account, const struct kv_scope *scope,
                                         uint64_t salt);
/* The provisional prompt is p now. Does nothing if it is the one being prefilled. */
void speculation_update(struct speculation *s, const struct prompt *p);
/* The search has ended with the prompt `final` (NULL: it failed). A prefill of another prompt is
 * cancelled; one of this prompt goes on until speculation_destroy(). */
void speculation_confirm(struct speculation *s, const struct prompt *final);
/* After speculation_confirm(): "none": nothing was prefilled, also where s is NULL; "confirmed":
 * the final prompt was being prefilled; "dropped": others were. */
const char *speculation_outcome(const struct speculation *s);
/* The call's own request was submitted, or the call ends: cancel what still runs. */
void speculation_destroy(struct speculation *s);

#endif
