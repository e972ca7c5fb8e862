#include "loadgen/bench/engine/profile.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/model/decoder.h"
#include "loadgen/bench/engine/counts.h"

static struct {
    const struct ops *real;
    struct ops timed;
    const struct weights *weights;
    uint32_t n_layers;
    uint32_t layer; /* of the last product found: the next one is of it or of the one behind it */
    struct profile sums;
} state;

static void add(enum profile_op op, uint64_t t0, uint64_t ops, uint64_t bytes)
{
    state.sums.op[op].seconds += (double)(clock_now_ns() - t0) * 1e-9;
    state.sums.op[op].n_calls++;
    state.sums.op[op].ops += ops;
    state.sums.op[op].bytes += bytes;
}

static enum status timed_embed(struct device *d, struct stream *s, const struct embed_params *p)
{
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->embed(d, s, p);

    add(PROFILE_EMBED, t0, 0, 0);
    return status;
}

static enum status timed_rmsnorm(struct device *d, struct stream *s, const struct rmsnorm_params *p)
{
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->rmsnorm(d, s, p);

    add(PROFILE_NORM, t0, 0, 0);
    return status;
}

/* Return the layer's product whose weights are at data; PROFILE_OP_COUNT: none of this layer. */
static enum profile_op product_of(const struct decoder_layer *y, const void *data)
{
    if (data == y->qkv.data)
        return PROFILE_QKV;
    if (data == y->o.data)
        return PROFILE_O;
    if (data == y->gate_up.data)
        return PROFILE_GATE_UP;
    return data == y->down.data ? PROFILE_DOWN : PROFILE_OP_COUNT;
}

static enum profile_op which_product(const struct weight *w)
{
    for (uint32_t i = 0; i < state.n_layers; i++) {
        uint32_t layer = (state.layer + i) % state.n_layers;
        enum profile_op op = product_of(&decoder_layers(state.weights)[layer], w->data);

        if (op != PROFILE_OP_COUNT) {
            state.layer = layer;
            return op;
        }
    }
    return PROFILE_OUTPUT;
}

static enum status timed_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    enum profile_op op = which_product(&p->w);
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->gemm(d, s, p);

    add(op, t0, 2 * (uint64_t)p->n_rows * p->w.n * p->w.k,
        counts_weight_bytes(p->w.dtype, p->w.n, p->w.k, p->w.group));
    return status;
}

static enum status timed_rope_kv(struct device *d, struct stream *s, const struct rope_kv_params *p)
{
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->rope_kv(d, s, p);

    add(PROFILE_ROPE, t0, 0, 0);
    return status;
}

static enum status timed_attention(struct device *d, struct stream *s,
                                   const struct attention_params *p)
{
    uint64_t t0 = clock_now_ns(), ops = 0, n_context = 0;
    enum status status = state.real->attention(d, s, p);
    uint64_t t1 = clock_now_ns();

    for (uint32_t i = 0; i < p->n_seqs; i++) {
        ops +=
            counts_attention_ops(p->n_heads, p->pool.head_dim, p->seqs[i].pos0, p->seqs[i].n_rows);
        n_context += p->seqs[i].pos0;
    }
    add(PROFILE_ATTENTION, t0 + (clock_now_ns() - t1), ops,
        n_context * 2 * kv_half_bytes(&p->pool) / KV_BLOCK_TOKENS);
    return status;
}

static enum status timed_silu_mul(struct device *d, struct stream *s,
                                  const struct silu_mul_params *p)
{
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->silu_mul(d, s, p);

    add(PROFILE_SILU, t0, 0, 0);
    return status;
}

static enum status timed_gather(struct device *d, struct stream *s, const struct gather_params *p)
{
    uint64_t t0 = clock_now_ns();
    enum status status = state.real->gather(d, s, p);

    add(PROFILE_GATHER, t0, 0, 0);
    return status;
}

const struct ops *profile_ops(const struct ops *real, const struct weights *w, uint32_t n_layers)
{
    ASSERT(n_layers > 0);
    state.real = real;
    state.weights = w;
    state.n_layers = n_layers;
    state.layer = 0;
    state.timed = *real; /* an op that is not known here runs untimed */
    state.timed.embed = timed_embed;
    state.timed.rmsnorm = timed_rmsnorm;
    state.timed.gemm = timed_gemm;
    state.timed.rope_kv = timed_rope_kv;
    state.timed.attention = timed_attention;
    state.timed.silu_mul = timed_silu_mul;
    state.timed.gather = timed_gather;
    profile_reset();
    return &state.timed;
}

void profile_reset(void)
{
    memset(&state.sums, 0, sizeof state.sums);
}

void profile_read(struct profile *out)
{
    *out = state.sums;
}

const char *profile_op_name(enum profile_op op)
{
    static const char *const names[PROFILE_OP_COUNT] = {
        [PROFILE_EMBED] = "embed",     [PROFILE_NORM] = "norm",           [PROFILE_QKV] = "qkv",
        [PROFILE_ROPE] = "rope",       [PROFILE_ATTENTION] = "attention", [PROFILE_O] = "o",
        [PROFILE_GATE_UP] = "gate_up", [PROFILE_SILU] = "silu",           [PROFILE_DOWN] = "down",
        [PROFILE_GATHER] = "gather",   [PROFILE_OUTPUT] = "output",
    };
    return names[op];
}
