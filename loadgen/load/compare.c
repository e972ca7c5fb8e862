#include "loadgen/load/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/load/progress.h"
#include "loadgen/load/report.h"
#include "loadgen/load/report_json.h"

#define N_SIDES 2
#define PROGRESS_NS UINT64_C(250000000)
/* Delay of the second of two requests with one time: the loop sends in order of time. */
#define BEHIND_S 1e-6

struct side {
    struct target target;
    struct outcome_list outcomes;
    double busy_s; /* sum of its blocks */
    struct progress progress;
    struct comparison *comparison;
    uint32_t n_given; /* of the block, to the run that goes on */
};

struct comparison {
    const struct options *o;
    struct http_loop *loop;
    struct workload *workload;
    struct side sides[N_SIDES];
    struct load_request *block; /* [n_block] */
    uint32_t n_block, cap_block;
    bool together; /* each request to both at once */
    bool interrupted;
};

static const enum metric compared[] = {METRIC_TTFT, METRIC_TPOT, METRIC_E2EL, METRIC_NORMALIZED};

/* --- sending --- */

/* A copy of the block's next request: the run frees what it gets, and the other server needs it. */
static enum status give(void *arg, struct load_request *out)
{
    struct side *side = arg;
    const struct comparison *c = side->comparison;

    if (side->n_given == c->n_block)
        return ERR_NOT_FOUND;
    const struct load_request *r = &c->block[side->n_given];
    *out = *r;
    if (c->together && (side->n_given + (side == &c->sides[1])) % 2)
        out->arrival_s += BEHIND_S;
    out->parts = malloc((r->n_parts ? r->n_parts : 1) * sizeof *out->parts);
    if (!out->parts)
        return ERR_NOMEM;
    memcpy(out->parts, r->parts, r->n_parts * sizeof *out->parts);
    out->cap_parts = r->n_parts;
    side->n_given++;
    return OK;
}

static enum status append(struct outcome_list *to, struct outcome_list *from)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < from->n; i++) {
        s = outcome_list_push(to, &from->v[i]);
        if (s == OK)
            memset(&from->v[i], 0, sizeof from->v[i]);
    }
    outcome_list_fini(from);
    return s;
}

static double span_of(const struct outcome_list *l, uint64_t start_ns)
{
    uint64_t end_ns = start_ns;

    for (size_t i = 0; i < l->n; i++)
        end_ns = l->v[i].end_ns > end_ns ? l->v[i].end_ns : end_ns;
    return (double)(end_ns - start_ns) / 1e9;
}

static enum status create_run(struct run **out, struct comparison *c, struct side *side)
{
    const struct options *o = c->o;
    bool is_shown = progress_is_wanted(o->progress) && !(c->together && side == &c->sides[1]);
    struct run_config config = {
        .loop = c->loop,
        .clients = (const struct tarn_client *const *)side->target.clients,
        .n_clients = side->target.n_clients,
        .style = &side->target.style,
        .source = {give, side},
        .closed = o->closed,
        .concurrency = (uint32_t)o->concurrency,
        .arrival_offset_s = c->block[0].arrival_s,
        .slow_pause_s = o->slow_pause_s,
        .progress = is_shown ? progress_show : NULL,
        .progress_arg = &side->progress,
        .progress_ns = PROGRESS_NS,
    };

    side->n_given = 0;
    return run_create(out, &config);
}

static enum status keep_outcomes(struct comparison *c, struct side *side, struct run *run)
{
    struct outcome_list outcomes;

    c->interrupted |= run_was_interrupted(run);
    run_take(run, &outcomes);
    side->busy_s += span_of(&outcomes, run_start_ns(run));
    progress_clear(&side->progress);
    side->progress.last_s = 0;
    side->progress.last_tokens = 0;
    return append(&side->outcomes, &outcomes);
}

/* Send the block to sides[0..n) at the same time. */
static enum status send_block(struct comparison *c, struct side *sides, uint32_t n,
                              void (*set_current)(struct run *), struct buf *why)
{
    struct run *runs[N_SIDES] = {NULL};
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = create_run(&runs[i], c, &sides[i]);
    if (s != OK)
        buf_why(why, s, "out of memory");
    if (s == OK) {
        set_current(runs[0]);
        s = run_go_together(runs, n, why);
        set_current(NULL);
    }
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = keep_outcomes(c, &sides[i], runs[i]);
    for (uint32_t i = 0; i < n; i++)
        run_destroy(runs[i]);
    return s;
}

