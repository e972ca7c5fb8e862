/* tier.c - what all tiers have in common: free blocks, and the calls through tier_ops. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "cache/tier/tier_inner.h"

enum status tier_init(struct tier *t, const struct tier_ops *ops, uint64_t block_bytes,
                      uint32_t n_blocks)
{
    t->ops = ops;
    t->block_bytes = t->extent_bytes = block_bytes;
    t->n_blocks = t->n_capacity = n_blocks;
    t->free_blocks = memory_zeroed(n_blocks, sizeof *t->free_blocks);
    t->memory_bytes += n_blocks * sizeof *t->free_blocks;
    return t->free_blocks ? OK : ERR_NOMEM;
}

void tier_fill(struct tier *t, uint32_t first)
{
    for (uint32_t i = t->n_blocks; i-- > 0;)
        tier_push(t, first + i);
}

void tier_close(struct tier *t)
{
    uint32_t *free_blocks;

    if (!t)
        return;
    free_blocks = t->free_blocks; /* until the last move has freed its own */
    prefault_destroy(t->prefault);
    t->ops->close(t);
    free(free_blocks);
}

/* --- blocks --- */

uint32_t tier_n_blocks(const struct tier *t)
{
    return t ? t->n_blocks : 0;
}

uint32_t tier_n_free(const struct tier *t)
{
    return t->is_asleep ? 0 : t->n_free;
}

uint32_t tier_n_free_soon(const struct tier *t)
{
    return tier_n_free(t) + t->n_leaving;
}

uint32_t tier_capacity(const struct tier *t)
{
    return t->n_capacity;
}

void tier_push(struct tier *t, uint32_t block)
{
    ASSERT(t->n_free < t->n_blocks);
    t->free_blocks[t->n_free++] = block;
}

bool tier_reserve(struct tier *t, uint32_t *blocks, uint32_t n)
{
    if (tier_n_free(t) < n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        blocks[i] = t->free_blocks[--t->n_free];
        if (t->prefault)
            prefault_reach(t->prefault, (blocks[i] + (size_t)1) * t->block_bytes);
    }
    return true;
}

void tier_unreserve(struct tier *t, const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;)
        tier_push(t, blocks[i]);
}

void tier_drop(struct tier *t, const uint32_t *blocks, uint32_t n, bool erase)
{
    if (t->ops->drop) {
        t->ops->drop(t, blocks, n, erase);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        tier_push(t, blocks[i]);
}

void *tier_memory(const struct tier *t, uint32_t block)
{
    return t->memory ? t->memory + block * t->block_bytes : NULL;
}

bool tier_is_addressable(const struct tier *t)
{
    return t->is_addressable;
}

/* --- sleep --- */

void tier_sleep(struct tier *t)
{
    ASSERT(t->n_free == t->n_blocks && !t->is_asleep);
    prefault_destroy(t->prefault);
    t->prefault = NULL;
    t->ops->sleep(t);
    t->is_asleep = true;
}

enum status tier_wake(struct tier *t)
{
    enum status s = t->is_asleep ? t->ops->wake(t) : OK;

    t->is_asleep = s != OK;
    return s;
}

bool tier_is_asleep(const struct tier *t)
{
    return t->is_asleep;
}

/* --- moves --- */

enum status tier_copy_out(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                          bool drop, uint64_t tag)
{
    (void)tag;
    ASSERT(!drop);
    for (uint32_t i = 0; i < n; i++)
        memcpy(to[i], tier_memory(t, blocks[i]), t->block_bytes);
    return OK;
}

enum status tier_copy_in(struct tier *t, const uint32_t *blocks, const void *const *from,
                         const struct tier_record *records, uint32_t n, uint64_t tag)
{
    (void)records, (void)tag;
    for (uint32_t i = 0; i < n; i++)
        memcpy(tier_memory(t, blocks[i]), from[i], t->block_bytes);
    return OK;
}

enum status tier_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                      bool drop, uint64_t tag)
{
    return t->ops->read(t, blocks, to, n, drop, tag);
}

enum status tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                       const struct tier_record *records, uint32_t n, uint64_t tag)
{
    return t->ops->write(t, blocks, from, records, n, tag);
}

uint32_t tier_poll(struct tier *t, struct tier_done *out, uint32_t n_max)
{
    return t->ops->poll ? t->ops->poll(t, out, n_max) : 0;
}

bool tier_is_busy(const struct tier *t)
{
    return t->ops->is_busy && t->ops->is_busy(t);
}

bool tier_is_hung(const struct tier *t)
{
    return t->ops->is_hung && t->ops->is_hung(t);
}

void tier_order(struct tier *t, uint64_t tag, enum tier_order before)
{
    if (t->ops->order)
        t->ops->order(t, tag, before);
}

bool tier_reap(struct tier *t)
{
    return t->ops->reap && t->ops->reap(t);
}

bool tier_can_move(const struct tier *t)
{
    return !t->ops->can_move || t->ops->can_move(t);
}

void tier_wait(struct tier *t)
{
    if (t->ops->wait)
        t->ops->wait(t);
}

/* --- staging --- */

uint32_t tier_n_buffers(const struct tier *t)
{
    return t->n_buffers;
}

uint32_t tier_n_free_buffers(const struct tier *t)
{
    return t->ops->n_free_buffers ? t->ops->n_free_buffers(t) : 0;
}

bool tier_stage(struct tier *t, void **buffers, uint32_t n)
{
    return t->ops->stage && t->ops->stage(t, buffers, n);
}

void tier_unstage(struct tier *t, void *const *buffers, uint32_t n)
{
    if (t->ops->unstage)
        t->ops->unstage(t, buffers, n);
}

enum tier_found tier_look(struct tier *t, uint32_t block, struct tier_record *out)
{
    enum tier_found found = t->ops->look ? t->ops->look(t, block, out) : TIER_NOTHING;

    if (found == TIER_NOTHING)
        tier_push(t, block);
    return found;
}

/* --- counts --- */

void tier_stats(const struct tier *t, struct tier_stats *out)
{
    *out = (struct tier_stats){.n_arriving = t->n_arriving,
                               .n_leaving = t->n_leaving,
                               .n_failed = t->n_failed,
                               .memory_bytes = t->memory_bytes,
                               .extent_bytes = t->extent_bytes,
                               .io = ""};
    if (t->ops->stats)
        t->ops->stats(t, out);
}

uint64_t tier_extent_bytes(const struct tier *t)
{
    return t->extent_bytes;
}

uint32_t tier_check_free(const struct tier *t, uint8_t *seen, uint32_t n_ids)
{
    for (uint32_t i = 0; i < t->n_free; i++)
        ASSERT(t->free_blocks[i] < n_ids && !seen[t->free_blocks[i]]++);
    return t->n_free;
}
