/* blocks.h - recuts what the cache holds into the blocks that routers know.
 *
 * A router cuts the token ids of a prompt into blocks of one length, counted from the begin of the
 * prompt. Tarn's blocks have up to 32 tokens and close early at the end of a span. This module
 * therefore follows the cache's blocks and reports blocks of the router's length: such a block lies
 * in a tier when the cache's block with its last token lies there, and then the whole prefix before
 * it lies somewhere in the instance. Tokens behind the last whole block are not reported.
 *
 * The hash of a block is 62 bits of a BLAKE2b over the hash of the block before it, its ids, and
 * its salt. Prompts with the same ids and the same cache_salt have the same hashes, however their
 * spans were cut and whichever tenants sent them. Copies are counted, so that a block is reported
 * once for a tier when its first copy comes and once when its last copy goes.
 *
 * A block whose ids were sent before may come without ids, also after CACHE_CLEARED.
 *
 * Owns    the list of the cache's blocks with their ids: blocks_destroy().
 * Thread  one at a time.
 * Errors  ERR_NOMEM: the event had no effect.
 * Units   tokens. */
#ifndef TARN_SERVER_EVENTS_BLOCKS_H
#define TARN_SERVER_EVENTS_BLOCKS_H

#include "cache/cache.h"

#define BLOCKS_TOKENS_MIN 8
#define BLOCKS_TOKENS_MAX 64

struct blocks;

struct blocks_block {
    uint64_t hash;       /* never 0 */
    uint64_t parent;     /* hash of the block before it; 0: none */
    uint64_t salt;       /* of the first block that is not public; 0: none */
    uint64_t path_salt;  /* the same for every such block */
    const uint32_t *ids; /* [the length of a block] */
};

/* The receiver of reports. A block is reported after the block before it in its prompt. */
struct blocks_sink {
    void (*stored)(void *arg, uint32_t tier, const struct blocks_block *block);
    void (*removed)(void *arg, uint32_t tier, uint64_t hash);
    void (*cleared)(void *arg); /* nothing lies anywhere; each block was reported as removed */
    void *arg;
};

/* n_tokens: the length of a block, BLOCKS_TOKENS_MIN to BLOCKS_TOKENS_MAX. */
NODISCARD enum status blocks_create(struct blocks **out, uint32_t n_tokens,
                                    const struct blocks_sink *sink);
void blocks_destroy(struct blocks *b); /* NULL is fine */
NODISCARD enum status blocks_apply(struct blocks *b, const struct cache_event *event);
/* Report everything as removed, then cleared, then stored again. */
NODISCARD enum status blocks_repeat(struct blocks *b);
/* Blocks that are reported now; one in two tiers counts twice. */
uint64_t blocks_n(const struct blocks *b);
/* Times that a block could not be reported, because its ids or those before it are not known. */
uint64_t blocks_n_skipped(const struct blocks *b);

#endif