static void drop_block(struct comparison *c)
{
    for (uint32_t i = 0; i < c->n_block; i++)
        load_request_fini(&c->block[i]);
    c->n_block = 0;
}

/* Generate at most `limit` requests; none at the end of the data. */
static enum status fill_block(struct comparison *c, uint64_t limit, struct buf *why)
{
    drop_block(c);
    while (c->n_block < c->cap_block && c->n_block < limit) {
        enum status s = workload_next(c->workload, &c->block[c->n_block]);
        if (s == ERR_NOT_FOUND)
            return OK;
        if (s != OK)
            return buf_why(why, s, "the workload failed: %s", status_name(s));
        c->n_block++;
    }
    return OK;
}

static enum status send_all(struct comparison *c, void (*set_current)(struct run *),
                            struct buf *why)
{
    uint64_t left = c->o->count;
    enum status s = OK;

    for (uint32_t block = 0; s == OK && left > 0 && !c->interrupted; block++) {
        s = fill_block(c, left, why);
        if (s != OK || c->n_block == 0)
            break;
        left -= c->n_block;
        if (c->together)
            s = send_block(c, c->sides, N_SIDES, set_current, why);
        for (uint32_t k = 0; s == OK && !c->together && k < N_SIDES && !c->interrupted; k++)
            s = send_block(c, &c->sides[(block + k) % N_SIDES], 1, set_current, why);
    }
    return s;
}

/* --- pairs --- */

struct pairs {
    double *a, *b; /* [n] */
    size_t n;
};

/* Collect the values of both servers for requests that both answered. Both lists are sorted by
 * index. */
static enum status pair_up(struct pairs *p, const struct comparison *c, enum metric m)
{
    const struct outcome_list *a = &c->sides[0].outcomes, *b = &c->sides[1].outcomes;
    size_t i = 0, j = 0;
    bool has_a, has_b;

    *p = (struct pairs){.a = malloc((2 * a->n + 1) * sizeof *p->a)};
    if (!p->a)
        return ERR_NOMEM;
    p->b = p->a + a->n;
    while (i < a->n && j < b->n) {
        if (a->v[i].index != b->v[j].index) {
            a->v[i].index < b->v[j].index ? i++ : j++;
            continue;
        }
        double x = metric_of(&a->v[i++], m, &has_a), y = metric_of(&b->v[j++], m, &has_b);
        if (has_a && has_b) {
            p->a[p->n] = x;
            p->b[p->n++] = y;
        }
    }
    return OK;
}

/* --- the report --- */

static double statistic_of(const double *v, size_t n, enum statistic what)
{
    static const double percents[N_STATISTICS] = {0, 50, 95, 99};
    struct series s = {0};
    double value = 0;

    for (size_t i = 0; i < n; i++)
        if (series_push(&s, v[i]) != OK)
            break;
    if (s.n == n) {
        series_sort(&s);
        value =
            what == STATISTIC_MEAN ? stats_mean(s.v, n) : stats_percentile(s.v, n, percents[what]);
    }
    series_fini(&s);
    return value;
}

/* Put null for what is not a number: a ratio that does not exist, an interval without an end. */
static void put_finite(struct put *p, const char *key, double v)
{
    put(p, key, isfinite(v) ? js_new_real(v) : js_new_null());
}

static void put_ratio(struct put *p, const char *prefix, const char *name, double a, double b,
                      struct interval ratio)
{
    char key[96];

    snprintf(key, sizeof key, "%s_%s_ms_a", prefix, name);
    put_finite(p, key, a * 1e3);
    snprintf(key, sizeof key, "%s_%s_ms_b", prefix, name);
    put_finite(p, key, b * 1e3);
    snprintf(key, sizeof key, "%s_%s_ratio", prefix, name);
    put_finite(p, key, ratio.value);
    snprintf(key, sizeof key, "%s_%s_ratio_low", prefix, name);
    put_finite(p, key, ratio.low);
    snprintf(key, sizeof key, "%s_%s_ratio_high", prefix, name);
    put_finite(p, key, ratio.high);
}

/* Few values lie in a tail: resampling them would give too narrow an interval. */
static bool is_tail_thin(enum statistic what, size_t n)
{
    return (what == STATISTIC_P95 && n < 100) || (what == STATISTIC_P99 && n < 500);
}

static void print_ms(double seconds)
{
    if (isfinite(seconds))
        printf(" %11.2f", seconds * 1e3);
    else
        printf(" %11s", "");
}

