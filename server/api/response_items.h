/* response_items.h - items of a Responses request, checked, completed, and as messages of a chat.
 *
 * Items: message (with or without a type; its content a text or a list of parts), function_call,
 * function_call_output, reasoning, file_search_call (of earlier responses, without effect) and
 * item_reference. Items of one answer, such as reasoning and calls, become one message.
 *
 * Owns    struct response_messages: response_messages_fini().
 * Thread  one at a time.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED, ERR_NOT_FOUND: words begin with the name of the field.
 * Units   none. */
#ifndef TARN_SERVER_API_RESPONSE_ITEMS_H
#define TARN_SERVER_API_RESPONSE_ITEMS_H

#include <stdint.h>

#include "base/json.h"

#define RESPONSE_N_ITEMS_MAX 4096
#define RESPONSE_READ_BYTES_MAX (32u << 20) /* of earlier responses, for one request */
#define RESPONSE_ITEM_ID_BYTES 64

struct responses;

/* The ids of items name their response, so that item_reference finds them: KIND_HEX + 'i' or 'o',
 * of input or output, and a number. */
void response_item_id(char out[RESPONSE_ITEM_ID_BYTES], const char *kind, const char *response_id,
                      char side, uint32_t number);

struct response_source {
    struct responses *responses; /* where item_reference looks; NULL: nowhere */
    const char *owner;
    const char *response_id; /* of the request, for ids of its items */
};

/* Read the field `input` and append its items, complete as input_items shows them, to *items.
 * given NULL: the field is missing. */
NODISCARD enum status response_items_read(struct json *items, const struct json *given,
                                          const struct response_source *source, struct buf *why);

/* Append items that were written, separated by commas, to the array. */
NODISCARD enum status response_items_parse(struct json *items, const struct buf *written);

/* Messages of a chat, item by item. */
struct response_messages {
    struct json *list;      /* array of messages */
    struct json *assistant; /* the last message, where an assistant's calls belong; NULL: none */
    struct buf reasoning;   /* for the next message of the assistant */
};

NODISCARD enum status response_messages_init(struct response_messages *m);
void response_messages_fini(struct response_messages *m);
/* Add items that are complete. */
NODISCARD enum status response_messages_add(struct response_messages *m, const struct json *items);
/* Add items that were written, separated by commas. */
NODISCARD enum status response_messages_add_text(struct response_messages *m,
                                                 const struct buf *items);
NODISCARD enum status response_messages_add_system(struct response_messages *m, const char *text,
                                                   size_t len);

#endif
