/* hub.h - turn a model's name into a directory on this machine.
 *
 * Knows the layout of the Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else
 * ~/.cache/huggingface/hub):
 *
 *     models--{org}--{name}/refs/{revision}        text: a commit
 *     models--{org}--{name}/snapshots/{commit}/    the model's files
 *
 * Reads only, and never uses the network.
 *
 * Owns    nothing.
 * Thread  any; reads the environment.
 * Errors  ERR_NOT_FOUND with a reason that names the places searched.
 * Units   none. */
#ifndef TARN_ENGINE_MODEL_HUB_H
#define TARN_ENGINE_MODEL_HUB_H

#include "base/buf.h"

/* Append the path of the model's directory to *path. `name` is a directory, org/name, or
 * org/name@revision (a branch, a tag or a commit; "main" by default). */
NODISCARD enum status hub_resolve(const char *name, struct buf *path, struct buf *why);

#endif