/* Print a line of the table; a and b may be NAN, which leaves them out. */
static void print_ratio(const char *left, double a, double b, struct interval ratio, bool thin)
{
    printf("%-30s", left);
    print_ms(a);
    print_ms(b);
    if (isfinite(ratio.value))
        printf(" %9.3f   [%.3f, %.3f]%s\n", ratio.value, ratio.low, ratio.high, thin ? " few" : "");
    else
        printf(" %9s\n", "none");
}

/* Add the number of pairs that have the metric to *n_pairs. */
static enum status report_metric(const struct comparison *c, enum metric m, struct put *out,
                                 size_t *n_pairs)
{
    struct pairs p;
    char left[64];
    size_t n_used = 0;
    enum status s = pair_up(&p, c, m);
    bool is_shown = !c->o->quiet && p.n > 0; /* without a pair there is nothing to show */

    *n_pairs += p.n;
    for (int i = 0; s == OK && i < N_STATISTICS; i++) {
        enum statistic what = (enum statistic)i;
        struct interval ratio;
        s = stats_ratio_bootstrap(p.a, p.b, p.n, what, c->o->config.seed, &ratio);
        if (s != OK)
            break;
        double a = p.n ? statistic_of(p.a, p.n, what) : (double)NAN;
        double b = p.n ? statistic_of(p.b, p.n, what) : (double)NAN;
        snprintf(left, sizeof left, "%s %s (ms)", statistic_name(what), metric_name(m));
        if (is_shown)
            print_ratio(left, a, b, ratio, is_tail_thin(what, p.n));
        put_ratio(out, statistic_name(what), metric_name(m), a, b, ratio);
    }
    if (s == OK) {
        struct interval t = stats_ratio_t(p.a, p.b, p.n, &n_used);
        if (is_shown)
            print_ratio("  pairwise, geometric mean", NAN, NAN, t, false);
        put_ratio(out, "pairwise", metric_name(m), NAN, NAN, t);
    }
    free(p.a);
    return s;
}

struct totals {
    uint64_t n_ok, n_failed, prompt, output, cached;
};

static struct totals total(const struct side *side)
{
    struct totals t = {0};

    for (size_t i = 0; i < side->outcomes.n; i++) {
        const struct outcome *o = &side->outcomes.v[i];
        t.n_failed += o->end == OUTCOME_FAILED;
        if (o->end != OUTCOME_OK)
            continue;
        t.n_ok++;
        t.prompt += outcome_prompt_tokens(o);
        t.output += outcome_output_tokens(o);
        t.cached += o->usage.cached_tokens > 0 ? (uint64_t)o->usage.cached_tokens : 0;
    }
    return t;
}

static void report_totals(const struct comparison *c, const struct totals t[N_SIDES],
                          struct put *out)
{
    const struct {
        const char *words, *key;
        double v[N_SIDES];
    } rows[] = {
        {"Successful requests", "completed", {(double)t[0].n_ok, (double)t[1].n_ok}},
        {"Failed requests", "failed", {(double)t[0].n_failed, (double)t[1].n_failed}},
        {"Total input tokens", "total_input_tokens", {(double)t[0].prompt, (double)t[1].prompt}},
        {"Total generated tokens",
         "total_output_tokens",
         {(double)t[0].output, (double)t[1].output}},
        {"Cached prompt tokens", "cached_tokens", {(double)t[0].cached, (double)t[1].cached}},
        {"Time with requests (s)", "duration", {c->sides[0].busy_s, c->sides[1].busy_s}},
        {"Output throughput (tok/s)",
         "output_throughput",
         {c->sides[0].busy_s > 0 ? (double)t[0].output / c->sides[0].busy_s : 0,
          c->sides[1].busy_s > 0 ? (double)t[1].output / c->sides[1].busy_s : 0}},
    };
    char key[96];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char ratio[32] = "none"; /* 0 / 0, and what is many times 0 */
        if (rows[i].v[0] > 0)
            snprintf(ratio, sizeof ratio, "%.3f", rows[i].v[1] / rows[i].v[0]);
        if (!c->o->quiet)
            printf("%-30s %11.2f %11.2f %9s\n", rows[i].words, rows[i].v[0], rows[i].v[1], ratio);
        snprintf(key, sizeof key, "%s_a", rows[i].key);
        put_real(out, key, rows[i].v[0]);
        snprintf(key, sizeof key, "%s_b", rows[i].key);
        put_real(out, key, rows[i].v[1]);
    }
}

