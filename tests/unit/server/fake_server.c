/* fake_server.c - the HTTP side of tarn-server over the fake engine, for the integration tests to
 * talk to under sanitizers, without a model:
 *
 *     fake_server PORT STEP_US PREFILL_US QUEUE_MAX [API_KEY]
 *
 * Serves until SIGTERM, then drains and exits 0. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/server/fake_engine.h"
#include "server/http.h"
#include "server/route.h"
#include "server/server.h"

int main(int argc, char **argv)
{
    struct config config = {0};
    struct server srv;
    struct http_server *http;
    struct buf why;
    sigset_t set;
    int number;

    if (argc < 5)
        return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    buf_init(&why, BUF_WHY_MAX);
    log_init(LOG_WARN, false);
    config.model = (char *)(uintptr_t) "fake";
    config.served_model_name = (char *)(uintptr_t) "";
    config.api_key = argc > 5 ? argv[5] : (char *)(uintptr_t) "";
    config.max_body_bytes = 1u << 20;
    atomic_store(&fake_step_ns, strtoull(argv[2], NULL, 10) * 1000);
    atomic_store(&fake_prefill_ns, strtoull(argv[3], NULL, 10) * 1000);
    atomic_store(&fake_n_max, (unsigned)atoi(argv[4]));
    struct engine *engine = fake_engine_create(4096);
    struct http_config hc = {.host = "127.0.0.1", .port = (uint16_t)atoi(argv[1]),
                             .n_threads = 2, .n_connections_max = 512,
                             .body_bytes_max = config.max_body_bytes, .idle_timeout_s = 10,
                             .early = route_early, .handle = route_handle, .arg = &srv};
    if (hash_init() != OK || server_init(&srv, &config, engine) != OK ||
        http_create(&http, &hc, &why) != OK) {
        fprintf(stderr, "%s\n", buf_str(&why));
        return 1;
    }
    printf("serves at http://127.0.0.1:%u/v1\n", http_port(http));
    fflush(stdout);
    sigwait(&set, &number);
    atomic_store(&srv.draining, true);
    engine_drain_begin(engine);
    for (int i = 0; i < 1000 && http_n_in_flight(http) > 0; i++)
        clock_sleep_ns(10000000);
    http_stop(http);
    engine_close(engine);
    http_destroy(http);
    server_fini(&srv);
    buf_fini(&why);
    return 0;
}
