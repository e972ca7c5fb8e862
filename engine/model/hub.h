/* hub.h - from a model's name to a directory or a GGUF file on this machine.
 *
 * Knows the layout of the Hugging Face cache (HF_HUB_CACHE, else HF_HOME/hub, else
 * ~/.cache/huggingface/hub):
 *
 *     models--{org}--{name}/refs/{revision}        text: a commit
 *     models--{org}--{name}/snapshots/{commit}/    the model's files: links to ../../blobs/
 *     models--{org}--{name}/blobs/{checksum}       their bytes
 *
 * Reads only, and never uses the network. hub_download.h fills the cache.
 *
 * Owns    nothing.
 * Thread  any; reads the environment.
 * Errors  ERR_NOT_FOUND with a reason that names the places searched; ERR_INVALID a name that fits
 *         several GGUF files, with the list.
 * Units   none. */
#ifndef TARN_ENGINE_MODEL_HUB_H
#define TARN_ENGINE_MODEL_HUB_H

#include <stdbool.h>

#include "base/buf.h"

#define HUB_NAME_BYTES_MAX 256
#define HUB_FILE_BYTES_MAX 1024
#define HUB_PATH_BYTES_MAX 4096

/* A name org/name[@revision][:FILE]. */
struct hub_name {
    char org[HUB_NAME_BYTES_MAX];
    char name[HUB_NAME_BYTES_MAX];
    char revision[HUB_NAME_BYTES_MAX]; /* a branch, a tag or a commit; "main" by default */
    char file[HUB_FILE_BYTES_MAX];     /* a GGUF file or a part of its name; "": none was given */
};

/* Take a name apart. False: the text is no name of this form. */
bool hub_name_parse(const char *text, struct hub_name *out);
/* Whether a path is relative and stays below its directory: no empty part, none that begins with
 * "..", or is ".", no backslash and no control character. */
bool hub_is_inside(const char *path);
/* Whether a name given by a user means this file: its path or last part, or, if it does not end
 * with ".gguf", a part of them in any case, as Q4_K_M does. "" means every file. Files with
 * "mmproj" in their name (of images) are meant by their whole name only. */
bool hub_fits(const char *path, const char *wanted);
/* Whether the file is a later part of a split GGUF model (NAME-00002-of-00005.gguf), which the
 * first part finds by itself. */
bool hub_is_later_part(const char *path);
/* Whether both files are parts of one split GGUF model. */
bool hub_is_same_split(const char *a, const char *b);

/* Write the root of the cache. */
void hub_cache_root(char root[HUB_PATH_BYTES_MAX]);
/* Append the directory of a model in the cache to *path, whether or not there is one. */
NODISCARD enum status hub_repo_path(const struct hub_name *h, struct buf *path);

/* Append what model_config_load() takes to *path. `name` is a directory with config.json or with
 * one GGUF file, a GGUF file, or org/name[@revision][:FILE] in the cache. */
NODISCARD enum status hub_resolve(const char *name, struct buf *path, struct buf *why);
/* Whether hub_resolve() finds the name, and all files of weights that its index lists are there. A
 * download that was cut short leaves a directory without some of them. */
bool hub_has_model(const char *name);

#endif
