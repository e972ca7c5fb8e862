/* engine_estimate.c - when will a request be served, and was it served as it asked (SLO)?
 *
 * The engine thread predicts a request when it takes it over from the submit ring, and corrects the
 * estimator by what the request got. */
#include <math.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

/* Weight of one finished request in the moving mean. */
#define MEAN_RATE 0.02
#define PROMPT_TOKENS_FIRST 256
/* Least time between two predictions of a usual request. */
#define USUAL_NS 100000000u

static const double error_bounds[] = {0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5};

enum status engine_create_estimator(struct engine *e)
{
    hist_init(&e->live.ttft_error, error_bounds, ARRAY_SIZE(error_bounds));
    hist_init(&e->live.e2e_error, error_bounds, ARRAY_SIZE(error_bounds));
    e->mean_prompt_tokens = e->mean_computed_tokens = PROMPT_TOKENS_FIRST;
    return estimator_create(&e->estimator, e->lineup.scheduler, NULL, NULL, ESTIMATE_N_STEPS);
}

static uint64_t micros(double s)
{
    return s < 1e9 ? 1 + (uint64_t)(s * 1e6) : (uint64_t)1e15;
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

bool engine_predict(struct engine *e, uint32_t slot, uint64_t now_ns)
{
    struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;
    bool is_exact = r->stopping.ignore_eos && r->stopping.n_stops + r->stopping.n_stop_ids == 0;
    double waited_s = seconds_between(atomic_load(&r->t_submit), now_ns);

    estimate_slot(e->estimator, slot, waited_s, is_exact ? (double)r->stopping.max_tokens : -1,
                  &q->estimate);
    atomic_store(&r->estimated_e2e_us, micros(q->estimate.e2e_s));
    atomic_store(&r->estimated_ttft_us, micros(q->estimate.ttft_s));
    return !e->config.slo_reject || r->slo_ttft_s == 0 || q->estimate.ttft_s <= r->slo_ttft_s;
}

void engine_note_first_token(struct engine *e, const struct sequence *q)
{
    const struct request *r = q->req;
    double ttft_s = seconds_between(atomic_load(&r->t_submit), atomic_load(&r->t_first_token));

    hist_add(&e->live.ttft_error, estimator_note_ttft(e->estimator, &q->estimate, ttft_s));
}

static void count_target(struct slo_count *c, bool is_met)
{
    *(is_met ? &c->n_met : &c->n_missed) += 1;
}

/* Compare what a finished request got with its targets. */
static void count_targets(struct engine_stats *st, const struct request *r, double ttft_s,
                          double tpot_s)
{
    bool ttft_met = r->slo_ttft_s == 0 || ttft_s <= r->slo_ttft_s;
    bool tpot_met = r->slo_tpot_s == 0 || tpot_s <= r->slo_tpot_s;

    if (r->slo_ttft_s > 0)
        count_target(&st->slo_ttft, ttft_met);
    if (r->slo_tpot_s > 0)
        count_target(&st->slo_tpot, tpot_met);
    if (r->slo_ttft_s > 0 || r->slo_tpot_s > 0)
        count_target(&st->slo_all, ttft_met && tpot_met);
}

void engine_note_end(struct engine *e, const struct request *r, const struct estimate *estimate)
{
    uint64_t submit = atomic_load(&r->t_submit), first = atomic_load(&r->t_first_token);
    uint64_t finish = atomic_load(&r->t_finish);
    uint32_t n_out = request_n_out(r);
    double tpot_s = n_out > 1 ? seconds_between(first, finish) / (n_out - 1) : 0;

    hist_add(&e->live.e2e_error,
             estimator_note_e2e(e->estimator, estimate, seconds_between(submit, finish)));
    count_targets(&e->live, r, seconds_between(submit, first), tpot_s);
    engine_note_computed(e, r);
    e->mean_prompt_tokens += MEAN_RATE * (r->prompt.n_ids - e->mean_prompt_tokens);
}

/* Predict a request that is not submitted. A client's request would come in the middle of a
 * step. */
static void predict_asked(struct engine *e, const struct estimate_query *q, uint64_t now_ns,
                          struct estimate *out)
{
    uint32_t n_max = e->config.max_model_len;
    struct sched_request r = {.n_known = q->n_prompt < n_max ? q->n_prompt : n_max,
                              .n_cached = q->n_cached,
                              .n_out_max = q->n_out_max ? q->n_out_max : n_max,
                              .priority = q->priority,
                              .tenant = q->tenant};
    double half_s = scheduler_n_running(e->lineup.scheduler) > 0 ? e->lineup.step_s / 2 : 0;

    estimate_request(e->estimator, e->n_slots, &r, now_ns, out);
    out->ttft_s += half_s;
    out->ttft_high_s += half_s;
    out->e2e_s += half_s;
    out->e2e_high_s += half_s;
}

void engine_answer_estimate(struct engine *e, const struct estimate_query *q,
                            struct engine_estimate *out)
{
    predict_asked(e, q, clock_now_ns(), &out->estimate);
    out->n_running = e->live.n_running;
    out->n_waiting = e->live.n_waiting;
    estimator_stats(e->estimator, &out->accuracy);
}

void engine_publish_estimate(struct engine *e, uint64_t now_ns)
{
    struct estimate_query usual = {.n_prompt = (uint32_t)ceil(e->mean_prompt_tokens)};
    struct estimate estimate;

    if (now_ns < e->usual_ns + USUAL_NS)
        return;
    e->usual_ns = now_ns;
    predict_asked(e, &usual, now_ns, &estimate);
    estimator_stats(e->estimator, &e->live.estimator);
    atomic_store(&e->usual_ttft_us, micros(estimate.ttft_s));
    e->live.usual_ttft_s = estimate.ttft_s;
    e->live.usual_e2e_s = estimate.e2e_s;
}

double engine_usual_ttft_s(const struct engine *e)
{
    return (double)atomic_load(&e->usual_ttft_us) * 1e-6;
}
