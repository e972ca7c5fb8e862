#include "loadgen/load/pace.h"

#define NS_PER_S 1e9

void turn_fini(struct turn *t)
{
    load_request_fini(&t->request);
    chain_free(t->chain);
    outcome_fini(&t->outcome);
}

uint64_t pace_after(uint64_t from_ns, double s)
{
    return from_ns + (uint64_t)(s * NS_PER_S);
}

void pace_begin(struct pace *p, uint64_t start_ns, double warmup_s, double duration_s)
{
    p->start_ns = start_ns;
    p->measured_ns = pace_after(start_ns, warmup_s);
    p->stop_ns = duration_s > 0 ? pace_after(p->measured_ns, duration_s) : 0;
}

static bool is_full(const struct pace *p)
{
    return p->count && p->n_admitted >= p->count;
}

static enum status end(struct pace *p)
{
    p->no_more = true;
    return ERR_NOT_FOUND;
}

enum status pace_next(struct pace *p, struct turn *out, struct buf *why)
{
    struct turn t = {.chain = NULL};

    if (p->no_more || is_full(p))
        return end(p);
    enum status s = p->source.next(p->source.arg, &t.request);
    if (s == ERR_NOT_FOUND)
        return end(p);
    if (s != OK)
        return buf_why(why, s, "the workload failed: %s", status_name(s));
    outcome_init(&t.outcome, &t.request);
    s = chain_pull(&t.chain, &t.request, &p->source);
    if (s != OK)
        buf_why(why, s, "the workload failed: %s", status_name(s));
    if (s == OK && !p->closed) {
        double at_s = t.request.arrival_s - p->offset_s;
        t.outcome.intended_ns = pace_after(p->start_ns, at_s > 0 ? at_s : 0);
        if (p->stop_ns && t.outcome.intended_ns >= p->stop_ns)
            s = end(p);
    }
    if (s == OK)
        *out = t;
    else
        turn_fini(&t);
    return s;
}

bool pace_follow(const struct pace *p, struct chain *chain, const struct outcome *before,
                 struct turn *out)
{
    bool is_over = is_full(p) && !p->ends_conversations;

    if (!chain || chain->next >= chain->n || before->end != OUTCOME_OK || is_over) {
        chain_free(chain);
        return false;
    }
    *out = (struct turn){.request = chain->turns[chain->next++], .chain = chain};
    outcome_init(&out->outcome, &out->request);
    out->outcome.intended_ns = pace_after(before->end_ns, out->request.think_s);
    out->outcome.free_ns = out->outcome.intended_ns;
    out->outcome.measured = before->measured;
    out->outcome.began_ns = before->began_ns;
    out->outcome.paused_ns = before->paused_ns + out->outcome.intended_ns - before->end_ns;
    if (p->ends_conversations || !p->stop_ns || out->outcome.intended_ns < p->stop_ns)
        return true;
    turn_fini(out);
    return false;
}

bool pace_has_place(const struct pace *p)
{
    /* A conversation keeps its place while its user thinks: places are users. */
    return p->concurrency == 0 || p->n_active + p->n_thinking < p->concurrency;
}

bool pace_is_due(const struct pace *p, const struct turn *t, uint64_t now_ns)
{
    return p->closed ? pace_has_place(p) : t->outcome.intended_ns <= now_ns;
}

bool pace_admit(struct pace *p, struct turn *t, uint64_t now_ns)
{
    /* Later turns of conversations count too. */
    if (is_full(p) || (p->closed && p->stop_ns && now_ns >= p->stop_ns)) {
        p->no_more = true;
        return false;
    }
    if (p->closed)
        t->outcome.intended_ns = now_ns;
    t->outcome.free_ns = t->outcome.began_ns = t->outcome.intended_ns;
    t->outcome.measured = t->outcome.intended_ns >= p->measured_ns;
    p->n_admitted += t->outcome.measured;
    return true;
}
