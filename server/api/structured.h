/* structured.h - the fields of a request that ask for an answer of a given form, as a grammar.
 *
 *   OpenAI     response_format: {type: "json_object"}, {type: "json_schema", json_schema: {schema}}
 *   xgrammar   response_format: {type: "structural_tag", format}, or {..., structures, triggers}
 *   vLLM       structured_outputs: {json, json_object, regex, choice, grammar}, and the older
 *              guided_json, guided_regex, guided_choice, guided_grammar
 *   llama.cpp  grammar (GBNF), json_schema
 *
 * A grammar that was asked for lately is kept, with the masks that were computed for it.
 *
 * Owns    the vocabulary's trees, made at first use; the latest grammars.
 * Thread  any, locks itself.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED, ERR_TOO_LARGE: words begin with the name of the field.
 * Units   none. */
#ifndef TARN_SERVER_API_STRUCTURED_H
#define TARN_SERVER_API_STRUCTURED_H

#include "base/buf.h"
#include "base/json.h"
#include "engine/grammar/grammar.h"
#include "engine/text/reasoning.h"

struct structured;

/* tokenizer NULL: every form is refused. */
NODISCARD enum status structured_create(struct structured **out, const struct tokenizer *tokenizer,
                                        uint32_t n_vocab);
void structured_destroy(struct structured *s); /* NULL is fine */

/* The place of the form in an answer. */
struct structured_place {
    const struct reasoning_format *reasoning; /* may precede it; NULL: none */
    const uint32_t *shown; /* [n_shown] special tokens that are text in the answer; a server has few
                              such lists: STRUCTURED_LISTS_MAX */
    uint32_t n_shown;
};
#define STRUCTURED_LISTS_MAX 8

/* Read the fields of a body. *out: a reference for the caller, or NULL if no form is asked for. */
NODISCARD enum status structured_read(struct structured *s, const struct json *body,
                                      const struct structured_place *place, struct grammar **out,
                                      struct buf *why);

/* The grammar of calls of tools, by a source of tool_format_grammar(). Words begin with "tools". */
NODISCARD enum status structured_calls(struct structured *s, const struct json *source,
                                       const struct structured_place *place, struct grammar **out,
                                       struct buf *why);
/* Whether a grammar can stand behind reasoning of this format; else it binds the whole answer. */
bool structured_allows(const struct reasoning_format *f);

#endif
