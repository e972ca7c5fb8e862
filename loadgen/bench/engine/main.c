/* main.c - tarn-bench: the engine's forward pass compared with the limits of the machine. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "loadgen/bench/engine/attention.h"
#include "loadgen/bench/engine/options.h"
#include "loadgen/bench/engine/report.h"

#define JSON_BYTES_MAX ((size_t)16 << 20)

static enum status write_json(const struct limits *limits, const struct runner_result *rows,
                              struct buf *why)
{
    struct buf text;

    buf_init(&text, JSON_BYTES_MAX);
    enum status s = report_json(&text, limits, rows);
    if (s == OK && fwrite(text.data, 1, text.len, stdout) != text.len)
        s = buf_why(why, ERR_IO, "cannot write to the standard output");
    buf_fini(&text);
    return s;
}

static enum status run_limits(const struct bench_options *o, struct buf *why)
{
    struct limits *all = calloc(o->repetitions, sizeof *all), median;
    struct limit_meter *meter = NULL;
    enum status s = all ? limits_create(&meter, (uint32_t)o->threads, why) : ERR_NOMEM;

    for (uint64_t i = 0; s == OK && i < o->repetitions; i++)
        s = limits_measure(meter, &all[i]);
    if (s == OK)
        limits_median(all, (uint32_t)o->repetitions, &median);
    limits_destroy(meter);
    free(all);
    if (s != OK)
        return s;
    if (o->json)
        return write_json(&median, NULL, why);
    report_limits(stdout, &median);
    return OK;
}

static void print_tables(const struct runner_result *r)
{
    if (r->has_limits)
        report_limits(stdout, &r->limits);
    report_rows(stdout, r);
    report_profiles(stdout, r);
}

/* With --json the words for a human go where they do not mix with it. */
static void print_skipped(const struct runner_result *r)
{
    char name[BENCH_CASE_NAME_BYTES];

    for (uint32_t i = 0; i < r->n_rows; i++) {
        if (!r->rows[i].skipped[0])
            continue;
        case_name(&r->rows[i].c, name);
        fprintf(stderr, "%s skipped: %s\n", name, r->rows[i].skipped);
    }
}

static enum status run_cases(const struct bench_options *o, struct buf *why)
{
    struct runner_result result;
    struct rig *rig;
    enum status s = rig_open(&rig, o, why);

    if (s != OK)
        return s;
    report_machine(o->json ? stderr : stdout, rig_info(rig));
    fflush(stdout);
    s = runner_run(&result, rig, o, why);
    if (s == OK) {
        if (o->json) {
            print_skipped(&result);
            s = write_json(result.has_limits ? &result.limits : NULL, &result, why);
        } else {
            print_tables(&result);
        }
        runner_fini(&result);
    }
    rig_close(rig);
    return s;
}

int main(int argc, char **argv)
{
    struct bench_options o;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = options_parse(&o, argc, argv, &why);
    if (s == OK && o.want_help) {
        options_print_help(stdout);
    } else if (s == OK && o.want_version) {
        puts("tarn-bench " TARN_VERSION);
    } else if (s == OK) {
        log_init(LOG_WARN, false);
        s = hash_init();
        if (s == OK)
            s = o.only_limits      ? run_limits(&o, &why)
                : o.only_attention ? attention_bench(stdout, &o, &why)
                                   : run_cases(&o, &why);
    }
    options_name_options(&why);
    if (s != OK)
        fprintf(stderr, "tarn-bench: %s\n", why.len ? buf_str(&why) : status_name(s));
    options_fini(&o);
    buf_fini(&why);
    return s == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
