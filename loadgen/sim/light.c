#include "loadgen/sim/light.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/cost_model.h"

#define NEVER UINT64_MAX

/* --- life --- */

enum status light_init(struct light *l, uint32_t index, const struct light_config *config)
{
    *l = (struct light){.config = *config, .index = index, .ends_ns = NEVER};
    link_init(&l->waiting);
    link_init(&l->running);
    link_init(&l->filling);
    link_init(&l->leaving);
    l->chunks = calloc(config->n_running_max, sizeof *l->chunks);
    return l->chunks && shelf_init(&l->shelf, config->n_kv_tokens) == OK ? OK : ERR_NOMEM;
}

static void free_seats(struct link *list)
{
    while (!link_is_empty(list)) {
        struct seat *s = LINK_ITEM(list->next, seat, link);
        link_remove(&s->link);
        free(s);
    }
}

void light_fini(struct light *l)
{
    if (!l->chunks) /* never initialized */
        return;
    free_seats(&l->waiting);
    free_seats(&l->running);
    agenda_fini(&l->decoding);
    shelf_fini(&l->shelf);
    free(l->chunks);
    l->chunks = NULL;
}

double light_in_use(const struct light *l)
{
    return (double)(l->shelf.n_pinned + l->shelf.n_private) / (double)l->shelf.n_tokens_max;
}

/* --- coming --- */

void light_submit(struct light *l, struct job *j, uint64_t now_ns)
{
    uint64_t n_max = l->config.n_kv_tokens;

    j->n_got = j->n_cached = 0;
    j->arrival_ns = now_ns;
    j->is_cancelled = false;
    memset(j->n_cached_in, 0, sizeof j->n_cached_in);
    j->seat = NULL;
    if ((uint64_t)j->pieces.n_tokens + 2 > n_max) {
        l->config.on_end(l->config.arg, j, JOB_REFUSED_LONG, now_ns);
        return;
    }
    if (j->n_out > n_max - j->pieces.n_tokens - 1) {
        j->n_out = (uint32_t)(n_max - j->pieces.n_tokens - 1);
        l->result.n_cut++;
    }
    struct seat *s = calloc(1, sizeof *s);
    if (!s) {
        l->config.on_end(l->config.arg, j, JOB_FAILED, now_ns);
        return;
    }
    s->job = j;
    s->arrival = l->n_arrived++;
    link_init(&s->fill);
    agenda_item_init(&s->item, s->arrival);
    j->seat = s;
    l->n_inside++;
    l->n_waiting++;
    link_append(&l->waiting, &s->link);
}

void light_cancel(struct light *l, struct job *j)
{
    if (j->is_cancelled)
        return;
    j->is_cancelled = true;
    link_append(&l->leaving, &j->link);
}

/* --- memory of a request --- */

static bool admit(struct light *l, struct seat *s)
{
    struct job *j = s->job;
    uint32_t n = shelf_match(&l->shelf, &j->pieces), n_tokens = 0, n_queried = 0;
    uint32_t n_known = j->pieces.n_tokens + j->n_got;

    for (uint32_t i = 0; i < n; i++)
        n_tokens += j->pieces.v[i].n_tokens;
    for (uint32_t i = n; i < s->n_queried; i++)
        n_queried += j->pieces.v[i].n_tokens;
    uint64_t pin = n > 0 ? j->pieces.v[n - 1].key : 0;
    if (pin)
        shelf_pin(&l->shelf, pin);
    uint32_t n_private = n_known - n_tokens - n_queried;
    if (!shelf_make_room(&l->shelf, n_private + 1)) {
        if (pin)
            shelf_unpin(&l->shelf, pin);
        return false;
    }
    l->shelf.n_private += n_private;
    s->pin = pin;
    s->n_committed = n;
    s->n_private = n_private;
    s->n_known = n_known;
    /* The last token is always computed: its logits are needed. */
    s->n_done = n_tokens + n_queried < n_known ? n_tokens + n_queried : n_known - 1;
    shelf_use(&l->shelf, &j->pieces, n);
    if (j->n_got > 0)
        l->result.n_tokens_restored += s->n_done;
    else if (l->config.used)
        l->config.used(l->config.owner, l->index, s, n);
    return true;
}

/* Count what was found when the request begins for the first time. */
static void count_found(struct seat *s)
{
    struct job *j = s->job;
    uint32_t n_remote = s->n_read;

    if (j->n_got > 0 || j->n_cached > 0)
        return;
    for (uint32_t i = s->n_committed; i < s->n_queried; i++)
        n_remote += j->pieces.v[i].n_tokens;
    j->n_cached = s->n_done;
    j->n_cached_in[CACHE_REMOTE] = n_remote < s->n_done ? n_remote : s->n_done;
    j->n_cached_in[CACHE_DEVICE] = j->n_cached - j->n_cached_in[CACHE_REMOTE];
}

