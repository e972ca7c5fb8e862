/* attn_launch.cu - chooses the attention kernels. */
#include "base/check.h"
#include "kernels/cuda/attn_launch.cuh"

/* Whether tensor cores can be used: the head sizes of ATTN_FOR(). The answer decides a row's bits,
 * so it must not depend on anything that differs between steps. */
static bool takes_tensor_cores(const struct attention_params *p)
{
    uint32_t dim = p->pool.head_dim;
    enum dtype t = p->pool.layout.dtype;

    if (t == DTYPE_BF16)
        return dim % 16 == 0 && (dim <= 128 || dim == 256);
    return t != DTYPE_F32 && (dim == 64 || dim == 96 || dim == 128 || dim == 256);
}

enum status attention_of(struct cuda_context *c, cudaStream_t stream,
                         const struct attention_params *p)
{
    ASSERT(p->n_heads % p->pool.n_kv_heads == 0);
    if (p->n_rows == 0 || p->n_seqs == 0)
        return OK;
    if (!kv_layout_is_native(&p->pool.layout) || p->bidirectional)
        return ERR_UNSUPPORTED;
    if (!takes_tensor_cores(p))
        return attn_plain(c, stream, p);
    ASSERT((uintptr_t)p->out % 16 == 0 && (uintptr_t)p->pool.base % 16 == 0);
    size_t n_slots = c->n_partial_segs < UINT32_MAX ? c->n_partial_segs : UINT32_MAX;
    bool has_wide = c->has_wgmma_attention && p->pool.head_dim == c->config.max_head_dim &&
                    attn_wgmma_exists(p->pool.layout.dtype, p->pool.head_dim);
    struct attn_job job = {*p, c->partials, (uint32_t)n_slots, 0, p->n_heads / p->pool.n_kv_heads,
                           has_wide};
    bool all_fit = p->n_segs <= n_slots;
    enum status status = OK;

    if (p->n_seqs > 1 || p->n_rows_max == 1)
        status = attn_decode(c, stream, &job);
    if (status == OK && (p->n_rows_max > 1 || !all_fit))
        status = attn_prefill(c, stream, &job);
    return status;
}

enum status cuda_attention(struct device *d, struct stream *s, const struct attention_params *p)
{
    struct cuda_context *c = cuda_context_of(d);

    return attention_of(c, cuda_stream_of(c, s), p);
}
