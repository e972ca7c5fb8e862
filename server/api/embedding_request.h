/* embedding_request.h - reads the body of POST /v1/embeddings: JSON to token ids.
 *
 *     {"input": text | [texts] | [ids] | [[ids]], "model", "encoding_format": "float"|"base64",
 *      "dimensions", "input_type": "query"|"document", "truncate_prompt_tokens",
 *      "add_special_tokens", "user"}
 *
 * Without input_type a text has no prompt. A text that the model cannot take whole is refused,
 * unless truncate_prompt_tokens says to how many tokens it is cut; -1: as many as the model takes.
 * Token ids are taken as they are: they get neither a prompt nor special tokens.
 *
 * Owns    the ids: embedding_request_fini().
 * Thread  one at a time.
 * Errors  words begin with the name of the field. ERR_TOO_LARGE: a text is longer than the model
 *         takes; ERR_NOT_FOUND: another model; ERR_INVALID; ERR_NOMEM.
 * Units   tokens, elements. */
#ifndef TARN_SERVER_API_EMBEDDING_REQUEST_H
#define TARN_SERVER_API_EMBEDDING_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "server/api/unknown_fields.h"

/* The bounds of OpenAI's API. */
#define EMBEDDING_N_INPUTS_MAX 2048
#define EMBEDDING_N_TOKENS_MAX 300000 /* of all inputs, after cutting */

struct embeddings;
struct json;

struct embedding_request {
    const char *model; /* the name that the request gave; a string of struct embeddings */
    uint32_t n;        /* inputs */
    uint32_t *ends;    /* [n] where the ids of an input end */
    struct buf ids;    /* of uint32_t, input by input */
    uint32_t dim;      /* elements that are answered */
    bool base64;
    /* Of rerank_request_read(): input 0 is the query. */
    bool ranks;
    uint32_t top_n;         /* results that are answered, at most n - 1 */
    struct json *documents; /* a copy of the field, where the answer repeats them; else NULL */
    struct unknown_fields unknown; /* also after an error */
};

/* Call embedding_request_fini() after errors too. */
NODISCARD enum status embedding_request_read(struct embedding_request *r,
                                             const struct embeddings *e, const struct json *body,
                                             struct buf *why);
/* The same for a request that ranks documents by a query. */
NODISCARD enum status rerank_request_read(struct embedding_request *r, const struct embeddings *e,
                                          const struct json *body, struct buf *why);
void embedding_request_fini(struct embedding_request *r);

uint32_t embedding_request_n_tokens(const struct embedding_request *r);
/* The ids of input i; *n: how many. */
const uint32_t *embedding_request_ids(const struct embedding_request *r, uint32_t i, uint32_t *n);

#endif
