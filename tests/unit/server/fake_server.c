/* fake_server.c - the HTTP side of tarn-server over the fake engine, for the integration tests to
 * talk to under sanitizers, without a model:
 *
 *     fake_server PORT STEP_US PREFILL_US QUEUE_MAX [API_KEY] [--FLAG VALUE]...
 *
 * The flags are those of tarn-server. Serves until SIGTERM, then drains and exits with 0.
 *
 * With TARN_TEST_CLOCK_S=N in the environment the clock of the server stands still, and each byte
 * of stdin advances it by N seconds and is answered by a byte on stdout: a test meets a timeout
 * without waiting, and meets no timeout because the machine is slow. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/server/fake_engine.h"
#include "server/http/http.h"
#include "server/http_flags.h"
#include "server/api/preamble.h"
#include "server/server.h"

#define N_FIXED 4
#define N_ARGS_MAX 64

/* The linker replaces clock_now_ns() of the whole program (--wrap). */
uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);

static uint64_t clock_step_ns; /* 0: the real clock */
static _Atomic uint64_t test_now_ns;

uint64_t __wrap_clock_now_ns(void)
{
    return clock_step_ns ? atomic_load(&test_now_ns) : __real_clock_now_ns();
}

static void *advance_clock(void *arg)
{
    char byte;

    while (read(STDIN_FILENO, &byte, 1) == 1) {
        atomic_fetch_add(&test_now_ns, clock_step_ns);
        if (write(STDOUT_FILENO, &byte, 1) != 1)
            break;
    }
    return arg;
}

static void stop_clock(const char *step_s)
{
    pthread_t thread;

    atomic_store(&test_now_ns, __real_clock_now_ns());
    clock_step_ns = strtoull(step_s, NULL, 10) * UINT64_C(1000000000);
    if (pthread_create(&thread, NULL, advance_clock, NULL) == 0)
        pthread_detach(thread);
}

static enum status read_config(struct config *c, int argc, char **argv, struct buf *why)
{
    /* Timeouts of ten minutes: a slow machine meets none that its test did not set. */
    static const char *const preset[] = {
        "fake", "--model",          "fake", "--http-threads",   "2",   "--max-connections",
        "512",  "--max-body-bytes", "1M",   "--header-timeout", "600", "--body-timeout",
        "600",  "--write-timeout",  "600",  "--idle-timeout",   "600", "--port"};
    char *env[] = {NULL};
    char *args[N_ARGS_MAX];
    int n = 0, at = N_FIXED + 1;

    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++)
        args[n++] = (char *)(uintptr_t)preset[i];
    args[n++] = argv[1];
    if (at < argc && strncmp(argv[at], "--", 2) != 0) {
        args[n++] = (char *)(uintptr_t) "--api-key";
        args[n++] = argv[at++];
    }
    while (at < argc && n < N_ARGS_MAX)
        args[n++] = argv[at++];
    return config_load(c, n, args, env, why);
}

static void serve(struct server *srv, struct http_server *http, const sigset_t *set)
{
    const struct config *c = srv->config;
    int number;

    if (c->uds[0])
        printf("serves at unix:%s\n", c->uds);
    else
        printf("serves at %s://127.0.0.1:%u/v1\n", c->tls_cert[0] ? "https" : "http",
               http_port(http));
    fflush(stdout);
    sigwait(set, &number);
    atomic_store(&srv->draining, true);
    engine_drain_begin(srv->engine);
    for (int i = 0; i < 6000 && http_n_in_flight(http) > 0; i++)
        clock_sleep_ns(10000000);
    http_stop(http);
}

int main(int argc, char **argv)
{
    struct config config;
    struct preambles *preambles = NULL;
    struct http_config hc;
    struct server srv;
    struct http_server *http;
    struct buf why;
    sigset_t set;

    if (argc <= N_FIXED)
        return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (getenv("TARN_TEST_CLOCK_S"))
        stop_clock(getenv("TARN_TEST_CLOCK_S"));
    buf_init(&why, BUF_WHY_MAX);
    log_init(LOG_WARN, false);
    atomic_store(&fake_step_ns, strtoull(argv[2], NULL, 10) * 1000);
    atomic_store(&fake_prefill_ns, strtoull(argv[3], NULL, 10) * 1000);
    atomic_store(&fake_n_max, (unsigned)atoi(argv[4]));
    struct engine *engine = fake_engine_create(4096);
    enum status s = read_config(&config, argc, argv, &why);
    if (s == OK)
        s = hash_init();
    if (s == OK)
        s = preambles_open(&preambles, config.preamble, &why);
    if (s == OK)
        s = server_init(&srv, &config, engine);
    if (s == OK) {
        s = preambles_prepare(preambles, &srv, &why);
        srv.preambles = preambles;
        http_flags_apply(&hc, &config, &srv);
        if (s == OK)
            s = http_create(&http, &hc, &why);
        if (s == OK)
            serve(&srv, http, &set);
        engine_close(engine);
        engine = NULL;
        if (s == OK)
            http_destroy(http);
        server_fini(&srv);
    }
    engine_close(engine);
    preambles_destroy(preambles);
    if (s != OK)
        fprintf(stderr, "%s\n", buf_str(&why));
    config_fini(&config);
    buf_fini(&why);
    return s == OK ? 0 : 1;
}
