/* cache_seq.c - a sequence: how it is cut into blocks and segments, and which blocks it holds.
 *
 * The leading blocks belong to the tree, are shared with sequences that begin alike, and are held
 * by one pin on the last node of that path. The blocks behind them, which are not closed or not
 * written yet, are private.
 *
 * Without prefix caching the blocks enter the tree only when the sequence is preempted, under keys
 * that no other sequence has, and are forgotten when it is closed. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "cache/cache_seq_inner.h"
#include "cache/key.h"

#define RUN_BLOCKS_MAX (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
/* The cost per byte of a miss is taken for at least this many tokens: fewer tokens cost a whole
 * step, which says little about the cost of more. */
#define MISS_TOKENS_MIN KV_SEGMENT_TOKENS_MAX
/* A shorter tail is not worth a block: its tokens are computed again in a step that runs anyway. */
#define TAIL_TOKENS_MIN 4

uint32_t cache_blocks_max(uint32_t n_ids, uint32_t n_span_ends, uint32_t n_more)
{
    return (uint32_t)(((uint64_t)n_ids + n_more) / KV_BLOCK_TOKENS) + n_span_ends + 1;
}

/* --- matching --- */

void cache_seq_limit_match(struct cache_seq *s, uint32_t n_tokens)
{
    struct cursor at = {0};
    uint32_t n = 0;

    cache_assert_owner(s->cache);
    s->n_match_max = n_tokens;
    s->n_match_keys_max = UINT32_MAX;
    if (n_tokens == CACHE_MATCH_ALL)
        return;
    while (n < s->n_keys && at.pos + cut_len(s, &at) <= n_tokens) {
        cut_next(s, &at);
        n++;
    }
    s->n_match_keys_max = n;
}

/* --- private keys --- */

/* A nonce that no other sequence has, so that its keys differ from all others. */
static void make_nonce(struct cache *c, struct kv_key *out)
{
    uint64_t n = c->n_nonces++;

    hash_blake2b(out->bytes, sizeof out->bytes, &n, sizeof n, NULL, 0);
}

static void hide_key(const struct cache_seq *s, struct kv_key *key)
{
    for (uint32_t i = 0; i < KV_KEY_BYTES; i++)
        key->bytes[i] ^= s->nonce.bytes[i];
}

/* --- life --- */

/* Blocks under private keys are not written to disk: use->ids stays NULL. */
static bool reads_disk(const struct cache *c)
{
    return c->config.disk.path && c->config.prefix_caching;
}

static bool sends_ids(const struct cache *c)
{
    return c->config.kv_events && c->config.prefix_caching;
}

enum status cache_seq_open(struct cache *c, const struct cache_prompt *prompt,
                           uint32_t n_tokens_max, struct cache_seq **out)
{
    uint32_t n = cache_blocks_max(n_tokens_max, prompt->n_span_ends, 0);
    size_t bytes = sizeof(struct cache_seq) +
                   n * (sizeof(struct kv_key) + sizeof(struct attn_segment) + 2 * sizeof(uint32_t));

    cache_assert_owner(c);
    ASSERT(prompt->n_keys <= n && prompt->n_ids <= n_tokens_max);
    *out = NULL;
    if (sends_ids(c))
        bytes += n_tokens_max * sizeof(uint32_t);
    struct cache_seq *s = calloc(1, bytes);
    if (!s)
        return ERR_NOMEM;
    s->cache = c;
    s->prompt = *prompt;
    s->chain = prompt->chain;
    s->n_ids = prompt->n_ids;
    s->n_tokens_max = n_tokens_max;
    s->n_blocks_max = n;
    s->segments = (struct attn_segment *)(s + 1);
    s->blocks = (uint32_t *)(s->segments + n);
    s->block_pos0 = s->blocks + n;
    s->keys = (struct kv_key *)(s->block_pos0 + n);
    if (prompt->n_keys)
        memcpy(s->keys, prompt->keys, prompt->n_keys * sizeof *s->keys);
    s->n_keys = prompt->n_keys;
    if (sends_ids(c)) {
        s->event_ids = (uint32_t *)(s->keys + n);
        memcpy(s->event_ids, prompt->ids, prompt->n_ids * sizeof *prompt->ids);
    }
    s->n_match_max = CACHE_MATCH_ALL;
    s->n_match_keys_max = UINT32_MAX;
    if (!c->config.prefix_caching) {
        make_nonce(c, &s->nonce);
        for (uint32_t i = 0; i < s->n_keys; i++)
            hide_key(s, &s->keys[i]);
    }
    s->end.node = KTREE_ROOT;
    set_loading(s, cache_reads_slow(c));
    s->own_lookup = STORE_NO_LOOKUP;
    c->n_seqs++;
    *out = s;
    return OK;
}

