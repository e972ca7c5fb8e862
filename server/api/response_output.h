/* response_output.h - output items of one response while it is generated, and their events.
 *
 * Owns    the texts: response_output_fini().
 * Thread  one at a time.
 * Errors  in the writer; ERR_NOMEM, ERR_TOO_LARGE.
 * Units   none. */
#ifndef TARN_SERVER_API_RESPONSE_OUTPUT_H
#define TARN_SERVER_API_RESPONSE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api/response_items.h"
#include "server/api/responses.h"
#include "server/api/writer.h"

enum response_item {
    RESPONSE_NONE,
    RESPONSE_SEARCH,
    RESPONSE_REASONING,
    RESPONSE_MESSAGE,
    RESPONSE_CALL,
};

struct response_output {
    char id[RESPONSE_ID_BYTES]; /* of the response */
    bool streams;               /* write events */
    bool in_summary;            /* reasoning is its summary */
    uint64_t n_events;          /* sequence_number of the next one */
    struct buf items;           /* of ended items, separated by commas */
    uint32_t n_items;           /* ended ones */
    /* The open item. */
    enum response_item open;
    char item_id[RESPONSE_ITEM_ID_BYTES];
    struct buf text;        /* of the message, the reasoning, or the arguments */
    struct buf logprobs;    /* members, of the message */
    struct buf annotations; /* members, of the message */
    uint32_t n_annotations;
    struct buf call_id, name; /* of a call */
    struct buf fields;        /* further members of a search: its queries and results */
};

void response_output_init(struct response_output *o);
void response_output_fini(struct response_output *o);

/* Begin and end an event: {"type": name, "sequence_number": n and what the caller writes. The
 * caller has checked `streams`. */
void response_event_begin(struct response_output *o, struct writer *w, const char *name);
void response_event_end(struct writer *w);

/* Open an item and end the one that was open, as completed. RESPONSE_NONE: only end it. */
void response_output_open(struct response_output *o, struct writer *w, enum response_item kind);
/* End the open item with this status. */
void response_output_end(struct response_output *o, struct writer *w, const char *status);
/* Append to the text of the open item. logprobs: members that belong to it, may be empty. */
void response_output_text(struct response_output *o, struct writer *w, const char *text, size_t len,
                          const struct buf *logprobs);
/* Append an annotation, a JSON object, to the open message. */
void response_output_annotate(struct response_output *o, struct writer *w,
                              const struct buf *annotation);

#endif
