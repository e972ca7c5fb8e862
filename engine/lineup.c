#include "engine/lineup.h"

#include <stdlib.h>

#include "base/check.h"
#include "engine/sched/order.h"

/* Waiting sequences for which KV is fetched in a step: its work must not grow with the queue. */
#define N_FETCHED_FOR_MAX 64
/* Waiting sequences whose expected time is updated in a step, and slots that are scanned for
 * them. */
#define N_REFRESHED 4
#define N_SLOTS_PASSED 64
/* KV of a session is held for its expected pause and so many times the pauses' spread: for
 * log-normal pauses of CV 1 that covers 24 of 25. */
#define PAUSE_SPREADS 3.0

enum status lineup_create(struct lineup *l, const struct lineup_config *config, struct buf *why)
{
    uint32_t n_run = config->scheduler.n_running_max;
    enum status s;

    *l = (struct lineup){.cache = config->cache,
                         .n_slots = config->scheduler.n_slots,
                         .swap_ahead = config->swap_ahead,
                         .copy_s_per_token = config->copy_s_per_token,
                         .load_timeout_ns = config->load_timeout_ns};
    s = scheduler_create(&l->scheduler, &config->scheduler, why);
    if (s != OK)
        return s;
    l->seqs = calloc(l->n_slots, sizeof *l->seqs);
    l->items = calloc(n_run, sizeof *l->items);
    l->next = calloc(n_run, sizeof *l->next);
    l->failed = calloc(n_run, sizeof *l->failed);
    if (!l->seqs || !l->items || !l->next || !l->failed) {
        lineup_destroy(l);
        return buf_why(why, ERR_NOMEM, "out of memory for the sequence table");
    }
    return OK;
}

void lineup_destroy(struct lineup *l)
{
    scheduler_destroy(l->scheduler);
    free(l->seqs);
    free(l->items);
    free(l->next);
    free(l->failed);
    *l = (struct lineup){0};
}

/* --- submission and end --- */

/* Only usual sequences keep their KV from eviction while they wait. */
static void expect(struct lineup *l, uint32_t slot, uint64_t now_ns)
{
    if (l->seqs[slot].class == SCHED_USUAL)
        cache_seq_expect(l->seqs[slot].kv, scheduler_next_ns(l->scheduler, slot, now_ns));
}

uint32_t lineup_submit(struct lineup *l, uint32_t slot, struct cache_seq *kv,
                       const struct sched_request *r, uint64_t now_ns)
{
    struct sched_request request = *r;

    ASSERT(slot < l->n_slots && !l->seqs[slot].kv);
    l->seqs[slot].kv = kv;
    l->seqs[slot].class = r->class;
    l->seqs[slot].session = r->class == SCHED_USUAL ? r->session : 0;
    if (r->class != SCHED_USUAL)
        cache_seq_bring_here(kv); /* it computes for later requests */
    if (l->seqs[slot].session)
        cache_seq_join_session(kv, r->session);
    request.n_cached = cache_match_disk(kv); /* only what will be computed sets the MLFQ level */
    scheduler_submit(l->scheduler, slot, &request, now_ns);
    expect(l, slot, now_ns);
    return request.n_cached;
}

static uint64_t after(uint64_t now_ns, double s)
{
    return now_ns + (uint64_t)(s * 1e9);
}

/* Keep the KV for the session's next request, as long as its pause does not last far longer than
 * expected. */
static void keep_for_session(struct lineup *l, uint32_t slot, uint64_t now_ns)
{
    const struct sequence *q = &l->seqs[slot];
    struct sched_session x;

    if (q->session == 0)
        return;
    (void)scheduler_session(l->scheduler, q->session, &x);
    cache_seq_keep(q->kv, after(now_ns, x.pause.mean_s),
                   after(now_ns, x.pause.mean_s + PAUSE_SPREADS * x.pause.spread_s));
}

/* Take the sequence out of the step that follows. What that step writes for it lies in blocks that
 * are free then: whoever gets them writes later, since all work of the device is in order. */
static void leave_next(struct lineup *l, uint32_t slot)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n_next; i++)
        if (l->next[i].slot != slot)
            l->next[n++] = l->next[i];
    l->n_next = n;
}

