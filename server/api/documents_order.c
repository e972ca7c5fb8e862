#include "server/api/documents_order.h"

#include <stdlib.h>

#include "engine/document_order.h"
#include "engine/text/spans.h"
#include "server/server.h"

/* Look the documents from n_fixed on up. order [d->n] */
static enum status look_up(const struct documents *d, const struct prompt *p,
                           const struct server *srv, const struct spans *spans,
                           struct document_place *places, uint32_t *order)
{
    uint32_t n_cached;

    for (uint32_t i = 0; i < d->n; i++)
        places[i] =
            (struct document_place){spans_place(spans, i)->begin_id, spans_place(spans, i)->end_id,
                                    d->uses[i].is_shareable && !p->is_adapted};
    const struct document_prompt in = {.ids = prompt_ids(p),
                                       .n_ids = prompt_n_ids(p),
                                       .span_ends = prompt_span_ends(p),
                                       .n_span_ends = prompt_n_span_ends(p),
                                       .n_public = p->is_adapted ? 0 : p->n_public,
                                       .scope = p->scope,
                                       .documents = places + d->n_fixed,
                                       .n_documents = d->n - d->n_fixed};
    enum status s = document_order_by_cache(srv->engine, &in, order + d->n_fixed, &n_cached);
    for (uint32_t i = 0; i < d->n; i++)
        order[i] = i < d->n_fixed ? i : order[i] + d->n_fixed;
    return s;
}

enum status documents_order_choose(struct documents *d, const struct prompt *p,
                                   const struct server *srv, const struct spans *spans, bool *moves)
{
    struct document_place *places = calloc(d->n + (size_t)1, sizeof *places);
    uint32_t *order = calloc(d->n + (size_t)1, sizeof *order);
    enum status s = places && order ? look_up(d, p, srv, spans, places, order) : ERR_NOMEM;

    *moves = false;
    for (uint32_t i = 0; s == OK && i < d->n; i++)
        *moves |= order[i] != i;
    if (s == OK && *moves)
        s = documents_reorder(d, order);
    free(places);
    free(order);
    return s;
}
