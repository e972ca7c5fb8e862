/* documents_order.h - `documents_order` "cache": the documents of a chat in the order of which most
 * is cached.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_DOCUMENTS_ORDER_H
#define TARN_SERVER_API_DOCUMENTS_ORDER_H

#include "server/api/prompt.h"

struct spans;

/* Write into p->documents_order which order is cached farthest. p has the ids of the given order,
 * cut at `spans`, and the scope; a prompt that is one span keeps the given order. */
NODISCARD enum status documents_order_choose(struct prompt *p, const struct server *srv,
                                             const struct spans *spans);
/* Whether a document stands at another place than the one that it was given at. */
bool documents_order_moves(const struct prompt *p);

#endif
