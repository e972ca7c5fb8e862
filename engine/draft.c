/* draft.c - speculation: a sequence that decodes verifies guessed tokens in the same step.
 *
 * Guesses come from the grammar of the answer, where it leaves one text only (form_forced()), else
 * from the sequence's own text (run/lookup.h), else from a draft model, if there is one
 * (draft_model.h). Where the draft model is right more often than a match of that length, it comes
 * before the text, but not before the beginning of a prediction. Guesses become rows of the step
 * behind the row of the last known token. Each row's token is picked as without speculation: with
 * the same parameters, the same masks and the random number of its place in the answer. While the
 * picked tokens equal the guesses, the next row's input was right, and its logits are, bit for bit,
 * those of a decode (promise P1). So the answer never depends on what was guessed: guesses only
 * decide how many tokens a step yields.
 *
 * Penalties, grammars and bad words make a token's logits or mask depend on the tokens before it.
 * The rows of such sequences are picked one after the other, as tokens are given (step.c).
 *
 * Rows of guesses need room: in the step's rows, in its rows of logits and in KV memory. Guesses
 * take only what the plan left. sched/drafting.h decides how many are worth their time. */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/step_memory.h"
#include "kernels/device.h"

uint32_t draft_tokens_max(const struct engine *e)
{
    return step_memory_guesses(&e->config, e->device);
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
    uint32_t n_cached; /* mean over the decodes */
    uint32_t n_seqs;   /* of e->draft_seqs: those that the draft model may guess for */
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Guesses that the sequence has room for. */
static uint32_t room(const struct drafting *d, const struct request *r, uint32_t n_known)
{
    uint32_t n_left = r->stopping.max_tokens - (n_known - r->prompt.n_ids) - 1;

    return min_u32(min_u32(d->e->n_guesses_max, n_left), min_u32(d->n_rows_left, d->n_logits_left));
}

/* Have the step verify the first n guesses of the slot. Whether there is memory for them. */
static bool take(struct drafting *d, uint32_t slot, uint32_t n_known, const double *chances,
                 uint32_t n)
{
    double before_s = d->step.drafts_s;
    struct draft_step after = d->step;

    draft_step_add(&after, n_known - 1, chances, n);
    if (!lineup_guess(&d->e->lineup, slot, n, after.drafts_s - before_s))
        return false;
    d->step = after;
    d->n_rows_left -= n;
    d->n_logits_left -= n;
    d->e->lineup.seqs[slot].n_guessed = n;
    d->e->lineup.seqs[slot].by_model = false;
    return true;
}

/* Leave the sequence to the draft model. */
static void note_for_model(struct drafting *d, uint32_t slot, uint32_t n_known)
{
    const struct sequence *q = &d->e->lineup.seqs[slot];
    struct request *r = q->req;

    d->e->draft_seqs[d->n_seqs++] = (struct draft_seq){.slot = slot,
                                                       .n_known = n_known,
                                                       .n_out = n_known - r->prompt.n_ids,
                                                       .ids = r->ids,
                                                       .sampling = &r->sampling,
                                                       .state = &q->sampler};
}

/* Guess from the sequence's own text. */
static void guess_by_text(struct drafting *d, uint32_t slot, uint32_t n_known)
{
    struct engine *e = d->e;
    struct sequence *q = &e->lineup.seqs[slot];
    uint32_t n = room(d, q->req, n_known);
    double chances[DRAFT_TOKENS_MAX];

    if (n == 0 || !lookup_has_guess(&q->lookup))
        return;
    for (uint32_t i = 0; i < n; i++)
        chances[i] = acceptance_chance(&e->accept, &q->accept, q->lookup.n_match + i);
    if (!e->config.speculate_always)
        n = draft_step_length(&d->step, n_known - 1, chances, n);
    n = lookup_guess(&q->lookup, q->req->ids + n_known, n);
    if (n > 0)
        (void)take(d, slot, n_known, chances, n);
}

/* Guess what the form of the answer leaves no choice about. Whether there is such a text. */
static bool guess_by_form(struct drafting *d, uint32_t slot, uint32_t n_known)
{
    struct engine *e = d->e;
    struct sequence *q = &e->lineup.seqs[slot];
    double chances[DRAFT_TOKENS_MAX];
    uint32_t n_forced =
        form_forced(&q->form, q->req->ids + n_known, chances, room(d, q->req, n_known));
    uint32_t n = n_forced;

    if (n > 0 && !e->config.speculate_always)
        n = draft_step_length(&d->step, n_known - 1, chances, n);
    if (n > 0)
        (void)take(d, slot, n_known, chances, n);
    return n_forced > 0;
}

/* Guess for the sequence of an item that decodes. */
static void guess(struct drafting *d, uint32_t slot, uint32_t n_known)
{
    struct engine *e = d->e;
    const struct sequence *q = &e->lineup.seqs[slot];

    if (room(d, q->req, n_known) == 0 || cache_seq_queries(q->kv) ||
        guess_by_form(d, slot, n_known))
        return;
    double by_model = acceptance_model_chance(&e->accept, &q->accept);
    bool is_surer = by_model > acceptance_chance(&e->accept, &q->accept, q->lookup.n_match);
    if (e->draft_model && (!lookup_has_guess(&q->lookup) || (is_surer && !q->lookup.is_start)))
        note_for_model(d, slot, n_known);
    else
        guess_by_text(d, slot, n_known);
}

/* --- the guesses of a draft model --- */

_Static_assert(DRAFT_ROWS_MAX <= PROPOSING_N_MAX,
               "a proposal for each seat: seats have a row each");

/* Proposals of the sequences that the draft model has a seat for; they come first then. */
static uint32_t list_proposals(struct drafting *d, struct proposal *proposals)
{
    struct engine *e = d->e;
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_seqs; i++) {
        struct draft_seq q = e->draft_seqs[i];
        const struct sequence *seq = &e->lineup.seqs[q.slot];
        struct proposal v = {.chance = acceptance_model_chance(&e->accept, &seq->accept),
                             .n_unseen = draft_model_unseen(e->draft_model, &q),
                             .n_max = room(d, seq->req, q.n_known)};
        if (v.n_unseen == DRAFT_UNSEEN || v.n_max == 0)
            continue;
        uint32_t at = n++;
        e->draft_seqs[i] = e->draft_seqs[at];
        for (; at > 0 && proposals[at - 1].chance < v.chance; at--) {
            proposals[at] = proposals[at - 1];
            e->draft_seqs[at] = e->draft_seqs[at - 1];
        }
        proposals[at] = v;
        e->draft_seqs[at] = q;
    }
    return n;
}

