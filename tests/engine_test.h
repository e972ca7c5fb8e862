/* engine_test.h - an engine with random weights, for property tests that need no model files.
 *
 * Owns    a temporary directory with config.json, removed by engine_test_close(), except after
 *         engine_test_open_model().
 * Thread  the test's main thread.
 * Errors  any failure ends the test with a message.
 * Units   tokens. */
#ifndef TARN_TESTS_ENGINE_TEST_H
#define TARN_TESTS_ENGINE_TEST_H

#include "engine/engine.h"

#define ENGINE_TEST_DIR_BYTES 64

struct engine_test {
    struct engine *engine;
    char dir[ENGINE_TEST_DIR_BYTES]; /* the directory to remove; "": none */
};

/* Open an engine and start its thread. config_json NULL: a small Llama (2 layers, 4 heads, 2 KV
 * heads, vocabulary 300). `c`: from engine_config_init(), with the test's changes. */
void engine_test_open(struct engine_test *t, const char *config_json, struct engine_config *c);
void engine_test_close(struct engine_test *t);
/* Make a directory with a config.json, for several engines and for processes that are killed. */
void engine_test_make_model(char dir[ENGINE_TEST_DIR_BYTES], const char *config_json);
void engine_test_remove_model(const char *dir);
/* Open an engine like engine_test_open(), with an existing directory, which is not removed. */
void engine_test_open_model(struct engine_test *t, const char *dir, struct engine_config *c);

/* Set the usual parameters: greedy, 20 logprobs, n_out tokens, no stops. */
void engine_test_params(struct sampling *sp, struct stopping *st, uint32_t n_out);
/* Create and submit a request. The caller owns the reference. */
struct request *engine_test_submit(struct engine_test *t, const uint32_t *ids, uint32_t n,
                                   const uint32_t *span_ends, uint32_t n_span_ends,
                                   const struct sampling *sp, const struct stopping *st);
/* Wait until the request has finished, for whatever reason. */
void engine_test_wait(const struct request *r);
/* Wait until nothing runs or waits. *out: the statistics at that time. */
void engine_test_idle(struct engine_test *t, struct engine_stats *out);
/* Wait until no KV block is in use, and fail if that takes too long or a block is leaked. */
void engine_test_holds_nothing(struct engine_test *t);

#endif
