/* hub_download.h - gets a model from a hub (huggingface.co or HF_ENDPOINT) into the local Hugging
 * Face cache, as huggingface_hub does: blobs named by their checksums, snapshots with links to
 * them, refs, and locks that both programs respect.
 *
 * A file is written to blobs/CHECKSUM.incomplete and gets its name when size and checksum are
 * right; a download that was cut, killed or stopped continues from there. The ref is written last.
 * Free space is checked before the first byte.
 *
 * Owns    nothing after the call.
 * Thread  one for each call; several processes may download the same model at once.
 * Errors  as hub_get.h and hub_list.h; ERR_FULL too little space; ERR_CORRUPT a wrong checksum, and
 *         the bytes are dropped; ERR_IO a file or directory by its name; ERR_CANCELLED `stop`.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_HUB_DOWNLOAD_H
#define TARN_ENGINE_MODEL_HUB_DOWNLOAD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct hub_progress {
    const char *path;         /* of the file at work */
    uint64_t n_here, n_bytes; /* of it */
    uint64_t n_all_here, n_all_bytes;
    uint32_t file, n_files; /* its number from 1 on */
    int is_waiting;         /* another process downloads the file */
    int is_done;            /* the file has its name */
    int was_here;           /* nothing of the file had to be downloaded */
};

struct hub_download {
    const char *name;         /* org/name[@revision][:FILE] */
    const char *const *globs; /* [n_globs]: files to get instead of those that Tarn needs */
    size_t n_globs;
    const atomic_bool *stop; /* NULL: never */
    /* Called at the beginning and end of each file, and at most ten times a second between. */
    void (*progress)(void *arg, const struct hub_progress *p);
    void *arg;
};

/* Append the directory of the snapshot to *path (which may be NULL). Files that are here already
 * are not downloaded again. */
NODISCARD enum status hub_download(const struct hub_download *d, struct buf *path, struct buf *why);

#endif
