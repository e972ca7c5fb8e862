#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log_line.h"

#define SECOND_NS UINT64_C(1000000000)
/* Counters of lines, by hash of the event. Two events with the same hash share a counter, which is
 * harmless: the program has a few dozen events. */
#define N_METERS 128
#define EVENT_BYTES 64
/* Longest wait for a slow reader of the log. */
#define PATIENCE_MS 200

struct meter {
    uint64_t begin_ns; /* start of the second being counted */
    uint32_t n_lines;
    uint32_t n_suppressed;
    enum log_level level; /* of the suppressed lines, as is `event` */
    char event[EVENT_BYTES];
};

static atomic_int least_level = LOG_INFO;
static atomic_bool as_json;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The lock protects the following. */
static uint64_t n_lost; /* lines that could not be written */
static bool is_torn;    /* the last line was written only in part */
static struct meter meters[N_METERS];
static uint32_t n_suppressing; /* meters with n_suppressed > 0 */

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_init(enum log_level least, bool json)
{
    atomic_store(&least_level, least);
    atomic_store(&as_json, json);
}

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&least_level, memory_order_relaxed);
}

bool log_is_json(void)
{
    return atomic_load_explicit(&as_json, memory_order_relaxed);
}

/* --- lines --- */

static void begin_line(struct log_line *l, enum log_level level, const char *event)
{
    uint64_t now = clock_unix_ns();
    time_t s = (time_t)(now / SECOND_NS);
    struct tm tm;
    char date[24], when[40];

    gmtime_r(&s, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when, sizeof when, "%s.%03uZ", date, (unsigned)(now / 1000000u % 1000u));
    log_line_begin(l, log_is_json(), when, level_names[level], event);
}

/* Whether a write of up to PIPE_BUF bytes will not block. The reader of a pipe may have stopped
 * reading, and no request may wait for it: wait PATIENCE_MS for the first line, and not at all once
 * a line was lost. */
static bool is_writable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    return poll(&p, 1, n_lost ? 0 : PATIENCE_MS) != 0;
}

/* Under the lock. Returns the number of bytes written. */
static size_t write_bytes(int fd, const char *bytes, size_t n_bytes)
{
    size_t done = 0;

    while (done < n_bytes && is_writable(fd)) {
        size_t part = n_bytes - done < PIPE_BUF ? n_bytes - done : PIPE_BUF;
        ssize_t n = write(fd, bytes + done, part);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    return done;
}

/* Under the lock, so that lines of two threads do not mix even where a write is partial. */
static void write_line(int fd, struct log_line *l)
{
    log_line_end(l);
    if (is_torn && write_bytes(fd, "\n", 1) == 1)
        is_torn = false;
    size_t n = is_torn ? 0 : write_bytes(fd, l->bytes, l->n);
    if (n < l->n) {
        n_lost++;
        is_torn |= n > 0;
    }
}

/* Under the lock. */
static void report_lost(void)
{
    struct log_line l;
    char n[24];
    uint64_t n_before = n_lost;

    snprintf(n, sizeof n, "%" PRIu64, n_before);
    begin_line(&l, LOG_WARN, "lines lost");
    log_line_add(&l, "n", 1, n, strlen(n), LOG_NUMBER);
    write_line(STDERR_FILENO, &l);
    n_lost = n_lost == n_before ? 0 : n_before;
}

/* --- the limit of lines per second --- */

static struct meter *meter_of(const char *event)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (const char *c = event; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return &meters[hash % N_METERS];
}

/* Under the lock. */
static void report(struct meter *m)
{
    struct log_line l;
    char n[16];

    snprintf(n, sizeof n, "%u", m->n_suppressed);
    m->n_suppressed = 0;
    n_suppressing--;
    if (!log_enabled(m->level))
        return;
    begin_line(&l, m->level, "lines suppressed");
    log_line_add(&l, "of", 2, m->event, strlen(m->event), LOG_TEXT);
    log_line_add(&l, "n", 1, n, strlen(n), LOG_NUMBER);
    write_line(STDERR_FILENO, &l);
}

/* Under the lock. */
static void report_due(uint64_t now_ns, bool all)
{
    for (uint32_t i = 0; n_suppressing > 0 && i < N_METERS; i++) {
        struct meter *m = &meters[i];
        if (m->n_suppressed > 0 && (all || now_ns - m->begin_ns >= SECOND_NS))
            report(m);
    }
}

/* Under the lock. Whether one more line of this event may be written. */
static bool let_through(enum log_level level, const char *event)
{
    uint64_t now_ns = clock_now_ns();
    struct meter *m = meter_of(event);

    report_due(now_ns, false);
    if (now_ns - m->begin_ns >= SECOND_NS) {
        m->begin_ns = now_ns;
        m->n_lines = 0;
    }
    if (m->n_lines < LOG_LINES_PER_S) {
        m->n_lines++;
        return true;
    }
    if (m->n_suppressed++ == 0) {
        n_suppressing++;
        m->level = level;
        snprintf(m->event, sizeof m->event, "%s", event);
    }
    return false;
}

void log_flush(bool all)
{
    pthread_mutex_lock(&lock);
    report_due(clock_now_ns(), all);
    pthread_mutex_unlock(&lock);
}

/* --- events --- */

static bool may_write(enum log_level level, const char *event)
{
    if (!log_enabled(level))
        return false;
    pthread_mutex_lock(&lock);
    bool may = let_through(level, event);
    pthread_mutex_unlock(&lock);
    return may;
}

static void write_event(int fd, enum log_level level, const char *event, const char *fields,
                        va_list ap)
{
    struct log_line l;

    begin_line(&l, level, event);
    log_line_add_format(&l, fields, ap);
    pthread_mutex_lock(&lock);
    if (n_lost)
        report_lost();
    write_line(fd, &l);
    pthread_mutex_unlock(&lock);
}

void log_event(enum log_level level, const char *event, const char *fields, ...)
{
    va_list ap;

    if (!may_write(level, event))
        return;
    va_start(ap, fields);
    write_event(STDERR_FILENO, level, event, fields, ap);
    va_end(ap);
}

void log_event_each(enum log_level level, const char *event, const char *fields, ...)
{
    va_list ap;

    if (!log_enabled(level))
        return;
    va_start(ap, fields);
    write_event(STDERR_FILENO, level, event, fields, ap);
    va_end(ap);
}

void log_announce(const char *event, const char *fields, ...)
{
    va_list ap;

    va_start(ap, fields);
    write_event(STDOUT_FILENO, LOG_INFO, event, fields, ap);
    va_end(ap);
}

void log_fields(enum log_level level, const char *event, const struct log_field *fields, unsigned n)
{
    struct log_line l;

    if (!log_enabled(level))
        return;
    begin_line(&l, level, event);
    for (unsigned i = 0; i < n; i++)
        log_line_add(&l, fields[i].key, strlen(fields[i].key), fields[i].value,
                     strnlen(fields[i].value, LOG_VALUE_BYTES_MAX), fields[i].kind);
    pthread_mutex_lock(&lock);
    if (n_lost)
        report_lost();
    write_line(STDERR_FILENO, &l);
    pthread_mutex_unlock(&lock);
}
