/* chat_template.h - renders chat messages to prompt text by the Jinja that real chat templates use.
 *
 * Owns    the parsed template; chat_template_destroy() frees it.
 * Thread  read-only after creation: any thread renders, no locks.
 * Errors  ERR_INVALID: a syntax error (with line), a type error, raise_exception() of the template;
 *         ERR_UNSUPPORTED: an unsupported tag, filter or test, by name; ERR_TOO_LARGE: too much
 *         output or too many steps; ERR_NOMEM.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_CHAT_TEMPLATE_H
#define TARN_ENGINE_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"
#include "engine/text/ranges.h"

struct chat_template;

/* Parse a template, with white space as in Hugging Face's Jinja: trim_blocks and lstrip_blocks
 * on. */
NODISCARD enum status chat_template_create(struct chat_template **out, const char *source,
                                           size_t len, struct buf *why);
/* The same for a source that came with a request: it and its renderings have tighter bounds. */
#define CHAT_TEMPLATE_GUEST_BYTES_MAX (64u << 10)
NODISCARD enum status chat_template_create_guest(struct chat_template **out, const char *source,
                                                 size_t len, struct buf *why);
void chat_template_destroy(struct chat_template *t); /* NULL is fine */

/* Render with the members of `context` (an object) as variables: messages, documents, tools,
 * add_generation_prompt, bos_token, eos_token, ... strftime_now() formats `now_s` (Unix seconds,
 * UTC). Appends to *out; a render that fails leaves *out unchanged. */
NODISCARD enum status chat_template_render(const struct chat_template *t,
                                           const struct json *context, int64_t now_s,
                                           struct buf *out, struct buf *why);

/* The bytes of a string or key of a context, identified by address. */
struct chat_text {
    const char *p;
    size_t len;
};

/* chat_template_render() that also finds the appended bytes that come from the `untrusted` texts,
 * however the template changed, cut or joined them. They are added to *marked as offsets into *out,
 * which must be behind those already in *marked. */
NODISCARD enum status chat_template_render_marked(const struct chat_template *t,
                                                  const struct json *context, int64_t now_s,
                                                  const struct chat_text *untrusted,
                                                  size_t n_untrusted, struct buf *out,
                                                  struct ranges *marked, struct buf *why);

/* Whether the source uses the variable anywhere (e.g. "documents", "tools"). */
bool chat_template_uses(const struct chat_template *t, const char *variable);
/* Whether a string or the plain text of the source contains the word. */
bool chat_template_mentions(const struct chat_template *t, const char *word);

#endif