/* Put the pieces whose tokens are computed onto the shelf. */
static void commit(struct light *l, struct seat *s)
{
    const struct pieces *p = &s->job->pieces;
    uint32_t end = 0;

    if (s->n_queried > s->n_committed)
        return; /* KV behind that of peers stays private */
    for (uint32_t i = 0; i < s->n_committed; i++)
        end += p->v[i].n_tokens;
    while (s->n_committed < p->n && end + p->v[s->n_committed].n_tokens <= s->n_done) {
        const struct piece *piece = &p->v[s->n_committed];
        if (piece->n_tokens > s->n_private)
            return;
        s->n_private -= piece->n_tokens;
        l->shelf.n_private -= piece->n_tokens;
        if (shelf_add(&l->shelf, s->pin, piece->key, piece->n_tokens) != OK)
            return; /* without memory it is only not shared */
        shelf_move_pin(&l->shelf, piece->key);
        s->pin = piece->key;
        s->n_committed++;
        end += piece->n_tokens;
    }
}

static void release_peers(struct light *l, struct seat *s)
{
    if (s->n_peers > 0)
        l->config.release(l->config.pool, s);
    s->n_peers = s->n_queried = 0;
}

static void release_memory(struct light *l, struct seat *s)
{
    if (s->pin)
        shelf_unpin(&l->shelf, s->pin);
    s->pin = 0;
    l->shelf.n_private -= s->n_private;
    s->n_private = s->n_committed = 0;
    l->n_querying -= s->n_peers > 0;
    release_peers(l, s);
}

static void stop_decoding(struct light *l, struct seat *s)
{
    if (!s->is_decoding)
        return;
    uint32_t n_more = (uint32_t)(l->n_steps - s->began);
    agenda_remove(&l->decoding, &s->item);
    l->context -= (int64_t)(s->job->pieces.n_tokens + s->job->n_got) - (int64_t)s->began;
    s->job->n_got += n_more;
    s->n_private += n_more;
    s->is_decoding = false;
}

/* --- leaving --- */

/* Reads for it may still be under way: the last one frees it. */
static void free_seat(struct seat *s)
{
    s->job->seat = NULL;
    s->job = NULL;
    if (s->n_reads == 0)
        free(s);
}

static void end_seat(struct light *l, struct seat *s, enum job_end end, uint64_t now_ns)
{
    struct job *j = s->job;

    if (j->is_cancelled)
        link_remove(&j->link);
    link_remove(&s->link);
    l->n_inside--;
    free_seat(s);
    l->config.on_end(l->config.arg, j, end, now_ns);
}

static void stop_running(struct light *l, struct seat *s)
{
    stop_decoding(l, s);
    link_remove(&s->fill);
    s->is_reading = false;
    release_memory(l, s);
    l->n_running--;
}

static void stop_waiting(struct light *l, struct seat *s)
{
    release_peers(l, s);
    l->n_waiting--;
}

static bool is_running(const struct seat *s)
{
    return s->n_known > 0;
}

static void finish(struct light *l, struct seat *s, uint64_t now_ns)
{
    struct job *j = s->job;

    stop_decoding(l, s);
    j->n_got = j->n_out;
    if (!j->is_cancelled)
        l->config.on_token(l->config.arg, j, now_ns);
    /* The answer stays cached behind the prompt; its last token counts as computed. */
    if (shelf_make_room(&l->shelf, 1) &&
        pieces_extend(&j->pieces, j->answer_name, j->n_out, l->config.piece_tokens) == OK) {
        s->n_private++;
        l->shelf.n_private++;
        s->n_done = j->pieces.n_tokens;
        commit(l, s);
    }
    stop_running(l, s);
    end_seat(l, s, JOB_DONE, now_ns);
}

static void drop_cancelled(struct light *l, uint64_t now_ns)
{
    while (!link_is_empty(&l->leaving)) {
        struct seat *s = LINK_ITEM(l->leaving.next, job, link)->seat;
        if (is_running(s))
            stop_running(l, s);
        else
            stop_waiting(l, s);
        end_seat(l, s, JOB_CANCELLED, now_ns);
    }
}

/* Preempt the request that was admitted last. */
static void preempt(struct light *l)
{
    struct seat *s = LINK_ITEM(l->running.prev, seat, link);

    stop_running(l, s);
    s->n_known = 0;
    link_remove(&s->link);
    link_append(l->waiting.next, &s->link); /* to the front */
    l->n_waiting++;
    l->result.n_preempted_for_memory++;
}

struct job *light_die(struct light *l)
{
    struct link *list = !link_is_empty(&l->running) ? &l->running : &l->waiting;

