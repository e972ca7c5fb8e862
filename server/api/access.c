#include "server/api/access.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "server/http/http.h"
#include "server/api/route.h"
#include "server/server.h"
#include "server/api/tally.h"

#define N_FIELDS_MAX 12
#define NUMBER_BYTES 24
/* The client chooses path and method, so their length in a log line is limited. */
#define PATH_SHOWN_MAX 256
#define METHOD_SHOWN_MAX 16

struct line {
    struct log_field fields[N_FIELDS_MAX];
    char numbers[N_FIELDS_MAX][NUMBER_BYTES];
    unsigned n;
};

static void add(struct line *l, const char *key, const char *value, enum log_value kind)
{
    ASSERT(l->n < N_FIELDS_MAX);
    l->fields[l->n++] = (struct log_field){key, value, kind};
}

static void add_number(struct line *l, const char *key, uint64_t value)
{
    ASSERT(l->n < N_FIELDS_MAX);
    snprintf(l->numbers[l->n], NUMBER_BYTES, "%" PRIu64, value);
    add(l, key, l->numbers[l->n], LOG_NUMBER);
}

/* Copy text up to a '?', because a query may hold private data, and at most n_max bytes; "..."
 * marks a cut. */
static void cut(char *out, size_t n_max, const char *text)
{
    size_t n = strcspn(text, "?");

    snprintf(out, n_max + 4, "%.*s%s", (int)(n < n_max ? n : n_max), text, n > n_max ? "..." : "");
}

static void log_line(enum log_level level, const struct http_done *d)
{
    char path[PATH_SHOWN_MAX + 4], method[METHOD_SHOWN_MAX + 4];
    struct line l = {.n = 0};

    cut(path, PATH_SHOWN_MAX, d->path);
    cut(method, METHOD_SHOWN_MAX, d->method);
    add(&l, "id", d->id, LOG_WORD);
    add(&l, "method", method, LOG_TEXT);
    add(&l, "path", path, LOG_TEXT);
    add_number(&l, "status", (uint64_t)d->status);
    if (d->key[0]) {
        add(&l, "key", d->key, LOG_WORD);
        add(&l, "tenant", d->tenant, LOG_WORD);
    }
    add_number(&l, "duration_us", d->duration_ns / 1000);
    add_number(&l, "n_in", d->n_in);
    add_number(&l, "n_out", d->n_out);
    if (d->error)
        add(&l, "error", d->error, LOG_WORD);
    if (!d->whole)
        add(&l, "whole", "false", LOG_NUMBER);
    log_fields(level, "http", l.fields, l.n);
}

void access_done(void *arg, const struct http_done *d)
{
    const struct server *srv = arg;
    uint32_t route = route_of(d->path);
    enum log_level level = route_is_probe(route) && d->status < 400 ? LOG_DEBUG : LOG_INFO;

    tally_exchange(srv->tally, route, d->status, (double)d->duration_ns * 1e-9);
    if (log_enabled(level))
        log_line(level, d);
}