void lineup_end(struct lineup *l, uint32_t slot, bool finished, uint64_t now_ns)
{
    struct sequence *q = &l->seqs[slot];

    leave_next(l, slot);
    if (finished) {
        keep_for_session(l, slot, now_ns);
        scheduler_on_finish(l->scheduler, slot, now_ns);
    } else {
        scheduler_on_cancel(l->scheduler, slot, now_ns);
    }
    cache_seq_close(q->kv);
    *q = (struct sequence){0};
}

/* --- the plan --- */

static uint32_t view_match(void *arg, uint32_t slot)
{
    return cache_match(((struct lineup *)arg)->seqs[slot].kv);
}

static uint32_t view_cached(void *arg, uint32_t slot)
{
    return cache_match_disk(((struct lineup *)arg)->seqs[slot].kv);
}

static uint32_t view_shared(void *arg, uint32_t slot, uint32_t other)
{
    const struct lineup *l = arg;

    return cache_seq_shared(l->seqs[slot].kv, l->seqs[other].kv);
}

static uint32_t view_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    return cache_seq_need(((struct lineup *)arg)->seqs[slot].kv, n_tokens);
}

static uint32_t view_reclaimable(void *arg, uint32_t slot)
{
    return cache_seq_reclaimable(((struct lineup *)arg)->seqs[slot].kv);
}

/* The sequence is about to run: ask other instances again what they have, if their answer is old.
 */
static void look_again(struct cache_seq *kv)
{
    cache_seq_look_again(kv);
    if (cache_seq_is_loading(kv))
        (void)cache_seq_load(kv, false);
}

/* Whether the plan passes the sequence over because its KV is being read. The first such answer
 * starts the timer of load_timeout_ns. */
static bool view_is_loading(void *arg, uint32_t slot)
{
    struct lineup *l = arg;
    struct sequence *q = &l->seqs[slot];

    if (!cache_seq_is_loading(q->kv))
        look_again(q->kv);
    if (!cache_seq_is_loading(q->kv))
        return false;
    if (q->wanted_ns == 0) {
        q->wanted_ns = l->plan_ns;
        cache_seq_begin_wait(q->kv);
    }
    return l->plan_ns < q->wanted_ns + l->load_timeout_ns;
}

/* Begin reads from disk and from other instances for the first waiting sequences in the order of
 * service. */
static void load_ahead(struct lineup *l)
{
    uint32_t slot = ORDER_NONE, n = 0;
    uint32_t n_max = cache_n_load_ahead(l->cache, scheduler_n_running(l->scheduler));
    bool is_first = true;

    while (n++ < n_max && scheduler_next_waiting(l->scheduler, &slot)) {
        struct cache_seq *kv = l->seqs[slot].kv;

        if (cache_seq_is_loading(kv))
            cache_seq_expect_output(kv, (uint32_t)scheduler_tokens_left(l->scheduler, slot));
        if (!cache_seq_load(kv, is_first))
            return;
        is_first = is_first && !cache_seq_is_loading(kv);
    }
}

/* Begin copies from host memory for the first waiting sequences in the order of service. */
static void fetch_ahead(struct lineup *l)
{
    uint32_t slot = ORDER_NONE, n = 0;

    while (n++ < N_FETCHED_FOR_MAX && scheduler_next_waiting(l->scheduler, &slot))
        if (!cache_seq_prefetch(l->seqs[slot].kv))
            return;
}

static void swap_ahead(struct lineup *l)
{
    if (l->load_timeout_ns > 0)
        load_ahead(l);
    if (!l->swap_ahead)
        return;
    cache_spill_ahead(l->cache, scheduler_reserve_blocks(l->scheduler));
    fetch_ahead(l);
}

static void refresh_expected(struct lineup *l, uint64_t now_ns)
{
    uint32_t n = 0, n_passed = l->n_slots < N_SLOTS_PASSED ? l->n_slots : N_SLOTS_PASSED;

    while (n < N_REFRESHED && n_passed-- > 0) {
        uint32_t slot = l->refresh_at;

        l->refresh_at = slot + 1 < l->n_slots ? slot + 1 : 0;
        if (!l->seqs[slot].kv || !scheduler_seq(l->scheduler, slot).waits)
            continue;
        expect(l, slot, now_ns);
        n++;
    }
}

