/* documents_order.h - the order "cache": puts the documents of a prompt into the order of which
 * most KV is cached.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_DOCUMENTS_ORDER_H
#define TARN_SERVER_API_DOCUMENTS_ORDER_H

#include "server/api/documents.h"
#include "server/api/prompt.h"

struct spans;

/* Put the documents from d->n_fixed on into the order with the longest cached prefix. p holds the
 * ids of the present order, cut at `spans`, with a place for each document, and the scope. *moves:
 * the order has changed. */
NODISCARD enum status documents_order_choose(struct documents *d, const struct prompt *p,
                                             const struct server *srv, const struct spans *spans,
                                             bool *moves);

#endif