    if (link_is_empty(list)) {
        uint64_t n_tokens_max = l->shelf.n_tokens_max;
        l->shelf.changed = NULL;
        shelf_fini(&l->shelf);
        enum status s = shelf_init(&l->shelf, n_tokens_max);
        ASSERT(s == OK); /* it has just freed more than that */
        l->n_chunks = 0;
        l->ends_ns = NEVER;
        return NULL;
    }
    struct seat *s = LINK_ITEM(list->next, seat, link);
    struct job *j = s->job;
    if (is_running(s))
        stop_running(l, s);
    else
        stop_waiting(l, s);
    if (j->is_cancelled)
        link_remove(&j->link);
    link_remove(&s->link);
    l->n_inside--;
    free_seat(s);
    return j;
}

/* --- steps --- */

static void begin_filling(struct light *l, struct seat *s)
{
    count_found(s);
    link_append(&l->filling, &s->fill);
}

void light_end_reads(struct light *l, struct seat *s)
{
    if (!s->is_reading)
        return;
    s->is_reading = false;
    s->n_read += s->n_read_tokens;
    s->n_done += s->n_read_tokens;
    if (s->n_done >= s->n_known) { /* the last token is computed, whatever was read */
        s->n_done = s->n_known;
        commit(l, s);
        s->n_done = s->n_known - 1;
    } else {
        commit(l, s);
    }
    begin_filling(l, s);
}

static void admit_waiting(struct light *l, uint64_t now_ns)
{
    const struct light_config *c = &l->config;

    while (!link_is_empty(&l->waiting) && l->n_running < c->n_running_max) {
        struct seat *s = LINK_ITEM(l->waiting.next, seat, link);
        if (c->pool && !s->was_asked) {
            s->was_asked = true;
            c->ask(c->pool, l->index, s, now_ns);
        }
        if (!admit(l, s))
            return;
        link_remove(&s->link);
        link_append(&l->running, &s->link);
        l->n_waiting--;
        l->n_running++;
        l->n_querying += s->n_peers > 0;
        s->is_reading = c->pool && s->n_peers == 0 && c->read(c->pool, l->index, s, now_ns);
        if (!s->is_reading)
            begin_filling(l, s);
    }
}

static void reserve_decoding(struct light *l)
{
    while (l->decoding.n > 0 && !shelf_make_room(&l->shelf, l->decoding.n))
        preempt(l);
    l->shelf.n_private += l->decoding.n;
}

static double query_seconds(struct light *l)
{
    double longest = 0;

    if (l->n_querying == 0)
        return 0;
    for (struct link *at = l->running.next; at != &l->running; at = at->next) {
        const struct seat *s = LINK_ITEM(at, seat, link);
        if (s->n_peers == 0)
            continue;
        uint32_t n_rows = s->is_decoding;
        for (uint32_t i = 0; i < l->n_chunks; i++)
            n_rows = l->chunks[i].seat == s ? l->chunks[i].n : n_rows;
        double seconds = n_rows > 0 ? l->config.query_s(l->config.pool, s, n_rows) : 0;
        longest = seconds > longest ? seconds : longest;
    }
    return longest;
}

/* Seconds of a step of chunks of which a group of instances computes equal parts. */
static double group_seconds(const struct light *l)
{
    const struct light_group *g = &l->group;
    struct cost_step part = {0};
    uint32_t n_rows = 0;

    for (uint32_t i = 0; i < l->n_chunks; i++) {
        uint32_t n = l->chunks[i].n, n_own = (n + g->n - 1) / g->n;
        /* A part sees, in the mean, half of what the others compute. */
        cost_step_add(&part, l->config.cost, l->chunks[i].seat->n_done + (n - n_own) / 2, n_own);
        n_rows += n;
    }
    return cost_model_step_seconds(l->config.cost, &part) + g->step_s + n_rows * g->row_s;
}

/* Choose the chunks of the step; returns its seconds. */
static double plan(struct light *l)
{
    const struct light_config *c = &l->config;
    uint32_t n_group = l->group.n > 1 && l->decoding.n == 0 ? l->group.n : 1;
    uint64_t n_max = (uint64_t)c->n_tokens_max * n_group;
    int64_t sum = l->context + (int64_t)l->decoding.n * (int64_t)l->n_steps;
    struct cost_step step = {.n_decodes = l->decoding.n, .n_decode_cached = (uint64_t)sum};
    uint32_t left = n_max > l->decoding.n ? (uint32_t)(n_max - l->decoding.n) : 0;

    l->n_chunks = 0;
    for (struct link *at = l->filling.next; at != &l->filling && left > 0; at = at->next) {
        struct seat *s = LINK_ITEM(at, seat, fill);
        uint32_t n = s->n_known - s->n_done;
        n = n < left ? n : left;
        if (c->step_s_max > 0) {
            uint32_t n_fit = cost_model_fit(c->cost, &step, s->n_done, n, c->step_s_max * n_group);
            n = n_fit > 0 ? n_fit : l->n_chunks == 0 && l->decoding.n == 0 ? 1 : 0;
        }
        if (n == 0)
            break;
        l->chunks[l->n_chunks++] = (struct step_chunk){s, n};
        cost_step_add(&step, c->cost, s->n_done, n);
        left -= n;
    }
    double waited = query_seconds(l), debt = l->debt_s;
    l->debt_s = 0;
    return (n_group > 1 ? group_seconds(l) : cost_model_step_seconds(c->cost, &step)) + waited +
           debt;
}

