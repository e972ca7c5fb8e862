#include "engine/model/hub_get.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/http.h"

#define ENDPOINT "https://huggingface.co"
#define N_REDIRECTS_MAX 8
#define N_ATTEMPTS_MAX 5
#define PAUSE_MS 500 /* before the second attempt; doubled each time */
#define PAUSE_MS_MAX 60000
#define POLL_NS UINT64_C(100000000) /* between two looks at `stop` */
#define CONNECT_MS 15000
#define IDLE_MS 60000
#define DROPPED_BYTES_MAX ((uint64_t)1 << 20) /* of the body of an error or redirect */

/* --- the hub and its token --- */

/* scheme://authority, and the rest */
struct origin {
    size_t n; /* bytes of scheme and authority */
    bool is_tls;
    const char *host;
    size_t n_host; /* with the port */
};

/* False: no URL of http or https, or one with a user in it. */
static bool split_url(const char *url, struct origin *o)
{
    o->is_tls = strncasecmp(url, "https://", 8) == 0;
    if (!o->is_tls && strncasecmp(url, "http://", 7) != 0)
        return false;
    o->host = url + (o->is_tls ? 8 : 7);
    o->n_host = strcspn(o->host, "/?#\\");
    o->n = (size_t)(o->host - url) + o->n_host;
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7F)
            return false;
    return o->n_host > 0 && !memchr(o->host, '@', o->n_host);
}

static bool is_same_origin(const char *a, const char *b)
{
    struct origin x, y;

    return split_url(a, &x) && split_url(b, &y) && x.n == y.n && strncasecmp(a, b, x.n) == 0;
}

static bool is_loopback(const struct origin *o)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (o->n_host >= n && strncasecmp(o->host, names[i], n) == 0 &&
            (o->n_host == n || o->host[n] == ':'))
            return true;
    }
    return false;
}

/* Copy a token without the white space around it. */
static enum status set_token(struct hub *h, const char *text, const char *from, struct buf *why)
{
    text += strspn(text, " \t\r\n");
    size_t n = strcspn(text, " \t\r\n");

    if (text[n + strspn(text + n, " \t\r\n")] || n >= sizeof h->token)
        return buf_why(why, ERR_INVALID, "%s: a token is one word of at most %zu characters", from,
                       sizeof h->token - 1);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= 0x20 || text[i] >= 0x7F)
            return buf_why(why, ERR_INVALID, "%s: the token has an unusual character", from);
    memcpy(h->token, text, n);
    h->token[n] = '\0';
    return OK;
}

static enum status read_token_file(struct hub *h, struct buf *why)
{
    const char *given = getenv("HF_TOKEN_PATH"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    char path[4096], text[HUB_TOKEN_BYTES_MAX + 16];
    enum status s = OK;

    if (given && given[0])
        snprintf(path, sizeof path, "%s", given);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s/token", home);
    else
        snprintf(path, sizeof path, "%s/.cache/huggingface/token", user ? user : "");
    FILE *f = fopen(path, "r");
    if (!f)
        return OK;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    if (strlen(text) != n)
        s = buf_why(why, ERR_INVALID, "%s: not a token", path);
    else
        s = set_token(h, text, path, why);
    explicit_bzero(text, sizeof text);
    fclose(f);
    return s;
}

static bool is_set(const char *name)
{
    const char *v = getenv(name);

    return v && v[0] && strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0 &&
           strcasecmp(v, "no") != 0 && strcasecmp(v, "off") != 0;
}

enum status hub_open(struct hub *h, const atomic_bool *stop, struct buf *why)
{
    const char *endpoint = getenv("HF_ENDPOINT"), *token = getenv("HF_TOKEN");
    struct origin o;
    enum status s;

