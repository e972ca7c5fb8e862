/* pick.c - logits to tokens, and logprobs of prompts.
 *
 * After a step the hidden states of all its rows are still in memory. The output layer runs over
 * the last row of each sequence that gets a token. Prompts with want_prompt_logprobs need the
 * output layer over every row. A row of logits has the size of the vocabulary, so the output layer
 * runs over at most n_logits_max rows at a time, and needs no more memory than a step without such
 * prompts. A row's logits do not depend on the rows beside it (promise P1), so the pieces change no
 * bit.
 *
 * Cached tokens have no hidden states, so a prompt that wants logprobs is computed from its first
 * token on: cache_seq_limit_match() keeps the sequence from attaching KV of positions that have no
 * logprob yet. A preempted sequence attaches the KV of the positions that have one. */
#include "base/check.h"
#include "engine/engine_internal.h"
#include "kernels/device.h"

/* Work for masks in one step, shared by its rows: some 2.5 ms of one core. */
#define MASK_SLICE 100000u
#define MASK_SLICE_MIN 500u

/* Rows of one piece of score_prompts(): enough for the output layer's full speed. */
#define SCORE_ROWS_MAX 64

/* *top: the place of the token's alternatives. */
static struct sampler_row row_of(struct engine *e, const struct pick_row *at, struct out_top **top)
{
    struct sequence *q = &e->lineup.seqs[at->slot];
    const struct request *r = q->req;
    uint32_t n_out = atomic_load_explicit(&r->n_out, memory_order_relaxed) + at->ahead;
    struct sampler_row row = {
        .sampling = &r->sampling, .state = &q->sampler, .n = n_out, .n_vocab = e->info.n_vocab};

    if (at->pos == PICK_NEXT) {
        *top = r->out_top ? r->out_top + (size_t)n_out * r->sampling.n_logprobs : NULL;
        row.mask = form_mask(&q->form, e->mask_slice, stop_watch_mask(&q->stop, n_out),
                             r->ids + r->prompt.n_ids, n_out);
    } else {
        size_t next = (size_t)at->pos + 1;
        *top = r->prompt_top ? r->prompt_top + next * r->sampling.n_logprobs : NULL;
        row.given = &r->prompt.ids[next];
    }
    return row;
}

static void pick_row(void *arg, uint32_t i)
{
    const struct pick_job *job = arg;
    struct engine *e = job->e;
    struct out_top *top;
    size_t at = (size_t)i * e->info.n_vocab;
    if (job->rows[i].slot == PICK_NONE)
        return;
    struct sampler_row row = row_of(e, &job->rows[i], &top);
    if (!row.given && form_has_job(&e->lineup.seqs[job->rows[i].slot].form)) {
        job->rows[i].waits = true;
        return;
    }

    row.logits = job->logits + at;
    if (!row.given) {
        row.scratch = e->candidates + at;
        row.raw = e->raw_logits + at;
    }
    sampler_pick(&row, &job->tokens[i], top);
}

enum status pick_begin(const struct pick_job *job, uint32_t n)
{
    struct engine *e = job->e;

    uint32_t n_all = e->batch.n_out > n ? e->batch.n_out : n; /* with those of pick_now() */

    e->mask_slice = MASK_SLICE / (n_all > 0 ? n_all : 1) + MASK_SLICE_MIN;
    if (!e->device_sampler) {
        device_parallel(e->device, n, pick_row, (void *)job);
        return OK;
    }
    device_sampler_begin(e->device_sampler, job->turn, job->logits, job->tokens);
    for (uint32_t i = 0; i < n; i++) {
        struct out_top *top;
        ASSERT(job->rows[i].slot != PICK_NONE); /* a GPU sends no queries */
        struct sampler_row row = row_of(e, &job->rows[i], &top);
        job->rows[i].waits = !row.given && form_has_job(&e->lineup.seqs[job->rows[i].slot].form);
        enum status s = device_sampler_add(e->device_sampler, &row, top);
        if (s != OK)
            return s;
    }
    return device_sampler_launch(e->device_sampler);
}

