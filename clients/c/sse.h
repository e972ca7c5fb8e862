/* sse.h - server-sent events, parsed as they come: any chunking, LF, CR and CRLF.
 *
 * As in the HTML standard: lines `data: ...` up to a blank line are one event, joined by newlines;
 * a line that begins with a colon is a comment; a byte order mark at the start is skipped; what
 * stands after the last blank line is no event. One thing is not in the standard: a line
 * `error: ...` is data of an event named "error", because llama.cpp has written its errors so.
 *
 * Owns    the bytes of the event that is not complete yet.
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE when an event passes its maximum, ERR_NOMEM; or what on_event says, at
 *         once. After an error it must not be fed again.
 * Units   bytes. */
#ifndef TARN_CLIENTS_C_SSE_H
#define TARN_CLIENTS_C_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define SSE_NAME_BYTES 32 /* NUL included; longer names are cut */

struct sse {
    struct buf line, data;
    char name[SSE_NAME_BYTES]; /* of the event; "" when it has none */
    bool has_data;
    bool after_cr;   /* a LF that comes next belongs to the CR before */
    bool past_first; /* a line was complete: no byte order mark any more */
    uint64_t n_events, n_comments;
};

/* `name` is "" for an event without one; data [len] is NUL-terminated beyond its length; both are
 * valid during the call. */
typedef enum status sse_on_event(void *arg, const char *name, const char *data, size_t len);

void sse_init(struct sse *p, size_t event_bytes_max);
void sse_fini(struct sse *p); /* also fine on a zeroed struct */
NODISCARD enum status sse_feed(struct sse *p, const void *bytes, size_t n, sse_on_event *on_event,
                               void *arg);
/* Something that is no complete event is left: at the end of a stream, a sign that it was cut. */
bool sse_is_inside(const struct sse *p);

#endif
