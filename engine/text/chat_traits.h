/* chat_traits.h - what a chat template does with roles and fields that not every template knows.
 *
 * Problem: a template that does not know a role or a field drops it without a word, prints it in a
 * form that the model never saw, or raises an error. The source does not tell which: a template may
 * name "developer" in a sentence and still drop the message.
 *
 * Design: small probe chats are rendered, and their texts show the traits.
 *
 * Owns    nothing.
 * Thread  any; the traits are constant after chat_traits_find().
 * Errors  none: what cannot be rendered is not known.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_CHAT_TRAITS_H
#define TARN_ENGINE_TEXT_CHAT_TRAITS_H

#include <stdbool.h>

#include "engine/text/chat_template.h"

enum tool_call_form {
    TOOL_CALLS_AS_TEXT,    /* the template does not render tool_calls: they become content */
    TOOL_CALLS_AS_OBJECTS, /* arguments are an object, as Hugging Face passes them */
    TOOL_CALLS_AS_STRINGS, /* arguments are the text of an object, as OpenAI's clients send them */
};

struct chat_traits {
    bool developer; /* role "developer" is named and rendered */
    enum tool_call_form tool_calls;
    bool tool_role;      /* role "tool" is rendered */
    bool null_content;   /* tool_calls are rendered only beside a content of null, not of "" */
    bool short_call_ids; /* ids of tool calls must have 9 letters and digits (Mistral) */
};

/* `template` may be NULL: no traits. */
void chat_traits_find(struct chat_traits *out, const struct chat_template *template);

#endif