    memset(h, 0, sizeof *h);
    h->stop = stop;
    if (is_set("HF_HUB_OFFLINE"))
        return buf_why(why, ERR_UNSUPPORTED, "HF_HUB_OFFLINE is set: nothing is downloaded");
    endpoint = endpoint && endpoint[0] ? endpoint : ENDPOINT;
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    if (n >= sizeof h->endpoint || !split_url(endpoint, &o) || strpbrk(endpoint, "?#"))
        return buf_why(why, ERR_INVALID, "HF_ENDPOINT: expected a URL such as " ENDPOINT);
    memcpy(h->endpoint, endpoint, n);
    s = token && token[0] ? set_token(h, token, "HF_TOKEN", why) : read_token_file(h, why);
    if (s == OK && h->token[0] && !o.is_tls && !is_loopback(&o))
        explicit_bzero(h->token, sizeof h->token); /* it would be readable on its way */
    if (s == OK && http_loop_create(&h->loop, NULL) != OK)
        s = buf_why(why, ERR_NOMEM, "out of memory or descriptors");
    if (s != OK)
        hub_close(h);
    return s;
}

void hub_close(struct hub *h)
{
    http_loop_destroy(h->loop);
    explicit_bzero(h, sizeof *h);
}

enum status hub_write_url(struct buf *url, const char *text, bool keep_slash)
{
    enum status s = OK;

    for (const char *p = text; s == OK && *p; p++)
        if (isalnum((unsigned char)*p) || strchr("-._~", *p) || (keep_slash && *p == '/'))
            s = buf_putc(url, *p);
        else
            s = buf_printf(url, "%%%02X", (unsigned char)*p);
    return s;
}

/* --- one call --- */

struct get {
    const struct hub_sink *sink;
    struct buf *why;
    const char *what;
    uint64_t from;      /* first byte that was asked for */
    uint64_t n_dropped; /* bytes of a body that is not wanted */
    enum status status; /* of the sink, or of an answer against the rules */
    enum http_end end;
    char message[160];
    int code;
    int64_t retry_after_s; /* -1: not given */
    char location[HUB_URL_BYTES_MAX];
    bool is_wanted, is_over;
};

/* The offset at which a partial answer begins. False: no such header, or another size. */
static bool read_range(struct http_call *call, const struct hub_sink *sink, uint64_t *from)
{
    const char *text = http_call_header(call, "Content-Range");
    unsigned long long first, last, total;

    if (!text || sscanf(text, "bytes %llu-%llu/%llu", &first, &last, &total) != 3)
        return false;
    *from = first;
    return sink->n_wanted == UINT64_MAX || total == sink->n_wanted;
}

static void fail(struct get *g, struct http_call *call, enum status s)
{
    g->status = s;
    http_call_cancel(call);
}

static void on_head(void *arg, struct http_call *call, int status, uint64_t time_ns)
{
    struct get *g = arg;
    const char *location = http_call_header(call, "Location");
    const char *after = http_call_header(call, "Retry-After");
    uint64_t from = 0;

    (void)time_ns;
    g->code = status;
    if (after && isdigit((unsigned char)after[0]))
        g->retry_after_s = (int64_t)strtoul(after, NULL, 10);
    if (location)
        snprintf(g->location, sizeof g->location, "%s", location);
    if (status != 200 && status != 206)
        return;
    if (status == 206 && (!read_range(call, g->sink, &from) || from != g->from)) {
        fail(g, call,
             buf_why(g->why, ERR_INVALID, "%s: the hub sends another range of bytes", g->what));
        return;
    }
    g->is_wanted = true;
    enum status s = g->sink->begin(g->sink->arg, from, g->why);
    if (s != OK)
        fail(g, call, s);
}

static void on_body(void *arg, struct http_call *call, const void *bytes, size_t n,
                    uint64_t time_ns)
{
    struct get *g = arg;
    const struct hub_sink *sink = g->sink;
    enum status s;

    (void)time_ns;
    if (g->status != OK)
        return;
    if (!g->is_wanted) {
        g->n_dropped += n;
        if (g->n_dropped > DROPPED_BYTES_MAX)
            http_call_cancel(call);
        return;
    }
    uint64_t limit = sink->n_wanted < sink->n_max ? sink->n_wanted : sink->n_max;
    if (n > limit - sink->n_here(sink->arg))
        s = buf_why(g->why, ERR_TOO_LARGE, "%s: the hub sends more than %llu bytes", g->what,
                    (unsigned long long)limit);
    else
        s = sink->add(sink->arg, bytes, n, g->why);
    if (s != OK)
        fail(g, call, s);
}

static void on_end(void *arg, struct http_call *call, const struct http_done *done)
{
    struct get *g = arg;

    (void)call;
    g->end = done->end;
    snprintf(g->message, sizeof g->message, "%s", done->message);
    g->is_over = true;
}

static bool is_stopped(const struct hub *h)
{
    return h->stop && atomic_load(h->stop);
}

static enum status call_once(struct hub *h, const char *url, struct get *g)
{
    static const struct http_handlers handlers = {on_head, on_body, on_end};
    char range[64];
    const char *headers[2] = {"User-Agent: tarn/" TARN_VERSION, range};
    bool is_home = is_same_origin(url, h->endpoint);
    struct http_request r = {.url = url,
                             .api_key = is_home && h->token[0] ? h->token : NULL,
                             .headers = headers,
                             .n_headers = g->from ? 2 : 1,
                             .connect_timeout_ms = CONNECT_MS,
                             .idle_timeout_ms = IDLE_MS};
    struct http_call *call;

    snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)g->from);
    g->is_over = g->is_wanted = false;
    g->code = 0;
    g->location[0] = '\0';
    g->n_dropped = 0;
    enum status s = http_call_start(&call, h->loop, &r, &handlers, g, g->why);
    if (s != OK)
        return s;
    while (s == OK && !g->is_over) {
        s = http_loop_step(h->loop, POLL_NS);
        if (s == OK && !g->is_over && g->status == OK && is_stopped(h))
            fail(g, call, buf_why(g->why, ERR_CANCELLED, "stopped"));
    }
    return s == OK ? g->status : buf_why(g->why, s, "%s: the download failed", g->what);
}

/* --- redirects --- */

static bool is_redirect(int code)
{
    return code == 301 || code == 302 || code == 303 || code == 307 || code == 308;
}

/* Replace url by what a Location says. */
static enum status follow(char url[HUB_URL_BYTES_MAX], const struct get *g)
{
    char next[HUB_URL_BYTES_MAX + 16];
    struct origin from, to;
    int n;

    if (!split_url(url, &from))
        return buf_why(g->why, ERR_INVALID, "%s: no URL", g->what);
    if (g->location[0] == '/' && g->location[1] == '/')
        n = snprintf(next, sizeof next, "%s:%s", from.is_tls ? "https" : "http", g->location);
    else if (g->location[0] == '/')
        n = snprintf(next, sizeof next, "%.*s%s", (int)from.n, url, g->location);
    else
        n = snprintf(next, sizeof next, "%s", g->location);
    if (n >= HUB_URL_BYTES_MAX || strlen(g->location) + 1 >= sizeof g->location ||
        !split_url(next, &to))
        return buf_why(g->why, ERR_INVALID, "%s: the hub redirects to no valid URL", g->what);
    if (from.is_tls && !to.is_tls)
        return buf_why(g->why, ERR_INVALID, "%s: the hub redirects from https to http", g->what);
    memcpy(url, next, (size_t)n + 1);
    return OK;
}

static enum status call_and_follow(struct hub *h, const char *first, struct get *g)
{
    char url[HUB_URL_BYTES_MAX];
    enum status s = OK;

    snprintf(url, sizeof url, "%s", first);
    for (int i = 0; i <= N_REDIRECTS_MAX; i++) {
        s = call_once(h, url, g);
        if (s != OK || g->end != HTTP_END_OK || !is_redirect(g->code))
            return s;
        s = follow(url, g);
        if (s != OK)
            return s;
    }
    return buf_why(g->why, ERR_INVALID, "%s: more than %d redirects", g->what, N_REDIRECTS_MAX);
}

/* --- attempts --- */

/* The words of an answer that is not wanted. */
static enum status refuse(const struct hub *h, const struct get *g)
{
    const char *with = h->token[0] ? "the token gives no access to it"
                                   : "a token is needed "
                                     "(HF_TOKEN)";

