/* hub_cache.h - writes the Hugging Face cache: one model's blobs, links, refs and locks.
 *
 * Owns    hub_blob: its file and lock until hub_blob_close(); the file stays, whole or not.
 * Thread  one for each struct.
 * Errors  ERR_IO, ERR_FULL with the path and the system's words; ERR_CORRUPT a wrong checksum;
 *         ERR_BUSY another process has the lock.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_HUB_CACHE_H
#define TARN_ENGINE_MODEL_HUB_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/sha1.h"
#include "engine/model/hub.h"
#include "engine/model/hub_list.h"

struct hub_cache {
    char root[HUB_PATH_BYTES_MAX / 2];
    char repo[HUB_PATH_BYTES_MAX / 2]; /* the model's directory below root */
};

/* Make the model's directories. */
NODISCARD enum status hub_cache_open(struct hub_cache *c, const struct hub_name *h,
                                     struct buf *why);
/* Bytes free in the file system of the cache. */
NODISCARD enum status hub_cache_free_bytes(const struct hub_cache *c, uint64_t *out,
                                           struct buf *why);
/* Bytes of a file that are here: all of them, or those of an unfinished download. */
uint64_t hub_cache_bytes_here(const struct hub_cache *c, const struct hub_file *f);
/* Link a file of the snapshot to its blob. */
NODISCARD enum status hub_cache_link(const struct hub_cache *c, const char *commit,
                                     const struct hub_file *f, struct buf *why);
/* Write which commit a revision is; a revision that is a commit needs none. */
NODISCARD enum status hub_cache_set_ref(const struct hub_cache *c, const char *revision,
                                        const char *commit, struct buf *why);
/* Append the directory of a snapshot. */
NODISCARD enum status hub_cache_snapshot(const struct hub_cache *c, const char *commit,
                                         struct buf *path);

/* A blob that is being written. */
struct hub_blob {
    const struct hub_cache *cache;
    const struct hub_file *file;
    const atomic_bool *stop; /* ends the sum of what is here with ERR_CANCELLED; NULL: never */
    int fd, lock_fd;
    uint64_t n_here;
    struct hash_sha256 sha256; /* of what is here, if the file is large */
    struct sha1 sha1;
};

/* Lock the blob; ERR_BUSY without words if another process has it. *is_whole: it is here already,
 * and nothing is open. */
NODISCARD enum status hub_blob_open(struct hub_blob *b, const struct hub_cache *c,
                                    const struct hub_file *f, const atomic_bool *stop,
                                    bool *is_whole, struct buf *why);
/* Drop all bytes from `from` on, at most n_here. */
NODISCARD enum status hub_blob_cut(struct hub_blob *b, uint64_t from, struct buf *why);
NODISCARD enum status hub_blob_add(struct hub_blob *b, const void *bytes, size_t n,
                                   struct buf *why);
/* Check the sum and give the blob its name. ERR_CORRUPT: the bytes were dropped. */
NODISCARD enum status hub_blob_finish(struct hub_blob *b, struct buf *why);
void hub_blob_close(struct hub_blob *b);

#endif
