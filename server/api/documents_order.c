#include "server/api/documents_order.h"

#include <stdlib.h>

#include "engine/document_order.h"
#include "engine/text/spans.h"
#include "server/server.h"

enum status documents_order_choose(struct prompt *p, const struct server *srv,
                                   const struct spans *spans)
{
    uint32_t n = (uint32_t)spans_n_places(spans), n_cached;
    struct document_place *places = calloc(n + 1, sizeof *places);
    enum status s = places ? OK : ERR_NOMEM;

    for (uint32_t i = 0; s == OK && i < n; i++)
        places[i] =
            (struct document_place){spans_place(spans, i)->begin_id, spans_place(spans, i)->end_id};
    const struct document_prompt in = {.ids = prompt_ids(p),
                                       .n_ids = prompt_n_ids(p),
                                       .span_ends = prompt_span_ends(p),
                                       .n_span_ends = prompt_n_span_ends(p),
                                       .n_public = p->n_public,
                                       .scope = p->scope,
                                       .documents = places,
                                       .n_documents = n};
    if (s == OK)
        s = buf_reserve(&p->documents_order, n * sizeof(uint32_t));
    uint32_t *order = (uint32_t *)(void *)p->documents_order.data;
    if (s == OK)
        s = document_order_by_cache(srv->engine, &in, order, &n_cached);
    if (s == OK)
        p->documents_order.len = n * sizeof *order;
    free(places);
    return s;
}

bool documents_order_moves(const struct prompt *p)
{
    const uint32_t *order = (const uint32_t *)(const void *)p->documents_order.data;

    for (uint32_t i = 0; i < p->documents_order.len / sizeof *order; i++)
        if (order[i] != i)
            return true;
    return false;
}