/* Give back the private blocks behind the first n_keep blocks, last block first. */
static void give_from(struct cache_seq *s, uint32_t n_keep)
{
    ASSERT(n_keep >= s->end.n_blocks);
    while (s->n_blocks > n_keep)
        if (s->blocks[--s->n_blocks] != CACHE_NO_BLOCK)
            store_give(s->cache->store, s->blocks[s->n_blocks]);
}

/* Withdraw what the sequence declared as expected: it waits no more. */
static void stop_expecting(struct cache_seq *s)
{
    struct store *st = s->cache->store;

    if (s->expects_tail)
        store_unexpect(st, &s->tail_name, 1, s->due_s);
    if (s->n_expected)
        store_unexpect(st, s->keys, s->n_expected, s->due_s);
    s->n_expected = 0;
    s->expects_tail = false;
}

/* The ids at [pos, pos + n). NULL: they are generated ids of a closed block, which are not kept. */
static const uint32_t *ids_at(const struct cache_seq *s, uint32_t pos, uint32_t n)
{
    if (pos + n <= s->prompt.n_ids)
        return s->prompt.ids + pos;
    return pos == s->n_ids - s->chain.n_open && n <= s->chain.n_open ? s->chain.ids : NULL;
}

/* The key of the first n tokens of the block at `at`, as if the block closed after them. */
static bool tail_key(const struct cache_seq *s, const struct cursor *at, uint32_t n_blocks,
                     uint32_t n, struct kv_key *key)
{
    const uint32_t *ids = ids_at(s, at->pos, n);

    if (!ids || n_blocks == 0)
        return false;
    /* The scope is the sequence's own, even inside a public preamble: a narrower scope is never
     * wrong. */
    key_of_block(key, s->chain.domain, &s->keys[n_blocks - 1], at->n_in_segment == 0, ids, n);
    return true;
}

/* Leave the written part of the open block in the tree, where this sequence finds it after a
 * preemption, and the next turn of a conversation after the end. */
static void leave_tail(struct cache_seq *s)
{
    struct cursor at = s->end_cursor;
    uint32_t first = s->end.n_blocks, n = s->n_tokens - at.pos;

    s->tail_n = 0;
    if (s->is_private || first == s->n_blocks || n < TAIL_TOKENS_MIN || n >= cut_len(s, &at) ||
        !tail_key(s, &at, first, n, &s->tail_name) ||
        !store_leave_tail(s->cache->store, &s->end, &s->tail_name, s->blocks[first], at.pos, n,
                          at.span, &s->use))
        return;
    s->tail_pos0 = at.pos;
    s->tail_n = n;
    /* The block now belongs to the tree. */
    memmove(s->blocks + first, s->blocks + first + 1,
            (s->n_blocks - first - 1) * sizeof *s->blocks);
    s->n_blocks--;
}

/* --- entering the tree --- */

/* The closed and committed blocks of one segment behind the end of the path. */
static uint32_t next_run(const struct cache_seq *s, struct cursor *at)
{
    uint32_t first = s->end.n_blocks, n = 0;

    *at = s->end_cursor;
    while (first + n < s->n_blocks && first + n < s->n_keys && n < RUN_BLOCKS_MAX &&
           at->pos + cut_len(s, at) <= s->n_tokens) {
        cut_next(s, at);
        n++;
        if (at->n_in_segment == 0)
            break;
    }
    return n;
}

static void enter_tree(struct cache_seq *s)
{
    struct cursor at;
    uint32_t n;

    while (!s->is_private && (n = next_run(s, &at)) > 0) {
        uint32_t first = s->end.n_blocks;
        struct store_run run = {.keys = s->keys + first,
                                .blocks = s->blocks + first,
                                .n = n,
                                .pos0 = s->end_cursor.pos,
                                .n_tokens = at.pos - s->end_cursor.pos,
                                .depth = s->end_cursor.span,
                                .starts_segment = s->end_cursor.n_in_segment == 0};

        if (store_append(s->cache->store, &s->end, &run, &s->use) < n)
            s->is_private = true;
        else
            s->end_cursor = at;
    }
}

