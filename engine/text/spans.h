/* spans.h - finds where a rendered prompt may be cut into spans, so that the ids of a document do
 * not depend on its neighbours.
 *
 * A prompt is a preamble, documents, and the rest (docs/design/text.md). A public preamble
 * (server/api/preamble.h) is a span of its own whose end the caller supplies. The span of a
 * document is a constant separator and the document's text, up to and including the first newline
 * or special token behind it. Text that depends on the position (e.g. an index) is in a span before
 * it. A boundary is always right behind a newline or a special token.
 *
 * How: the chat is rendered again with made-up words (sentinels) instead of the documents' strings;
 * the sentinels show where each document is. A third rendering with one more document shows the
 * separator. If putting the real strings back does not give the real rendering, the template
 * changes the documents in a way that is not understood, and the prompt stays one span.
 *
 * Owns    struct spans: spans_fini(). span_marks: span_marks_destroy().
 * Thread  any; span_marks is read-only after creation.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE. A prompt that cannot be cut is not an error: n_ends is 0 and
 *         `reason` says why.
 * Units   byte offsets into the rendered text. */
#ifndef TARN_ENGINE_TEXT_SPANS_H
#define TARN_ENGINE_TEXT_SPANS_H

#include "base/buf.h"
#include "base/json.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SPANS_N_DOCUMENTS_MAX 256

/* The special tokens' texts of one tokenizer; a boundary may follow each of them. */
struct span_marks;
NODISCARD enum status span_marks_create(struct span_marks **out, const struct tokenizer *t);
void span_marks_destroy(struct span_marks *m); /* NULL is fine */

struct spans {
    struct buf ends;   /* of size_t, ascending: offsets at which a span ends; empty: the prompt is
                          one span */
    size_t public_end; /* 0, or one of the ends: all tenants may share the text before it */
    uint32_t n_public; /* ids before public_end; set by spans_tokenize() */
    struct buf places; /* of struct span_place, one per document; empty: the prompt is one span */
    char reason[160];  /* why the prompt with documents is one span; "" otherwise */
};

/* The span of a document. */
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
/* Add a span end at `at` > 0, where a boundary is allowed, and make the text before it public. Call
 * it after spans_find(). */
NODISCARD enum status spans_add_public(struct spans *s, size_t at);

/* The first boundary in [from, to] of a text; 0: none. from may be 0. */
size_t spans_next_boundary(const struct span_marks *m, const char *text, size_t from, size_t to);

/* Renders the prompt with these documents (an array) instead of the request's. */
struct spans_render {
    enum status (*fn)(void *arg, struct json *documents, struct buf *out);
    void *arg;
};

/* Find the spans of `text` [len], the rendering with `documents` (an array of objects with
 * string members). `untrusted` (may be NULL): the bytes in which a special token's spelling is
 * plain text. */
NODISCARD enum status spans_find(struct spans *s, const struct span_marks *marks,
                                 const struct json *documents, const char *text, size_t len,
                                 const struct ranges *untrusted, const struct spans_render *render);

/* Tokenize each span separately: append the ids to *ids, and the position of each span end (u32, in
 * tokens) to *span_ends. A span without ids gets no end. */
NODISCARD enum status spans_tokenize(struct spans *s, const struct tokenizer *t, const char *text,
                                     size_t len, const struct ranges *untrusted, struct buf *ids,
                                     struct buf *span_ends);

#endif