static void make_plan(struct lineup *l, uint64_t now_ns, struct plan *plan)
{
    struct sched_view view = {.arg = l,
                              .n_available = cache_n_available(l->cache),
                              .match = view_match,
                              .cached = view_cached,
                              .shared = view_shared,
                              .need = view_need,
                              .reclaimable = view_reclaimable,
                              .is_loading = l->load_timeout_ns > 0 ? view_is_loading : NULL,
                              .n_held = cache_n_held(l->cache)};

    l->plan_ns = now_ns;
    scheduler_plan(l->scheduler, now_ns, &view, plan);
}

/* --- carrying out the plan --- */

/* Release the KV of a sequence that waits again. */
static void drop(struct lineup *l, uint32_t slot, uint64_t now_ns)
{
    cache_seq_drop(l->seqs[slot].kv);
    l->seqs[slot].wanted_ns = 0;
    expect(l, slot, now_ns);
}

static void preempt(struct lineup *l, const struct plan *plan, uint64_t now_ns)
{
    for (uint32_t i = 0; i < plan->n_preempt; i++)
        drop(l, plan->preempt[i], now_ns);
    l->n_preempted = plan->n_preempt;
}

/* Attach an admitted sequence to its cached KV. The cache may hold more than at the time of the
 * plan, or less, where a copy failed or a fetch for another sequence evicted blocks. */
static void attach(struct lineup *l, struct plan_item *item)
{
    struct sequence *q = &l->seqs[item->slot];
    uint32_t found[CACHE_N_TIERS], n_found = cache_seq_attach(q->kv, found);
    uint32_t left = scheduler_seq(l->scheduler, item->slot).n_known - n_found;

    if (item->n_tokens > left)
        item->n_tokens = left;
    if (n_found != item->n_cached)
        scheduler_on_attach(l->scheduler, item->slot, n_found, item->n_tokens);
    if (!item->is_first) {
        scheduler_on_restored(l->scheduler, item->slot, /* out and in */
                              2 * found[CACHE_HOST] * l->copy_s_per_token);
        return;
    }
    q->n_cached = n_found;
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
        q->n_cached_in[t] = found[t];
}

/* All sequences attach before any grows: growing may evict blocks that the plan counts for another
 * sequence. */
static void place_items(struct lineup *l, const struct plan *plan)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->n_items; i++) {
        l->items[i] = plan->items[i];
        if (l->items[i].admit)
            attach(l, &l->items[i]);
    }
    for (uint32_t i = 0; i < plan->n_items; i++) {
        struct plan_item item = l->items[i];

        if (cache_seq_grow(l->seqs[item.slot].kv, item.n_tokens) == OK)
            l->items[n++] = item;
        else /* the plan's count was wrong: a bug, which ends this request only */
            l->failed[l->n_failed++] = item.slot;
    }
    l->n_items = n;
}

uint32_t lineup_begin(struct lineup *l, uint64_t now_ns)
{
    struct plan plan = l->ahead;

    ASSERT(l->n_next == 0);
    /* An empty plan made ahead is not used: memory may have become free since. */
    bool was_ahead = l->has_ahead && plan.n_items > 0 && scheduler_is_current(l->scheduler, &plan);

    l->has_ahead = false;
    l->n_items = l->n_failed = l->n_preempted = 0;
    if (!was_ahead) {
        refresh_expected(l, now_ns);
        swap_ahead(l);
        make_plan(l, now_ns, &plan);
    }
    if (plan.n_items == 0 && plan.n_preempt == 0)
        return 0;
    l->n_steps += plan.n_items > 0;
    l->n_planned_ahead += was_ahead;
    scheduler_take(l->scheduler, &plan, now_ns);
    preempt(l, &plan, now_ns);
    place_items(l, &plan);
    l->step_s = plan.step_s;
    l->guess_s = 0;
    return l->n_items;
}

/* --- during and after the step --- */

void lineup_ahead(struct lineup *l, uint64_t ends_ns)
{
    refresh_expected(l, ends_ns);
    swap_ahead(l);
    make_plan(l, ends_ns, &l->ahead);
    l->has_ahead = true;
}

