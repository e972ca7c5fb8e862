/* checkpoint.h - writes a model.safetensors of random floats for any model_config.
 *
 * Owns    nothing.
 * Thread  one at a time.
 * Errors  any failure ends the test.
 * Units   elements. */
#ifndef TARN_TESTS_ENGINE_CHECKPOINT_H
#define TARN_TESTS_ENGINE_CHECKPOINT_H

#include "engine/model/model.h"

/* Write DIR/model.safetensors with all tensors of the config, in m->stored_dtype. */
void checkpoint_write(const char *dir, const struct model_config *m);
void checkpoint_remove(const char *dir);

#endif