/* --- the end --- */

/* Give back every reference. leaves: the computed blocks stay in the tree. */
static void let_go(struct cache_seq *s, bool leaves)
{
    end_promise(s);
    if (s->n_blocks == 0)
        return; /* it has not run, and still waits */
    if (leaves && !s->cache->config.prefix_caching) {
        enter_tree(s);
        s->has_left = true;
    }
    if (leaves)
        leave_tail(s);
    give_from(s, s->end.n_blocks);
    store_release(s->cache->store, &s->end);
    end_queries(s);
    s->n_blocks = s->n_segments = s->n_tokens = s->n_slots = 0;
    s->cursor = s->end_cursor = (struct cursor){0};
    s->is_private = s->was_prefetched = s->asked_prefetch = s->is_reading = false;
    set_loading(s, cache_reads_slow(s->cache));
    s->has_looked = s->has_chosen = false;
    s->n_offered = s->n_spread = s->n_looks = 0;
}

void cache_seq_drop(struct cache_seq *s)
{
    cache_assert_owner(s->cache);
    let_go(s, true);
}

/* Closed blocks of the path that are in the tree, here or on another instance. */
static uint32_t n_known_blocks(const struct cache_seq *s)
{
    return s->end.n_blocks + s->n_remote_blocks;
}

/* Remember the path of n_blocks, and the tail behind it, until the session's next request. */
static void keep_for_session(struct cache_seq *s, uint32_t n_blocks)
{
    struct store_keep keep = {.session = s->session,
                              .keys = s->keys,
                              .n = n_blocks,
                              .n_prompt = s->prompt.n_keys < n_blocks ? s->prompt.n_keys : n_blocks,
                              .n_prompt_ids = s->prompt.n_ids,
                              .tail = own_tail(s),
                              .due_ns = s->keep_due_ns,
                              .until_ns = s->keep_until_ns};

    store_keep(s->cache->store, &keep);
}

void cache_seq_close(struct cache_seq *s)
{
    if (!s)
        return;
    struct store *st = s->cache->store;
    cache_assert_owner(s->cache);
    stop_expecting(s);
    stop_loading(s);
    if (s->asked_prefetch && s->n_blocks == 0) { /* it still waits */
        struct ktree_match m = match_path(s);
        store_forget_prefetch(st, &m, own_tail(s));
    }
    uint32_t n_blocks = s->end.n_blocks; /* closed and in the tree */
    uint32_t n_known = n_known_blocks(s);
    bequeath_private(s);
    let_go(s, s->cache->config.prefix_caching);
    end_queries(s);
    if (s->keeps && s->cache->config.prefix_caching) {
        store_supersede(st, s->session, s->keys, n_known, s->prompt.n_ids);
        keep_for_session(s, n_blocks);
    }
    if (s->has_left && s->n_keys > 0)
        (void)store_forget(st, &s->keys[0]);
    set_loading(s, false);
    s->cache->n_seqs--;
    free(s);
}

void cache_seq_extend(struct cache_seq *s, uint32_t id)
{
    struct kv_key key;

    if (s->event_ids && s->n_ids < s->n_tokens_max) {
        s->event_ids[s->n_ids] = id;
        s->use.n_event_ids = s->n_ids + 1;
    }
    s->n_ids++;
    if (kv_chain_push(&s->chain, id, &key)) {
        ASSERT(s->n_keys < s->n_blocks_max);
        hide_key(s, &key);
        s->keys[s->n_keys++] = key;
    }
}

/* --- what is found --- */

struct cursor cursor_behind(const struct cache_seq *s, const struct ktree_match *m)
{
    struct cursor at = {.pos = store_match_tokens(s->cache->store, m)};
    uint32_t low = 0, high = s->prompt.n_span_ends; /* the first span end behind pos */

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (s->prompt.span_ends[mid] <= at.pos)
            low = mid + 1;
        else
            high = mid;
    }
    at.span = low;
    at.n_in_segment =
        (at.pos - (low ? s->prompt.span_ends[low - 1] : 0)) % s->cache->config.segment_tokens;
    return at;
}