bool lineup_follow(struct lineup *l, bool (*may)(const void *arg, uint32_t slot), const void *arg,
                   uint64_t now_ns)
{
    struct plan plan = l->ahead;
    uint32_t n_blocks = 0;

    ASSERT(l->n_next == 0);
    if (!l->has_ahead || !scheduler_may_follow(l->scheduler, &plan))
        return false;
    for (uint32_t i = 0; i < plan.n_items; i++) {
        if (!may(arg, plan.items[i].slot))
            return false;
        n_blocks += cache_seq_need(l->seqs[plan.items[i].slot].kv, 1);
    }
    if (n_blocks > cache_n_available(l->cache))
        return false;
    l->has_ahead = false;
    l->n_steps++;
    l->n_planned_ahead++;
    scheduler_take(l->scheduler, &plan, now_ns);
    for (uint32_t i = 0; i < plan.n_items; i++) {
        enum status s = cache_seq_grow_guessed(l->seqs[plan.items[i].slot].kv, 1);
        ASSERT(s == OK); /* the blocks were counted */
        l->next[i] = plan.items[i];
    }
    l->n_next = plan.n_items;
    l->next_s = plan.step_s;
    return true;
}

void lineup_resume(struct lineup *l)
{
    struct plan_item *items = l->items;

    l->items = l->next;
    l->n_items = l->n_next;
    l->next = items;
    l->n_next = l->n_failed = l->n_preempted = 0;
    l->step_s = l->next_s;
    l->guess_s = 0;
}

void lineup_ran(struct lineup *l, uint32_t i, bool got_token, uint64_t step_ns, uint64_t now_ns)
{
    const struct plan_item *item = &l->items[i];

    cache_seq_commit(l->seqs[item->slot].kv, item->n_tokens);
    scheduler_on_tokens(l->scheduler, item->slot, item->n_tokens, got_token, step_ns, now_ns);
}

/* Guesses take no block that a running sequence may need for its next token: a plan that is made
 * while the step runs must not preempt for them. */
bool lineup_guess(struct lineup *l, uint32_t slot, uint32_t n, double seconds)
{
    struct cache_seq *kv = l->seqs[slot].kv;
    uint32_t need = cache_seq_need(kv, n);

    if ((need > 0 && need + scheduler_n_running(l->scheduler) > cache_n_available(l->cache)) ||
        cache_seq_grow_guessed(kv, n) != OK)
        return false;
    l->step_s += seconds;
    l->guess_s += seconds;
    return true;
}

void lineup_accepted(struct lineup *l, uint32_t slot, uint64_t now_ns)
{
    cache_seq_commit(l->seqs[slot].kv, 1);
    scheduler_on_accepted(l->scheduler, slot, now_ns);
}

void lineup_guessed(struct lineup *l, uint32_t slot)
{
    cache_seq_shrink(l->seqs[slot].kv);
}

void lineup_ran_part(struct lineup *l, uint32_t i, uint32_t n_tokens, uint64_t step_ns,
                     uint64_t now_ns)
{
    const struct plan_item *item = &l->items[i];

    ASSERT(n_tokens < item->n_tokens);
    cache_seq_commit(l->seqs[item->slot].kv, n_tokens);
    cache_seq_shrink(l->seqs[item->slot].kv);
    scheduler_on_tokens(l->scheduler, item->slot, n_tokens, 0, step_ns, now_ns);
}

void lineup_hold(struct lineup *l, uint32_t i, uint64_t now_ns)
{
    lineup_ran_part(l, i, 0, 0, now_ns);
    l->n_items--;
    memmove(l->items + i, l->items + i + 1, (l->n_items - i) * sizeof *l->items);
}

void lineup_lost(struct lineup *l, uint32_t i, uint64_t now_ns)
{
    uint32_t slot = l->items[i].slot;

    cache_seq_shrink(l->seqs[slot].kv);
    scheduler_on_lost(l->scheduler, slot);
    drop(l, slot, now_ns);
}

void lineup_rest(struct lineup *l, uint64_t now_ns)
{
    ASSERT(l->n_next == 0);
    l->has_ahead = false;
    for (uint32_t slot = 0; slot < l->n_slots; slot++) {
        if (!l->seqs[slot].kv)
            continue;
        if (!scheduler_seq(l->scheduler, slot).waits)
            scheduler_on_lost(l->scheduler, slot);
        cache_seq_sleep(l->seqs[slot].kv);
        l->seqs[slot].wanted_ns = 0;
        expect(l, slot, now_ns);
    }
}

void lineup_check(const struct lineup *l)
{
    scheduler_check(l->scheduler);
    for (uint32_t slot = 0; slot < l->n_slots; slot++) {
        struct cache_view view;

        if (!l->seqs[slot].kv)
            continue;
        cache_seq_view(l->seqs[slot].kv, &view);
        ASSERT(view.n_tokens == scheduler_seq(l->scheduler, slot).n_computed);
    }
}
