#include "cache/key.h"

#include <endian.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define ID_BYTES 3
#define STARTS_SEGMENT (1u << 23)
#define MESSAGE_BYTES_MAX (KV_KEY_BYTES + ID_BYTES * KV_BLOCK_TOKENS)

void key_domain(uint8_t *domain, const uint8_t *fingerprint, const struct kv_scope *scope)
{
    _Static_assert(KV_DOMAIN_BYTES == HASH_DOMAIN_BYTES, "what the hash takes");
    hash_blake2b(domain, KV_DOMAIN_BYTES, scope->bytes, KV_SCOPE_BYTES, fingerprint,
                 KV_FINGERPRINT_BYTES);
}

void key_of_block(struct kv_key *out, const uint8_t *domain, const struct kv_key *prev,
                  bool starts_segment, const uint32_t *ids, uint32_t n_ids)
{
    uint8_t message[MESSAGE_BYTES_MAX + 1],
        *m = message; /* each id is written as 4 bytes, then cut to 3 */

    uint32_t all = 0;

    ASSERT(n_ids >= 1 && n_ids <= KV_BLOCK_TOKENS);
    memcpy(m, prev->bytes, KV_KEY_BYTES);
    m += KV_KEY_BYTES;
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t v = htole32(ids[i] | (i == 0 && starts_segment ? STARTS_SEGMENT : 0));

        all |= ids[i];
        memcpy(m, &v, sizeof v);
        m += ID_BYTES;
    }
    ASSERT(all <= KV_ID_MAX); /* model.c refuses vocabularies that go beyond */
    hash_blake2b_domain(out->bytes, KV_KEY_BYTES, message, (size_t)(m - message), domain);
}

void kv_chain_init(struct kv_chain *c, const uint8_t *fingerprint, const struct kv_scope *scope,
                   uint32_t segment_tokens)
{
    ASSERT(segment_tokens >= KV_BLOCK_TOKENS && segment_tokens <= KV_SEGMENT_TOKENS_MAX &&
           segment_tokens % KV_BLOCK_TOKENS == 0);
    *c = (struct kv_chain){.scope = *scope, .segment_tokens = segment_tokens};
    memcpy(c->fingerprint, fingerprint, KV_FINGERPRINT_BYTES);
    key_domain(c->domain, fingerprint, scope);
}

static void set_scope(struct kv_chain *c, const struct kv_scope *scope)
{
    c->scope = *scope;
    key_domain(c->domain, c->fingerprint, scope);
}

static void close_block(struct kv_chain *c, struct kv_key *key)
{
    key_of_block(key, c->domain, &c->prev, c->block_starts_segment, c->ids, c->n_open);
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

/* Feed a whole block at once, when no block is open. */
static void push_block(struct kv_chain *c, const uint32_t *ids, struct kv_key *key)
{
    if (c->n_in_segment == c->segment_tokens)
        c->n_in_segment = 0;
    key_of_block(key, c->domain, &c->prev, c->n_in_segment == 0, ids, KV_BLOCK_TOKENS);
    c->prev = *key;
    c->n_in_segment += KV_BLOCK_TOKENS;
}

bool kv_chain_end_span(struct kv_chain *c, struct kv_key *key)
{
    c->n_in_segment = 0;
    if (c->n_open == 0)
        return false;
    close_block(c, key);
    return true;
}

static bool is_fresh(const struct kv_chain *c)
{
    static const struct kv_key start;

    return c->n_open == 0 && memcmp(&c->prev, &start, sizeof start) == 0;
}

void kv_chain_narrow(struct kv_chain *c, const struct kv_scope *scope)
{
    ASSERT(c->n_open == 0);
    set_scope(c, scope);
}

uint32_t kv_chain_prompt(struct kv_chain *c, const uint32_t *ids, uint32_t n_ids,
                         const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_public,
                         struct kv_key *keys_out)
{
    static const struct kv_scope everybody;
    const struct kv_scope own = c->scope;
    uint32_t n_keys = 0, span = 0;
    bool in_public = n_public > 0;

    /* A public block cannot follow a tenant's block: scopes only narrow. */
    ASSERT(!in_public || is_fresh(c));
    if (in_public)
        set_scope(c, &everybody);
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t end = span < n_span_ends && span_ends[span] < n_ids ? span_ends[span] : n_ids;

        if (c->n_open == 0 && end - i >= KV_BLOCK_TOKENS) {
            push_block(c, ids + i, &keys_out[n_keys++]);
            i += KV_BLOCK_TOKENS - 1;
        } else if (kv_chain_push(c, ids[i], &keys_out[n_keys])) {
            n_keys++;
        }
        if (span < n_span_ends && span_ends[span] == i + 1) {
            span++;
            if (kv_chain_end_span(c, &keys_out[n_keys]))
                n_keys++;
            /* A block has one scope, so the scope changes only where no block is open. */
            if (in_public && i + 1 == n_public) {
                set_scope(c, &own);
                in_public = false;
            }
        }
    }
    ASSERT(!in_public); /* n_public was no span end: a tenant's ids were hashed as public */
    return n_keys;
}
