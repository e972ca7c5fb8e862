/* safetensors.h - the tensors of a checkpoint: one file or many, mapped; or one file, copied.
 *
 * File format (huggingface/safetensors): u64 little-endian n; n bytes of JSON, an object of name ->
 * {"dtype", "shape", "data_offsets": [begin, end)}, offsets counting from 8 + n; then data.
 *
 * As in the official library, tensors must cover the data without overlaps or holes. In addition,
 * each offset must be a multiple of the element's size, as in all files that the library writes.
 * The data as a whole may begin anywhere, because the headers of old files have odd lengths.
 *
 * Owns    the mappings and the files until safetensors_close().
 * Thread  read-only after open: any thread, except for safetensors_file().
 * Errors  ERR_NOT_FOUND no checkpoint in the directory; ERR_INVALID an inconsistent header (the
 *         reason names file and tensor). Every offset is checked against the file and the other
 *         tensors before any tensor is returned.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_MODEL_SAFETENSORS_H
#define TARN_ENGINE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/model/tensor.h"

struct mapfile;
struct safetensors;

/* Open DIR/model.safetensors, or the shards that DIR/model.safetensors.index.json lists. */
NODISCARD enum status safetensors_open(struct safetensors **out, const char *dir, struct buf *why);
/* Copy the one file DIR/NAME of at most n_bytes_max bytes into memory: whatever happens to the file
 * later, the tensors stay as they are. */
NODISCARD enum status safetensors_copy_file(struct safetensors **out, const char *dir,
                                            const char *name, size_t n_bytes_max, struct buf *why);
void safetensors_close(struct safetensors *st); /* NULL is fine */
/* Return the file in which a tensor lies, open until safetensors_close(), and the offset of the
 * tensor's first byte. Not for two threads at once. ERR_IO if the file cannot be opened again or is
 * not the file that was mapped. */
NODISCARD enum status safetensors_file(struct safetensors *st, const struct tensor *t, int *fd,
                                       uint64_t *offset, struct buf *why);
/* Mapped file i; NULL behind the last. */
const struct mapfile *safetensors_map(const struct safetensors *st, uint32_t i);
/* Returns NULL if no tensor has that name. */
const struct tensor *safetensors_find(const struct safetensors *st, const char *name);
/* All tensors [*n], sorted by name. */
const struct tensor *safetensors_all(const struct safetensors *st, uint32_t *n);

#endif
