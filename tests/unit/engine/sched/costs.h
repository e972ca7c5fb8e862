/* costs.h - cost models and an ample memory for tests of the scheduler, so simple that expected
 * times can be computed by head.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  any failure ends the test with a message.
 * Units   tokens, blocks; seconds. */
#ifndef TARN_TESTS_SCHED_COSTS_H
#define TARN_TESTS_SCHED_COSTS_H

#include "engine/sched/cost_model.h"
#include "tests/unit/test.h"

/* A chunk of n tokens takes fixed_s + n token_s whatever is cached; a decode takes decode_s, and
 * one of 1000 sequences decode_1000_s. */
static inline struct cost_model cost_of_lines(double fixed_s, double token_s, double decode_s,
                                              double decode_1000_s)
{
    static const uint32_t cached[2] = {0, 1000}, axis[2] = {1, 1000};
    const double one = fixed_s + token_s, all = fixed_s + 1000 * token_s;
    const double seconds[4] = {one, all, one, all};
    const double decode[4] = {decode_s, decode_1000_s, decode_s, decode_1000_s};
    struct cost_model m;

    assert_ok(cost_model_init(&m,
                              &(struct cost_points){.cached = cached,
                                                    .new_tokens = axis,
                                                    .batch = axis,
                                                    .n_cached = 2,
                                                    .n_new = 2,
                                                    .n_batch = 2,
                                                    .seconds = seconds,
                                                    .decode = decode},
                              NULL));
    return m;
}

/* A step of one row takes 10 ms, and so does one of 8; then 1 ms a row. Each further decode takes
 * 0.5 ms. */
static inline struct cost_model cost_of_rows(void)
{
    static const uint32_t cached[] = {0, 1000}, fresh[] = {1, 8, 108}, batch[] = {1, 101};
    static const double seconds[] = {.010, .010, .110, .010, .010, .110};
    static const double decode[] = {.010, .060, .010, .060};
    const struct cost_points points = {cached, fresh, batch, 2, 3, 2, seconds, decode};
    struct cost_model m;

    assert_ok(cost_model_init(&m, &points, NULL));
    return m;
}

/* Of a scheduler's view: with AMPLE_BLOCKS available, nothing is ever reclaimed. */
#define AMPLE_BLOCKS (1u << 20)

static inline uint32_t one_block_needed(void *arg, uint32_t slot, uint32_t n_tokens)
{
    (void)arg, (void)slot, (void)n_tokens;
    return 1;
}

static inline uint32_t one_block_reclaimable(void *arg, uint32_t slot)
{
    (void)arg, (void)slot;
    return 1;
}

#endif
