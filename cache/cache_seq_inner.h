/* cache_seq_inner.h - what the files of a sequence share: cache_seq.c cuts it and holds its blocks,
 * cache_seq_wait.c is about the time before it runs, cache_seq_query.c about KV that stays
 * elsewhere.
 *
 * Owns    nothing.
 * Thread  as cache.h.
 * Errors  none.
 * Units   as cache.h. */
#ifndef TARN_CACHE_CACHE_SEQ_INNER_H
#define TARN_CACHE_CACHE_SEQ_INNER_H

#include "cache/cache_inner.h"

/* The state of cutting a sequence: the next block starts at pos. */
struct cursor {
    uint32_t pos;
    uint32_t n_in_segment; /* 0: the next block starts a segment */
    uint32_t span;         /* index of the next span end */
};

#define SEQ_LOOKUPS_MAX POOL_AVOID_MAX /* of one waiting sequence */
#define SEQ_LENDERS_MAX 4u             /* instances over which a long part is spread */
#define SEQ_PARTS_MAX (2 * SEQ_LENDERS_MAX)

/* Consecutive segments of a remote range that one lookup found. */
struct remote_part {
    uint32_t lookup; /* the sequence is one of its queriers */
    uint32_t to;     /* after its last block; it begins where the part before ends */
    uint32_t n_segments;
    uint32_t query;     /* of the pool; POOL_NO_QUERY */
    uint32_t n_queried; /* segments that the query names */
};

/* Whole segments of a path, blocks [from, to), on the instances that lookups found. */
struct remote_range {
    struct remote_part parts[SEQ_PARTS_MAX];
    uint32_t n_parts; /* 0: there is no range */
    uint32_t from, to;
    uint32_t pos0;     /* the first token of `from` */
    struct cursor end; /* after them */
    uint32_t n_segments;
};

struct cache_seq {
    struct cache *cache;
    struct cache_prompt prompt;
    struct kv_chain chain; /* continues prompt.chain with generated ids */
    uint32_t n_ids;        /* known ids: the prompt's and the generated ones */
    uint32_t n_tokens_max; /* as opened */
    uint32_t n_blocks_max;
    struct kv_key *keys; /* [n_blocks_max] keys of closed blocks, prompt's first */
    uint32_t *event_ids; /* [n_tokens_max], the first n_ids known; NULL: no events want ids */
    uint32_t n_keys;
    uint32_t n_match_max;      /* tokens that a match may cover: cache_seq_limit_match() */
    uint32_t n_match_keys_max; /* blocks within these tokens */
    uint32_t *blocks;          /* [n_blocks_max] */
    uint32_t *block_pos0;      /* [n_blocks_max] */
    uint32_t n_blocks;
    struct attn_segment *segments; /* [n_blocks_max] */
    uint32_t n_segments;
    uint32_t n_tokens;        /* committed */
    uint32_t n_slots;         /* grown */
    struct cursor cursor;     /* after the last block held */
    struct store_end end;     /* blocks [0, end.n_blocks) belong to the tree */
    struct cursor end_cursor; /* after these */
    struct store_use use;
    bool has_run;        /* it attached before */
    bool is_private;     /* later blocks cannot enter the tree */
    uint32_t n_expected; /* blocks that it declared as expected */
    bool expects_tail;   /* it declared a tail, too */
    double due_s;        /* the due time that it declared */
    bool asked_prefetch;
    bool was_prefetched; /* everything was fetched when n_expected_out had this value */
    uint64_t n_expected_out;
    uint32_t tail_pos0, tail_n; /* place and tokens of a tail that it left; 0: none */
    struct kv_key tail_name;
    bool is_loading; /* part of its path may lie in slow tiers only */
    bool is_reading; /* all reads were under way when n_load_events had this value */
    uint64_t n_load_events;
    bool has_looked;                  /* the pool was asked, or need not be */
    uint32_t n_looks;                 /* how often it was asked again */
    double looked_s;                  /* when it was asked last */
    uint32_t promised0, promised_end; /* blocks that the pool knows as coming; end 0: none */
    bool hesitates;                   /* it looks elsewhere for these, too */
    uint32_t lookups[SEQ_LOOKUPS_MAX], n_lookups; /* of which it is a user while it loads */
    uint32_t own_lookup; /* its latest one for the tree; STORE_NO_LOOKUP: none */
    uint32_t n_spread;   /* parts of the range for which other lenders were asked */
    bool has_chosen;     /* whether to send queries, for what was found */
    bool never_queries;
    uint32_t n_offered;         /* leading blocks that this and other instances had */
    uint32_t n_output;          /* tokens that it is expected to generate */
    struct remote_range remote; /* chosen while it waited; in use while n_remote > 0 */
    uint32_t remote0, n_remote; /* segments that lie elsewhere */
    uint32_t n_remote_blocks;   /* behind end.n_blocks */
    uint32_t query_rows;        /* of the queries under way */
    uint64_t query_until_ns;
    bool waits; /* it would have run, had it not been loading: since wait_began_s */
    double wait_began_s;
    uint64_t session; /* 0: none */
    bool keeps;       /* cache_seq_keep() */
    uint64_t keep_due_ns, keep_until_ns;
    bool has_left;       /* nodes of it are in the tree, under private keys */
    struct kv_key nonce; /* of private keys; zero with prefix caching */
};

