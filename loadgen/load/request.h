/* request.h - one generated request: prompt, time and client. No HTTP.
 *
 * A prompt is a list of parts. A part has an id and a length; equal ids mean equal text and so
 * equal tokens. Two requests whose leading parts have equal ids (and lengths) can share the KV
 * of those parts; a simulator needs no more than that. Only a sender makes text from ids
 * (prompt.h); parts with text of their own (real documents, questions) have an id as well.
 *
 * Requests of one chain (turns of a conversation) are generated one right after another; each but
 * the first is due think_s after the one before it has ended.
 *
 * Owns    its array of parts: load_request_fini(). Texts belong to the workload.
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   seconds from the start of the run, tokens. */
#ifndef TARN_LOADGEN_LOAD_REQUEST_H
#define TARN_LOADGEN_LOAD_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "loadgen/load/slo.h"

enum part_role { PART_SYSTEM, PART_DOCUMENT, PART_USER, PART_ASSISTANT };

#define NO_TURN UINT32_MAX
#define NO_DISCONNECT UINT32_MAX

struct part {
    enum part_role role;
    uint32_t n_tokens;  /* as asked for; 0: whatever `text` has */
    uint32_t answer_of; /* this is the answer of that turn of the chain (then `id` names what
                            * stands in for it); NO_TURN: it is not */
    uint64_t id;
    const char *text; /* [text_len]; NULL: made from the id */
    size_t text_len;
    const char *title;   /* of a document; may be NULL */
    bool starts_message; /* a chat message of its own, although the role stays the same */
};

struct load_request {
    uint64_t index;   /* 0, 1, ... in the order of generation */
    double arrival_s; /* intended; 0 in a closed loop */
    bool follows;     /* a later turn: due think_s after request index - 1 ends */
    bool leads;       /* request index + 1 follows this one */
    double think_s;
    uint64_t session; /* equal for all turns of a conversation; 0: none */
    uint32_t turn;

    struct part *parts; /* [n_parts] */
    uint32_t n_parts, cap_parts;
    uint32_t n_prompt_tokens; /* as asked for: of all parts whose length is known */
    uint32_t n_output_tokens; /* max_tokens; 0: not said */

    uint32_t tenant;  /* index into the workload's tenants */
    int32_t priority; /* lower is sooner */
    bool has_priority;
    struct slo slo;

    uint32_t disconnect_after; /* hang up after so many tokens; NO_DISCONNECT: never */
    double disconnect_s;       /* with disconnect_after 0: so long after sending */
    bool slow_reader;
    bool verify;       /* to be sent again alone */
    const char *extra; /* JSON object to merge into the body, or NULL; the workload's */
};

void load_request_init(struct load_request *r, uint64_t index);
void load_request_fini(struct load_request *r); /* also fine on a zeroed struct */
/* The new part, zeroed but for role, id and length; NULL without memory. */
struct part *load_request_add(struct load_request *r, enum part_role role, uint64_t id,
                              uint32_t n_tokens);

#endif
