/* embed.c - reference: token ids to rows of the embedding table. */
#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

enum status ref_embed(struct device *d, struct stream *s, const struct embed_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        uint32_t from = p->from ? p->from[t] : UINT32_MAX;
        uint32_t id = from == UINT32_MAX ? p->ids[t] : p->picked[from];

        ASSERT(id < p->n_vocab);
        for (uint32_t i = 0; i < p->dim; i++)
            p->out[(size_t)t * p->dim + i] = pack_at(&p->table, id, i);
    }
    return OK;
}
