/* sse.h - an incremental parser of server-sent events; lines end with LF, CR or CRLF.
 *
 * As in the HTML standard, the lines `data: ...` up to an empty line form one event and are joined
 * by newlines; a line that begins with a colon is a comment; a byte order mark at the start is
 * skipped; bytes after the last empty line are no event. As an extension, a line `error: ...` is
 * data of an event named "error", because versions of llama.cpp report errors in that way.
 *
 * Owns    the bytes of the event that is not complete yet.
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE when an event exceeds its maximum, ERR_NOMEM, or the error of on_event, at
 *         once. After an error, sse_feed() must not be called again.
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
    bool after_cr;   /* the last byte was a CR, so a LF that follows belongs to it */
    bool past_first; /* the first line is complete, so no byte order mark can follow */
    uint64_t n_events, n_comments;
};

/* `name` is "" for an event without one; data [len] is NUL-terminated beyond its length; both are
 * valid during the call. */
typedef enum status sse_on_event(void *arg, const char *name, const char *data, size_t len);

void sse_init(struct sse *p, size_t event_bytes_max);
void sse_fini(struct sse *p); /* also fine on a zeroed struct */
NODISCARD enum status sse_feed(struct sse *p, const void *bytes, size_t n, sse_on_event *on_event,
                               void *arg);
/* Whether bytes of an incomplete event are left. At the end of a stream this means that the stream
 * was cut. */
bool sse_is_inside(const struct sse *p);

#endif