/* Ids that a sequence may lack and yet have a guess in this step: what a full guess and some steps
 * without guesses leave behind. */
#define N_UNSEEN_READY (2 * DRAFT_TOKENS_MAX)

/* Give rows of the first pass to the sequences that are worth it: to those of `proposals` [n] that
 * are to be guessed for, then to those whose text is to be read. Returns whether there are any. */
static bool give_rows(struct drafting *d, struct proposal *proposals, uint32_t n)
{
    struct engine *e = d->e;
    struct proposal ready[PROPOSING_N_MAX];
    uint32_t at[PROPOSING_N_MAX], n_ready = 0;
    uint32_t n_rows = draft_model_rows_max(e->draft_model), n_given = 0;

    for (uint32_t i = 0; i < n; i++)
        if (proposals[i].n_unseen <= N_UNSEEN_READY) {
            ready[n_ready] = proposals[i];
            at[n_ready++] = i;
        }
    uint32_t n_best = e->config.speculate_always ? n_ready : 0;
    if (n_best == 0 && n_ready > 0)
        n_best = proposing_begin(&e->proposing, &d->step, d->n_cached, ready, n_ready);
    for (uint32_t i = 0; i < n_best; i++) {
        struct draft_seq *q = &e->draft_seqs[at[i]];
        q->n_rows = min_u32(ready[i].n_unseen, n_rows - n_given);
        n_given += q->n_rows;
    }
    for (uint32_t i = 0; i < n && n_given < n_rows; i++) {
        struct draft_seq *q = &e->draft_seqs[i];
        const struct request *r = e->lineup.seqs[q->slot].req;
        if (q->n_rows == 0 && proposals[i].n_unseen > N_UNSEEN_READY &&
            (e->config.speculate_always ||
             proposing_catches_up(&e->proposing, &d->step, d->n_cached, &proposals[i], n_rows,
                                  q->n_out, r->stopping.max_tokens - q->n_out))) {
            q->n_rows = min_u32(proposals[i].n_unseen, n_rows - n_given);
            n_given += q->n_rows;
        }
    }
    if (n_given == 0 && n > 0 && proposals[0].n_unseen <= n_rows &&
        proposing_tries(&e->proposing, &d->step, d->n_cached, &proposals[0])) {
        e->draft_seqs[0].n_rows = proposals[0].n_unseen;
        e->draft_seqs[0].is_trial = true;
        n_given = e->draft_seqs[0].n_rows;
    }
    return n_given > 0;
}

