/* librarian.h - the thread that keeps documents warm and the catalog tidy.
 *
 * The librarian
 *   - writes the uses and paths that requests report (librarian_note()),
 *   - deletes expired documents,
 *   - erases the KV of deleted and replaced documents from every tier. A request that was running
 *     meanwhile may leave such KV behind, so each key is erased once more a minute later,
 *   - prefills documents with `prefill` "now" or a pin as the first document behind each preamble
 *     that their tenant sees (warm.h says when), by requests of class SCHED_BACKGROUND,
 *   - makes the catalogs of a pool's instances equal: librarian_follow.c.
 *
 * A prefill is the prompt of a chat whose system message is the preamble, cut behind the document:
 * a later chat that begins alike finds this KV. Documents of a tenant are prefilled behind its own
 * preambles and the public ones, or behind no system message while it sees none; public documents
 * behind public preambles, where all tenants share their KV (promise P5, ARCHITECTURE.md).
 *
 * Owns    its thread, the requests in flight.
 * Thread  create, start, stop, destroy: one. librarian_give(): once, any. All others: any; none
 *         blocks but for short sections.
 * Errors  failures are logged, counted and tried again.
 * Units   tokens, blocks. */
#ifndef TARN_SERVER_API_LIBRARIAN_H
#define TARN_SERVER_API_LIBRARIAN_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"
#include "engine/retrieval/catalog_records.h"
#include "engine/retrieval/retrieval.h"

struct librarian;
struct server;

/* A document in the prompt of a request. */
struct library_place {
    int64_t row;
    uint32_t version;
    uint32_t place;    /* among the documents of the prompt */
    uint32_t n_tokens; /* of the span */
    struct kv_key key; /* of the span's first block */
};

/* *srv must outlive the librarian. */
NODISCARD enum status librarian_create(struct librarian **out, const struct server *srv);
NODISCARD enum status librarian_start(struct librarian *l);
/* Cancel the prefills and join the thread. While the engine runs. */
void librarian_stop(struct librarian *l);
void librarian_destroy(struct librarian *l); /* stops first. NULL is fine */
/* The catalog is open: look through all of it. Both are borrowed until librarian_stop(). ERR_NOMEM.
 */
NODISCARD enum status librarian_give(struct librarian *l, struct catalog *catalog,
                                     struct retrieval *retrieval);

/* A document was put, or its pin, expiry or prefill has changed. */
void librarian_changed(struct librarian *l, int64_t row);
/* Documents were deleted or replaced: their KV is to be erased. */
void librarian_erase(struct librarian *l);
/* Preambles or keys have changed: look through all documents again. */
void librarian_look_again(struct librarian *l);
/* The catalog has changed: the other instances are told soon. */
void librarian_tell(struct librarian *l);
void librarian_note(struct librarian *l, const struct library_place *places, uint32_t n);

/* Prefills of one version of a document. */
struct librarian_look {
    uint32_t n_queued, n_ready, n_no_room, n_failed;
    char why[160]; /* of the last failure; "": none */
};
void librarian_look(struct librarian *l, int64_t row, uint32_t version, struct librarian_look *out);

struct librarian_stats {
    uint64_t n_queued, n_ready, n_no_room, n_failed; /* prefills by state */
    uint64_t n_ready_blocks;
    uint64_t n_prefilled, n_prefilled_tokens; /* finished since the start */
    uint64_t n_refilled;                      /* of those, after an eviction */
    uint64_t n_erased_blocks, n_expired;
    uint64_t n_notes, n_notes_dropped;
    /* With a pool. */
    uint64_t n_records_applied, n_records_sent, n_records_refused;
    uint32_t n_peers_differ;      /* whose catalog was another one when they were last heard */
    double follow_lag_s;          /* for how long the first of these has differed */
    struct catalog_stats catalog; /* of about a second ago */
};
void librarian_stats(struct librarian *l, struct librarian_stats *out);

#endif
