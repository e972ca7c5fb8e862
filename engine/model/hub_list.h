/* hub_list.h - the files of a model on a hub, and which of them Tarn needs.
 *
 * Reads the answer of GET /api/models/ORG/NAME/revision/REVISION?blobs=true: `sha`, and `siblings`
 * with `rfilename`, `size`, `blobId` (git's name of the content) and, for large files,
 * `lfs.sha256`. All of it is hostile: a path that could leave its directory, a size or checksum
 * that is none and too many files end with an error.
 *
 * Owns    the parsed answer until hub_list_fini().
 * Thread  any.
 * Errors  ERR_INVALID an answer against the rules; ERR_NOT_FOUND nothing that Tarn reads;
 *         ERR_TOO_LARGE; words name the file.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_HUB_LIST_H
#define TARN_ENGINE_MODEL_HUB_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define HUB_COMMIT_DIGITS 40
#define HUB_SUM_DIGITS_MAX 64
#define HUB_INDEX_FILE "model.safetensors.index.json"

struct json;

struct hub_file {
    const char *path;
    uint64_t n_bytes;
    char sum[HUB_SUM_DIGITS_MAX + 1]; /* hex: SHA-256 if is_large, else git's; names the blob */
    bool is_large;
    bool is_wanted;
};

struct hub_list {
    char commit[HUB_COMMIT_DIGITS + 1];
    struct hub_file *files; /* [n], in the order of their paths */
    size_t n;
    struct json *json;
};

NODISCARD enum status hub_list_parse(struct hub_list *out, const char *text, size_t len,
                                     struct buf *why);
void hub_list_fini(struct hub_list *l); /* a zeroed struct is fine */
struct hub_file *hub_list_find(const struct hub_list *l, const char *path); /* NULL: absent */

/* Mark what Tarn needs: config, tokenizer and chat template with the weights in safetensors, or one
 * GGUF file with its parts. `file`: as in struct hub_name. ERR_INVALID: several GGUF files fit; the
 * words list them. With an index of several safetensors files, only the index is marked:
 * hub_list_choose_shards() reads it later. */
NODISCARD enum status hub_list_choose(struct hub_list *l, const char *file, struct buf *why);
NODISCARD enum status hub_list_choose_shards(struct hub_list *l, const struct json *index,
                                             struct buf *why);
/* Mark the files that a pattern of fnmatch() fits instead; "*" fits "/" as well. */
NODISCARD enum status hub_list_include(struct hub_list *l, const char *glob, struct buf *why);

#endif
