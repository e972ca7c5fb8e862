/* citations.h - finds the marks in an answer's text that cite documents: "[Title]".
 *
 * A document is cited by its title, which its span has as heading. A number would depend on the
 * document's place, and a span must not depend on its place if its KV is to be reused.
 *
 * A mark is a title in brackets; white space inside the brackets and the case of ASCII letters do
 * not matter. Of documents with the same title the first one is cited. Of two marks that overlap,
 * the one that ends first counts; of two that end together, the longer. Brackets that name no
 * document are text. The text of the answer keeps all marks.
 *
 * The text comes in pieces of any length. The part of the text that is kept is no longer than
 * the longest title.
 *
 * Owns    the marks: citations_destroy().
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   positions in characters (Unicode code points) of the text, from 0; a mark is [begin,
 *         end), brackets included. */
#ifndef TARN_SERVER_API_CITATIONS_H
#define TARN_SERVER_API_CITATIONS_H

#include <stdint.h>

#include "base/buf.h"

/* Longer titles cannot be cited, and further marks are not found. */
#define CITATIONS_TITLE_BYTES_MAX 1024
#define CITATIONS_N_MAX 1024

struct citations;
struct document_use;

struct citation {
    uint64_t begin, end;
    uint32_t document; /* index in the prompt */
};

/* documents [n_documents] are borrowed until citations_destroy(). */
NODISCARD enum status citations_create(struct citations **out, const struct document_use *documents,
                                       uint32_t n_documents);
void citations_destroy(struct citations *c); /* NULL is fine */
/* Read the next piece of the text: UTF-8, cut anywhere. */
NODISCARD enum status citations_feed(struct citations *c, const char *text, size_t len);
/* The marks so far, in the order of the text. */
const struct citation *citations_found(const struct citations *c, uint32_t *n);

#endif
