/* call_parser.h - finds calls of tools in the text of an answer, while it comes.
 *
 * The parser is fed pieces of text and gives text and calls, in order. A call is a JSON object with
 * a name that the request's tools have and an object of arguments, written in the model's format
 * (tool_format.h). All else is text, unchanged. White space beside calls, up to
 * CALL_SPACE_MAX bytes, belongs to neither.
 *
 * Where an object begins with the name and then the arguments, the arguments are given while they
 * come, so a cut answer has a cut call. Any other order is read when the object is complete.
 *
 * The result does not depend on where the text is cut into pieces.
 *
 * Owns    text held back: call_parser_fini(). Borrows the format and the names.
 * Thread  one at a time.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the sink or of the text held back.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_CALL_PARSER_H
#define TARN_ENGINE_TEXT_CALL_PARSER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/text/tool_format.h"

#define CALL_SPACE_MAX 256u
#define CALL_HEADER_BYTES_MAX 1024u        /* before the arguments, to be given while they come */
#define CALL_OBJECT_BYTES_MAX (256u << 10) /* of a call that is read when it is complete */

/* The receivers of text and calls; `ctx` is the owner's. */
struct call_sink {
    void *ctx;
    enum status (*text)(void *ctx, const char *bytes, size_t len);
    enum status (*call)(void *ctx, const char *name, size_t len);       /* a call begins */
    enum status (*arguments)(void *ctx, const char *bytes, size_t len); /* of the latest call */
};

enum calls_state {
    CALLS_AT_START, /* of an answer that may be calls as a whole */
    CALLS_TEXT,
    CALLS_OBJECT,    /* held: from the white space before the marker, or from the separator, on */
    CALLS_ARGUMENTS, /* given as they come */
    CALLS_BEHIND,    /* the arguments: the rest of the object */
    CALLS_AFTER,     /* the object */
    CALLS_NO_MORE    /* the rest is text */
};

struct call_parser {
    const struct tool_format *format;
    const char *names; /* [names_len] each ends with NUL */
    size_t names_len;
    uint32_t n_calls, n_calls_max;
    enum calls_state state;
    struct buf held;
    /* OBJECT: */
    size_t opening_at;          /* of held: the next bracket, or the object */
    bool wants_bracket;         /* of the list */
    bool has_object, is_whole;  /* it begins at opening_at; it is read when it is complete */
    size_t scan_at;             /* of held: how far brackets were counted */
    uint32_t depth;             /* brackets */
    bool is_string, is_escaped; /* inside of a JSON string */
    bool is_skipping;           /* BEHIND: other members */
};

/* names: of the request's functions; they must outlive the parser. */
void call_parser_init(struct call_parser *p, const struct tool_format *format, const char *names,
                      size_t names_len, uint32_t n_calls_max);
void call_parser_fini(struct call_parser *p);

NODISCARD enum status call_parser_feed(struct call_parser *p, const char *bytes, size_t len,
                                       const struct call_sink *sink);
/* The text ends. */
NODISCARD enum status call_parser_finish(struct call_parser *p, const struct call_sink *sink);

#endif