static void print_head(const struct comparison *c)
{
    const struct options *o = c->o;

    puts("============================ tarn-loadgen compare ============================");
    for (int k = 0; k < N_SIDES; k++)
        printf("%-12.12s %s, model %s\n", k ? o->name_b : o->name_a, c->sides[k].target.url,
               c->sides[k].target.model);
    printf("Workload %s, seed %" PRIu64, workload_kind_name(o->config.kind), o->config.seed);
    if (c->together)
        puts(", each request to both at once, open loop");
    else
        printf(", blocks of %u, %s\n", c->cap_block, o->closed ? "closed loop" : "open loop");
    if (c->interrupted)
        puts("Interrupted: only what both had answered is compared.");
    printf("%-30s %11.11s %11.11s %9s   %s\n", "", o->name_a, o->name_b, "B / A", "95 % interval");
}

static enum status report(struct comparison *c, bool *failed, struct buf *why)
{
    struct put out = {js_new_object(), OK};
    struct totals t[N_SIDES];
    size_t n_pairs = 0;
    enum status s = OK;

    for (int k = 0; k < N_SIDES; k++) {
        outcome_list_sort(&c->sides[k].outcomes);
        t[k] = total(&c->sides[k]);
    }
    *failed = t[0].n_ok == 0 || t[1].n_ok == 0;
    if (!c->o->quiet)
        print_head(c);
    put_text(&out, "url_a", c->sides[0].target.url);
    put_text(&out, "url_b", c->sides[1].target.url);
    put_text(&out, "model_a", c->sides[0].target.model);
    put_text(&out, "model_b", c->sides[1].target.model);
    put_text(&out, "workload", workload_kind_name(c->o->config.kind));
    put_count(&out, "seed", c->o->config.seed);
    put_text(&out, "interleave", c->o->interleave);
    put_count(&out, "block", c->cap_block);
    report_totals(c, t, &out);
    for (size_t i = 0; s == OK && i < sizeof compared / sizeof compared[0]; i++)
        s = report_metric(c, compared[i], &out, &n_pairs);
    if (!c->o->quiet && n_pairs == 0)
        puts("No request was answered by both servers: there are no latencies to compare.\n"
             "==============================================================================");
    else if (!c->o->quiet)
        puts("Ratios above 1: B takes longer. Statistics by paired bootstrap, pairwise by\n"
             "Student's t on logarithms; only requests that both servers answered. few: too few\n"
             "pairs for that tail, the interval is too narrow.\n"
             "==============================================================================");
    if (s == OK)
        s = out.status;
    s = s == OK ? report_write_json(out.o, c->o, why) : buf_why(why, s, "out of memory");
    js_unref(out.o);
    return s;
}

/* --- the whole --- */

static enum status open_all(struct comparison *c, struct buf *why)
{
    const struct options *o = c->o;
    uint64_t block = o->block;
    enum status s = OK;

    c->together = strcmp(o->interleave, "requests") == 0;
    if (c->together)
        block = o->count;
    if (block == 0)
        block = o->closed ? o->concurrency : (o->count + 3) / 4;
    c->cap_block = (uint32_t)(block > 1000000 ? 1000000 : block ? block : 1);
    c->block = calloc(c->cap_block, sizeof *c->block);
    if (!c->block)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (int k = 0; s == OK && k < N_SIDES; k++) {
        c->sides[k].comparison = c;
        s = target_open(&c->sides[k].target, o, k == 1, why);
        c->sides[k].progress.name = k ? "B " : "A ";
    }
    if (s == OK) {
        /* One calibration for both: the texts must be equal, their token counts may differ. */
        target_calibrate(&c->sides[0].target, o);
        c->sides[1].target.style.tokens_per_word = c->sides[0].target.style.tokens_per_word;
        c->sides[1].target.style.overhead_tokens = c->sides[0].target.style.overhead_tokens;
        s = workload_create(&c->workload, &o->config, why);
    }
    return s;
}

enum status compare_run(const struct options *o, struct http_loop *loop,
                        void (*set_current)(struct run *run), bool *failed, struct buf *why)
{
    struct comparison c = {.o = o, .loop = loop};
    enum status s = open_all(&c, why);

    *failed = true;
    if (s == OK)
        s = send_all(&c, set_current, why);
    if (s == OK)
        s = report(&c, failed, why);
    drop_block(&c);
    free(c.block);
    workload_destroy(c.workload);
    for (int k = 0; k < N_SIDES; k++) {
        outcome_list_fini(&c.sides[k].outcomes);
        target_close(&c.sides[k].target);
    }
    return s;
}
