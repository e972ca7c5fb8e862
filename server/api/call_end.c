#include "server/api/call.h"

#include <inttypes.h>

#include "base/log.h"
#include "server/auth/admission.h"
#include "server/auth/auth.h"
#include "server/server.h"
#include "server/api/tally.h"

/* Charge the account for the answers, whatever ended them. A prompt counts once, as in `usage`. */
static void charge(const struct call *call)
{
    struct tenant *t = call->account->tenant;
    uint64_t n_out = 0;

    for (uint32_t i = 0; i < call->n_choices; i++) {
        const struct request *r = call->choices[i].request;
        n_out += request_n_out(r);
        if (i % call->params.best_of != 0)
            continue;
        atomic_fetch_add(&t->n_prompt_tokens, r->prompt.n_ids);
        atomic_fetch_add(&t->n_cached_tokens, atomic_load(&r->n_cached));
        if (request_finish(r) != FINISH_NONE) { /* the two fields are final */
            atomic_fetch_add(&t->n_written_tokens, request_n_written(r));
            atomic_fetch_add(&t->n_holds_refused[r->hold_limit], 1);
        }
    }
    admission_generated(call->account, n_out);
    atomic_fetch_add(&t->n_generation_tokens, n_out);
}

/* Count answers and the longest of them, prompt by prompt, as vLLM does. */
static void tally(const struct call *call)
{
    uint32_t n_each = call->n_choices / call->n_prompts, n_tokens_max = 0;

    for (uint32_t i = 0; i < call->n_choices; i++) {
        uint32_t n_out = request_n_out(call->choices[i].request);
        n_tokens_max = n_out > n_tokens_max ? n_out : n_tokens_max;
        if ((i + 1) % n_each != 0)
            continue;
        tally_prompt(call->srv->tally, call->params.n, n_tokens_max);
        n_tokens_max = 0;
    }
}

static uint64_t us_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
}

static void log_choice(const struct call *call, const struct choice *c, int status)
{
    const struct request *r = c->request;
    uint64_t submit = atomic_load(&r->t_submit), first_step = atomic_load(&r->t_first_step);
    uint64_t first_token = atomic_load(&r->t_first_token), finish = atomic_load(&r->t_finish);

    log_event_each(
        LOG_INFO, "request",
        "id=%s key=%s tenant=%s api=%s status=%d choice=%u stream=%s queue_us=%" PRIu64
        " prefill_us=%" PRIu64 " ttft_us=%" PRIu64 " e2e_us=%" PRIu64
        " n_prompt=%u n_hit=%u n_hit_host=%u n_hit_disk=%u n_hit_remote=%u n_out=%u finish=%s",
        call->http_id, call->account->name, call->account->tenant_name, call->shape->name, status,
        c->index, call->params.stream ? "true" : "false", us_between(submit, first_step),
        us_between(first_step, first_token), us_between(submit, first_token),
        us_between(submit, finish), r->prompt.n_ids, atomic_load(&r->n_cached),
        atomic_load(&r->n_cached_in[CACHE_HOST]), atomic_load(&r->n_cached_in[CACHE_DISK]),
        atomic_load(&r->n_cached_in[CACHE_REMOTE]), request_n_out(r),
        /* The client's view: an answer that the client did not take whole counts as
                    * cancelled. */
        c->finish == FINISH_NONE ? "abort" : finish_reason_name(c->finish));
}

void call_end(const struct call *call, int status)
{
    charge(call);
    tally(call);
    for (uint32_t i = 0; log_enabled(LOG_INFO) && i < call->n_choices; i++)
        log_choice(call, &call->choices[i], status);
}
