#include "engine/step_memory.h"

#include "engine/request.h"
#include "engine/settings.h"
#include "kernels/device.h"

/* Free memory of a GPU that the KV pool leaves: the allocator rounds up, and the driver allocates
 * when kernels are launched for the first time. */
#define GPU_SPARE_BYTES ((uint64_t)256 << 20)

/* Least number of rows of logits in a step: with a small max_num_seqs the output layer would
 * compute the logprobs of prompts row by row. */
#define LOGITS_ROWS_MIN 16u

uint32_t step_memory_batched_tokens(const struct engine_config *c, bool is_host)
{
    if (c->max_batched_tokens > 0)
        return c->max_batched_tokens;
    return is_host ? DEFAULT_MAX_NUM_BATCHED_TOKENS : DEFAULT_GPU_BATCHED_TOKENS;
}

uint32_t step_memory_guesses(const struct engine_config *c, const struct device *d)
{
    if (!device_is_host(d) && !c->batch_invariant)
        return 0; /* a row's bits depend on the rows beside it */
    return c->speculative_tokens < DRAFT_TOKENS_MAX ? c->speculative_tokens : DRAFT_TOKENS_MAX;
}

uint32_t step_memory_logits_rows(const struct engine_config *c, const struct device *d)
{
    uint32_t least = step_memory_guesses(c, d) + 1;

    least = least > LOGITS_ROWS_MIN ? least : LOGITS_ROWS_MIN;
    least = least < c->max_batched_tokens ? least : c->max_batched_tokens;
    return c->max_num_seqs > least ? c->max_num_seqs : least;
}

struct forward_config step_memory_forward(const struct step_memory *m)
{
    const struct engine_config *c = m->config;
    struct device *d = m->group.devices[0];
    uint64_t n_blocks =
        (uint64_t)c->max_num_seqs * cache_blocks_max(m->max_model_len, REQUEST_N_SPANS_MAX, 0);

    return (struct forward_config){.group = m->group,
                                   .model = m->share,
                                   .weights = m->weights,
                                   .n_rows_max = c->max_batched_tokens,
                                   .n_out_max = step_memory_logits_rows(c, d),
                                   .n_pos = m->max_model_len,
                                   .n_seqs_max = c->max_num_seqs,
                                   .adapter_rank = c->max_adapters ? c->max_adapter_rank : 0,
                                   .n_blocks_max =
                                       n_blocks < UINT32_MAX ? (uint32_t)n_blocks : UINT32_MAX,
                                   .device_logits = device_ops(d)->sample != NULL};
}

struct device_sampler_config step_memory_sampler(const struct step_memory *m)
{
    struct device *d = m->group.devices[0];

    return (struct device_sampler_config){.device = d,
                                          .n_vocab = m->model->n_vocab,
                                          .n_rows_max = step_memory_logits_rows(m->config, d),
                                          .n_known_max = m->max_model_len};
}

/* Only the first device of a group samples. */
uint64_t step_memory_bytes(const struct step_memory *m)
{
    struct forward_config fwd = step_memory_forward(m);
    struct device_sampler_config ds = step_memory_sampler(m);
    bool samples = m->group.rank == 0 && fwd.device_logits;

    return forward_device_bytes(&fwd) + (samples ? device_sampler_device_bytes(&ds) : 0);
}

uint64_t step_memory_reserve(const struct step_memory *m, struct step_graphs_cost *cost)
{
    struct device *d = m->group.devices[0];

    *cost = (struct step_graphs_cost){.is_possible = false};
    if (m->config->enforce_eager || device_is_host(d) || m->group.n > 1)
        return 0;
    step_graphs_measure(d, cost);
    return step_graphs_reserve(cost, forward_kernels_max(m->model));
}

uint64_t kv_room_bytes(const struct kv_room *r)
{
    uint64_t taken = r->taken_bytes + r->step_bytes, spare = r->step_bytes + GPU_SPARE_BYTES;
    uint64_t may_take = (uint64_t)(r->utilization * (double)r->n_total);
    uint64_t left = may_take > taken ? may_take - taken : 0;
    uint64_t n_free = r->n_free > spare ? r->n_free - spare : 0;

    return left < n_free ? left : n_free;
}
