/* engine_test.h - an engine over random weights, without files to ship: for property tests.
 *
 * Owns    a temporary directory with config.json, removed by engine_test_close(); but for
 *         engine_test_open_model().
 * Thread  the test's main thread.
 * Errors  everything that fails ends the test with a message.
 * Units   tokens. */
#ifndef TARN_TESTS_ENGINE_TEST_H
#define TARN_TESTS_ENGINE_TEST_H

#include "engine/engine.h"

#define ENGINE_TEST_DIR_BYTES 64

struct engine_test {
    struct engine *engine;
    char dir[ENGINE_TEST_DIR_BYTES]; /* "": somebody else's */
};

/* config_json NULL: a small Llama (2 layers, 4 heads, 2 KV heads, vocabulary 300). The engine's
 * thread runs. `c` comes from engine_config_init() with the test's own changes. */
void engine_test_open(struct engine_test *t, const char *config_json, struct engine_config *c);
void engine_test_close(struct engine_test *t);
/* A directory with that config.json, for several engines and for processes that are killed. */
void engine_test_make_model(char dir[ENGINE_TEST_DIR_BYTES], const char *config_json);
void engine_test_remove_model(const char *dir);
/* engine_test_open() over one that is there, and stays. */
void engine_test_open_model(struct engine_test *t, const char *dir, struct engine_config *c);

/* The usual parameters: greedy, 20 logprobs, n_out tokens, no stops. */
void engine_test_params(struct sampling *sp, struct stopping *st, uint32_t n_out);
/* Create and submit; the reference is the caller's. */
struct request *engine_test_submit(struct engine_test *t, const uint32_t *ids, uint32_t n,
                                   const uint32_t *span_ends, uint32_t n_span_ends,
                                   const struct sampling *sp, const struct stopping *st);
/* Until it has finished, whatever the reason. */
void engine_test_wait(const struct request *r);
/* Wait until nothing runs and return the statistics of then. */
void engine_test_idle(struct engine_test *t, struct engine_stats *out);

#endif
