/* tools.h - the fields of a chat about tools: tools, tool_choice, parallel_tool_calls.
 *
 * A choice of "required" or of a function, and what a function says `strict` to, become a grammar.
 *
 * Owns    names and types: tools_use_fini().
 * Thread  any.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED, ERR_TOO_LARGE: words begin with the name of the field.
 * Units   none. */
#ifndef TARN_SERVER_API_TOOLS_H
#define TARN_SERVER_API_TOOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/tool_format.h"

struct chat_kit;
struct grammar;
struct server;
struct stopping;

/* The tools of a request, with which its answers are parsed. Zeroed: answers are text. */
struct tools_use {
    const struct tool_format *format; /* NULL: answers are text */
    struct buf names;                 /* of functions, each ends with NUL */
    struct buf types;                 /* as in struct call_names */
    uint32_t n_calls_max;
    bool is_old;    /* answers have `function_call`: functions.h */
    bool short_ids; /* as in struct chat_traits */
};

/* Check the tools of a body. *tools: those that the chat template gets; NULL: none. */
NODISCARD enum status tools_check(const struct chat_kit *kit, const struct json *body,
                                  const struct json **tools, struct buf *why);

/* Read the fields. *grammar (in: the form that other fields ask for, or NULL) may be set. The
 * special tokens of the format are shown by *stopping. */
NODISCARD enum status tools_read(struct tools_use *u, struct grammar **grammar,
                                 struct stopping *stopping, const struct server *srv,
                                 const struct chat_kit *kit, const struct json *body, bool is_chat,
                                 struct buf *why);
void tools_use_fini(struct tools_use *u); /* fine on a zeroed struct */

#endif
