/* document_json.h - documents and preambles as JSON: members of a request to struct document, and
 * back.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_TOO_LARGE, ERR_NOMEM: words begin with the name of the member.
 * Units   Unix seconds; bytes of UTF-8. */
#ifndef TARN_SERVER_API_DOCUMENT_JSON_H
#define TARN_SERVER_API_DOCUMENT_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/retrieval/catalog.h"
#include "server/api/unknown_fields.h"
#include "server/api/writer.h"

/* Members that are not a part of struct document. */
struct document_change {
    bool has_pin;     /* `pin` was given */
    bool has_expiry;  /* `ttl` was given */
    bool has_prefill; /* `prefill` was given */
    bool is_public;   /* `public` was given and is true */
    bool has_version; /* `version` was given: the document must have it, 0: must not exist */
    uint32_t version;
};

/* Read a document with its text; *d is initialized, and its tenant and id stay as they are. now_s:
 * the time that ttl counts from. unknown (may be NULL) collects unknown members. */
NODISCARD enum status document_read(struct document *d, struct document_change *change,
                                    const struct json *body, int64_t now_s,
                                    struct unknown_fields *unknown, struct buf *why);
/* Read only what can change without the text: pin, ttl and prefill. Each other member is
 * refused. */
NODISCARD enum status document_read_change(struct document *d, struct document_change *change,
                                           const struct json *body, int64_t now_s, struct buf *why);
/* Read the member `embedding` as floats; *out is empty where it is absent. ERR_TOO_LARGE: more than
 * DOCUMENT_DIM_MAX numbers. */
NODISCARD enum status document_read_embedding(struct buf *out, const struct json *body,
                                              struct buf *why);
/* Whether an id of a document or preamble is well formed: 1 to DOCUMENT_ID_BYTES_MAX bytes of UTF-8
 * without control characters. */
NODISCARD enum status document_check_id(const char *id, size_t len, struct buf *why);

/* Write the members of a document without braces: "object":"document","id":..., to "uses".
 * has_text: also "text". has_uses: also "uses". */
void document_write(struct writer *w, const struct document *d, bool has_text, bool has_uses);
/* "expires_at" and the like: null for 0. */
void write_time(struct writer *w, const char *name, int64_t unix_s);

#endif
