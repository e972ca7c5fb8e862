/* checkpoint.h - a model.safetensors of random floats for any model_config.
 *
 * Owns    nothing.
 * Thread  one at a time.
 * Errors  what fails ends the test.
 * Units   elements. */
#ifndef TARN_TESTS_ENGINE_CHECKPOINT_H
#define TARN_TESTS_ENGINE_CHECKPOINT_H

#include "engine/model/model.h"

/* DIR/model.safetensors with all tensors that the config asks for, in m->stored_dtype. */
void checkpoint_write(const char *dir, const struct model_config *m);
void checkpoint_remove(const char *dir);

#endif
