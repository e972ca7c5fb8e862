/* scheduler_probe.c - places a request in the order without submitting it: for "when would it be
 * served?" (estimate.h).
 *
 * Anybody may ask, any number of times. So a question must not be remembered: no tenant, session or
 * class of lengths is made for it, none is forgotten for want of room, and no program ends. The
 * tables have a stand-in each, into which the question enters. */
#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

void scheduler_probe(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                     uint64_t now_ns, struct sched_probe *probe)
{
    const struct rounds *rounds = learned_rounds(s, r->priority);
    struct entry *e = &s->entries[slot];
    bool goes_on;

    ASSERT(r->class == SCHED_USUAL);
    *probe = (struct sched_probe){.version = s->version,
                                  .n_arrived = s->n_arrived,
                                  .n_ranked = s->n_ranked,
                                  .n_logs = s->n_logs,
                                  .first_round = rounds->first,
                                  .last_round = rounds->last,
                                  .usual_log = s->usual_log};
    lengths_freeze(s->lengths, true);
    entry_begin(s, slot, r, now_ns);
    e->tenant = tenants_probe(&s->tenants, r->tenant);
    e->trajectory = trajectories_probe(&s->trajectories, r->session, r->tenant, now_ns,
                                       s->starvation_ns, &goes_on);
    e->length_class =
        lengths_class(s->lengths, &(struct length_traits){.tenant = r->tenant,
                                                          .n_prompt = r->n_known,
                                                          .n_out_max = r->n_out_max,
                                                          .has_limit = r->has_limit,
                                                          .kind = entry_kind(s, e->trajectory)});
    if (e->trajectory != NO_TRAJECTORY)
        learned_probe_program(s, e, now_ns);
    entry_join(s, slot, goes_on);
    s->n_waiting_of[e->class]++;
}

void scheduler_unprobe(struct scheduler *s, uint32_t slot, const struct sched_probe *probe)
{
    struct entry *e = &s->entries[slot];

    lengths_freeze(s->lengths, false);
    learned_forget_due(s, slot);
    if (s->variant == MLFQ_LEARNED)
        learned_unjoin(s, e, probe->first_round, probe->last_round);
    order_remove(&s->order, slot);
    s->n_in_level[e->level]--;
    s->n_waiting_of[e->class]--;
    e->state = ENTRY_NONE;
    s->version = probe->version;
    s->n_arrived = probe->n_arrived;
    s->n_ranked = probe->n_ranked;
    s->n_logs = probe->n_logs;
    s->usual_log = probe->usual_log;
}
