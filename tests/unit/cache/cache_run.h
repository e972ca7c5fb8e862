/* cache_run.h - whole lives of sequences with prompts of cache_prompt.h, and the tiers of their KV.
 *
 * Include it once, behind tests/unit/test.h. Owns nothing. One thread. A failure ends the test.
 * Units: tokens, blocks. */
#ifndef TARN_TESTS_UNIT_CACHE_RUN_H
#define TARN_TESTS_UNIT_CACHE_RUN_H

#include <string.h>

#include "tests/unit/cache/cache_prompt.h"

static struct cache *make(const struct cache_config *config)
{
    struct cache *c;

    assert_ok(cache_create(&c, config, NULL));
    return c;
}

/* A sequence that stays open, with its own prompt. */
struct open_seq {
    struct prompt q;
    struct cache_seq *s;
};

static struct cache_seq *seq(struct cache *c, struct open_seq *o, const char *text)
{
    prompt_of(&o->q, text);
    assert_ok(cache_seq_open(c, &o->q.p, o->q.p.n_ids, &o->s));
    return o->s;
}

/* Compute all tokens that are not found. found [CACHE_N_TIERS], or NULL: tokens found in each
 * tier. */
static uint32_t compute(const struct open_seq *o, uint32_t *found)
{
    uint32_t hit = cache_seq_attach(o->s, found);

    assert_ok(cache_seq_grow(o->s, o->q.p.n_ids - hit));
    cache_seq_commit(o->s, o->q.p.n_ids - hit);
    return hit;
}

/* Open, compute and close a sequence. Return the tokens that were found. */
static uint32_t run_found(struct cache *c, const char *text, uint32_t *found)
{
    struct open_seq o;

    seq(c, &o, text);
    uint32_t hit = compute(&o, found);
    cache_check(c);
    cache_seq_close(o.s);
    cache_check(c);
    return hit;
}

static uint32_t run(struct cache *c, const char *text)
{
    return run_found(c, text, NULL);
}

static uint32_t match(struct cache *c, const char *text)
{
    struct open_seq o;
    uint32_t n = cache_match(seq(c, &o, text));

    cache_seq_close(o.s);
    return n;
}

/* Run four other sequences of 4 blocks, which evict all other blocks of a device with 16. */
static void run_others(struct cache *c)
{
    static const char *const others[] = {"WWWW", "XXXX", "YYYY", "ZZZZ"};

    for (int i = 0; i < 4; i++) {
        run(c, others[i]);
        (void)cache_poll(c, 0); /* prefetched blocks are pinned until this poll */
    }
}

static struct cache_stats stats_of(const struct cache *c)
{
    struct cache_stats stats;

    cache_stats(c, &stats);
    return stats;
}

static void settle(struct cache *c, uint64_t now_ns)
{
    while (cache_poll(c, now_ns)) {
    }
    cache_check(c);
}

/* Count, per tier, the blocks of the span at depth 0 that begins with the text. */
static void lies(struct cache *c, const char *text, uint32_t *n_in)
{
    struct cache_span spans[64];
    struct prompt q;
    uint32_t n_all, n = cache_top_spans(c, spans, 64, &n_all);

    prompt_of(&q, text);
    n_in[CACHE_DEVICE] = n_in[CACHE_HOST] = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!memcmp(&spans[i].key, &q.keys[0], sizeof q.keys[0]))
            memcpy(n_in, spans[i].n_blocks_in, sizeof spans[i].n_blocks_in);
}

static void assert_lies(struct cache *c, const char *text, uint32_t n_device, uint32_t n_host)
{
    uint32_t n_in[CACHE_N_TIERS];

    lies(c, text, n_in);
    assert_int_equal(n_in[CACHE_DEVICE], n_device);
    assert_int_equal(n_in[CACHE_HOST], n_host);
}

#endif
