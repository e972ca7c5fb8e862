/* main.c - tarn-loadgen: options, server, workload, run, verify, report. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loadgen/load/compare.h"
#include "loadgen/load/progress.h"
#include "loadgen/load/report.h"
#include "loadgen/load/run.h"
#include "loadgen/sim/command.h"

#define PROGRESS_NS UINT64_C(250000000)

enum { EXIT_USAGE = 2, EXIT_TEXT_DIFFERS = 3 };

/* The run that Ctrl-C ends. */
static _Atomic(struct run *) current;

static void set_current(struct run *run)
{
    atomic_store(&current, run);
}

static void on_interrupt(int sig)
{
    struct run *run = atomic_load(&current);

    if (run)
        run_interrupt(run);
    else
        _exit(128 + sig);
    signal(sig, SIG_DFL); /* a second one ends at once */
}

static void prepare_process(void)
{
    struct rlimit limit;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)!setrlimit(RLIMIT_NOFILE, &limit); /* a failure shows as errors of connections */
    }
}

static enum status next(void *arg, struct load_request *out)
{
    return workload_next(arg, out);
}

struct session {
    const struct options *o;
    struct http_loop *loop;
    struct target target;
    struct workload *workload;
    struct run *run;
    struct outcome_list outcomes;
    struct http_loop_stats loop_stats;
    struct verify_result verify;
};

static enum status go(struct session *x, struct buf *why)
{
    const struct options *o = x->o;
    struct progress progress = {.name = ""};
    struct run_config config = {
        .loop = x->loop,
        .clients = (const struct tarn_client *const *)x->target.clients,
        .n_clients = x->target.n_clients,
        .style = &x->target.style,
        .source = {next, x->workload},
        .closed = o->closed,
        .concurrency = (uint32_t)o->concurrency,
        .count = o->count,
        .warmup_s = o->warmup_s,
        .duration_s = o->duration_s,
        .drain_s = o->drain_s,
        .slow_pause_s = o->slow_pause_s,
        .keep_text = o->save_detailed,
        .ends_conversations = o->finish_conversations,
        .real_history = strcmp(o->history, "real") == 0,
        .progress = progress_is_wanted(o->progress) ? progress_show : NULL,
        .progress_arg = &progress,
        .progress_ns = PROGRESS_NS,
    };
    enum status s = run_create(&x->run, &config);

    if (s != OK)
        return buf_why(why, s, "out of memory");
    http_loop_reset_stats(x->loop);
    set_current(x->run);
    s = run_go(x->run, why);
    set_current(NULL);
    progress_clear(&progress);
    http_loop_stats(x->loop, &x->loop_stats);
    run_take(x->run, &x->outcomes);
    outcome_list_sort(&x->outcomes);
    return s;
}

static enum status report(struct session *x, bool *failed, struct buf *why)
{
    const char *names[N_TENANTS_MAX];
    struct metrics m;
    struct metrics_options options = {.percents = x->o->percents,
                                      .start_ns = run_measured_ns(x->run),
                                      .tenant_names = names,
                                      .n_tenants = workload_n_tenants(x->workload)};

    /* The window also has the seconds after its last arrival. */
    if (x->o->duration_s > 0 && x->o->count == 0 && !run_was_interrupted(x->run) &&
        x->o->config.arrival.kind != ARRIVAL_TRACE)
        options.until_ns = options.start_ns + (uint64_t)(x->o->duration_s * 1e9);
    metrics_add_usual_percents(&options.percents);
    for (uint32_t i = 0; i < options.n_tenants; i++)
        names[i] = workload_tenant_name(x->workload, i);
    enum status s = metrics_compute(&m, x->outcomes.v, x->outcomes.n, &options);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    bool interrupted = run_was_interrupted(x->run);
    struct report r = {x->o,
                       &x->target,
                       &m,
                       &x->outcomes,
                       x->o->verify > 0 && !interrupted ? &x->verify : NULL,
                       &x->loop_stats,
                       run_start_ns(x->run),
                       interrupted,
                       NULL};
    if (!x->o->quiet)
        report_print(strcmp(x->o->json_file, "-") == 0 ? stderr : stdout, &r);
    *failed = m.all.n_completed == 0 && m.all.n_disconnected == 0;
    s = report_write_files(&r, why);
    metrics_fini(&m);
    return s;
}

static int run_session(struct session *x, struct buf *why)
{
    bool failed = true;
    enum status s = report_make_dir(x->o, why);

    if (s == OK)
        s = target_open(&x->target, x->o, false, why);
    if (s == OK)
        s = workload_create(&x->workload, &x->o->config, why);
    if (s == OK) {
        target_calibrate(&x->target, x->o);
        s = go(x, why);
    }
    if (s == OK && x->o->verify > 0 && !run_was_interrupted(x->run)) {
        s = verify_run(&x->verify, &x->outcomes, x->loop, x->target.clients, x->target.n_clients);
        if (s != OK)
            buf_why(why, s, "--verify: %s", status_name(s));
    }
    if (s == OK)
        s = report(x, &failed, why);
    int code = s != OK || failed                                ? EXIT_FAILURE
               : x->o->verify > 0 && verify_differs(&x->verify) ? EXIT_TEXT_DIFFERS
                                                                : EXIT_SUCCESS;
    if (s == ERR_INVALID || s == ERR_NOT_FOUND)
        code = EXIT_USAGE;
    run_destroy(x->run);
    outcome_list_fini(&x->outcomes);
    workload_destroy(x->workload);
    target_close(&x->target);
    return code;
}

static int run_compare(const struct options *o, struct http_loop *loop, struct buf *why)
{
    bool failed = true;
    enum status s = compare_run(o, loop, set_current, &failed, why);

    if (s == ERR_INVALID || s == ERR_NOT_FOUND)
        return EXIT_USAGE;
    return s != OK || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_simulation(const struct options *o, struct buf *why)
{
    bool failed = true;
    enum status s = sim_command(o, &failed, why);

    if (s == ERR_INVALID || s == ERR_NOT_FOUND)
        return EXIT_USAGE;
    if (s == OK && failed)
        buf_why(why, ERR_INVALID, "no request was answered");
    return s != OK || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_with(const struct options *o, struct buf *why)
{
    struct session x = {.o = o};
    enum status s = http_loop_create(&x.loop, &(struct http_loop_options){65536});
    int code = EXIT_FAILURE;

    if (s != OK)
        buf_why(why, s, "no event loop: %s", status_name(s));
    else
        code = o->compare ? run_compare(o, x.loop, why) : run_session(&x, why);
    http_loop_destroy(x.loop);
    return code;
}

int main(int argc, char **argv)
{
    struct options o;
    struct buf why;
    int code = EXIT_SUCCESS;

    buf_init(&why, BUF_WHY_MAX);
    prepare_process();
    if (options_load(&o, argc, argv, &why) != OK)
        code = EXIT_USAGE;
    else if (o.want_help)
        options_print_help(stdout);
    else if (o.want_version)
        puts("tarn-loadgen " TARN_VERSION);
    else
        code = o.sim ? run_simulation(&o, &why) : run_with(&o, &why);
    options_name_options(&why);
    if (why.len > 0 && code != EXIT_SUCCESS)
        fprintf(stderr, "tarn-loadgen: %s\n", buf_str(&why));
    options_fini(&o);
    buf_fini(&why);
    return code;
}
