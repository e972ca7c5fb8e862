/* lookup.h - makes the prompt of a call on a thread of its own (wait.h), where the prompt depends
 * on registered documents, on a search, or on what is cached.
 *
 * The work: ids are resolved in the catalog; a search runs in stages, and the prompt of each
 * provisional list is prefilled speculatively (speculation.h); the documents are ordered; the
 * prompt is rendered and tokenized. A document that is deleted while the call waits is left out of
 * a search's result, and is an unknown id where the request names it.
 *
 * Owns    nothing that outlives the call, but the work itself if the call ends first.
 * Thread  lookup_is_needed(), lookup_begin(), lookup_note(): the exchange's.
 * Errors  lookup_begin(): as search.h. Of the work: as documents.h and search.h; ERR_UNSUPPORTED
 *         when the server keeps no documents.
 * Units   none. */
#ifndef TARN_SERVER_API_LOOKUP_H
#define TARN_SERVER_API_LOOKUP_H

#include <stdbool.h>

#include "base/json.h"

struct call;

/* Whether making the prompt of this body needs a lookup. */
bool lookup_is_needed(const struct json *body);
/* From the read() of call_serve(), with params parsed and no prompts yet: have the call wait for
 * its only prompt. */
NODISCARD enum status lookup_begin(struct call *call, const struct json *body, struct buf *why);
/* The call's requests were submitted: tell the library which registered documents they use. */
void lookup_note(const struct call *call);

#endif
