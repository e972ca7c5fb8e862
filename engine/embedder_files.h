/* embedder_files.h - what the files of sentence-transformers say about an embedding model.
 *
 *     modules.json                         what comes behind the model: pooling, normalization
 *     1_Pooling/config.json                which hidden states make the vector
 *     sentence_bert_config.json            the longest text, else:
 *     tokenizer_config.json                model_max_length
 *     config_sentence_transformers.json    what is put in front of queries and documents
 *
 * Each of them may be missing.
 *
 * Owns    the prompts.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED: words name the file and the field; ERR_NOMEM.
 * Units   tokens. */
#ifndef TARN_ENGINE_EMBEDDER_FILES_H
#define TARN_ENGINE_EMBEDDER_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum pooling { POOLING_LAST, POOLING_MEAN, POOLING_FIRST };

struct embedder_files {
    enum pooling pooling;
    char *query_prompt, *document_prompt; /* NULL: none */
    uint32_t max_tokens;                  /* 0: the files do not say */
    bool lowers;                          /* texts are meant to be turned into lower case */
};

/* Read the files of a model whose hidden states have `dim` elements. Without a pooling file, the
 * mean counts for encoders, and the last token for other models. */
NODISCARD enum status embedder_files_load(struct embedder_files *out, const char *dir, uint32_t dim,
                                          bool is_encoder, struct buf *why);
void embedder_files_fini(struct embedder_files *f); /* also fine on a zeroed struct */

#endif
