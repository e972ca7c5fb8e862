/* pool_note.h - notes: messages between members of a pool that the pool carries and does not read.
 *
 * A part of the server that is not the engine sends and receives them; today that is the librarian,
 * by which documents follow the pool. A note is lost when its peer is away, reads too slowly, or
 * has no room for it, so its user has to repair losses. Notes that arrive are checked by a CRC32C.
 *
 * Bounds: POOL_NOTE_BYTES_MAX for one note, 32 MiB and 512 notes in each direction, 16 notes of one
 * peer that wait here.
 *
 * Owns    notes that wait; a note that pool_note_next() returned is the caller's.
 * Thread  pool_notes(): any. All else: one thread at a time, not the engine thread: the calls
 *         allocate memory and take a lock for a short time. wake() is called by the pool thread and
 *         must not block.
 * Errors  ERR_BUSY: too much waits already; ERR_NOMEM.
 * Units   bytes. */
#ifndef TARN_CACHE_POOL_POOL_NOTE_H
#define TARN_CACHE_POOL_POOL_NOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define POOL_NOTE_BYTES_MAX (5u << 20)

struct pool;
struct pool_notes;

struct pool_note {
    uint64_t peer; /* id of the instance that sent it */
    uint32_t n;
    uint32_t conn; /* the pool's */
    uint8_t bytes[];
};

struct pool_notes *pool_notes(struct pool *p);
/* Notes are accepted from now on, and wake() is called for each. NULL: not any more, and wake()
 * does not run after the return. */
void pool_notes_listen(struct pool_notes *notes, void (*wake)(void *arg), void *arg);
/* Instances that notes can be sent to: listed in the directory when it was last heard of, with the
 * same model. Returns their number. */
uint32_t pool_note_peers(struct pool_notes *notes, uint64_t *ids, uint32_t n_max);
/* Send bytes [n], which are copied. Notes to one peer arrive in their order. */
NODISCARD enum status pool_note_send(struct pool_notes *notes, uint64_t peer, const void *bytes,
                                     uint32_t n);
/* The oldest note that has arrived. NULL: none. */
struct pool_note *pool_note_next(struct pool_notes *notes);
void pool_note_free(struct pool_notes *notes, struct pool_note *note);
/* A digest of the documents of this instance, for its record in the directory. */
void pool_notes_set_digest(struct pool_notes *notes, uint64_t digest);

#endif
