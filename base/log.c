#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

static atomic_int least_level = LOG_INFO;
static atomic_bool as_json;

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

static void format_time(char out[40])
{
    uint64_t now = clock_unix_ns();
    time_t s = (time_t)(now / 1000000000u);
    struct tm tm;
    char date[24];

    gmtime_r(&s, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, 40, "%s.%03uZ", date, (unsigned)(now / 1000000u % 1000u));
}

/* A bare value that JSON can hold as it is: a number, true or false. */
static bool is_bare_json(const char *s, size_t n)
{
    if ((n == 4 && !memcmp(s, "true", 4)) || (n == 5 && !memcmp(s, "false", 5)))
        return true;
    if (n > 1 && s[0] == '-') {
        s++;
        n--;
    }
    if (n == 0 || (s[0] == '0' && n > 1 && s[1] != '.') || s[n - 1] == '.' || s[0] == '.')
        return false;
    int dots = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '.')
            dots++;
        else if (s[i] < '0' || s[i] > '9')
            return false;
    }
    return dots <= 1;
}

/* `key=value key="a b"` -> `,"key":value,"key":"a b"`. */
static enum status fields_to_json(struct buf *line, const char *f)
{
    enum status s = OK;

    while (s == OK && *f) {
        while (*f == ' ')
            f++;
        const char *eq = strchr(f, '=');
        if (!eq)
            break;
        const char *value = eq + 1, *end;
        bool quoted = *value == '"';
        if (quoted) {
            value++;
            end = strchr(value, '"');
        } else {
            end = strchr(value, ' ');
        }
        size_t n = end ? (size_t)(end - value) : strlen(value);
        s = buf_putc(line, ',');
        if (s == OK)
            s = js_write_string(line, f, (size_t)(eq - f));
        if (s == OK)
            s = buf_putc(line, ':');
        if (s == OK)
            s = !quoted && is_bare_json(value, n) ? buf_append(line, value, n)
                                                  : js_write_string(line, value, n);
        f = value + n + (quoted && end ? 1 : 0);
    }
    return s;
}

static enum status build_line(struct buf *line, enum log_level level, const char *event,
                              const char *fields)
{
    char when[40];
    enum status s;

    format_time(when);
    if (!atomic_load_explicit(&as_json, memory_order_relaxed))
        return buf_printf(line, "%s %-5s %s%s%s\n", when, level_names[level], event,
                          *fields ? " " : "", fields);
    s = buf_printf(line, "{\"time\":\"%s\",\"level\":\"%s\",\"event\":", when, level_names[level]);
    if (s == OK)
        s = js_write_string(line, event, strlen(event));
    if (s == OK)
        s = fields_to_json(line, fields);
    return s == OK ? buf_puts(line, "}\n") : s;
}

void log_event(enum log_level level, const char *event, const char *fields, ...)
{
    char text[LOG_LINE_BYTES_MAX];
    struct buf line;
    va_list ap;

    if (!log_enabled(level))
        return;
    va_start(ap, fields);
    vsnprintf(text, sizeof text, fields, ap);
    va_end(ap);
    /* A line break inside a value would forge a second line. */
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';

    buf_init(&line, LOG_LINE_BYTES_MAX * 4);
    if (build_line(&line, level, event, text) == OK) {
        ssize_t n = write(STDERR_FILENO, line.data, line.len); /* one call: the line stays whole */
        (void)n;
    }
    buf_fini(&line);
}