/* The tail of *n tokens behind the match, at cursor `at`: the one that this sequence left, else the
 * longest. */
static uint32_t find_tail(const struct cache_seq *s, const struct ktree_match *m,
                          const struct cursor *at, uint32_t *n)
{
    uint32_t n_max = cut_len(s, at) - 1, node = KTREE_NONE, n_min = TAIL_TOKENS_MIN;
    struct kv_key key;

    *n = 0;
    if (!store_has_tails(s->cache->store, m) || at->pos >= s->n_match_max)
        return KTREE_NONE;
    if (n_max > s->n_ids - 1 - at->pos)
        n_max = s->n_ids - 1 - at->pos;
    if (n_max > s->n_match_max - at->pos)
        n_max = s->n_match_max - at->pos;
    if (s->tail_n && s->tail_pos0 == at->pos && s->tail_n <= n_max)
        n_min = n_max = s->tail_n;
    for (uint32_t i = n_max; i >= n_min && node == KTREE_NONE; i--)
        if (tail_key(s, at, m->n_blocks, i, &key)) {
            node = store_find_tail(s->cache->store, m, &key);
            *n = i;
        }
    *n = node == KTREE_NONE ? 0 : *n;
    return node;
}

uint32_t cache_match(const struct cache_seq *s)
{
    struct ktree_match m = match_path(s);
    if (may_attach_remote(s, &m))
        return s->remote.end.pos;
    struct cursor at = cursor_behind(s, &m);
    uint32_t n_tail;

    (void)find_tail(s, &m, &at, &n_tail);
    return at.pos + n_tail;
}

uint32_t cache_match_disk(const struct cache_seq *s)
{
    if (!cache_reads_slow(s->cache))
        return cache_match(s);
    struct ktree_match m = store_match_all(s->cache->store, s->keys, n_keys_to_match(s));
    uint32_t n = store_match_tokens(s->cache->store, &m), n_memory = cache_match(s);
    return n > n_memory ? n : n_memory;
}

/* A key names its block and all before it, so the common keys are the first ones. */
uint32_t cache_seq_shared(const struct cache_seq *s, const struct cache_seq *other)
{
    uint32_t first = 0, n = n_keys_to_match(s);
    struct cursor at = {0};

    n = other->is_private ? 0 : n < other->n_keys ? n : other->n_keys;
    while (first < n) { /* the first `first` keys are equal, key n differs or is not there */
        uint32_t middle = first + (n - first) / 2;
        if (memcmp(&s->keys[middle], &other->keys[middle], sizeof *s->keys) == 0)
            first = middle + 1;
        else
            n = middle;
    }
    for (uint32_t i = 0; i < first; i++)
        cut_next(s, &at);
    return at.pos;
}

/* --- holding --- */

void hold_block(struct cache_seq *s, uint32_t id)
{
    ASSERT(s->n_blocks < s->n_blocks_max);
    if (s->cursor.n_in_segment == 0)
        s->segments[s->n_segments++] = (struct attn_segment){s->cursor.pos, 0, s->n_blocks};
    s->blocks[s->n_blocks] = id;
    s->block_pos0[s->n_blocks++] = s->cursor.pos;
    cut_next(s, &s->cursor);
}

static double miss_seconds_per_byte(const struct cache_seq *s, uint32_t n_cached)
{
    const struct cache_config *c = &s->cache->config;
    uint32_t n_new = s->n_ids - n_cached;

    if (n_new < MISS_TOKENS_MIN)
        n_new = MISS_TOKENS_MIN;
    double seconds = c->seconds ? c->seconds(c->seconds_arg, n_cached, n_new) : n_new;
    return seconds / ((double)n_new / KV_BLOCK_TOKENS * (double)kv_block_bytes(&c->pool));
}

/* Convert found [CACHE_N_TIERS] from blocks to tokens. Earlier blocks lay in faster tiers. */
static void count_found(const struct cache_seq *s, uint32_t *found)
{
    uint32_t block = 0, pos0 = 0;

    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        uint32_t end;

        block += found[t];
        end = block < s->n_blocks ? s->block_pos0[block] : s->cursor.pos;
        found[t] = end - pos0;
        pos0 = end;
    }
}

