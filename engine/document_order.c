#include "engine/document_order.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

#define N_BLOCKS_MAX 8192

/* A depth-first search over the cached paths. */
struct search {
    const struct cache *cache;
    const struct document_prompt *p;
    uint32_t n_looked; /* blocks looked up */
    bool *is_used;     /* [n_documents] on the path */
    uint32_t *path;    /* [n_documents] */
    uint32_t *best;    /* [n_documents]; the first n_best are set */
    uint32_t n_best, best_tokens;
};

static bool is_cached(struct search *s, const struct kv_key *key)
{
    s->n_looked++;
    return s->n_looked <= N_BLOCKS_MAX && cache_knows(s->cache, key);
}

/* Look up the span of ids [begin, end) behind *chain. *n_cached: its leading tokens that are
 * cached. True: all of them are. */
static bool follow(struct search *s, struct kv_chain *chain, uint32_t begin, uint32_t end,
                   uint32_t *n_cached)
{
    struct kv_key key;

    *n_cached = 0;
    for (uint32_t i = begin; i < end; i++) {
        if (!kv_chain_push(chain, s->p->ids[i], &key))
            continue;
        if (!is_cached(s, &key))
            return false;
        *n_cached = i + 1 - begin;
    }
    if (*n_cached == end - begin)
        (void)!kv_chain_end_span(chain, &key); /* no block is open, so there is no key */
    else if (!kv_chain_end_span(chain, &key) || !is_cached(s, &key))
        return false;
    *n_cached = end - begin;
    return true;
}

static void take_if_better(struct search *s, uint32_t n, uint32_t n_tokens)
{
    if (n_tokens <= s->best_tokens)
        return;
    s->best_tokens = n_tokens;
    s->n_best = n;
    memcpy(s->best, s->path, n * sizeof *s->best);
}

/* Extend the path. Its first n documents are cached, n_tokens tokens; *before: the chain behind
 * them. in_public: all of that is public. */
static void search_from(struct search *s, const struct kv_chain *before, bool in_public, uint32_t n,
                        uint32_t n_tokens)
{
    const struct document_place *place = s->p->documents;
    struct kv_chain here = *before;
    uint32_t n_cached;

    if (n == s->p->n_documents)
        return;
    if (n > 0 && place[n].begin > place[n - 1].end) {
        if (in_public)
            kv_chain_narrow(&here, s->p->scope);
        in_public = false;
        if (!follow(s, &here, place[n - 1].end, place[n].begin, &n_cached))
            return;
    }
    for (uint32_t i = 0; i < s->p->n_documents && s->n_looked < N_BLOCKS_MAX; i++) {
        struct kv_chain chain = here;
        bool is_public = in_public && place[i].is_public;
        if (s->is_used[i])
            continue;
        if (in_public && !is_public)
            kv_chain_narrow(&chain, s->p->scope);
        bool whole = follow(s, &chain, place[i].begin, place[i].end, &n_cached);
        if (n_cached == 0)
            continue;
        s->path[n] = i;
        s->is_used[i] = true;
        take_if_better(s, n + 1, n_tokens + n_cached);
        if (whole)
            search_from(s, &chain, is_public, n + 1, n_tokens + n_cached);
        s->is_used[i] = false;
    }
}

/* Compute the chain up to the first document. *in_public: all of it is public. *is_whole false:
 * some of it is not cached, so no document can be found behind it. */
static enum status follow_preamble(struct search *s, const struct engine *e, struct kv_chain *chain,
                                   bool *in_public, bool *is_whole)
{
    static const struct kv_scope everybody;
    const struct document_prompt *p = s->p;
    uint32_t n = p->documents[0].begin, n_ends = 0;

    *in_public = p->n_public > 0 && p->n_public >= n;
    kv_chain_init(chain, engine_fingerprint(e), *in_public ? &everybody : p->scope,
                  engine_segment_tokens(e));
    *is_whole = true;
    if (n == 0)
        return OK;
    while (n_ends < p->n_span_ends && p->span_ends[n_ends] <= n)
        n_ends++;
    struct kv_key *keys = calloc(cache_blocks_max(n, n_ends, 0), sizeof *keys);
    if (!keys)
        return ERR_NOMEM;
    uint32_t n_keys =
        kv_chain_prompt(chain, p->ids, n, p->span_ends, n_ends, *in_public ? 0 : p->n_public, keys);
    *is_whole = n_keys > 0 && cache_knows(s->cache, &keys[n_keys - 1]);
    free(keys);
    return OK;
}

/* Write the best path, and behind it the documents that are not on it. */
static void write_order(const struct search *s, uint32_t *order)
{
    uint32_t n = s->n_best;

    memcpy(order, s->best, n * sizeof *order);
    for (uint32_t i = 0; i < s->p->n_documents; i++) {
        bool on_path = false;
        for (uint32_t k = 0; k < s->n_best; k++)
            on_path |= s->best[k] == i;
        if (!on_path)
            order[n++] = i;
    }
}

enum status document_order_by_cache(const struct engine *e, const struct document_prompt *p,
                                    uint32_t *order, uint32_t *n_cached)
{
    uint32_t n = p->n_documents;
    struct search s = {.cache = e->cache,
                       .p = p,
                       .is_used = calloc(n + 1, sizeof(bool)),
                       .path = calloc(n + 1, sizeof(uint32_t)),
                       .best = calloc(n + 1, sizeof(uint32_t))};
    enum status st = s.is_used && s.path && s.best ? OK : ERR_NOMEM;
    struct kv_chain chain;
    bool is_whole = false, in_public = false;

    if (st == OK && n > 0)
        st = follow_preamble(&s, e, &chain, &in_public, &is_whole);
    if (st == OK && is_whole)
        search_from(&s, &chain, in_public, 0, 0);
    if (st == OK)
        write_order(&s, order);
    *n_cached = s.best_tokens;
    free(s.is_used);
    free(s.path);
    free(s.best);
    return st;
}
