/* chat_template.h - chat messages to prompt text: the Jinja that real chat templates use.
 *
 * Owns    the parsed template; chat_template_destroy() frees it.
 * Thread  read-only after creation: any thread renders, no locks.
 * Errors  ERR_INVALID: a syntax error (with line), a type error, raise_exception() of the
 *         template; ERR_UNSUPPORTED: a tag, filter or test we do not know, by name;
 *         ERR_TOO_LARGE: output or steps over their bound; ERR_NOMEM.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_CHAT_TEMPLATE_H
#define TARN_ENGINE_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"
#include "engine/text/ranges.h"

struct chat_template;

/* Whitespace as Hugging Face configures Jinja: trim_blocks and lstrip_blocks on. */
NODISCARD enum status chat_template_create(struct chat_template **out, const char *source,
                                           size_t len, struct buf *why);
void chat_template_destroy(struct chat_template *t); /* NULL is fine */

/* Render with the members of `context` (an object) as variables: messages, documents, tools,
 * add_generation_prompt, bos_token, eos_token, ... `now_s` is what strftime_now() formats (Unix
 * seconds, UTC). Appends to *out; a partial render leaves *out as it was. */
NODISCARD enum status chat_template_render(const struct chat_template *t,
                                           const struct json *context, int64_t now_s,
                                           struct buf *out, struct buf *why);

/* Bytes of a string or key of a context, by address. */
struct chat_text {
    const char *p;
    size_t len;
};

/* The same, and which bytes of what is appended come from the `untrusted` texts, in whatever way
 * the template changed, cut or joined them: added to *marked as offsets into *out, which must lie
 * behind those that *marked has. */
NODISCARD enum status chat_template_render_marked(const struct chat_template *t,
                                                  const struct json *context, int64_t now_s,
                                                  const struct chat_text *untrusted,
                                                  size_t n_untrusted, struct buf *out,
                                                  struct ranges *marked, struct buf *why);

/* Whether the source mentions the variable at all (e.g. "documents", "tools"). */
bool chat_template_uses(const struct chat_template *t, const char *variable);
/* Whether a string or the plain text of the source holds the word. */
bool chat_template_mentions(const struct chat_template *t, const char *word);

#endif
