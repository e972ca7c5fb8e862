#include "cache/key.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define MESSAGE_BYTES_MAX (KV_KEY_BYTES + KV_SCOPE_BYTES + 2 + 4 * KV_BLOCK_TOKENS)

void key_of_block(struct kv_key *out, const uint8_t *fingerprint, const struct kv_key *prev,
                  const struct kv_scope *scope, bool starts_segment, const uint32_t *ids,
                  uint32_t n_ids)
{
    uint8_t message[MESSAGE_BYTES_MAX], *m = message;

    ASSERT(n_ids >= 1 && n_ids <= KV_BLOCK_TOKENS);
    memcpy(m, prev->bytes, KV_KEY_BYTES);
    m += KV_KEY_BYTES;
    memcpy(m, scope->bytes, KV_SCOPE_BYTES);
    m += KV_SCOPE_BYTES;
    *m++ = starts_segment;
    *m++ = (uint8_t)n_ids;
    for (uint32_t i = 0; i < n_ids; i++) {
        *m++ = (uint8_t)ids[i];
        *m++ = (uint8_t)(ids[i] >> 8);
        *m++ = (uint8_t)(ids[i] >> 16);
        *m++ = (uint8_t)(ids[i] >> 24);
    }
    hash_blake2b(out->bytes, KV_KEY_BYTES, message, (size_t)(m - message), fingerprint,
                 KV_FINGERPRINT_BYTES);
}

void kv_chain_init(struct kv_chain *c, const uint8_t *fingerprint, const struct kv_scope *scope,
                   uint32_t segment_tokens)
{
    ASSERT(segment_tokens >= KV_BLOCK_TOKENS && segment_tokens <= KV_SEGMENT_TOKENS_MAX &&
           segment_tokens % KV_BLOCK_TOKENS == 0);
    *c = (struct kv_chain){.scope = *scope, .segment_tokens = segment_tokens};
    memcpy(c->fingerprint, fingerprint, KV_FINGERPRINT_BYTES);
}

static void close_block(struct kv_chain *c, struct kv_key *key)
{
    key_of_block(key, c->fingerprint, &c->prev, &c->scope, c->block_starts_segment, c->ids,
                 c->n_open);
    c->prev = *key;
    c->n_open = 0;
}

bool kv_chain_push(struct kv_chain *c, uint32_t id, struct kv_key *key)
{
    if (c->n_in_segment == c->segment_tokens)
        c->n_in_segment = 0;
    if (c->n_open == 0)
        c->block_starts_segment = c->n_in_segment == 0;
    c->ids[c->n_open++] = id;
    c->n_in_segment++;
    if (c->n_open < KV_BLOCK_TOKENS)
        return false;
    close_block(c, key);
    return true;
}

bool kv_chain_end_span(struct kv_chain *c, struct kv_key *key)
{
    c->n_in_segment = 0;
    if (c->n_open == 0)
        return false;
    close_block(c, key);
    return true;
}

uint32_t kv_chain_prompt(struct kv_chain *c, const uint32_t *ids, uint32_t n_ids,
                         const uint32_t *span_ends, uint32_t n_span_ends, struct kv_key *keys_out)
{
    uint32_t n_keys = 0, span = 0;

    for (uint32_t i = 0; i < n_ids; i++) {
        if (kv_chain_push(c, ids[i], &keys_out[n_keys]))
            n_keys++;
        if (span < n_span_ends && span_ends[span] == i + 1) {
            span++;
            if (kv_chain_end_span(c, &keys_out[n_keys]))
                n_keys++;
        }
    }
    return n_keys;
}