/* Continue in a tail: a block that another sequence, or this one before a preemption, began. */
static void attach_tail(struct cache_seq *s, const struct ktree_match *m, uint32_t *found)
{
    uint32_t n, block, node = find_tail(s, m, &s->cursor, &n);
    enum cache_tier lay;

    if (node == KTREE_NONE || !store_take_tail(s->cache->store, node, &s->use, &block, &lay))
        return;
    hold_block(s, block);
    s->segments[s->n_segments - 1].n_tokens += n;
    s->n_tokens = s->n_slots += n;
    found[lay] += n;
}

/* Count the time for which the sequence waited, against what was read meanwhile. */
static void note_wait(struct cache_seq *s, const uint32_t *found)
{
    enum cache_tier tier = found[CACHE_REMOTE] > 0 || (s->has_looked && found[CACHE_DISK] == 0)
                               ? CACHE_REMOTE
                               : CACHE_DISK;

    if (s->waits)
        store_note_wait(s->cache->store, tier, store_now_s(s->cache->store) - s->wait_began_s,
                        found[tier] > 0);
    s->waits = false;
}

/* Count what became of KV that another instance had. */
static void note_way(struct cache_seq *s, const uint32_t *found)
{
    if (s->n_remote > 0)
        s->cache->n_ways[CACHE_QUERIED]++;
    else if (found[CACHE_REMOTE] > 0)
        s->cache->n_ways[CACHE_PULLED]++;
    else if (s->end.n_blocks < s->n_offered)
        s->cache->n_ways[CACHE_COMPUTED]++;
    s->n_offered = 0;
}

uint32_t cache_seq_attach(struct cache_seq *s, uint32_t *found)
{
    struct cache *c = s->cache;
    struct ktree_match m = match_path(s);
    uint32_t lay[CACHE_N_TIERS];

    cache_assert_owner(c);
    ASSERT(s->n_blocks == 0);
    stop_expecting(s);
    stop_loading(s);
    bool queries = may_attach_remote(s, &m);
    if (!queries)
        promise_blocks(s);
    s->use = (struct store_use){.is_new = !s->has_run,
                                .session = s->session,
                                .miss_s_per_byte =
                                    miss_seconds_per_byte(s, store_match_tokens(c->store, &m)),
                                .ids = reads_disk(c) ? s->prompt.ids : NULL,
                                .n_ids = s->prompt.n_ids,
                                .n_public = s->prompt.n_public,
                                .scope = s->prompt.chain.scope,
                                .event_ids = s->event_ids,
                                .n_event_ids = s->event_ids ? s->n_ids : 0,
                                .salt = s->prompt.salt};
    store_attach(c->store, &m, &s->use, &s->end, s->blocks, lay);
    for (uint32_t i = 0; i < s->end.n_blocks; i++) {
        uint32_t n = cut_len(s, &s->cursor);
        hold_block(s, s->blocks[i]);
        s->segments[s->n_segments - 1].n_tokens += n;
    }
    s->end_cursor = s->cursor;
    s->n_tokens = s->n_slots = s->cursor.pos;
    count_found(s, lay);
    if (queries && s->end.n_blocks == m.n_blocks)
        attach_remote(s, lay);
    else
        end_queries(s);
    note_wait(s, lay);
    if (!queries && s->end.n_blocks == m.n_blocks)
        attach_tail(s, &m, lay);
    note_way(s, lay);
    if (s->has_run)
        c->n_restored_tokens += s->n_tokens;
    c->n_query_tokens += s->has_run ? 0 : s->n_ids;
    c->n_hit_tokens += s->has_run ? 0 : s->n_tokens;
    s->has_run = true;
    if (found)
        memcpy(found, lay, sizeof lay);
    return s->n_tokens;
}

/* Blocks to take for n more slots when the block before the cursor has `room` slots left. */
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
    if (s->n_blocks > 0)
        return count_new_blocks(s, s->cursor, s->cursor.pos - s->n_slots, n_tokens);
    struct ktree_match m = match_path(s);
    bool queries = may_attach_remote(s, &m);
    struct cursor at = cursor_behind(s, &m);
    uint32_t n_tail, room = 0, n = store_need(s->cache->store, &m);

    if (queries)
        at = s->remote.end;
    else if (find_tail(s, &m, &at, &n_tail) != KTREE_NONE) {
        room = cut_len(s, &at) - n_tail;
        cut_next(s, &at);
        n++;
    }
    n += count_new_blocks(s, at, room, n_tokens);
    if (s->cache->pool)
        store_note_need(s->cache->store, n);
    return n;
}

