/* main.c - tarn-schedbench: measures the time of planning a step. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "loadgen/bench/sched/options.h"
#include "loadgen/bench/sched/report.h"

#define REPORT_BYTES_MAX ((size_t)1 << 20)
#define N_POLICIES_MAX 16
#define N_RESULTS_MAX (N_POLICIES_MAX * 4)

struct results {
    struct planning_result rows[N_RESULTS_MAX];
    uint32_t n;
};

/* The names that `want` asks for, cut out of "fcfs|mlfq|..."; text keeps them. */
static uint32_t list_policies(const char *want, char *text, size_t size,
                              const char *names[N_POLICIES_MAX])
{
    uint32_t n = 0;
    char *rest = NULL;

    snprintf(text, size, "%s", strcmp(want, "all") == 0 ? scheduler_policies() : want);
    for (char *name = strtok_r(text, "|", &rest); name && n < N_POLICIES_MAX;
         name = strtok_r(NULL, "|", &rest))
        names[n++] = name;
    return n;
}

static bool wants_starvation(const struct schedbench_options *o, const char *which)
{
    return strcmp(o->starvation, "both") == 0 || strcmp(o->starvation, which) == 0;
}

static enum status run_one(struct results *out, const struct schedbench_options *o,
                           const char *policy, uint32_t n_queued, bool never, struct buf *why)
{
    const struct crowd_config config = {
        .policy = policy,
        .variant = o->mlfq_variant,
        .n_queued = n_queued,
        .n_running = (uint32_t)o->running,
        .starvation_never = never,
        .seed = o->seed,
    };

    if (!o->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s, %u wait\033[K", policy, n_queued);
    ASSERT(out->n < N_RESULTS_MAX);
    return planning_run(&out->rows[out->n++], &config, (uint32_t)o->plans, why);
}

static enum status run_all(struct results *out, const struct schedbench_options *o,
                           const char *const *names, uint32_t n_names, struct buf *why)
{
    const uint32_t usual[] = {1000, 100000}, given[] = {(uint32_t)o->queued};
    const uint32_t *queued = o->queued ? given : usual;
    size_t n_queued = o->queued ? ARRAY_SIZE(given) : ARRAY_SIZE(usual);
    enum status s = OK;

    for (size_t k = 0; s == OK && k < n_queued; k++)
        for (uint32_t i = 0; s == OK && i < n_names; i++) {
            if (wants_starvation(o, "default"))
                s = run_one(out, o, names[i], queued[k], false, why);
            if (s == OK && wants_starvation(o, "never"))
                s = run_one(out, o, names[i], queued[k], true, why);
        }
    if (!o->quiet && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    return s;
}

static enum status measure(const struct schedbench_options *o, struct buf *why)
{
    static struct results results;
    const char *names[N_POLICIES_MAX];
    char words[1024];
    struct buf text;
    enum status s =
        run_all(&results, o, names, list_policies(o->policy, words, sizeof words, names), why);

    if (s != OK)
        return s;
    buf_init(&text, REPORT_BYTES_MAX);
    s = o->json ? schedbench_report_json(&text, results.rows, results.n)
                : schedbench_report_text(&text, results.rows, results.n);
    if (s == OK && (fwrite(text.data, 1, text.len, stdout) != text.len || fflush(stdout) != 0))
        s = buf_why(why, ERR_IO, "cannot write to the standard output");
    buf_fini(&text);
    return s;
}

int main(int argc, char **argv)
{
    struct schedbench_options o;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = schedbench_options_parse(&o, argc, argv, &why);
    if (s == OK && o.want_help)
        schedbench_options_help(stdout);
    else if (s == OK && o.want_version)
        puts("tarn-schedbench " TARN_VERSION);
    else if (s == OK)
        s = measure(&o, &why);
    if (s != OK)
        fprintf(stderr, "tarn-schedbench: %s\n", why.len ? buf_str(&why) : status_name(s));
    schedbench_options_fini(&o);
    buf_fini(&why);
    return s == OK ? 0 : s == ERR_INVALID ? 2 : 1;
}
