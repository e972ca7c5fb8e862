#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/block_pool.h"
#include "cache/key.h"
#include "kernels/device.h"

struct cache {
    struct device *device;
    struct kv_pool pool;
    uint32_t segment_tokens;
    bool prefix_caching;
    struct block_pool *blocks;
    uint32_t n_seqs;
    uint64_t n_query_tokens, n_hit_tokens;
    unsigned owner; /* the engine thread, known from its first call on */
};

/* Where the cut of a sequence stands: the block to come starts at pos. */
struct cursor {
    uint32_t pos;
    uint32_t n_in_segment; /* 0: the block to come starts a segment */
    uint32_t span;         /* index of the next span end */
};

struct cache_seq {
    struct cache *cache;
    struct cache_prompt prompt;
    struct kv_chain chain;      /* goes on from prompt.chain with generated ids */
    uint32_t n_ids;             /* known ids: the prompt's and the generated ones */
    uint32_t n_blocks_max;
    struct kv_key *keys;        /* [n_blocks_max] keys of closed blocks, prompt's first */
    uint32_t n_keys;
    uint32_t *blocks;           /* [n_blocks_max] */
    uint32_t *block_pos0;       /* [n_blocks_max] */
    uint32_t n_blocks;
    struct attn_segment *segments; /* [n_blocks_max] */
    uint32_t n_segments;
    uint32_t n_tokens;          /* committed */
    uint32_t n_slots;           /* grown */
    uint32_t n_named;           /* leading blocks that are committed whole */
    struct cursor cursor;       /* after the last block held */
};

uint32_t cache_blocks_max(uint32_t n_ids, uint32_t n_span_ends, uint32_t n_more)
{
    return (uint32_t)(((uint64_t)n_ids + n_more) / KV_BLOCK_TOKENS) + n_span_ends + 1;
}

static void assert_owner(struct cache *c)
{
    if (c->owner == 0)
        c->owner = check_thread_id();
    ASSERT_THREAD(c->owner);
}

enum status cache_create(struct cache **out, const struct cache_config *config, struct buf *why)
{
    struct cache *c = calloc(1, sizeof *c);
    enum status s = ERR_NOMEM;

    *out = NULL;
    if (!c)
        goto done;
    c->device = config->device;
    c->pool = config->pool;
    c->segment_tokens = config->segment_tokens;
    c->prefix_caching = config->prefix_caching;
    s = block_pool_create(&c->blocks, c->pool.n_blocks);
    if (s != OK)
        goto done;
    c->pool.base = device_alloc(c->device, kv_block_bytes(&c->pool) * c->pool.n_blocks);
    s = c->pool.base ? OK : ERR_NOMEM;
done:
    if (s != OK) {
        buf_why(why, s, "cannot allocate a KV pool of %u blocks of %zu bytes; lower "
                "--kv-device-bytes", config->pool.n_blocks, kv_block_bytes(&config->pool));
        cache_destroy(c);
        return s;
    }
    *out = c;
    return OK;
}

void cache_destroy(struct cache *c)
{
    if (!c)
        return;
    ASSERT(c->n_seqs == 0);
    if (c->pool.base)
        device_free(c->device, c->pool.base);
    block_pool_destroy(c->blocks);
    free(c);
}

const struct kv_pool *cache_pool(const struct cache *c)
{
    return &c->pool;
}

/* --- the cut --- */

/* Tokens of the block that starts at the cursor, once it is closed. */
static uint32_t cut_len(const struct cache_seq *s, const struct cursor *at)
{
    uint32_t n = KV_BLOCK_TOKENS;

    if (at->span < s->prompt.n_span_ends && s->prompt.span_ends[at->span] - at->pos < n)
        n = s->prompt.span_ends[at->span] - at->pos;
    return n;
}

/* Step over one closed block. */
static void cut_next(const struct cache_seq *s, struct cursor *at)
{
    uint32_t n = cut_len(s, at);

    at->pos += n;
    at->n_in_segment += n;
    if (at->n_in_segment == s->cache->segment_tokens)
        at->n_in_segment = 0;
    if (at->span < s->prompt.n_span_ends && s->prompt.span_ends[at->span] == at->pos) {
        at->span++;
        at->n_in_segment = 0;
    }
}

/* --- sequences --- */

enum status cache_seq_open(struct cache *c, const struct cache_prompt *prompt,
                           uint32_t n_tokens_max, struct cache_seq **out)
{
    uint32_t n = cache_blocks_max(n_tokens_max, prompt->n_span_ends, 0);
    size_t bytes = sizeof(struct cache_seq) +
                   n * (sizeof(struct kv_key) + sizeof(struct attn_segment) + 2 * sizeof(uint32_t));

    assert_owner(c);
    ASSERT(prompt->n_keys <= n && prompt->n_ids <= n_tokens_max);
    *out = NULL;
    struct cache_seq *s = calloc(1, bytes);
    if (!s)
        return ERR_NOMEM;
    s->cache = c;
    s->prompt = *prompt;
    s->chain = prompt->chain;
    s->n_ids = prompt->n_ids;
    s->n_blocks_max = n;
    s->segments = (struct attn_segment *)(s + 1);
    s->blocks = (uint32_t *)(s->segments + n);
    s->block_pos0 = s->blocks + n;
    s->keys = (struct kv_key *)(s->block_pos0 + n);
    if (prompt->n_keys)
        memcpy(s->keys, prompt->keys, prompt->n_keys * sizeof *s->keys);
    s->n_keys = prompt->n_keys;
    c->n_seqs++;
    *out = s;
    return OK;
}

