/* embedding_request.h - reads the bodies of POST /v1/embeddings, /rerank, /score and /classify:
 * JSON to token ids.
 *
 *     {"input": text | [texts] | [ids] | [[ids]], "model", "encoding_format": "float"|"base64",
 *      "dimensions", "input_type": "query"|"document", "truncate_prompt_tokens",
 *      "add_special_tokens", "user"}
 *
 * Without input_type a text has no prompt. A text that the model cannot take whole is refused,
 * unless truncate_prompt_tokens says to how many tokens it is cut; -1: as many as the model takes.
 * Token ids are taken as they are: they get neither a prompt nor special tokens. The body of
 * /classify is the same without encoding_format, dimensions and input_type, but with
 * use_activation.
 *
 * /rerank and /score have pairs of texts (score_request.c). The model that classifies reads both
 * texts of a pair together; where there is none with one label, the embedding model reads each by
 * itself, the first one as a query and the second one as a document.
 *
 * Owns    the ids: embedding_request_fini().
 * Thread  one at a time.
 * Errors  words begin with the name of the field. ERR_TOO_LARGE: a text is longer than the model
 *         takes; ERR_NOT_FOUND: no such model, or another one; ERR_INVALID; ERR_UNSUPPORTED: the
 *         model takes no pairs; ERR_NOMEM.
 * Units   tokens, elements. */
#ifndef TARN_SERVER_API_EMBEDDING_REQUEST_H
#define TARN_SERVER_API_EMBEDDING_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/embedder_labels.h"
#include "server/api/unknown_fields.h"

/* The bounds of OpenAI's API. */
#define EMBEDDING_N_INPUTS_MAX 2048
#define EMBEDDING_N_TOKENS_MAX 300000 /* of all inputs, after cutting */

struct embeddings;
struct json;
struct server;

struct embedding_request {
    struct embeddings *of; /* the model that computes */
    const char *model;     /* the name that the request gave; a string of struct embeddings */
    uint32_t n;            /* inputs */
    uint32_t *ends;        /* [n] where the ids of an input end */
    struct buf ids;        /* of uint32_t, input by input */
    /* Of /v1/embeddings. */
    uint32_t dim; /* elements that are answered */
    bool base64;
    /* Of the model that classifies; else `types` is NULL. */
    uint32_t *types; /* [n] ids of an input before the first one of type 1 */
    enum label_activation activation;
    /* Of pairs. With `types` input i is pair i. Else the inputs are the first texts, each behind it
     * the second text; with shares_first input 0 is the first text of all pairs. */
    uint32_t n_pairs;
    bool shares_first;
    uint32_t top_n;         /* results that are answered, at most n_pairs */
    struct json *documents; /* a copy of the field, where the answer repeats them; else NULL */
    struct unknown_fields unknown; /* also after an error */
};

/* Call embedding_request_fini() after errors too. */
NODISCARD enum status embedding_request_read(struct embedding_request *r, const struct server *srv,
                                             const struct json *body, struct buf *why);
/* The same for a request that ranks documents by a query, scores pairs, or classifies texts. */
NODISCARD enum status rerank_request_read(struct embedding_request *r, const struct server *srv,
                                          const struct json *body, struct buf *why);
NODISCARD enum status score_request_read(struct embedding_request *r, const struct server *srv,
                                         const struct json *body, struct buf *why);
NODISCARD enum status classify_request_read(struct embedding_request *r, const struct server *srv,
                                            const struct json *body, struct buf *why);
void embedding_request_fini(struct embedding_request *r);

uint32_t embedding_request_n_tokens(const struct embedding_request *r);
/* The ids of input i; *n: how many. */
const uint32_t *embedding_request_ids(const struct embedding_request *r, uint32_t i, uint32_t *n);

#endif
