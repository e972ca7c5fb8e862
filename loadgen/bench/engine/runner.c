#include "loadgen/bench/engine/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "loadgen/bench/engine/median.h"

/* A repetition is at least so long: a scheduler's slice and a clock's step are small beside it. */
#define REPETITION_SECONDS 0.4
/* A case whose pass takes less is warmed up again in each round, as others ran between. */
#define WARM_AGAIN_SECONDS 0.5
#define PASSES_MAX 1000

static double seconds_since(uint64_t t0)
{
    return (double)(clock_now_ns() - t0) * 1e-9;
}

/* Show the current case on a terminal; each line replaces the one before. */
static void show_progress(uint32_t round, uint32_t n_rounds, const char *what)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K[%u/%u] %s", round + 1, n_rounds, what);
}

static void end_progress(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static enum status time_passes(struct rig *rig, uint32_t n, double *seconds)
{
    uint64_t t0 = clock_now_ns();
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = rig_case_pass(rig);
    *seconds = seconds_since(t0) / n;
    return s;
}

static enum status warm_up(struct rig *rig, struct runner_row *row)
{
    double one;
    enum status s;

    if (row->n_done > 0 && row->seconds[row->n_done - 1] > WARM_AGAIN_SECONDS)
        return OK;
    s = time_passes(rig, 1, &one);
    if (s == OK && row->n_passes == 0) {
        double n = ceil(REPETITION_SECONDS / (one > 1e-9 ? one : 1e-9));
        row->n_passes = n > PASSES_MAX ? PASSES_MAX : (uint32_t)n;
    }
    return s;
}

static void add_profile(struct runner_row *row)
{
    struct profile p;

    profile_read(&p);
    for (int i = 0; i < PROFILE_OP_COUNT; i++) {
        row->profile.op[i].seconds += p.op[i].seconds;
        row->profile.op[i].n_calls += p.op[i].n_calls;
        row->profile.op[i].ops += p.op[i].ops;
        row->profile.op[i].bytes += p.op[i].bytes;
    }
    row->n_profiled += row->n_passes;
}

static enum status repeat_case(struct rig *rig, struct runner_row *row, bool profile)
{
    enum status s = rig_case_begin(rig, &row->c);

    if (s == OK)
        s = warm_up(rig, row);
    profile_reset();
    if (s == OK)
        s = time_passes(rig, row->n_passes, &row->seconds[row->n_done]);
    if (s == OK)
        row->n_done++;
    if (s == OK && profile)
        add_profile(row);
    rig_case_end(rig);
    return s;
}

static enum status run_round(struct runner_result *out, struct rig *rig,
                             const struct bench_options *o, struct buf *why)
{
    char name[BENCH_CASE_NAME_BYTES];
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < out->n_rows; i++) {
        struct runner_row *row = &out->rows[i];
        if (row->skipped[0])
            continue;
        case_name(&row->c, name);
        show_progress(out->n_rounds, (uint32_t)o->repetitions, name);
        s = repeat_case(rig, row, o->profile);
        if (s != OK)
            return buf_why(why, s, "%s: %s", name, status_name(s));
    }
    return OK;
}

static enum status make_rows(struct runner_result *out, const struct rig *rig,
                             const struct bench_options *o, struct buf *why)
{
    out->n_rows = o->n_cases;
    out->rows = calloc(o->n_cases, sizeof *out->rows);
    if (!out->rows)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < o->n_cases; i++) {
        struct runner_row *row = &out->rows[i];
        row->c = o->cases[i];
        row->seconds = calloc(o->repetitions, sizeof *row->seconds);
        if (!row->seconds)
            return buf_why(why, ERR_NOMEM, "out of memory");
        buf_reset(why);
        if (rig_case_fits(rig, &row->c, why) != OK)
            snprintf(row->skipped, sizeof row->skipped, "%s", buf_str(why));
    }
    buf_reset(why);
    return OK;
}

static void summarize(struct runner_result *out, const struct rig *rig)
{
    const struct rig_info *info = rig_info(rig);

    for (uint32_t i = 0; i < out->n_rows; i++) {
        struct runner_row *row = &out->rows[i];
        if (row->n_done == 0)
            continue;
        row->median = median_of(row->seconds, row->n_done);
        counts_floor(&info->shape, &row->c, info->chunk, &out->limits, info->ops_name, &row->floor);
    }
}

static enum status run_rounds(struct runner_result *out, struct rig *rig,
                              const struct bench_options *o, struct limit_meter *meter,
                              struct limits *all, struct buf *why)
{
    uint64_t t0 = clock_now_ns();
    enum status s = OK;

    while (s == OK && out->n_rounds < o->repetitions) {
        if (meter) {
            show_progress(out->n_rounds, (uint32_t)o->repetitions, "limits");
            s = limits_measure(meter, &all[out->n_rounds]);
        }
        if (s == OK)
            s = run_round(out, rig, o, why);
        out->n_rounds++;
        if (o->max_seconds && seconds_since(t0) >= (double)o->max_seconds)
            break;
    }
    end_progress();
    return s;
}

enum status runner_run(struct runner_result *out, struct rig *rig, const struct bench_options *o,
                       struct buf *why)
{
    struct limit_meter *meter = NULL;
    struct limits *all = NULL;

    /* The limits are measured by CPU code, so they are those of a host device only. */
    *out = (struct runner_result){.has_limits = !o->no_limits && rig_info(rig)->is_host};
    enum status s = make_rows(out, rig, o, why);
    if (s == OK && out->has_limits) {
        all = calloc(o->repetitions, sizeof *all);
        s = all ? limits_create(&meter, rig_info(rig)->n_threads, why) : ERR_NOMEM;
    }
    if (s == OK)
        s = run_rounds(out, rig, o, meter, all, why);
    if (s == OK && meter)
        limits_median(all, out->n_rounds, &out->limits);
    if (s == OK)
        summarize(out, rig);
    limits_destroy(meter);
    free(all);
    if (s != OK)
        runner_fini(out);
    return s;
}

void runner_fini(struct runner_result *r)
{
    for (uint32_t i = 0; r->rows && i < r->n_rows; i++)
        free(r->rows[i].seconds);
    free(r->rows);
    *r = (struct runner_result){0};
}
