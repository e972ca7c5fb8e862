#include "clients/c/sse.h"

#include <stdio.h>
#include <string.h>

void sse_init(struct sse *p, size_t event_bytes_max)
{
    *p = (struct sse){0};
    buf_init(&p->line, event_bytes_max);
    buf_init(&p->data, event_bytes_max);
}

void sse_fini(struct sse *p)
{
    buf_fini(&p->line);
    buf_fini(&p->data);
}

bool sse_is_inside(const struct sse *p)
{
    return p->line.len > 0 || p->has_data;
}

static enum status dispatch(struct sse *p, sse_on_event *on_event, void *arg)
{
    enum status s = OK;

    if (p->has_data) {
        p->n_events++;
        s = on_event(arg, p->name, buf_str(&p->data), p->data.len);
    }
    buf_reset(&p->data);
    p->has_data = false;
    p->name[0] = '\0';
    return s;
}

static enum status add_data(struct sse *p, const char *value, size_t len)
{
    enum status s = p->has_data ? buf_putc(&p->data, '\n') : OK;

    p->has_data = true;
    return s == OK ? buf_append(&p->data, value, len) : s;
}

static bool is(const char *name, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(name, word, len) == 0;
}

static enum status take_field(struct sse *p, const char *line, size_t len)
{
    const char *colon = memchr(line, ':', len);
    size_t n_name = colon ? (size_t)(colon - line) : len;
    const char *value = colon ? colon + 1 : line + len;
    size_t n_value = (size_t)(line + len - value);

    if (n_value > 0 && value[0] == ' ') {
        value++;
        n_value--;
    }
    if (is(line, n_name, "data"))
        return add_data(p, value, n_value);
    if (is(line, n_name, "error")) {
        snprintf(p->name, sizeof p->name, "error");
        return add_data(p, value, n_value);
    }
    if (is(line, n_name, "event"))
        snprintf(p->name, sizeof p->name, "%.*s",
                 (int)(n_value < SSE_NAME_BYTES ? n_value : SSE_NAME_BYTES), value);
    return OK; /* id, retry and unknown fields are ignored */
}

static enum status take_line(struct sse *p, sse_on_event *on_event, void *arg)
{
    static const char mark[] = "\xef\xbb\xbf";
    const char *line = buf_str(&p->line);
    size_t len = p->line.len;
    enum status s = OK;

    if (!p->past_first && len >= 3 && memcmp(line, mark, 3) == 0) {
        line += 3;
        len -= 3;
    }
    p->past_first = true;
    if (len == 0)
        s = dispatch(p, on_event, arg);
    else if (line[0] == ':')
        p->n_comments++;
    else
        s = take_field(p, line, len);
    buf_reset(&p->line);
    return s;
}

/* Bytes of [at, end) before the first CR or LF. */
static size_t run_length(const char *at, const char *end)
{
    size_t n = (size_t)(end - at);
    const char *lf = memchr(at, '\n', n);

    if (lf)
        n = (size_t)(lf - at);
    const char *cr = memchr(at, '\r', n);
    return cr ? (size_t)(cr - at) : n;
}

enum status sse_feed(struct sse *p, const void *bytes, size_t n, sse_on_event *on_event, void *arg)
{
    const char *at = bytes, *end = at + n;
    enum status s = OK;

    while (s == OK && at < end) {
        if (p->after_cr && *at == '\n') {
            p->after_cr = false;
            at++;
            continue;
        }
        p->after_cr = false;
        size_t len = run_length(at, end);
        if (len > p->line.max - p->data.len)
            return ERR_TOO_LARGE; /* line and data together must not exceed the maximum */
        s = buf_append(&p->line, at, len);
        at += len;
        if (s == OK && at < end) {
            p->after_cr = *at == '\r';
            at++;
            s = take_line(p, on_event, arg);
        }
    }
    return s;
}