/* Whether KV may have to be read before a sequence can use it. */
static inline bool cache_reads_slow(const struct cache *c)
{
    return (c->config.disk.path || c->pool) && c->config.prefix_caching;
}

/* Tokens that the block at the cursor will have when it closes. */
static inline uint32_t cut_len(const struct cache_seq *s, const struct cursor *at)
{
    uint32_t n = KV_BLOCK_TOKENS;

    if (at->span < s->prompt.n_span_ends && s->prompt.span_ends[at->span] - at->pos < n)
        n = s->prompt.span_ends[at->span] - at->pos;
    return n;
}

/* Step over one closed block. */
static inline void cut_next(const struct cache_seq *s, struct cursor *at)
{
    uint32_t n = cut_len(s, at);

    at->pos += n;
    at->n_in_segment += n;
    if (at->n_in_segment == s->cache->config.segment_tokens)
        at->n_in_segment = 0;
    if (at->span < s->prompt.n_span_ends && s->prompt.span_ends[at->span] == at->pos) {
        at->span++;
        at->n_in_segment = 0;
    }
}

/* The number of closed blocks that a match may cover: none with the last known id, which is always
 * computed, and none behind the limit of the sequence. */
static inline uint32_t n_keys_to_match(const struct cache_seq *s)
{
    uint32_t n = s->n_keys - (s->n_keys > 0 && s->chain.n_open == 0);

    return n < s->n_match_keys_max ? n : s->n_match_keys_max;
}

static inline struct ktree_match match_path(const struct cache_seq *s)
{
    if (!s->cache->config.prefix_caching && !s->has_left)
        return (struct ktree_match){.node = KTREE_ROOT};
    return store_match(s->cache->store, s->keys, n_keys_to_match(s));
}

/* The key of the tail that this sequence left, or NULL. */
static inline const struct kv_key *own_tail(const struct cache_seq *s)
{
    return s->tail_n ? &s->tail_name : NULL;
}

/* The cursor behind a match. Blocks and segments are counted from the beginning of their span. */
struct cursor cursor_behind(const struct cache_seq *s, const struct ktree_match *m);
/* Append block `id` to the sequence and advance the cursor. */
void hold_block(struct cache_seq *s, uint32_t id);

/* --- cache_seq_query.c --- */

bool may_choose_queries(const struct cache_seq *s);
/* All lookups of the sequence are answered: choose whether it sends queries, once. True: first a
 * further lookup is to be answered. */
bool choose_queries(struct cache_seq *s);
/* Ask the pool again if queries were chosen and are not possible any more. */
void reconsider_queries(struct cache_seq *s);
/* Whether the waiting sequence would send queries if it attached now. *m: the match of its path,
 * which is cut to what it then attaches of it. */
bool may_attach_remote(const struct cache_seq *s, struct ktree_match *m);
/* Append the remote part behind the local one. found: as cache_seq_attach(). */
void attach_remote(struct cache_seq *s, uint32_t *found);
/* The sequence ends: hand its private blocks behind the remote part to the lender of its end, if
 * they are wanted again, or this instance drains. */
void bequeath_private(struct cache_seq *s);
/* The sequence sends no queries any more, until it chooses again. */
void end_queries(struct cache_seq *s);

/* --- cache_seq_wait.c --- */

/* Describe the first n closed blocks. */
void describe_blocks(const struct cache_seq *s, struct pool_meta *meta, uint32_t n);

/* Tell the pool what the sequence is going to compute, once; and that it has, or will not. */
void promise_blocks(struct cache_seq *s);
void end_promise(struct cache_seq *s);

static inline void set_loading(struct cache_seq *s, bool is_loading)
{
    s->cache->n_loading += is_loading;
    s->cache->n_loading -= s->is_loading;
    s->is_loading = is_loading;
}

/* The sequence needs no lookup any more. */
static inline void stop_loading(struct cache_seq *s)
{
    set_loading(s, false);
    while (s->n_lookups > 0)
        store_end_lookup(s->cache->store, s->lookups[--s->n_lookups]);
    s->own_lookup = STORE_NO_LOOKUP;
}

#endif