static void release_from(struct cache_seq *s, uint32_t n_keep)
{
    /* Last block first: of a path, what lies deepest becomes the oldest and is evicted first. */
    while (s->n_blocks > n_keep)
        block_pool_unref(s->cache->blocks, s->blocks[--s->n_blocks]);
}

void cache_seq_drop(struct cache_seq *s)
{
    assert_owner(s->cache);
    release_from(s, 0);
    s->n_segments = s->n_tokens = s->n_slots = s->n_named = 0;
    s->cursor = (struct cursor){0};
}

void cache_seq_close(struct cache_seq *s)
{
    if (!s)
        return;
    cache_seq_drop(s);
    s->cache->n_seqs--;
    free(s);
}

void cache_seq_extend(struct cache_seq *s, uint32_t id)
{
    struct kv_key key;

    s->n_ids++;
    if (kv_chain_push(&s->chain, id, &key)) {
        ASSERT(s->n_keys < s->n_blocks_max);
        s->keys[s->n_keys++] = key;
    }
}

/* Walk the cached path without changing anything: tokens hit, blocks hit, and how many of those
 * no sequence holds now. */
static uint32_t walk_hits(const struct cache_seq *s, struct cursor *at, uint32_t *n_blocks,
                          uint32_t *n_unreferenced)
{
    *at = (struct cursor){0};
    *n_blocks = *n_unreferenced = 0;
    if (!s->cache->prefix_caching)
        return 0;
    while (*n_blocks < s->n_keys && at->pos + cut_len(s, at) < s->n_ids) {
        uint32_t id = block_pool_find(s->cache->blocks, &s->keys[*n_blocks]);
        if (id == BLOCK_NONE)
            break;
        *n_unreferenced += block_pool_n_refs(s->cache->blocks, id) == 0;
        ++*n_blocks;
        cut_next(s, at);
    }
    return at->pos;
}

uint32_t cache_match(const struct cache_seq *s)
{
    struct cursor at;
    uint32_t n_blocks, n_unreferenced;

    return walk_hits(s, &at, &n_blocks, &n_unreferenced);
}

/* Note block `id` at the cursor as the sequence's next one. */
static void hold_block(struct cache_seq *s, uint32_t id)
{
    ASSERT(s->n_blocks < s->n_blocks_max);
    if (s->cursor.n_in_segment == 0)
        s->segments[s->n_segments++] = (struct attn_segment){s->cursor.pos, 0, s->n_blocks};
    s->blocks[s->n_blocks] = id;
    s->block_pos0[s->n_blocks++] = s->cursor.pos;
    cut_next(s, &s->cursor);
}

uint32_t cache_seq_attach(struct cache_seq *s)
{
    struct cursor at;
    uint32_t n_hits, n_unreferenced;
    struct cache *c = s->cache;

    assert_owner(c);
    ASSERT(s->n_blocks == 0);
    uint32_t n_tokens = walk_hits(s, &at, &n_hits, &n_unreferenced);
    for (uint32_t i = 0; i < n_hits; i++) {
        uint32_t id = block_pool_find(c->blocks, &s->keys[i]);
        uint32_t n = cut_len(s, &s->cursor);
        block_pool_ref(c->blocks, id);
        hold_block(s, id);
        s->segments[s->n_segments - 1].n_tokens += n;
    }
    s->n_tokens = s->n_slots = n_tokens;
    s->n_named = n_hits;
    c->n_query_tokens += s->n_ids;
    c->n_hit_tokens += n_tokens;
    return n_tokens;
}

/* Blocks to allocate for n more slots, when the block before the cursor has `room` slots left. */
static uint32_t count_new_blocks(const struct cache_seq *s, struct cursor at, uint32_t room,
                                 uint32_t n)
{
    uint32_t n_new = 0;

    n = n > room ? n - room : 0;
    while (n > 0) {
        uint32_t len = cut_len(s, &at);
        n -= len < n ? len : n;
        cut_next(s, &at);
        n_new++;
    }
    return n_new;
}

uint32_t cache_seq_need(const struct cache_seq *s, uint32_t n_tokens)
{
    struct cursor at;
    uint32_t n_hits, n_unreferenced;

    if (s->n_blocks > 0)
        return count_new_blocks(s, s->cursor, s->cursor.pos - s->n_slots, n_tokens);
    walk_hits(s, &at, &n_hits, &n_unreferenced);
    return n_unreferenced + count_new_blocks(s, at, 0, n_tokens);
}

