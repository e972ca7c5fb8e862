/* call_parser_inner.h - inside of engine/text: what the parts of the parser of calls share.
 *
 * call_parser.c  texts, markers, JSON objects, JSON behind a name
 * call_tags.c    arguments in tags
 * call_python.c  calls in Python's notation
 *
 * Owns    nothing.
 * Thread  as call_parser.h.
 * Errors  as call_parser.h.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_CALL_PARSER_INNER_H
#define TARN_ENGINE_TEXT_CALL_PARSER_INNER_H

#include <string.h>

#include "engine/text/call_parser.h"

enum match { MATCH_NO, MATCH_MORE /* text is needed */, MATCH_YES };

/* A place in text that is held, and its end. */
struct cursor {
    const char *p, *end;
};

static inline bool call_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static inline const char *call_held(const struct call_parser *p)
{
    return buf_str(&p->held);
}

/* The bytes at the end of what is held that may be the begin of the word. */
size_t call_partial(const struct call_parser *p, const char *word);
/* A cursor from byte `at` of what is held on, over at most CALL_HEADER_BYTES_MAX bytes. *is_all: it
 * ends there, not where the text ends so far. */
struct cursor call_cursor(const struct call_parser *p, size_t at, bool *is_all);
void call_pass_space(struct cursor *c);
/* Pass white space, then the word. White space inside of the word stands for any, at its end for
 * none. */
enum match call_pass(struct cursor *c, const char *word);
/* Pass white space, then a name of letters, digits, _, - and dots. */
enum match call_pass_name(struct cursor *c, struct cursor *name);
/* Whether a call of this function may begin. */
bool call_may_begin(const struct call_parser *p, const struct cursor *name);
enum status call_begin(struct call_parser *p, const struct cursor *name,
                       const struct call_sink *sink);
/* The first n held bytes are no call: pass them on as text. */
enum status call_reject(struct call_parser *p, size_t n, const struct call_sink *sink);

enum status call_take_tags(struct call_parser *p, const struct call_sink *sink);
enum status call_take_tag_value(struct call_parser *p, const struct call_sink *sink);
enum status call_take_python(struct call_parser *p, const struct call_sink *sink);
enum status call_take_python_arguments(struct call_parser *p, const struct call_sink *sink);

#endif
