/* fake_embedder.h - a test double of engine/embedder.h without a model.
 *
 * Tokens are bytes, 256 is in front of a text, 257 behind it. The prompt of a query is "q:", that
 * of a document "d:". A vector depends on every id; behind a first id FAKE_ZERO_ID all of its
 * elements but the last are zero.
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

#endif
