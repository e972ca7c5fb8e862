/* retention.h - reads the fields by which clients ask to keep the KV of a prompt.
 *
 * Several APIs have such fields, and all of them become holds (struct cache_hold):
 *
 *   cache_ttl               Tarn: seconds for the whole prompt
 *   prompt_cache_retention  OpenAI: "24h" for the whole prompt; "in_memory": nothing is held
 *   prompt_cache_options    OpenAI: mode "implicit" (default): the whole prompt for `ttl` (30m);
 *                           mode "explicit": breakpoints only
 *   prompt_cache_breakpoint OpenAI, on a content part: the prompt up to the part's end, for the ttl
 *                           of prompt_cache_options
 *   cache_control           Anthropic, on a content part or a message: the prompt up to its end; in
 *                           the body: the whole prompt. {"type": "ephemeral", "ttl": "5m"}
 *
 * Of several times for the whole prompt the longest counts. Of more than REQUEST_N_BREAKS_MAX
 * breakpoints the last ones count. prompt_cache_key chooses one of several caches at OpenAI; a Tarn
 * server has one, so the key has no effect.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID with words that begin with the name of the field.
 * Units   seconds; bytes of UTF-8. */
#ifndef TARN_SERVER_API_RETENTION_H
#define TARN_SERVER_API_RETENTION_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"
#include "engine/request.h"

struct tokenizer;

struct retention {
    uint32_t ttl_s;       /* of the whole prompt; 0: it is not held */
    uint32_t break_ttl_s; /* of each prompt_cache_breakpoint */
};
/* Read the fields of a body, except those of its messages. */
NODISCARD enum status retention_parse(struct retention *r, const struct json *body,
                                      struct buf *why);

/* Read a value of cache_control. *ttl_s stays if v is NULL. name: the field's, for errors. */
NODISCARD enum status retention_read_control(const struct json *v, const char *name,
                                             uint32_t *ttl_s, struct buf *why);

struct breakpoint {
    uint32_t message; /* index in the body's messages */
    size_t n_bytes;   /* of the message's content before the breakpoint, its parts joined by \n */
    uint32_t ttl_s;
};
struct breakpoints {
    struct breakpoint v[REQUEST_N_BREAKS_MAX]; /* [n] in the order of the prompt */
    uint32_t n;
};
/* Read the breakpoints of a body whose messages have been checked. */
NODISCARD enum status breakpoints_read(struct breakpoints *b, const struct json *body,
                                       struct buf *why);
/* Set the breaks at the ids whose text lies before ends [b->n], byte offsets in the rendered
 * prompt; 0: the breakpoint is not in the prompt. out [REQUEST_N_BREAKS_MAX]. Where the tokenizer
 * changes the text, a break is off by the bytes that it adds or drops. ERR_NOMEM. */
NODISCARD enum status breakpoints_place(const struct breakpoints *b, const size_t *ends,
                                        const struct tokenizer *t, const uint32_t *ids,
                                        uint32_t n_ids, struct request_break *out, uint32_t *n_out);

#endif
