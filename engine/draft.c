/* draft.c - speculation: a sequence that decodes verifies guessed tokens in the same step.
 *
 * Guesses come from the grammar of the answer, where it leaves one text only (form_forced()), else
 * from the sequence's own text (run/lookup.h). Guesses become rows of the step behind the row of
 * the last known token. Each row's token is picked as without speculation: with the same
 * parameters, the same masks and the random number of its place in the answer. While the picked
 * tokens equal the guesses, the next row's input was right, and its logits are, bit for bit, those
 * of a decode (promise P1). So the answer never depends on what was guessed: guesses only decide
 * how many tokens a step yields.
 *
 * Penalties, grammars and bad words make a token's logits or mask depend on the tokens before it.
 * The rows of such sequences are picked one after the other, as tokens are given (step.c).
 *
 * Rows of guesses need room: in the step's rows, in its rows of logits and in KV memory. Guesses
 * take only what the plan left. sched/drafting.h decides how many are worth their time. */
#include "base/check.h"
#include "engine/engine_internal.h"
#include "kernels/device.h"

uint32_t draft_tokens_max(const struct engine *e)
{
    uint32_t n = e->config.speculative_tokens;

    if (!device_is_host(e->device) && !e->config.batch_invariant)
        return 0; /* a row's bits depend on the rows beside it */
    return n < DRAFT_TOKENS_MAX ? n : DRAFT_TOKENS_MAX;
}

bool draft_is_stepwise(const struct sequence *q)
{
    return q->sampler.counts || q->form.mask;
}

/* Read the prompt. Without memory the sequence guesses nothing. */
static void begin(struct sequence *q)
{
    const struct request *r = q->req;

    if (lookup_init(&q->lookup, r->prediction, r->n_prediction, r->ids,
                    r->prompt.n_ids + r->stopping.max_tokens) == OK)
        lookup_add_prompt(&q->lookup, r->prompt.n_ids);
}

void draft_learn(struct engine *e, struct sequence *q, uint32_t n_out)
{
    if (e->n_guesses_max == 0 || q->class != SCHED_USUAL)
        return;
    /* An answer of two tokens has no room for a guess: its prompt is not read. */
    if (n_out == 0 && q->req->stopping.max_tokens > 2)
        begin(q);
    if (q->lookup.n_max == 0)
        return;
    struct lookup_guess g = lookup_push(&q->lookup);
    if (g.was_made)
        acceptance_note(&e->accept, &q->accept, g.n_match, g.was_right);
}

/* --- the guesses of a step --- */

struct drafting {
    struct engine *e;
    struct draft_step step;
    uint32_t n_rows_left, n_logits_left;
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Guess for the sequence of an item that decodes. */
static void guess(struct drafting *d, uint32_t slot, uint32_t n_known)
{
    struct engine *e = d->e;
    struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;
    uint32_t n_left = r->stopping.max_tokens - (n_known - r->prompt.n_ids) - 1;
    uint32_t n =
        min_u32(min_u32(e->n_guesses_max, n_left), min_u32(d->n_rows_left, d->n_logits_left));
    double chances[DRAFT_TOKENS_MAX];

    if (n == 0 || cache_seq_queries(q->kv))
        return;
    uint32_t n_forced = form_forced(&q->form, r->ids + n_known, chances, n);
    if (n_forced == 0 && !lookup_has_guess(&q->lookup))
        return;
    for (uint32_t i = 0; i < n && n_forced == 0; i++)
        chances[i] = acceptance_chance(&e->accept, &q->accept, q->lookup.n_match + i);
    n = n_forced > 0 ? n_forced : n;
    double before_s = d->step.drafts_s;
    struct draft_step after = d->step;
    if (!e->config.speculate_always)
        n = draft_step_length(&d->step, n_known - 1, chances, n);
    if (n_forced == 0)
        n = lookup_guess(&q->lookup, r->ids + n_known, n);
    if (n == 0)
        return;
    draft_step_add(&after, n_known - 1, chances, n);
    if (!lineup_guess(&e->lineup, slot, n, after.drafts_s - before_s))
        return;
    d->step = after;
    d->n_rows_left -= n;
    d->n_logits_left -= n;
    q->n_guessed = n;
}

/* Whether the item decodes a sequence that may guess. */
static bool may_guess(const struct engine *e, const struct plan_item *item, uint32_t *n_known)
{
    struct sched_seq at = scheduler_seq(e->lineup.scheduler, item->slot);

    *n_known = at.n_known;
    return item->n_tokens == 1 && at.n_computed + 1 == at.n_known &&
           at.n_known > e->lineup.seqs[item->slot].req->prompt.n_ids &&
           e->lineup.seqs[item->slot].lookup.n_max > 0;
}

/* Counts of the step's items that decide how many guesses fit. */
struct occasion {
    uint32_t n_rows, n_decodes; /* decodes: of sequences that may guess */
    uint64_t n_cached;          /* sum over those */
    bool has_chunks, scores;    /* scores: some prompt gets logprobs */
};

static struct occasion occasion_of(const struct engine *e)
{
    struct occasion o = {0};
    uint32_t n_known;

    for (uint32_t i = 0; i < e->lineup.n_items; i++) {
        const struct plan_item *item = &e->lineup.items[i];
        o.scores |= prompt_is_to_score(&e->lineup.seqs[item->slot]);
        o.n_rows += item->n_tokens;
        o.has_chunks |= item->n_tokens > 1;
        if (may_guess(e, item, &n_known)) {
            o.n_decodes++;
            o.n_cached += n_known;
        }
    }
    return o;
}

void draft_choose(struct engine *e)
{
    struct drafting d = {.e = e};
    uint32_t n_known;

    e->draft_step = (struct draft_step){0};
    if (e->n_guesses_max == 0)
        return;
    struct occasion o = occasion_of(e);
    if (o.n_decodes == 0 || o.scores) /* the logits of prompts overwrite those of guesses */
        return;
    /* Each sequence may want a row of logits. */
    d.n_rows_left = e->config.max_batched_tokens - o.n_rows;
    d.n_logits_left = e->n_logits_max - e->lineup.n_items;
    draft_step_begin(&d.step, &e->cost, o.has_chunks ? NULL : &e->draft_rows, o.n_decodes,
                     (uint32_t)(o.n_cached / o.n_decodes), o.n_rows);
    for (uint32_t i = 0; i < e->lineup.n_items; i++)
        if (may_guess(e, &e->lineup.items[i], &n_known))
            guess(&d, e->lineup.items[i].slot, n_known);
    e->draft_step = d.step;
}

bool draft_learn_step(struct engine *e, double seconds)
{
    const struct draft_step *step = &e->draft_step;

    if (step->n_guessed > 0 && step->learned)
        draft_rows_learn(&e->draft_rows, step->n_rows, step->n_guessed, seconds,
                         step->seconds - step->drafts_s, step->model_s);
    return step->n_guessed > 0;
}

void draft_note_run(struct engine *e, struct request *r, uint32_t n_guessed)
{
    e->live.drafts.n_drafts++;
    e->live.drafts.n_tokens += n_guessed;
    atomic_fetch_add(&r->n_guessed, n_guessed);
}

void draft_accept(struct engine *e, struct request *r, uint32_t at)
{
    e->live.drafts.n_accepted++;
    e->live.drafts.n_accepted_at[at]++;
    atomic_fetch_add(&r->n_accepted, 1);
}
