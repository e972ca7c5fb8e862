/* packed.h - quantized weights kept in files, so that the next start need not make them again.
 *
 * A file holds the bytes of every allocation of a host device's weights (packed_file.h). The name
 * comes from a key, a hash over everything that the bytes depend on: size, inode, mtime and ctime
 * of each file of the checkpoint, every tensor's name, type and shape and its place in the weights,
 * quantization, and PACKED_VERSION. Every change of a checkpoint's bytes changes a ctime, so
 * weights of another content are never found. A file is read into the weights' own memory, on huge
 * pages, and each piece's CRC32C is compared there. Whatever is wrong with the file, the weights
 * are made from the checkpoint instead, and the file is written again.
 *
 * Weights of floats are not kept: their file would be as large as the checkpoint, and packing them
 * takes little longer than reading. Nor are weights with NaN or infinity, so that each start warns
 * of them, nor those of a checkpoint that was changed less than PACKED_SETTLED_NS ago: a change in
 * the same tick of the clock would not show.
 *
 * Owns    a keeper: its thread and its file under way, until packed_keep_stop().
 * Thread  packed_plan(), packed_read() and packed_keep(): the caller of weights_load().
 * Errors  none to the caller; the log says why weights are not kept.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_PACKED_H
#define TARN_ENGINE_MODEL_PACKED_H

#include <limits.h>
#include <stdbool.h>

#include "engine/model/packed_file.h"

/* A change of the bytes that the same checkpoint gives needs a new version: of the quantizer
 * (kernels/quantize.c), a layout (kernels/pack.h), or a codec. test_packed.c notices most. */
#define PACKED_VERSION 2u
#define PACKED_SETTLED_NS UINT64_C(100000000)
#define PACKED_SUFFIX ".packed"

struct loader;
struct packed_keeper;
struct weights_part;

struct packed {
    bool wanted; /* these weights are kept */
    struct packed_head head;
    char path[PATH_MAX];
};

/* Note the identity of DIR/config.json, before its quantization_config is read. A GGUF file has
 * none. */
void packed_stat_config(struct loader *l);
/* Decide whether the planned weights are kept, and where. p->head.crcs is the caller's to free. */
void packed_plan(struct packed *p, const struct loader *l);
/* Read the weights and their content hash; false: they must be made, and their memory is zeros. */
bool packed_read(struct packed *p, const struct loader *l);
/* Start to write the weights from a thread with low priority. The parts must stay until
 * packed_keep_stop(). */
struct packed_keeper *packed_keep(struct packed *p, const struct loader *l);
/* Stop writing and free the keeper; a file that is not whole is removed. NULL is fine. */
void packed_keep_stop(struct packed_keeper *k);
/* Wait until the file is written or given up; tests. */
void packed_keep_wait(struct packed_keeper *k);

/* The pieces of weights: piece i, where it lies in memory and in the file. */
struct packed_piece {
    unsigned char *data;
    size_t n_bytes;
    uint64_t offset;
};
/* List all pieces of the parts [n_parts]; returns their number. out NULL: only count. *end gets the
 * bytes of the whole file. */
uint32_t packed_pieces(const struct weights_part *parts, uint32_t n_parts, struct packed_piece *out,
                       uint64_t *end);
/* Remove the files in dir that were used least recently, until the others and n_more bytes are
 * within the limit. Returns whether they are. Files that are not finished go as well; the caller
 * holds the lock of packed_lock(). */
bool packed_evict(const char *dir, uint64_t limit, uint64_t n_more);
/* Take the lock of a folder: a descriptor to close; -1: another process has it. */
int packed_lock(const char *dir);

#endif
