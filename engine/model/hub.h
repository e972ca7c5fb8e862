/* hub.h - a model's name to a directory on this machine.
 *
 * Knows the layout of the Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else
 * ~/.cache/huggingface/hub):
 *
 *     models--{org}--{name}/refs/{revision}        text: a commit
 *     models--{org}--{name}/snapshots/{commit}/    the model's files
 *
 * Reads only; never goes to the network.
 *
 * Owns    nothing.
 * Thread  any; reads the environment.
 * Errors  ERR_NOT_FOUND with words that say where was looked.
 * Units   none. */
#ifndef TARN_ENGINE_MODEL_HUB_H
#define TARN_ENGINE_MODEL_HUB_H

#include "base/buf.h"

/* `name` is a directory, or org/name, or org/name@revision (a branch, a tag or a commit; "main"
 * when not given). The directory's path is appended to *path. */
NODISCARD enum status hub_resolve(const char *name, struct buf *path, struct buf *why);

#endif