/* Run a pass, and learn its time. */
static bool run_pass(struct drafting *d)
{
    struct engine *e = d->e;
    uint64_t began = clock_now_ns();
    uint32_t n_rows = 0;

    for (uint32_t i = 0; i < d->n_seqs; i++)
        n_rows += e->draft_seqs[i].n_rows;
    enum status s = draft_model_run(e->draft_model, e->draft_seqs, d->n_seqs);
    double pass_s = (double)(clock_now_ns() - began) * 1e-9;
    d->step.proposed_s += pass_s;
    e->live.draft_passes_s += pass_s;
    e->live.n_draft_passes++;
    if (s == OK)
        proposing_learn(&e->proposing, n_rows, pass_s);
    else
        log_event(LOG_WARN, "the draft model could not run", "error=%s", status_name(s));
    return s == OK;
}

/* Decide which sequences take part in the next pass. chances: that all guesses of a sequence so far
 * are right. Whether there is one. */
static bool go_on(struct drafting *d, const struct proposal *proposals, double *chances)
{
    struct engine *e = d->e;
    uint32_t n_live = 0, n_rows = 0, n_room = min_u32(d->n_rows_left, d->n_logits_left);
    double right = 0;
    bool tries = false;

    for (uint32_t i = 0; i < d->n_seqs; i++) {
        struct draft_seq *q = &e->draft_seqs[i];
        const struct sequence *seq = &e->lineup.seqs[q->slot];
        uint32_t n_max =
            q->is_trial ? min_u32(TRIAL_TOKENS, proposals[i].n_max) : proposals[i].n_max;
        bool got_one = q->n_rows > 0 && q->n_guessed > 0;
        n_rows += q->n_guessed;
        if (got_one)
            chances[i] *= acceptance_lead_chance(&e->accept, &seq->accept, q->lead);
        q->n_rows = got_one && q->n_guessed < n_max;
        n_live += q->n_rows;
        right += q->n_rows ? chances[i] * proposals[i].chance : 0;
        tries |= q->is_trial;
    }
    if (n_live == 0 || n_rows + n_live > n_room)
        return false;
    return tries || e->config.speculate_always ||
           proposing_goes_on(&e->proposing, &d->step, d->n_cached, n_rows, n_live, right);
}

/* Have the step verify what a sequence's guesses are worth. */
static void take_proposal(struct drafting *d, const struct draft_seq *p)
{
    struct engine *e = d->e;
    struct sequence *q = &e->lineup.seqs[p->slot];
    double chances[DRAFT_TOKENS_MAX];
    uint32_t n = min_u32(p->n_guessed, room(d, q->req, p->n_known));

    for (uint32_t i = 0; i < n; i++)
        chances[i] = acceptance_lead_chance(&e->accept, &q->accept, q->leads[i]);
    if (n > 0 && !p->is_trial && !e->config.speculate_always)
        n = draft_step_length(&d->step, p->n_known - 1, chances, n);
    if (n > 0 && take(d, p->slot, p->n_known, chances, n))
        q->by_model = true;
}