    switch (g->code) {
    case 401:
        return buf_why(g->why, ERR_UNAUTHORIZED,
                       "%s: %s answers 401: the hub has no such model, or %s", g->what, h->endpoint,
                       with);
    case 403:
        return buf_why(g->why, ERR_UNAUTHORIZED,
                       "%s: %s answers 403: accept the model's licence on its page there, and "
                       "give a token that may read it (HF_TOKEN)",
                       g->what, h->endpoint);
    case 404:
        return buf_why(g->why, ERR_NOT_FOUND,
                       "%s: %s answers 404: the hub has no such model, revision or file", g->what,
                       h->endpoint);
    case 0:
        return buf_why(g->why, ERR_UNAVAILABLE, "%s: no answer from %s: %s", g->what, h->endpoint,
                       g->message);
    default:
        return buf_why(g->why, ERR_UNAVAILABLE, "%s: %s answers %d", g->what, h->endpoint, g->code);
    }
}

static bool may_pass(const struct get *g)
{
    switch (g->end) {
    case HTTP_END_CONNECT:
    case HTTP_END_RESET:
    case HTTP_END_CLOSED:
    case HTTP_END_TIMEOUT: return true;
    case HTTP_END_OK: return g->code == 408 || g->code == 429 || (g->code >= 500 && g->code != 501);
    default: return false;
    }
}

/* Sleep in pieces. ERR_CANCELLED after `stop`. */
static enum status pause_before(const struct hub *h, const struct get *g, int n_failed)
{
    uint64_t ms = (uint64_t)PAUSE_MS << (n_failed - 1);

    if (g->retry_after_s >= 0)
        ms = (uint64_t)g->retry_after_s * 1000;
    if (ms > PAUSE_MS_MAX)
        ms = PAUSE_MS_MAX;
    uint64_t end_ns = clock_now_ns() + ms * 1000000;
    while (clock_now_ns() < end_ns) {
        if (is_stopped(h))
            return buf_why(g->why, ERR_CANCELLED, "stopped");
        uint64_t left_ns = end_ns - clock_now_ns();
        clock_sleep_ns(left_ns < POLL_NS ? left_ns : POLL_NS);
    }
    return OK;
}

static bool is_complete(const struct get *g)
{
    const struct hub_sink *sink = g->sink;

    return g->end == HTTP_END_OK && g->is_wanted &&
           (sink->n_wanted == UINT64_MAX || sink->n_here(sink->arg) == sink->n_wanted);
}

enum status hub_get(struct hub *h, const char *path, const char *what, const struct hub_sink *sink,
                    struct buf *why)
{
    char url[HUB_URL_BYTES_MAX];
    struct get *g = malloc(sizeof *g);
    enum status s = OK;

    if (!g)
        return buf_why(why, ERR_NOMEM, "out of memory");
    if (snprintf(url, sizeof url, "%s/%s", h->endpoint, path) >= (int)sizeof url)
        s = buf_why(why, ERR_INVALID, "%s: the name is too long", what);
    for (int n_failed = 0; s == OK;) {
        uint64_t n_before = sink->n_here(sink->arg);
        *g = (struct get){.sink = sink, .why = why, .what = what, .retry_after_s = -1};
        g->from = n_before;
        s = call_and_follow(h, url, g);
        if (s != OK || is_complete(g))
            break;
        bool ends_early = g->end == HTTP_END_OK && g->is_wanted;
        if (g->code == 416 && n_before > 0) { /* no such range: from the beginning again */
            s = sink->begin(sink->arg, 0, why);
        } else if (!ends_early && !may_pass(g)) {
            s = refuse(h, g);
            break;
        }
        n_failed = sink->n_here(sink->arg) > n_before ? 1 : n_failed + 1;
        if (s == OK && n_failed >= N_ATTEMPTS_MAX)
            s = ends_early ? buf_why(why, ERR_INVALID, "%s: the hub sends %llu bytes of %llu", what,
                                     (unsigned long long)sink->n_here(sink->arg),
                                     (unsigned long long)sink->n_wanted)
                           : refuse(h, g);
        if (s == OK)
            s = pause_before(h, g, n_failed);
    }
    free(g);
    return s;
}
