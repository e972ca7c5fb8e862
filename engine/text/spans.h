/* spans.h - where a rendered prompt may be cut, so that a document's ids do not depend on its
 * neighbours.
 *
 * A prompt is a preamble, documents, and the rest (design: "Identity of KV"). A public preamble
 * (server/api/preamble.h) is a span of its own, whose end the caller gives. A document's span is a
 * constant separator plus its text, up to and with the first newline or special token behind it;
 * what depends on its position (an index, say) stands in a run of its own before it. A boundary
 * lies only after a newline or a special token.
 *
 * How it is found: everything is rendered a second time with made-up words (sentinels) in the place
 * of the documents' strings, and one document more. Where the sentinels stand is where the
 * documents stand. If putting the real strings back does not give the real rendering, the template
 * did something with them that we do not understand, and the prompt stays one plain span.
 *
 * Owns    struct spans: spans_fini(). span_marks: span_marks_destroy().
 * Thread  any; span_marks is read-only after creation.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE. That a prompt cannot be cut is no error: n_ends is 0 and the
 *         reason says why.
 * Units   byte offsets into the rendered text. */
#ifndef TARN_ENGINE_TEXT_SPANS_H
#define TARN_ENGINE_TEXT_SPANS_H

#include "base/buf.h"
#include "base/json.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SPANS_N_DOCUMENTS_MAX 256

/* The special tokens' texts of one tokenizer, after which a boundary may lie. */
struct span_marks;
NODISCARD enum status span_marks_create(struct span_marks **out, const struct tokenizer *t);
void span_marks_destroy(struct span_marks *m); /* NULL is fine */

struct spans {
    struct buf ends;   /* of size_t, ascending: a span ends before each; without any the
                          prompt is one span */
    size_t public_end; /* 0, or one of the ends: every tenant may share what is before it */
    uint32_t n_public; /* ids before public_end; set by spans_tokenize() */
    struct buf places; /* of struct span_place, one for each document; empty when the prompt
                          is one span */
    char reason[160];  /* why it is one span; "" when it is not, or has no documents */
};

/* A document's span. */
struct span_place {
    size_t begin, end;
    uint32_t begin_id, end_id; /* set by spans_tokenize() */
};

void spans_init(struct spans *s);
void spans_fini(struct spans *s);
size_t spans_n_ends(const struct spans *s);
size_t spans_end(const struct spans *s, size_t i);
size_t spans_n_places(const struct spans *s);
struct span_place *spans_place(const struct spans *s, size_t i);
/* A span ends at `at` as well, which is above 0 and where a boundary may lie, and what is before it
 * is public. After spans_find(). */
NODISCARD enum status spans_add_public(struct spans *s, size_t at);

/* The first place in [from, to] of a text where a boundary may lie; 0: none. from may be 0. */
size_t spans_next_boundary(const struct span_marks *m, const char *text, size_t from, size_t to);

/* Renders the prompt with these documents (an array) instead of the request's. */
struct spans_render {
    enum status (*fn)(void *arg, struct json *documents, struct buf *out);
    void *arg;
};

/* `text` [len] is the real rendering with `documents` (an array of objects with string members).
 * `untrusted` (may be NULL): what in it spells a special token without being one. */
NODISCARD enum status spans_find(struct spans *s, const struct span_marks *marks,
                                 const struct json *documents, const char *text, size_t len,
                                 const struct ranges *untrusted, const struct spans_render *render);

/* Tokenize each span apart: ids are appended to *ids, the position of each end (as a u32, in
 * tokens) to *span_ends. Spans without any id vanish. */
NODISCARD enum status spans_tokenize(struct spans *s, const struct tokenizer *t, const char *text,
                                     size_t len, const struct ranges *untrusted, struct buf *ids,
                                     struct buf *span_ends);

#endif
