/* grammar.h - answers of a given form: JSON by a schema, a regular expression, a choice, a grammar.
 *
 * A grammar is compiled once and shared by requests. Each request has a run, which knows how far
 * the answer is, and gives the mask of tokens that may come next: those whose bytes go on with a
 * text of the grammar. The end-of-sequence ids are allowed where the text is complete. Masks are
 * computed when they are first needed and kept with the grammar.
 *
 * A mask depends on the text so far alone, so an answer stays a function of logits, parameters and
 * seed (promise P1). The work for masks is bounded for each mask and for the whole answer: a run
 * has a credit of states, each mask takes its work from it, and each token adds some. The work is
 * counted as if no other run had computed anything, so whether a run is refused depends on its text
 * alone, too.
 *
 * Computing a mask may take long. A thread that must not wait asks with a slice of work, and lets
 * another thread call grammar_run_prepare() where that does not suffice.
 *
 * Owns    a vocabulary: trees of its tokens, which borrow the tokenizer's bytes. A grammar: counted
 *         references; it borrows the vocabulary.
 * Thread  any, each run one at a time.
 * Errors  ERR_INVALID with words: a faulty schema, expression or grammar; ERR_UNSUPPORTED: a
 *         feature by name; ERR_TOO_LARGE: a bound; ERR_BUSY: see grammar_run_try_mask(); ERR_NOMEM.
 * Units   ids; words of 32 bits (engine/run/vocab_mask.h); states of work, some 25 ns each. */
#ifndef TARN_ENGINE_GRAMMAR_GRAMMAR_H
#define TARN_ENGINE_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"

#define GRAMMAR_SHOWN_MAX 10u

struct tokenizer;
struct grammar_vocab;
struct grammar;

NODISCARD enum status grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t,
                                           uint32_t n_vocab);
/* The same, where the special tokens shown[n], at most GRAMMAR_SHOWN_MAX, are text: their own
 * spelling. */
NODISCARD enum status grammar_vocab_create_showing(struct grammar_vocab **out,
                                                   const struct tokenizer *t, uint32_t n_vocab,
                                                   const uint32_t *shown, uint32_t n_shown);
void grammar_vocab_destroy(struct grammar_vocab *v); /* NULL is fine */

enum grammar_kind {
    GRAMMAR_JSON_OBJECT, /* any JSON object; source: NULL */
    GRAMMAR_JSON_SCHEMA, /* source: the schema, JSON */
    GRAMMAR_REGEX,       /* source: a string, that the whole answer must match */
    GRAMMAR_CHOICE,      /* source: an array of strings */
    GRAMMAR_EBNF,        /* source: a string, in the notation of llama.cpp (GBNF) or of Lark */
    GRAMMAR_TAGS,        /* source: a structural tag: front_tags() of front.h */
    GRAMMAR_CALLS,       /* source: calls of tools: front_calls() of front.h */
    GRAMMAR_REASONED     /* source: {"begin", "end", "behind", "before_form", "kind", "source"}:
                            before_form and a text of another kind (of calls: without before_form),
                            or begin, any text, end, white space, behind, and the same */
};

/* Compile a grammar; the caller has one reference. */
NODISCARD enum status grammar_create(struct grammar **out, struct grammar_vocab *v,
                                     enum grammar_kind kind, const struct json *source,
                                     struct buf *why);
/* Memory of the grammar with what runs have made it remember, at most about 120 MB. */
size_t grammar_bytes(const struct grammar *g);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */

/* An answer's place in its grammar. Zeroed: the answer has no grammar. */
struct grammar_run {
    struct grammar *grammar;
    struct grammar_cache *cache;
    uint32_t config;
    uint32_t work;      /* of the mask at this place, once it is known */
    uint64_t credit;    /* work that masks may still take */
    uint64_t n_worked;  /* work of the masks so far */
    const char *unread; /* [n_unread] bytes of the latest token, or of grammar_run_skip(), if the
                           grammar has not read them */
    size_t n_unread;
    bool is_first; /* no token yet, at the beginning of a text: the tokenizer's dummy space is not
                      shown */
    bool is_over;  /* an end-of-sequence id came */
};

/* continues: the answer continues a text, as in detok_init(). */
void grammar_run_init(struct grammar_run *r, struct grammar *g, bool continues);
void grammar_run_copy(struct grammar_run *r, const struct grammar_run *from);
void grammar_run_fini(struct grammar_run *r); /* fine on a zeroed struct */
/* The text, which outlives the run, came before the answer's first token. ERR_INVALID: the grammar
 * does not begin so. Where another thread has the lock for long, the next mask reads the text. */
NODISCARD enum status grammar_run_skip(struct grammar_run *r, const char *text);

/* Write the mask of the ids that may come next: vocab_mask_n_words() words. ERR_UNSUPPORTED: no
 * token of this vocabulary can go on. */
NODISCARD enum status grammar_run_mask(struct grammar_run *r, const uint32_t *eos_ids,
                                       uint32_t n_eos_ids, uint32_t *mask);
/* The same, with at most about `slice` states of work now. ERR_BUSY: the mask needs more, or
 * another thread is computing one: grammar_run_prepare() the run, or a copy that then takes its
 * place. */
NODISCARD enum status grammar_run_try_mask(struct grammar_run *r, uint32_t slice,
                                           const uint32_t *eos_ids, uint32_t n_eos_ids,
                                           uint32_t *mask);
/* Compute the mask of the run's place, so that grammar_run_try_mask() finds it. */
NODISCARD enum status grammar_run_prepare(struct grammar_run *r);
/* Guess the ids [at most n] that come next where the grammar leaves one text only, and for each the
 * chance that the sampler picks the id, if the guesses before it are right: 1 where the mask has no
 * other id. Returns their number. Computes no mask, and takes little time. */
uint32_t grammar_run_forced(const struct grammar_run *r, uint32_t *ids, double *chances,
                            uint32_t n);
/* The answer goes on with `id`. ERR_INVALID: the mask does not allow it. Where another thread has
 * the grammar's lock for long, the token is read with the next mask, which gives the error then. */
NODISCARD enum status grammar_run_feed(struct grammar_run *r, const uint32_t *eos_ids,
                                       uint32_t n_eos_ids, uint32_t id);

/* Whether a whole text is one of the grammar; for tests and for texts that did not come from a
 * run. */
NODISCARD enum status grammar_matches(struct grammar *g, const char *text, size_t len, bool *out);

#endif
