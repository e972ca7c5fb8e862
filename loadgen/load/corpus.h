/* corpus.h - documents, questions and ready retrieval lists for RAG workloads.
 *
 * A directory with documents.jsonl {doc_id, title, text} and, if there are any, questions.jsonl
 * {q_id, question, bm25_top5 or retrieved: [doc ids, best first]}. Other fields are skipped.
 *
 * Owns    all texts: corpus_fini().
 * Thread  read-only after load.
 * Errors  ERR_NOT_FOUND, ERR_INVALID with file:line, ERR_NOMEM.
 * Units   bytes of UTF-8; documents are named by their place in the file, not by doc_id. */
#ifndef TARN_LOADGEN_LOAD_CORPUS_H
#define TARN_LOADGEN_LOAD_CORPUS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define CORPUS_LIST_MAX 64

struct corpus_document {
    char *title; /* may be NULL */
    char *text;  /* [text_len] */
    size_t text_len;
};

struct corpus_question {
    char *text; /* [text_len] */
    size_t text_len;
    uint32_t docs[CORPUS_LIST_MAX]; /* [n_docs] best first */
    uint32_t n_docs;
};

struct corpus {
    struct corpus_document *documents; /* [n_documents] */
    uint32_t n_documents, cap_documents;
    struct corpus_question *questions; /* [n_questions] */
    uint32_t n_questions, cap_questions;
};

/* Load the first n_documents_max documents (0: all), and the questions whose whole list lies among
 * them and is not empty. */
NODISCARD enum status corpus_load(struct corpus *c, const char *dir, uint32_t n_documents_max,
                                  struct buf *why);
void corpus_fini(struct corpus *c); /* also fine on a zeroed struct */

#endif
