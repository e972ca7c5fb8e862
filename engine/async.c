/* async.c - asynchronous steps: a GPU gets the next step before it has ended this one.
 *
 * A step's ids come down to the host, which publishes them, plans the next step, lays it out and
 * launches it, and the GPU would have nothing to do meanwhile. So where the next step needs nothing
 * from the host but those ids, it is launched at once, while the step before still runs: its rows
 * read their ids where the op `sample` leaves them on the device (batch.from). The host does its
 * work of one step while the next one runs.
 *
 * Which step may follow so: each of its rows decodes a usual sequence that gets a token from the
 * step before. The token's text must not matter for the next one, as it does with a grammar, bad
 * words, thoughts that are bounded, and penalties. Guesses, adapters, queries to other instances
 * and logprobs of prompts are done between two steps; so are questions of other threads, a sleep
 * and a change of the policy. An arrival is planned in the next step: none is launched ahead of it.
 *
 * Stops are noticed one step late. A sequence that ends has a row in the step that follows: it
 * leaves that step (lineup_end()), and nothing reads what the row computes. Its blocks are free at
 * once. Whoever gets them writes and reads them behind that row, because kernels are in one stream
 * and each copy begins behind what that stream has been given (cache/tier/tier_device.c). */
#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_internal.h"
#include "kernels/device.h"

bool async_is_possible(const struct engine *e)
{
    /* Guesses are made from the last token. Of several GPUs one samples, and all need the ids. */
    return e->config.async_scheduling && !device_is_host(e->device) && e->device_sampler &&
           e->n_guesses_max == 0 && e->group.n == 1;
}

/* Whether something waits for the end of a step: a request that is to be planned, or a thread. */
static bool is_awaited(const struct engine *e)
{
    uint32_t n_inside = 0;

    for (int class = 0; class < SCHED_N_CLASSES; class ++)
        n_inside += atomic_load(&e->n_inside[class]);
    return n_inside > e->n_slots - e->n_free_slots || atomic_load(&e->stopping) ||
           atomic_load(&e->is_asked) || atomic_load(&e->reset_wanted) ||
           atomic_load(&e->sleep_wanted) != 0 || engine_contest_is_due(e);
}

/* Whether the step under way leaves the host nothing to do with the device. */
static bool may_be_followed(const struct engine *e)
{
    if (!e->is_async || e->n_adapted > 0 || e->batch.n_queries > 0 ||
        !device_sampler_is_whole(e->device_sampler, e->turn))
        return false;
    for (uint32_t i = 0; i < e->lineup.n_items; i++)
        if (prompt_is_to_score(&e->lineup.seqs[e->lineup.items[i].slot]))
            return false;
    return true;
}

/* Whether the sequence goes on whatever the next token is, unless that one ends it. */
static bool may_follow(const void *arg, uint32_t slot)
{
    const struct engine *e = arg;
    const struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;

    return atomic_load_explicit(&r->n_out, memory_order_relaxed) + 1 < r->stopping.max_tokens &&
           !draft_is_stepwise(q) && !cache_seq_queries(q->kv) &&
           !atomic_load_explicit(&r->cancel, memory_order_relaxed);
}

/* Lay out the step that follows: a row of each item. */
static void build(struct engine *e, struct step_job *job)
{
    static const uint32_t not_known = 0;
    struct batch *b = &e->batch;

    batch_reset(b);
    for (uint32_t i = 0; i < e->lineup.n_next; i++) {
        uint32_t slot = e->lineup.next[i].slot;
        struct sequence *q = &e->lineup.seqs[slot];

        batch_add(b, q->kv, &not_known, scheduler_seq(e->lineup.scheduler, slot).n_known, 1, 1);
        batch_follow(b, q->out0);
        job->pick.rows[i] = (struct pick_row){.slot = slot, .pos = PICK_NEXT, .ahead = 1};
        q->next0 = i;
        q->follows = true;
    }
    job->n_items = e->lineup.n_next;
}

void async_launch(struct engine *e)
{
    struct step_job *job = &e->jobs[e->turn ^ 1];

    ASSERT(!e->has_next);
    if (!may_be_followed(e) || is_awaited(e) ||
        !lineup_follow(&e->lineup, may_follow, e, clock_now_ns()))
        return;
    build(e, job);
    e->next_status = step_launch(e, job, e->batch.n_out);
    e->has_next = true;
    e->live.n_async_steps++;
    hist_add(&e->live.gap_s, 0);
}

enum status async_resume(struct engine *e)
{
    ASSERT(e->has_next && e->computed_ns);
    e->has_next = false;
    e->turn ^= 1;
    e->jobs[e->turn].began_ns = e->computed_ns;
    lineup_resume(&e->lineup);
    for (uint32_t i = 0; i < e->lineup.n_items; i++) {
        struct sequence *q = &e->lineup.seqs[e->lineup.items[i].slot];
        q->out0 = q->next0;
        q->follows = false;
    }
    if (e->next_status != OK) /* a part of it may have been launched */
        (void)!device_stream_wait(e->device, NULL);
    return e->next_status;
}

void async_forget(struct engine *e, uint32_t slot)
{
    const struct sequence *q = &e->lineup.seqs[slot];

    if (e->has_next && q->follows)
        device_sampler_forget(e->device_sampler, e->turn ^ 1, q->next0);
}

void async_drop(struct engine *e)
{
    if (e->has_next)
        (void)!device_stream_wait(e->device, NULL);
    e->has_next = false;
}