enum status pick_finish(const struct pick_job *job)
{
    struct device_sampler *ds = job->e->device_sampler;

    return ds ? device_sampler_finish(ds, job->turn) : OK;
}

enum status pick_now(const struct pick_job *job, uint32_t i)
{
    struct device_sampler *ds = job->e->device_sampler;
    struct out_top *top;
    enum status s;

    if (!ds) {
        pick_row((void *)job, i);
        return OK;
    }
    struct sampler_row row = row_of(job->e, &job->rows[i], &top);
    job->rows[i].waits = form_has_job(&job->e->lineup.seqs[job->rows[i].slot].form);
    if (job->rows[i].waits)
        return OK;
    device_sampler_begin(ds, job->turn, job->logits + (size_t)i * job->e->info.n_vocab,
                         &job->tokens[i]);
    s = device_sampler_add(ds, &row, top);
    if (s == OK)
        s = device_sampler_launch(ds);
    return s == OK ? device_sampler_finish(ds, job->turn) : s;
}

/* --- logprobs of prompts --- */

/* Count the positions whose next token belongs to the prompt. */
static uint32_t n_to_score(const struct request *r)
{
    return r->prompt_out ? r->prompt.n_ids - 1 : 0;
}

bool prompt_is_to_score(const struct sequence *q)
{
    return q->n_scored < n_to_score(q->req);
}

/* Rows collected for one run of the output layer. */
struct scoring {
    struct engine *e;
    uint32_t n;
    struct pick_row rows[SCORE_ROWS_MAX];
    uint32_t batch_rows[SCORE_ROWS_MAX];
};

static enum status score_rows(struct scoring *g)
{
    struct out_token tokens[SCORE_ROWS_MAX];
    struct pick_job job = {.e = g->e, .rows = g->rows, .tokens = tokens};
    enum status s = g->n ? forward_logits(g->e->forward, g->batch_rows, g->n, &job.logits) : OK;

    if (s == OK && g->n)
        s = pick_begin(&job, g->n);
    if (s == OK && g->n)
        s = pick_finish(&job);
    for (uint32_t i = 0; s == OK && i < g->n; i++)
        g->e->lineup.seqs[g->rows[i].slot].req->prompt_out[g->rows[i].pos + 1] = tokens[i];
    g->n = 0;
    return s;
}

/* Collect the rows of item i of the step, and score full pieces. */
static enum status score_item(struct scoring *g, uint32_t i)
{
    struct engine *e = g->e;
    const struct plan_item *item = &e->lineup.items[i];
    uint32_t n_before = scheduler_seq(e->lineup.scheduler, item->slot).n_computed;
    uint32_t end = n_before + item->n_tokens;
    uint32_t n_all = n_to_score(e->lineup.seqs[item->slot].req), row0 = e->batch.seqs[i].row0;
    uint32_t n_max = e->n_logits_max < SCORE_ROWS_MAX ? e->n_logits_max : SCORE_ROWS_MAX;
    struct sequence *q = &e->lineup.seqs[item->slot];
    enum status s = OK;

    ASSERT(n_before <= q->n_scored);
    for (end = end < n_all ? end : n_all; s == OK && q->n_scored < end; q->n_scored++) {
        g->rows[g->n] = (struct pick_row){.slot = item->slot, .pos = q->n_scored};
        g->batch_rows[g->n++] = row0 + q->n_scored - n_before;
        if (g->n == n_max)
            s = score_rows(g);
    }
    cache_seq_limit_match(e->lineup.seqs[item->slot].kv,
                          prompt_is_to_score(q) ? q->n_scored : CACHE_MATCH_ALL);
    return s;
}

enum status score_prompts(struct engine *e, bool *scored)
{
    struct scoring g = {.e = e};
    enum status s = OK;

    *scored = false;
    for (uint32_t i = 0; s == OK && i < e->lineup.n_items; i++) {
        if (!prompt_is_to_score(&e->lineup.seqs[e->lineup.items[i].slot]) ||
            batch_has_failed(&e->batch, i))
            continue;
        *scored = true;
        s = score_item(&g, i);
    }
    return s == OK ? score_rows(&g) : s;
}
