/* batch.h - a batch of KV events as vLLM sends them, in msgpack.
 *
 * The payload is the array [seconds, [events], rank]. Each event is a map; its first key is "type":
 *
 *   BlockStored       block_hashes, parent_block_hash (nil: none), token_ids, block_size, lora_id
 *                     (nil), medium, lora_name (nil: none), extra_keys (a list or nil per block:
 *                     the adapter's name, and the words of its salt or 16 hex digits), group_idx
 *                     (0), kv_cache_spec_kind ("full_attention")
 *   BlockRemoved      block_hashes, medium, group_idx (0)
 *   AllBlocksCleared  nothing more
 *
 * Blocks of one tier that follow each other become one event. The media are "GPU" for the tier that
 * the device computes in, "CPU" and "DISK".
 *
 * ONLY module that includes msgpack-c.
 *
 * Owns    its events: batch_fini().
 * Thread  one at a time.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE; after an error while adding, batch_pack() returns it.
 * Units   tokens, bytes. */
#ifndef TARN_SERVER_EVENTS_BATCH_H
#define TARN_SERVER_EVENTS_BATCH_H

#include "base/buf.h"
#include "server/events/blocks.h"

/* The two texts that a salt identifies, each with its NUL: the request's cache_salt, and the name
 * of the adapter that computed the block; "": none. */
struct batch_salt {
    char words[1025];
    char adapter[256];
};

struct batch {
    uint32_t n_tokens; /* the length of a block */
    /* False: the texts of this salt are not known. */
    bool (*find_salt)(void *arg, uint64_t salt, struct batch_salt *out);
    void *arg;
    struct buf events;                     /* of struct event (batch.c) */
    struct buf hashes, ids, salts, packed; /* of u64, u32, u64; of what was packed last */
    enum status status;                    /* of what was added */
};

/* find_salt may be NULL. */
void batch_init(struct batch *b, uint32_t n_tokens,
                bool (*find_salt)(void *arg, uint64_t salt, struct batch_salt *out), void *arg);
void batch_fini(struct batch *b);
/* For struct blocks_sink; arg is the struct batch. */
void batch_stored(void *arg, uint32_t tier, const struct blocks_block *block);
void batch_removed(void *arg, uint32_t tier, uint64_t hash);
void batch_cleared(void *arg);
bool batch_is_empty(const struct batch *b);
/* Blocks in it. */
uint32_t batch_n_blocks(const struct batch *b);
/* Write the payload to b->packed, and empty the batch. seconds: Unix time. */
NODISCARD enum status batch_pack(struct batch *b, double seconds);

#endif
