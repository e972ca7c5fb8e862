/* client_main.c - many calls of the C client at once, for test_client.py; prints one JSON object.
 *
 *   tarn-client-calls --url URL [--n N] [--script JSON] [--fresh] [--no-stream] [--completion]
 *     [--cancel-after CHUNKS] [--cancel-after-ms MS] [--pause-ms MS] [--idle-ms MS] [--total-ms MS]
 *     [--spread-ms MS] [--max-tokens N] [--times] [--ca-file F] [--insecure] [--api-key KEY]
 *
 * All N calls start over --spread-ms, each at its intended time. --pause-ms: a slow reader that
 * pauses so long after each chunk. --times: the time of each chunk, per call. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/http.h"
#include "base/json.h"
#include "clients/c/tarn_client.h"

#define NS_PER_MS 1000000ull
#define TIMES_BYTES_MAX (64u << 20)

struct options {
    struct tarn_client_config client;
    const char *script;
    bool no_stream, completion, times;
    uint32_t n, cancel_after, cancel_after_ms, pause_ms, spread_ms, max_tokens;
};

struct load {
    struct options o;
    struct http_loop *loop;
    struct tarn_client *client;
    struct tarn_body body;
    uint64_t n_errors[TARN_N_ERRORS];
    uint64_t n_ends, n_chunks, n_deltas, n_text_bytes, n_reused, n_wrong;
    char message[256]; /* of the last call that failed */
    struct buf times;  /* JSON */
};

struct one {
    struct load *load;
    struct tarn_call *call;
    struct http_timer *timer; /* cancels, or ends a pause */
    uint64_t n_chunks, last_ns;
    bool ended;
    struct buf times;
};

static void cancel(void *arg, uint64_t due_ns)
{
    struct one *c = arg;

    (void)due_ns;
    c->timer = NULL;
    tarn_call_cancel(c->call);
}

static void resume(void *arg, uint64_t due_ns)
{
    struct one *c = arg;

    (void)due_ns;
    c->timer = NULL;
    tarn_call_pause(c->call, false);
}

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk)
{
    struct one *c = arg;
    struct load *l = c->load;

    /* A callback after the end, or time that goes back, is a bug of the client. */
    if (c->ended || chunk->time_ns < c->last_ns || chunk->time_ns > clock_now_ns())
        l->n_wrong++;
    c->last_ns = chunk->time_ns;
    l->n_text_bytes += chunk->text_len;
    if (l->o.times && chunk->has_delta)
        ASSERT(buf_printf(&c->times, "%s%" PRIu64, c->times.len ? "," : "", chunk->time_ns) == OK);
    if (++c->n_chunks == l->o.cancel_after)
        tarn_call_cancel(call);
    if (l->o.pause_ms && !c->timer && c->n_chunks != l->o.cancel_after) {
        tarn_call_pause(call, true);
        ASSERT(http_timer_start(&c->timer, l->loop, clock_now_ns() + l->o.pause_ms * NS_PER_MS,
                                resume, c) == OK);
    }
}

static void add_times(struct load *l, const struct one *c, const struct tarn_result *r)
{
    ASSERT(buf_printf(&l->times,
                      "%s{\"start\":%" PRIu64 ",\"ready\":%" PRIu64 ",\"head\":%" PRIu64
                      ",\"first\":%" PRIu64 ",\"last\":%" PRIu64 ",\"end\":%" PRIu64
                      ",\"chunks\":[%s]}",
                      l->times.len ? "," : "", r->start_ns, r->ready_ns, r->head_ns, r->first_ns,
                      r->last_ns, r->end_ns, buf_str(&c->times)) == OK);
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct one *c = arg;
    struct load *l = c->load;

    (void)call;
    if (c->ended || r->n_chunks != c->n_chunks)
        l->n_wrong++;
    c->ended = true;
    http_timer_cancel(l->loop, c->timer);
    c->timer = NULL;
    l->n_ends++;
    l->n_errors[r->error]++;
    l->n_chunks += r->n_chunks;
    l->n_deltas += r->n_deltas;
    l->n_reused += r->reused;
    if (r->error != TARN_OK)
        snprintf(l->message, sizeof l->message, "%s", r->message);
    if (l->o.times)
        add_times(l, c, r);
    buf_fini(&c->times);
}

static void start(void *arg, uint64_t due_ns)
{
    static const struct tarn_handlers handlers = {.on_chunk = on_chunk, .on_end = on_end};
    struct one *c = arg;
    struct load *l = c->load;

    if (tarn_call_start(&c->call, l->loop, l->client, &l->body, &handlers, c) != TARN_OK) {
        l->n_wrong++;
        return;
    }
    if (l->o.cancel_after_ms)
        ASSERT(http_timer_start(&c->timer, l->loop, due_ns + l->o.cancel_after_ms * NS_PER_MS,
                                cancel, c) == OK);
}

/* --- the command line --- */

static bool set_number(struct options *o, const char *flag, uint32_t v)
{
    const struct {
        const char *flag;
        uint32_t *to;
    } numbers[] = {{"--n", &o->n},
                   {"--cancel-after", &o->cancel_after},
                   {"--cancel-after-ms", &o->cancel_after_ms},
                   {"--pause-ms", &o->pause_ms},
                   {"--spread-ms", &o->spread_ms},
                   {"--max-tokens", &o->max_tokens},
                   {"--idle-ms", &o->client.idle_timeout_ms},
                   {"--total-ms", &o->client.total_timeout_ms}};

    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if (strcmp(flag, numbers[i].flag) == 0) {
            *numbers[i].to = v;
            return true;
        }
    return false;
}

