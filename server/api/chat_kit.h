/* chat_kit.h - a chat template and all that follows from it: the model's own, or a request's.
 *
 * A request may bring a `chat_template` where --trust-request-chat-template allows it. The kit of
 * such a template is kept by the hash of the source, the latest CHAT_KITS_MAX of them.
 *
 * Owns    chat_kits: the kits that are kept. A kit: counted references.
 * Thread  any; chat_kits locks itself, a kit is constant.
 * Errors  ERR_UNSUPPORTED the flag is off; ERR_INVALID, ERR_TOO_LARGE the template's: words begin
 *         with "chat_template".
 * Units   none. */
#ifndef TARN_SERVER_API_CHAT_KIT_H
#define TARN_SERVER_API_CHAT_KIT_H

#include "base/json.h"
#include "engine/text/chat_traits.h"
#include "engine/text/reasoning.h"
#include "engine/text/tool_format.h"

#define CHAT_KITS_MAX 16u

struct chat_kits;
struct config;
struct server;

struct chat_kit {
    const struct chat_template *template; /* may be NULL */
    struct chat_traits traits;
    const struct tool_format *tool_format;    /* of calls of tools; NULL: not known */
    const struct reasoning_format *reasoning; /* NULL: answers have none */
    bool documents_lead;                      /* see documents.h */
};

/* All that follows from a template. */
void chat_kit_fill(struct chat_kit *kit, const struct chat_template *template,
                   const struct config *config);

NODISCARD enum status chat_kits_create(struct chat_kits **out);
void chat_kits_destroy(struct chat_kits *kits); /* NULL is fine; no kit is in use any more */

/* The kit of a body: that of its own template, else the server's. chat_kit_put() it. */
NODISCARD enum status chat_kit_get(const struct chat_kit **out, const struct server *srv,
                                   const struct json *body, struct buf *why);
void chat_kit_put(const struct server *srv, const struct chat_kit *kit); /* NULL is fine */

#endif
