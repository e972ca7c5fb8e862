/* main.c - tarn-cachesim: replays recorded traces through the replacement policies. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "loadgen/bench/policy/report.h"

#define REPORT_BYTES_MAX ((size_t)1 << 20)

/* Put --cost on a grid: the server's policies get their costs from such a grid too. */
static enum status make_cost(struct cost_model *m, const double c[3], struct buf *why)
{
    static const uint32_t cached[] = {0, 1024, 4096, 16384, 65536, 131072, 262144};
    static const uint32_t fresh[] = {32,   128,   512,   1024,  2048,   4096,
                                     8192, 16384, 32768, 65536, 131072, 262144};
    double seconds[ARRAY_SIZE(cached)][ARRAY_SIZE(fresh)];

    for (size_t i = 0; i < ARRAY_SIZE(cached); i++)
        for (size_t j = 0; j < ARRAY_SIZE(fresh); j++)
            seconds[i][j] =
                c[0] + c[1] * fresh[j] + c[2] * fresh[j] * ((double)cached[i] + fresh[j] / 2.0);
    struct cost_points points = {.cached = cached,
                                 .n_cached = ARRAY_SIZE(cached),
                                 .new_tokens = fresh,
                                 .n_new = ARRAY_SIZE(fresh),
                                 .seconds = seconds[0]};
    return cost_model_init(m, &points, why);
}

static void show_progress(const struct sim_options *o, uint32_t policy, uint32_t k)
{
    fprintf(stderr, "\r%u of %u: %s at %g %%\033[K", policy * o->n_shares + k + 1,
            o->n_policies * o->n_shares, replace_policy_name(o->policies[policy]),
            100 * o->shares[k]);
    fflush(stderr);
}

static enum status run_all(const struct sim_options *o, const struct paths *p,
                           const struct cost_model *cost, struct replay_result *results)
{
    bool shows = !o->quiet && isatty(STDERR_FILENO);
    enum status s = OK;

    for (uint32_t i = 0; i < o->n_policies; i++)
        for (uint32_t k = 0; s == OK && k < o->n_shares; k++) {
            struct replay_options one = {
                .policy = o->policies[i],
                .capacity_tokens = (uint64_t)(o->shares[k] * (double)p->n_tokens_distinct),
                .history = o->history,
                .n_lookahead = (uint32_t)o->n_lookahead,
                .cost = cost,
                .checks = o->checks,
            };

            if (one.capacity_tokens == 0)
                one.capacity_tokens = 1;
            if (shows)
                show_progress(o, i, k);
            s = replay(p, &one, &results[(size_t)i * o->n_shares + k]);
        }
    if (shows)
        fputs("\r\033[K", stderr);
    return s;
}

static enum status print_report(const struct sim_options *o, const struct paths *p,
                                const struct replay_result *results, struct buf *why)
{
    struct buf text;
    enum status s;

    buf_init(&text, REPORT_BYTES_MAX);
    s = o->json ? report_json(&text, o, p, results) : report_table(&text, o, p, results);
    if (s == OK && (fwrite(text.data, 1, text.len, stdout) != text.len || fflush(stdout) != 0))
        s = buf_why(why, ERR_IO, "cannot write to the standard output");
    buf_fini(&text);
    return s;
}

static enum status simulate(const struct sim_options *o, struct buf *why)
{
    struct trace_options how = {.format = o->format, .order = o->order};
    struct trace trace = {0};
    struct paths paths = {0};
    struct cost_model cost;
    struct replay_result *results;
    enum status s = make_cost(&cost, o->cost, why);

    if (s == OK)
        s = trace_load(&trace, o->trace, &how, why);
    if (s == OK)
        s = paths_build(&paths, &trace, o->parts, o->from, o->to, why);
    trace_fini(&trace);
    results = calloc((size_t)o->n_policies * o->n_shares, sizeof *results);
    if (s == OK && !results)
        s = ERR_NOMEM;
    if (s == OK)
        s = run_all(o, &paths, &cost, results);
    if (s == OK)
        s = print_report(o, &paths, results, why);
    free(results);
    paths_fini(&paths);
    return s;
}

int main(int argc, char **argv)
{
    struct sim_options o;
    struct buf why;
    enum status s;

    buf_init(&why, BUF_WHY_MAX);
    s = sim_options_parse(&o, argc, argv, &why);
    if (s == OK && o.help)
        sim_options_help(stdout);
    else if (s == OK && o.version)
        puts("tarn-cachesim " TARN_VERSION);
    else if (s == OK)
        s = simulate(&o, &why);
    if (s != OK)
        fprintf(stderr, "tarn-cachesim: %s\n", why.len ? buf_str(&why) : status_name(s));
    sim_options_fini(&o);
    buf_fini(&why);
    return s == OK ? 0 : s == ERR_INVALID ? 2 : 1;
}
