/* embedding_reading.h - what embedding_request.c and score_request.c share.
 *
 * Owns    the buffers, between embedding_reading_init() and embedding_reading_fini().
 * Thread  one at a time.
 * Errors  as embedding_request.h.
 * Units   tokens. */
#ifndef TARN_SERVER_API_EMBEDDING_READING_H
#define TARN_SERVER_API_EMBEDDING_READING_H

#include "base/json.h"
#include "engine/embedder.h"
#include "server/api/embedding_request.h"

#define EMBEDDING_NAME_BYTES 32

/* The fields that count for all inputs of a request. */
struct embedding_reading {
    struct embedding_request *r;
    const struct embedder *embedder;
    enum embedder_role role;
    bool add_special;
    uint32_t cut_to;          /* 0: too long inputs are refused */
    uint32_t cut_second;      /* tokens of a pair's second text; 0: all */
    struct buf scratch;       /* ids of one input */
    struct buf first, second; /* ids of a pair's texts */
    struct buf *why;
};

/* Zero *r, and report the fields of `body` that are none of these. */
void embedding_reading_init(struct embedding_reading *g, struct embedding_request *r,
                            const struct json *body, const char *const *fields, size_t n_fields,
                            struct buf *why);
void embedding_reading_fini(struct embedding_reading *g);

/* Choose the first of the models [n], each of which may be NULL, that has the name which the body
 * gives, if it gives one. nothing: words for the case that there is none at all. */
NODISCARD enum status embedding_read_model(struct embedding_reading *g,
                                           struct embeddings *const *models, size_t n,
                                           const char *nothing, const struct json *body);
/* truncate_prompt_tokens. */
NODISCARD enum status embedding_read_cut(struct embedding_reading *g, const struct json *body);
/* use_activation, and the names that it had before, for a model with labels. */
NODISCARD enum status embedding_read_activation(struct embedding_reading *g,
                                                enum label_activation usual,
                                                const struct json *body);
/* Make room for n inputs. */
NODISCARD enum status embedding_reserve_inputs(struct embedding_reading *g, size_t n);
/* Append the ids of a text to `out`. */
NODISCARD enum status embedding_read_text(struct embedding_reading *g, const struct json *v,
                                          bool add_special, struct buf *out, const char *name);
/* Cut the input in the scratch, or refuse it, and append it to the others. */
NODISCARD enum status embedding_take_input(struct embedding_reading *g, bool is_text,
                                           const char *name);
/* Read a text or token ids. */
NODISCARD enum status embedding_read_input(struct embedding_reading *g, const struct json *v,
                                           const char *name);
/* Read the field "input". */
NODISCARD enum status embedding_read_inputs(struct embedding_reading *g, const struct json *body);

#endif