uint32_t cache_seq_reclaimable(const struct cache_seq *s)
{
    return s->n_blocks - s->end.n_blocks - s->n_remote_blocks +
           store_reclaimable(s->cache->store, &s->end);
}

/* Assign slots [n_slots, n_slots + n) to the segments already held. */
static void fill_slots(struct cache_seq *s, uint32_t n)
{
    s->n_slots += n;
    /* Only the last segments change: find the first that is not full. */
    uint32_t i = s->n_segments;
    while (i > 0 && s->segments[i - 1].pos0 + s->segments[i - 1].n_tokens != s->n_slots - n)
        i--;
    for (i = i ? i - 1 : 0; i < s->n_segments; i++) {
        uint32_t end = i + 1 < s->n_segments ? s->segments[i + 1].pos0 : s->n_slots;
        s->segments[i].n_tokens = (end < s->n_slots ? end : s->n_slots) - s->segments[i].pos0;
    }
}

static enum status grow(struct cache_seq *s, uint32_t n_tokens)
{
    struct cache *c = s->cache;
    uint32_t fresh[64];

    cache_assert_owner(c);
    uint32_t n_new = count_new_blocks(s, s->cursor, s->cursor.pos - s->n_slots, n_tokens);
    if (n_new > store_n_available(c->store))
        return ERR_NO_BLOCKS;
    while (n_new > 0) {
        uint32_t n = n_new < 64 ? n_new : 64;
        enum status st = store_take(c->store, fresh, n);
        ASSERT(st == OK); /* availability was checked before */
        for (uint32_t i = 0; i < n; i++)
            hold_block(s, fresh[i]);
        n_new -= n;
    }
    fill_slots(s, n_tokens);
    return OK;
}

enum status cache_seq_grow(struct cache_seq *s, uint32_t n_tokens)
{
    ASSERT((uint64_t)s->n_slots + n_tokens <= s->n_ids);
    return grow(s, n_tokens);
}

enum status cache_seq_grow_guessed(struct cache_seq *s, uint32_t n_tokens)
{
    ASSERT(s->n_slots == s->n_ids && n_tokens <= s->n_tokens_max - s->n_ids);
    return grow(s, n_tokens);
}

/* --- committing --- */

/* Tokens whose KV lies on other instances. */
static uint32_t n_remote_tokens(const struct cache_seq *s)
{
    if (s->n_remote == 0)
        return 0;
    const struct attn_segment *first = &s->segments[s->remote0], *last = first + s->n_remote - 1;
    return last->pos0 + last->n_tokens - first->pos0;
}

void cache_seq_commit(struct cache_seq *s, uint32_t n)
{
    cache_assert_owner(s->cache);
    ASSERT(s->n_tokens + n <= s->n_slots);
    s->n_tokens += n;
    s->cache->n_accesses += s->n_tokens - n_remote_tokens(s);
    if (s->cache->config.prefix_caching)
        enter_tree(s);
    if (s->promised_end > 0 && (s->is_private || s->end.n_blocks >= s->promised_end))
        end_promise(s);
    if (s->session && s->n_tokens == s->prompt.n_ids)
        store_supersede(s->cache->store, s->session, s->keys, n_known_blocks(s), s->prompt.n_ids);
}

void cache_seq_shrink(struct cache_seq *s)
{
    cache_assert_owner(s->cache);
    if (s->n_slots == s->n_tokens)
        return;
    /* Give back the blocks without a committed token, and replay the cuts to find the cursor. */
    uint32_t n_keep = 0;
    while (n_keep < s->n_blocks && s->block_pos0[n_keep] < s->n_tokens)
        n_keep++;
    give_from(s, n_keep);
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
    *out = (struct cache_view){s->blocks,   s->n_blocks, s->segments, s->n_segments,
                               s->n_tokens, s->n_slots,  s->remote0,  s->n_remote};
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
