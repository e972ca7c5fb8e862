/* fake_embedder.h - a test double of engine/embedder.h without a model.
 *
 * Tokens are bytes, 256 is in front of a text, 257 behind it. The prompt of a query is "q:", that
 * of a document "d:". A vector depends on every id; behind a first id FAKE_ZERO_ID all of its
 * elements but the last are zero.
 *
 * Opened for labels, the model has two, or one if fake_embedder_n_labels says so. Two texts are
 * joined as 256 A 257 B 257, the ids of B and behind have type 1. The first logit is the sum of all
 * ids and of the places of type 1, over 100; the second one is 0.
 *
 * Owns    nothing.
 * Thread  as embedder.h; the settings below are atomics.
 * Errors  as embedder.h.
 * Units   tokens. */
#ifndef TARN_TESTS_FAKE_EMBEDDER_H
#define TARN_TESTS_FAKE_EMBEDDER_H

#include <stdatomic.h>

#include "engine/embedder.h"

#define FAKE_DIM 8
#define FAKE_MAX_TOKENS 16 /* unless set */
#define FAKE_EMBEDDER_N_VOCAB 258
#define FAKE_ZERO_ID 0

extern atomic_bool fake_embedder_is_held;    /* embedder_encode_ids() waits while it is set */
extern atomic_uint fake_embedder_max_tokens; /* of a text */
extern atomic_uint fake_embedder_n_begun;    /* calls of it that have begun */
extern atomic_uint fake_embedder_n_labels;   /* before embedder_open(): 1 or 2 */

#endif