static bool set_switch(struct options *o, const char *flag)
{
    const struct {
        const char *flag;
        bool *to;
    } switches[] = {{"--fresh", &o->client.fresh_connections},
                    {"--no-stream", &o->no_stream},
                    {"--completion", &o->completion},
                    {"--times", &o->times},
                    {"--insecure", &o->client.tls_no_verify}};

    for (size_t i = 0; i < ARRAY_SIZE(switches); i++)
        if (strcmp(flag, switches[i].flag) == 0)
            return *switches[i].to = true;
    return false;
}

static void parse_arguments(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (set_switch(o, flag))
            continue;
        i++;
        if (strcmp(flag, "--url") == 0)
            o->client.url = value;
        else if (strcmp(flag, "--script") == 0)
            o->script = value;
        else if (strcmp(flag, "--ca-file") == 0)
            o->client.ca_file = value;
        else if (strcmp(flag, "--api-key") == 0)
            o->client.api_key = value;
        else if (!set_number(o, flag, (uint32_t)strtoul(value, NULL, 10))) {
            fprintf(stderr, "unknown option %s\n", flag);
            exit(2);
        }
    }
}

static void make_body(struct load *l)
{
    static const struct tarn_message hello[] = {{"user", {"Hello there", 0}}};
    struct tarn_request r;
    struct buf extra;

    tarn_request_init(&r, l->o.completion ? TARN_COMPLETION : TARN_CHAT);
    buf_init(&extra, 1u << 20);
    r.messages = hello;
    r.n_messages = 1;
    r.prompt = hello[0].content;
    r.stream = !l->o.no_stream;
    r.include_usage = true;
    r.max_tokens = l->o.max_tokens;
    if (l->o.script) {
        ASSERT(buf_printf(&extra, "{\"script\":%s}", l->o.script) == OK);
        r.extra_body = buf_str(&extra);
    }
    ASSERT(tarn_body_build(&l->body, &r, NULL, 0) == TARN_OK);
    buf_fini(&extra);
}

/* --- the report --- */

static void print_report(const struct load *l, uint64_t wall_ns)
{
    struct http_loop_stats st;
    struct rusage usage;
    const char *comma = "";

    http_loop_stats(l->loop, &st);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"n\":%u,\"n_ends\":%" PRIu64 ",\"n_wrong\":%" PRIu64 ",\"n_chunks\":%" PRIu64
           ",\"n_deltas\":%" PRIu64 ",\"n_text_bytes\":%" PRIu64 ",\"n_reused\":%" PRIu64
           ",\"n_connections\":%" PRIu64 ",\"n_calls_peak\":%u,\"errors\":{",
           l->o.n, l->n_ends, l->n_wrong, l->n_chunks, l->n_deltas, l->n_text_bytes, l->n_reused,
           st.n_connections, st.n_calls_peak);
    for (int e = 0; e < TARN_N_ERRORS; e++)
        if (l->n_errors[e] > 0) {
            printf("%s\"%s\":%" PRIu64, comma, tarn_error_name((enum tarn_error)e), l->n_errors[e]);
            comma = ",";
        }
    struct buf message;
    buf_init(&message, BUF_WHY_MAX * 8);
    ASSERT(js_write_string(&message, l->message, strlen(l->message)) == OK);
    printf("},\"message\":%s,\"wall_ms\":%.1f,\"busy_ms\":%.1f,\"turn_ms_max\":%.3f"
           ",\"lag_ms_max\":%.3f,\"lag_ms_mean\":%.3f,\"rss_kb\":%ld,\"calls\":[%s]}\n",
           message.data, (double)wall_ns * 1e-6, (double)st.busy_ns * 1e-6,
           (double)st.turn_ns_max * 1e-6, (double)st.lag_ns_max * 1e-6,
           st.n_lags ? (double)st.lag_ns_sum / (double)st.n_lags * 1e-6 : 0, usage.ru_maxrss,
           buf_str(&l->times));
    buf_fini(&message);
}

int main(int argc, char **argv)
{
    struct load l = {.o = {.n = 1, .max_tokens = 16}};
    char why[256];

    parse_arguments(&l.o, argc, argv);
    http_raise_descriptor_limit();
    buf_init(&l.times, TIMES_BYTES_MAX);
    if (tarn_client_create(&l.client, &l.o.client, why, sizeof why) != TARN_OK) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    make_body(&l);
    ASSERT(http_loop_create(&l.loop, NULL) == OK);
    struct one *calls = calloc(l.o.n, sizeof *calls);
    ASSERT(calls);
    uint64_t begin_ns = clock_now_ns();
    for (uint32_t i = 0; i < l.o.n; i++) {
        calls[i] = (struct one){.load = &l};
        buf_init(&calls[i].times, TIMES_BYTES_MAX);
        ASSERT(http_timer_start(NULL, l.loop, begin_ns + l.o.spread_ms * NS_PER_MS * i / l.o.n,
                                start, &calls[i]) == OK);
    }
    ASSERT(http_loop_run(l.loop) == OK);
    print_report(&l, clock_now_ns() - begin_ns);
    http_loop_destroy(l.loop);
    free(calls);
    tarn_body_fini(&l.body);
    tarn_client_destroy(l.client);
    buf_fini(&l.times);
    return l.n_ends == l.o.n && l.n_wrong == 0 ? 0 : 1;
}
