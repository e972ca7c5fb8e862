/* tool_answer.h - the calls of tools in one answer, whole and in pieces.
 *
 * Owns    the parser and the calls.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   bytes of UTF-8. */
#ifndef TARN_SERVER_API_TOOL_ANSWER_H
#define TARN_SERVER_API_TOOL_ANSWER_H

#include "server/api/tools.h"
#include "server/api/writer.h"

struct tool_answer;

/* u: must outlive the answer. */
NODISCARD enum status tool_answer_create(struct tool_answer **out, const struct tools_use *u);
void tool_answer_destroy(struct tool_answer *t); /* NULL is fine */

/* Read a piece of what the model writes, at its end the last one; append to *text what is no
 * call. */
NODISCARD enum status tool_answer_feed(struct tool_answer *t, const char *bytes, size_t len,
                                       bool is_end, struct buf *text);

/* NULL: an answer without tools. */
uint32_t tool_answer_n_calls(const struct tool_answer *t);
/* One call. */
struct tool_call_view {
    const char *id;
    const struct buf *name, *arguments;
    size_t text_at; /* where it stands: bytes of the text, as of the feed in which it began */
    bool is_sent;   /* the id and the name */
    size_t n_sent;  /* bytes of the arguments */
};
void tool_answer_view(const struct tool_answer *t, uint32_t i, struct tool_call_view *out);
/* Write "tool_calls": [...] with all calls, or "function_call": {...} in the older form. */
void tool_answer_write(struct writer *w, const struct tool_answer *t);
/* The same with what was not sent yet, in the shape of a stream's delta. */
bool tool_answer_has_delta(const struct tool_answer *t);
void tool_answer_write_delta(struct writer *w, const struct tool_answer *t);
void tool_answer_reset_delta(struct tool_answer *t); /* it was sent */

#endif
