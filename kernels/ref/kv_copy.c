/* kv_copy.c - reference: copy whole KV blocks out of the pool and back. */
#include <string.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

static unsigned char *block_at(const struct kv_copy_params *p, uint32_t i)
{
    ASSERT(p->blocks[i] < p->pool.n_blocks);
    return kv_at(&p->pool, p->blocks[i], 0, 0, 0);
}

enum status ref_kv_gather(struct device *d, struct stream *s, const struct kv_copy_params *p)
{
    size_t n = kv_block_bytes(&p->pool);

    (void)d;
    (void)s;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        memcpy((unsigned char *)p->flat + i * n, block_at(p, i), n);
    return OK;
}

enum status ref_kv_scatter(struct device *d, struct stream *s, const struct kv_copy_params *p)
{
    size_t n = kv_block_bytes(&p->pool);

    (void)d;
    (void)s;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        memcpy(block_at(p, i), (unsigned char *)p->flat + i * n, n);
    return OK;
}
