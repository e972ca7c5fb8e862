/* documents_order.h - `documents_order` "cache": puts the documents of a chat into the order of
 * which most KV is cached.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_DOCUMENTS_ORDER_H
#define TARN_SERVER_API_DOCUMENTS_ORDER_H

#include "server/api/prompt.h"

struct spans;

/* Set p->documents_order to the order with the longest cached prefix. p holds the ids of the given
 * order, cut at `spans`, and the scope. A prompt that is one span keeps the given order. */
NODISCARD enum status documents_order_choose(struct prompt *p, const struct server *srv,
                                             const struct spans *spans);
/* Whether p->documents_order differs from the given order. */
bool documents_order_moves(const struct prompt *p);

#endif