void light_admit(struct light *l, uint64_t now_ns)
{
    drop_cancelled(l, now_ns);
    admit_waiting(l, now_ns);
}

uint32_t light_prompts(const struct light *l, uint32_t *n_cached, const struct pieces **first)
{
    uint32_t n = 0;

    for (struct link *at = l->filling.prev; at != &l->filling; at = at->prev) {
        const struct seat *s = LINK_ITEM(at, seat, fill);
        n += s->n_known - s->n_done;
        *n_cached = s->n_done;
        *first = &s->job->pieces;
    }
    return l->decoding.n == 0 ? n : 0;
}

void light_begin_step(struct light *l, uint64_t now_ns)
{
    if (l->ends_ns != NEVER)
        return;
    light_admit(l, now_ns);
    if (l->n_running == 0)
        return;
    reserve_decoding(l);
    if (l->n_running == 0) /* all were preempted: begin again */
        admit_waiting(l, now_ns);
    if (l->n_running == 0)
        return;
    if (l->decoding.n == 0 && link_is_empty(&l->filling))
        return; /* KV is read for all of them */
    double s = plan(l);
    l->result.n_items += l->decoding.n + l->n_chunks;
    for (uint32_t i = 0; i < l->n_chunks; i++)
        l->result.n_step_tokens += l->chunks[i].n;
    l->result.n_step_tokens += l->decoding.n;
    l->began_ns = now_ns;
    l->ends_ns = now_ns + l->config.overhead_ns + (uint64_t)(s * 1e9 + 0.5);
}

static struct seat *seat_of(struct agenda_item *item)
{
    return (struct seat *)(void *)((char *)item - offsetof(struct seat, item));
}

static void end_chunk(struct light *l, struct seat *s, uint32_t n, uint64_t now_ns)
{
    struct job *j = s->job;

    s->n_done += n;
    commit(l, s);
    if (s->n_done < s->n_known)
        return;
    link_remove(&s->fill);
    if (j->n_out == 0) {
        stop_running(l, s);
        end_seat(l, s, JOB_DONE, now_ns);
        return;
    }
    j->n_got++;
    if (j->n_got == 1 && !j->is_cancelled && j->n_out > 1)
        l->config.on_token(l->config.arg, j, now_ns);
    if (j->n_got >= j->n_out) {
        finish(l, s, now_ns);
        return;
    }
    s->is_decoding = true;
    s->began = l->n_steps;
    l->context += (int64_t)(j->pieces.n_tokens + j->n_got) - (int64_t)l->n_steps;
    if (agenda_add(&l->decoding, &s->item, l->n_steps + j->n_out - j->n_got) != OK) {
        s->is_decoding = false;
        stop_running(l, s);
        end_seat(l, s, JOB_FAILED, now_ns);
    }
}

void light_end_step(struct light *l, uint64_t now_ns)
{
    struct agenda_item *item;

    if (l->ends_ns > now_ns)
        return;
    l->result.busy_ns += l->ends_ns - l->began_ns;
    l->result.n_steps++;
    l->ends_ns = NEVER;
    l->n_steps++;
    while ((item = agenda_first(&l->decoding)) && item->due_ns <= l->n_steps)
        finish(l, seat_of(item), now_ns);
    for (uint32_t i = 0; i < l->n_chunks; i++)
        end_chunk(l, l->chunks[i].seat, l->chunks[i].n, now_ns);
    l->n_chunks = 0;
}

void light_check(const struct light *l)
{
    uint64_t n_private = 0;
    uint32_t n_running = 0;

    for (struct link *at = l->running.next; at != &l->running; at = at->next) {
        const struct seat *s = LINK_ITEM(at, seat, link);
        n_private += s->n_private + (s->is_decoding ? l->n_steps - s->began : 0);
        n_running++;
    }
    ASSERT(n_running == l->n_running);
    ASSERT(l->ends_ns != NEVER || n_private == l->shelf.n_private);
    shelf_check(&l->shelf);
}
