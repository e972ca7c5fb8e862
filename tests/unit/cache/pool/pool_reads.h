/* pool_reads.h - reads of pool_world.h's sides into memory of the test.
 *
 * Owns    read_into, which set_up() zeroes.
 * Thread  one, the test's.
 * Errors  assertions of cmocka.
 * Units   blocks. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_POOL_READS_H
#define TARN_TESTS_UNIT_CACHE_POOL_POOL_READS_H

#include "tests/unit/cache/pool/pool_world.h"

static uint8_t read_into[N_PATH][BLOCK_BYTES];

/* Begin to read blocks [from, from + n) with this tag. */
static inline enum status read_blocks(struct side *s, uint32_t ticket, uint32_t from, uint32_t n,
                                      uint64_t tag)
{
    uint32_t at[POOL_READ_MAX];
    void *memory[POOL_READ_MAX];

    for (uint32_t i = 0; i < n; i++) {
        at[i] = from + i;
        memory[i] = read_into[from + i];
    }
    return pool_read(s->pool, ticket, at, memory, n, tag);
}

static inline void check_blocks(uint32_t from, uint32_t end)
{
    static uint8_t expected[BLOCK_BYTES];

    for (uint32_t i = from; i < end; i++) {
        world_fill(expected, i);
        assert_memory_equal(read_into[i], expected, BLOCK_BYTES);
    }
}

static inline struct pool_stats stats_of(struct side *s)
{
    struct pool_stats stats;

    pool_stats(s->pool, &stats);
    return stats;
}

static inline int set_up(void **state)
{
    (void)state;
    memset(read_into, 0, sizeof read_into);
    world_begin();
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    world_end();
    return 0;
}

#endif