/* Have the draft model guess for those of the sequences that were left to it that are worth it. */
static void propose(struct drafting *d)
{
    struct engine *e = d->e;
    struct proposal proposals[PROPOSING_N_MAX];
    double chances[PROPOSING_N_MAX];

    draft_model_step(e->draft_model);
    d->n_seqs = list_proposals(d, proposals);
    if (d->n_seqs == 0 || !give_rows(d, proposals, d->n_seqs))
        return;
    for (uint32_t i = 0; i < d->n_seqs; i++)
        chances[i] = 1;
    do {
        if (!run_pass(d))
            return;
        for (uint32_t i = 0; i < d->n_seqs; i++) {
            const struct draft_seq *q = &e->draft_seqs[i];
            if (q->n_rows > 0 && q->n_guessed > 0)
                e->lineup.seqs[q->slot].leads[q->n_guessed - 1] = q->lead;
        }
    } while (go_on(d, proposals, chances));
    for (uint32_t i = 0; i < d->n_seqs; i++)
        take_proposal(d, &e->draft_seqs[i]);
    e->lineup.step_s += d->step.proposed_s;
}

/* --- the step --- */

/* Whether the item decodes a sequence that may guess. */
static bool may_guess(const struct engine *e, const struct plan_item *item, uint32_t *n_known)
{
    struct sched_seq at = scheduler_seq(e->lineup.scheduler, item->slot);
    const struct sequence *q = &e->lineup.seqs[item->slot];

    *n_known = at.n_known;
    return item->n_tokens == 1 && at.n_computed + 1 == at.n_known &&
           at.n_known > q->req->prompt.n_ids &&
           (q->lookup.n_max > 0 || (e->draft_model && q->class == SCHED_USUAL));
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
    d.n_cached = (uint32_t)(o.n_cached / o.n_decodes);
    draft_step_begin(&d.step, &e->cost, o.has_chunks ? NULL : &e->draft_rows, o.n_decodes,
                     d.n_cached, o.n_rows);
    for (uint32_t i = 0; i < e->lineup.n_items; i++)
        if (may_guess(e, &e->lineup.items[i], &n_known))
            guess(&d, e->lineup.items[i].slot, n_known);
    uint32_t n_left = d.n_seqs;
    if (n_left > 0)
        propose(&d);
    for (uint32_t i = 0; i < n_left; i++)
        if (e->lineup.seqs[e->draft_seqs[i].slot].n_guessed == 0)
            guess_by_text(&d, e->draft_seqs[i].slot, e->draft_seqs[i].n_known);
    e->draft_step = d.step;
}

bool draft_learn_step(struct engine *e, double seconds)
{
    const struct draft_step *step = &e->draft_step;

    if (e->draft_model)
        proposing_save(&e->proposing, seconds);
    if (step->n_guessed > 0 && step->learned)
        draft_rows_learn(&e->draft_rows, step->n_rows, step->n_guessed, seconds,
                         step->seconds - step->drafts_s, step->model_s);
    return step->n_guessed > 0 && !draft_step_beats(step, seconds);
}

static struct draft_count *count_of(struct engine *e, const struct sequence *q)
{
    return &e->live.drafts[q->by_model ? DRAFT_BY_MODEL : DRAFT_BY_LOOKUP];
}

void draft_note_run(struct engine *e, struct sequence *q, uint32_t n_guessed)
{
    struct draft_count *c = count_of(e, q);

    c->n_drafts++;
    c->n_tokens += n_guessed;
    atomic_fetch_add(&q->req->n_guessed, n_guessed);
}

void draft_verified(struct engine *e, struct sequence *q, uint32_t at, bool is_right)
{
    struct draft_count *c = count_of(e, q);

    if (q->by_model)
        acceptance_note_lead(&e->accept, &q->accept, q->leads[at], is_right);
    if (!is_right)
        return;
    c->n_accepted++;
    c->n_accepted_at[at]++;
    atomic_fetch_add(&q->req->n_accepted, 1);
}
