/* library.h - the documents and preambles of this server: catalog, search, and their warm KV.
 *
 * One thread of its own, the librarian, writes what other threads queue (uses and paths), deletes
 * expired documents, erases the KV of deleted and replaced ones from every tier, and prefills
 * documents behind the registered preambles with requests of class SCHED_BACKGROUND.
 *
 * Owns    catalog, retrieval, embedder, the librarian thread.
 * Thread  open, start, close: main. library_use(): work threads. library_note(): any, never blocks.
 * Errors  library_open(): words name the file or the flag. library_use(): ERR_UNAVAILABLE: the
 *         library is off, or another process has its files.
 * Units   tokens. */
#ifndef TARN_SERVER_API_LIBRARY_H
#define TARN_SERVER_API_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cache/cache.h"
#include "engine/retrieval/retrieval.h"

struct embedder;
struct library;
struct server;

/* What handlers work with; constant after library_use(). */
struct library_parts {
    struct catalog *catalog;
    struct retrieval *retrieval;
    struct embedder *embedder; /* NULL: no --embedding-model */
};

/* Read the configuration. Nothing is opened yet but an existing catalog. */
NODISCARD enum status library_open(struct library **out, const struct server *srv, struct buf *why);
/* The engine runs: start the librarian. */
NODISCARD enum status library_start(struct library *l, struct buf *why);
void library_close(struct library *l); /* before engine_close(); NULL is fine */

/* Open what is not open yet. l may be NULL: ERR_UNAVAILABLE. */
NODISCARD enum status library_use(struct library *l, struct library_parts *out, struct buf *why);

/* A request whose prompt has a registered document as a span was submitted. */
struct library_place {
    int64_t row;
    uint32_t version;
    uint32_t place;    /* among the documents of the prompt */
    uint32_t n_tokens; /* of the span */
    struct kv_key key; /* of the span's first block */
};
/* Queue the uses and paths of one prompt. When the queue is full they are dropped, and counted. l
 * may be NULL. */
void library_note(struct library *l, const struct library_place *places, uint32_t n);
/* Have the librarian look for work now: a document or preamble has changed. */
void library_poke(struct library *l);

#endif
