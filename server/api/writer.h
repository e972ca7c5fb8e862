/* writer.h - appends many small pieces to a buf; the caller checks for errors once, at the end.
 *
 * After the first failure nothing more is appended, and `status` keeps its reason.
 *
 * Owns    nothing; the caller owns the buf.
 * Thread  one at a time.
 * Errors  in `status`.
 * Units   bytes. */
#ifndef TARN_SERVER_API_WRITER_H
#define TARN_SERVER_API_WRITER_H

#include <string.h>

#include "base/json.h"

struct writer {
    struct buf *out;
    enum status status;
};

static inline void write_puts(struct writer *w, const char *text)
{
    if (w->status == OK)
        w->status = buf_puts(w->out, text);
}

static inline void write_bytes(struct writer *w, const void *bytes, size_t n)
{
    if (w->status == OK)
        w->status = buf_append(w->out, bytes, n);
}

static inline void write_buf(struct writer *w, const struct buf *b)
{
    write_bytes(w, buf_str(b), b->len);
}

/* Append a JSON string, quotes and escapes included. */
static inline void write_json(struct writer *w, const char *text, size_t len)
{
    if (w->status == OK)
        w->status = js_write_string(w->out, text, len);
}

static inline void write_number(struct writer *w, double v)
{
    if (w->status == OK)
        w->status = js_write_number(w->out, v);
}

#define write_format(w, ...)                                                                       \
    do {                                                                                           \
        if ((w)->status == OK)                                                                     \
            (w)->status = buf_printf((w)->out, __VA_ARGS__);                                       \
    } while (0)

#endif
