/* chat_traits.h - how a chat template treats roles and fields that not every template supports.
 *
 * Problem: a template that does not support a role or a field drops it silently, prints it in a
 * form that the model never saw, or raises an error. The source does not tell which: a template may
 * name "developer" in a sentence and still drop the message.
 *
 * Design: render small probe chats at start and look at their texts.
 *
 * Owns    nothing.
 * Thread  any; the traits are constant after chat_traits_find().
 * Errors  none: a probe that cannot be rendered counts as not supported.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_CHAT_TRAITS_H
#define TARN_ENGINE_TEXT_CHAT_TRAITS_H

#include <stdbool.h>

#include "engine/text/chat_template.h"

enum tool_call_form {
    TOOL_CALLS_AS_TEXT,    /* the template does not render tool_calls: they become content */
    TOOL_CALLS_AS_OBJECTS, /* arguments are an object, the form of Hugging Face */
    TOOL_CALLS_AS_STRINGS, /* arguments are the text of an object, the form of OpenAI's clients */
};

struct chat_traits {
    bool developer; /* role "developer" is supported */
    enum tool_call_form tool_calls;
    bool tool_role;      /* role "tool" is rendered */
    bool null_content;   /* tool_calls are rendered only if content is null, not "" */
    bool short_call_ids; /* ids of tool calls must be 9 letters and digits (Mistral) */
};

/* Find the traits of a template; NULL: no traits. */
void chat_traits_find(struct chat_traits *out, const struct chat_template *template);

#endif
