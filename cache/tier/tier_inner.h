/* tier_inner.h - what the implementations of tier.h share; included by cache/tier/ only.
 *
 * An implementation begins with `struct tier` and fills in `ops`. A NULL op means that the tier has
 * nothing to do there.
 *
 * Owns    the list of free blocks.
 * Thread  as tier.h.
 * Errors  as tier.h.
 * Units   as tier.h. */
#ifndef TARN_CACHE_TIER_TIER_INNER_H
#define TARN_CACHE_TIER_TIER_INNER_H

#include "base/prefault.h"
#include "cache/tier/tier.h"

struct tier_ops {
    void (*close)(struct tier *t);
    void (*drop)(struct tier *t, const uint32_t *blocks, uint32_t n, bool erase);
    enum status (*read)(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                        bool drop, uint64_t tag);
    enum status (*write)(struct tier *t, const uint32_t *blocks, const void *const *from,
                         const struct tier_record *records, uint32_t n, uint64_t tag);
    uint32_t (*poll)(struct tier *t, struct tier_done *out, uint32_t n_max);
    bool (*is_busy)(const struct tier *t);
    bool (*is_hung)(const struct tier *t);
    void (*order)(struct tier *t, uint64_t tag, enum tier_order before);
    bool (*reap)(struct tier *t);
    bool (*can_move)(const struct tier *t);
    void (*wait)(struct tier *t);
    uint32_t (*n_free_buffers)(const struct tier *t);
    bool (*stage)(struct tier *t, void **buffers, uint32_t n);
    void (*unstage)(struct tier *t, void *const *buffers, uint32_t n);
    enum tier_found (*look)(struct tier *t, uint32_t block, struct tier_record *out);
    void (*stats)(const struct tier *t, struct tier_stats *out);
    void (*sleep)(struct tier *t);
    enum status (*wake)(struct tier *t);
};

struct tier {
    const struct tier_ops *ops;
    unsigned char *memory; /* of block 0; NULL: the host cannot address it, or it sleeps */
    bool is_addressable, is_asleep;
    uint64_t block_bytes, extent_bytes;
    uint32_t n_blocks, n_capacity, n_buffers;
    uint32_t n_free, n_leaving, n_arriving;
    uint32_t *free_blocks;     /* [n_blocks] stack */
    struct prefault *prefault; /* of `memory`; may be NULL */
    uint64_t n_failed, memory_bytes;
};

/* Allocate the stack of free blocks, empty. */
NODISCARD enum status tier_init(struct tier *t, const struct tier_ops *ops, uint64_t block_bytes,
                                uint32_t n_blocks);
/* Blocks [first, first + n_blocks) are free, low numbers on top. */
void tier_fill(struct tier *t, uint32_t first);
void tier_push(struct tier *t, uint32_t block);
/* The moves of an addressable tier: copy at once. */
enum status tier_copy_out(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                          bool drop, uint64_t tag);
enum status tier_copy_in(struct tier *t, const uint32_t *blocks, const void *const *from,
                         const struct tier_record *records, uint32_t n, uint64_t tag);

#endif