uint32_t cache_seq_reclaimable(const struct cache_seq *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_blocks; i++)
        n += block_pool_n_refs(s->cache->blocks, s->blocks[i]) == 1;
    return n;
}

/* Give slots [n_slots, n_slots + n) their places in the segments already held. */
static void fill_slots(struct cache_seq *s, uint32_t n)
{
    s->n_slots += n;
    /* Only trailing segments change: find the first that is not full yet. */
    uint32_t i = s->n_segments;
    while (i > 0 && s->segments[i - 1].pos0 + s->segments[i - 1].n_tokens != s->n_slots - n)
        i--;
    for (i = i ? i - 1 : 0; i < s->n_segments; i++) {
        uint32_t end = i + 1 < s->n_segments ? s->segments[i + 1].pos0 : s->n_slots;
        s->segments[i].n_tokens = (end < s->n_slots ? end : s->n_slots) - s->segments[i].pos0;
    }
}

enum status cache_seq_grow(struct cache_seq *s, uint32_t n_tokens)
{
    struct cache *c = s->cache;
    uint32_t fresh[64];

    assert_owner(c);
    ASSERT((uint64_t)s->n_slots + n_tokens <= s->n_ids);
    uint32_t n_new = count_new_blocks(s, s->cursor, s->cursor.pos - s->n_slots, n_tokens);
    if (n_new > block_pool_n_available(c->blocks))
        return ERR_NO_BLOCKS;
    while (n_new > 0) {
        uint32_t n = n_new < 64 ? n_new : 64;
        enum status st = block_pool_alloc(c->blocks, fresh, n);
        ASSERT(st == OK); /* availability was checked for all of them */
        for (uint32_t i = 0; i < n; i++)
            hold_block(s, fresh[i]);
        n_new -= n;
    }
    fill_slots(s, n_tokens);
    return OK;
}

/* Block i is committed whole: name it, or take the equal block that has the name already. */
static void settle_block(struct cache_seq *s, uint32_t i)
{
    struct block_pool *bp = s->cache->blocks;
    uint32_t other;

    if (!s->cache->prefix_caching)
        return;
    other = block_pool_find(bp, &s->keys[i]);
    if (other == BLOCK_NONE) {
        block_pool_name(bp, s->blocks[i], &s->keys[i]);
    } else if (other != s->blocks[i]) {
        block_pool_ref(bp, other);
        block_pool_unref(bp, s->blocks[i]);
        s->blocks[i] = other;
    }
}

void cache_seq_commit(struct cache_seq *s, uint32_t n)
{
    assert_owner(s->cache);
    ASSERT(s->n_tokens + n <= s->n_slots);
    s->n_tokens += n;
    while (s->n_named < s->n_blocks && s->n_named < s->n_keys) {
        uint32_t end = s->n_named + 1 < s->n_blocks ? s->block_pos0[s->n_named + 1]
                                                    : s->cursor.pos;
        if (end > s->n_tokens)
            break;
        settle_block(s, s->n_named++);
    }
}

void cache_seq_shrink(struct cache_seq *s)
{
    assert_owner(s->cache);
    if (s->n_slots == s->n_tokens)
        return;
    /* Blocks without a committed token go; the cut is replayed to find the cursor again. */
    uint32_t n_keep = 0;
    while (n_keep < s->n_blocks && s->block_pos0[n_keep] < s->n_tokens)
        n_keep++;
    release_from(s, n_keep);
    s->cursor = (struct cursor){0};
    s->n_segments = 0;
    for (uint32_t i = 0; i < n_keep; i++) {
        if (s->cursor.n_in_segment == 0)
            s->n_segments++;
        cut_next(s, &s->cursor);
    }
    s->n_slots = s->n_tokens;
    if (s->n_segments > 0) {
        struct attn_segment *last = &s->segments[s->n_segments - 1];
        last->n_tokens = s->n_tokens - last->pos0;
    }
}

void cache_seq_view(const struct cache_seq *s, struct cache_view *out)
{
    *out = (struct cache_view){s->blocks, s->n_blocks, s->segments, s->n_segments, s->n_tokens,
                               s->n_slots};
}

void cache_seq_slot(const struct cache_seq *s, uint32_t pos, uint32_t *block, uint32_t *offset)
{
    uint32_t low = 0, high = s->n_blocks; /* the last block with block_pos0 <= pos */

    ASSERT(pos < s->n_slots);
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (s->block_pos0[mid] <= pos)
            low = mid;
        else
            high = mid;
    }
    *block = s->blocks[low];
    *offset = pos - s->block_pos0[low];
}

/* --- watching --- */

void cache_stats(const struct cache *c, struct cache_stats *out)
{
    *out = (struct cache_stats){.n_query_tokens = c->n_query_tokens,
                                .n_hit_tokens = c->n_hit_tokens};
    block_pool_stats(c->blocks, out);
}

uint32_t cache_n_available(const struct cache *c)
{
    return block_pool_n_available(c->blocks);
}

void cache_check(const struct cache *c)
{
    block_pool_check(c->blocks);
}

void cache_reset(struct cache *c)
{
    assert_owner(c);
    block_pool_forget(c->blocks);
}
