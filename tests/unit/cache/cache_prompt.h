/* cache_prompt.h - prompts written as text, for tests of the cache.
 *
 * A letter is a block: 32 tokens for a capital, 20 for a small one (only before '|', which ends a
 * span). One more token follows, because the last one is never found. "PPp|A" is a span of 84
 * tokens, and 33 more.
 *
 * Include it once. Owns nothing. One thread. A failure ends the test. Units: tokens. */
#ifndef TARN_TESTS_UNIT_CACHE_PROMPT_H
#define TARN_TESTS_UNIT_CACHE_PROMPT_H

#include "base/hash.h"
#include "cache/cache.h"
#include "kernels/device.h"

#define PROMPT_N_BLOCKS_MAX 40
#define PROMPT_N_IDS_MAX (PROMPT_N_BLOCKS_MAX * KV_BLOCK_TOKENS + 1)

static struct device *device;

struct prompt {
    uint32_t ids[PROMPT_N_IDS_MAX];
    uint32_t ends[PROMPT_N_BLOCKS_MAX];
    struct kv_key keys[2 * PROMPT_N_BLOCKS_MAX];
    struct cache_prompt p;
};

/* Compute the keys again after ids or ends were changed. */
static void hash_prompt(struct prompt *q, uint32_t n, uint32_t n_ends)
{
    static const uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope = {{0}};

    q->p = (struct cache_prompt){
        .ids = q->ids, .n_ids = n, .span_ends = q->ends, .n_span_ends = n_ends, .keys = q->keys};
    kv_chain_init(&q->p.chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    q->p.n_keys = kv_chain_prompt(&q->p.chain, q->ids, n, q->ends, n_ends, 0, q->keys);
}

static void prompt_of(struct prompt *q, const char *text)
{
    uint32_t n = 0, n_ends = 0;

    for (const char *at = text; *at; at++) {
        uint32_t len = *at == '|' ? 0 : *at < 'a' ? KV_BLOCK_TOKENS : 20;
        for (uint32_t i = 0; i < len; i++)
            q->ids[n++] = (uint32_t)*at;
        if (*at == '|')
            q->ends[n_ends++] = n;
    }
    q->ids[n++] = 0;
    hash_prompt(q, n, n_ends);
}

static struct cache_config small_config(uint32_t n_blocks, uint32_t n_host_blocks)
{
    return (struct cache_config){.group = device_group_of(device),
                                 .pool = {.layout = kv_layout_of(DTYPE_F32),
                                          .n_blocks = n_blocks,
                                          .n_layers = 1,
                                          .n_kv_heads = 1,
                                          .head_dim = 2},
                                 .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                                 .prefix_caching = true,
                                 .policy = "lru",
                                 .n_host_blocks = n_host_blocks,
                                 .prefetch_share = 0.5,
                                 .hold_share = 0.5,
                                 .always_copy = true};
}

static bool open_device(void)
{
    struct device_config config = {.kind = DEVICE_REF,
                                   .n_threads = 1,
                                   .max_rows = 1,
                                   .max_k = 1,
                                   .max_heads = 1,
                                   .max_head_dim = 2};

    return hash_init() == OK && device_open(&device, &config, NULL) == OK;
}

#endif
