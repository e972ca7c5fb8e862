/* kv_store_disk.c - the disk tier's life, what is written to it, and what leaves it. Reading:
 * kv_store_load.c; the index at start: kv_store_index.c. */
#include "cache/store/kv_store_disk.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

/* Payload that may be between memory and disk at a time, and the slots for it: enough to keep a
 * fast disk busy; at least a few units of large models. */
#define STAGING_BYTES (UINT64_C(64) << 20)
#define N_SLOTS_MIN (4 * DISK_UNIT_BLOCKS_MAX)
#define N_SLOTS_MAX 512u
/* Extents that the policy leaves free, so that a write need not wait until others are cleared. */
#define N_SPARE_MAX 64u
/* Of one call, so that a step is not held up: offers looked at, units begun, bytes checked. */
#define N_OFFERS_TRIED 16
#define N_WRITES_BEGUN 2
#define POLL_BYTES (UINT64_C(32) << 20)
/* After a failed write nothing is written for so long. */
#define WRITE_PAUSE_NS UINT64_C(5000000000)
#define CLOSE_WAIT_NS UINT64_C(5000000000)

/* --- life --- */

static enum status open_disk(struct store *st, struct disk_tier *d, struct buf *why)
{
    const struct cache_disk_config *c = &st->config.disk;
    struct disk_config config = {.dir = {.path = c->path,
                                         .n_bytes_max = c->n_bytes,
                                         .fingerprint = c->fingerprint,
                                         .block_bytes = st->block_bytes,
                                         .segment_tokens = st->config.segment_tokens},
                                 .staging = d->staging,
                                 .n_slots = d->n_slots,
                                 .timeout_ns = c->timeout_ns,
                                 .backend = c->threads_only ? AIO_THREADS : AIO_AUTO};

    return disk_open(&d->disk, &config, why);
}

/* Whole pages at a page's beginning, whatever the device's allocator gives. */
static unsigned char *page_aligned(void *p)
{
    uintptr_t at = (uintptr_t)p;

    return (unsigned char *)p + (DISK_PAGE_BYTES - at % DISK_PAGE_BYTES) % DISK_PAGE_BYTES;
}

static uint32_t count_slots(uint64_t extent_bytes)
{
    uint64_t n = STAGING_BYTES / extent_bytes;

    return n < N_SLOTS_MIN ? N_SLOTS_MIN : n > N_SLOTS_MAX ? N_SLOTS_MAX : (uint32_t)n;
}

static enum status allocate(struct store *st, struct disk_tier *d, struct buf *why)
{
    size_t n_bytes = d->n_slots * d->extent_bytes + DISK_PAGE_BYTES;

    d->staging_memory = device_alloc_pinned(st->config.device, n_bytes);
    d->units = calloc(N_DISK_UNITS, sizeof *d->units);
    d->offers = calloc(N_OFFERS, sizeof *d->offers);
    if (!d->staging_memory || !d->units || !d->offers)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the %zu bytes through which the disk "
                       "tier reads and writes; lower --kv-device-bytes, or leave out "
                       "--kv-disk-path",
                       n_bytes);
    d->staging = page_aligned(d->staging_memory);
    memset(d->staging, 0, d->n_slots * d->extent_bytes); /* what pads an extent is zero */
    for (uint32_t i = 0; i < N_OFFERS; i++)
        d->offer_ring[i] = &d->offers[i];
    st->memory_bytes +=
        sizeof *d + n_bytes + N_DISK_UNITS * sizeof *d->units + N_OFFERS * sizeof *d->offers;
    return OK;
}

/* All extents are somebody's until the index says which are free. */
static enum status init_extents(struct store *st, struct disk_tier *d, struct buf *why)
{
    struct store_tier *t = &st->tier[CACHE_DISK];
    struct disk_stats stats;
    uint32_t n = disk_directory(d->disk)->super.n_extents;

    t->free_ids = calloc(n, sizeof *t->free_ids);
    if (!t->free_ids)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the books of %u extents; lower "
                       "--kv-disk-bytes",
                       n);
    t->n_blocks = n;
    d->n_capacity = n - (n / 8 < N_SPARE_MAX ? n / 8 : N_SPARE_MAX);
    disk_stats(d->disk, &stats);
    st->memory_bytes += stats.memory_bytes + n * sizeof *t->free_ids;
    return OK;
}

/* What nobody expects to be gone. */
static void log_opened(const struct store *st)
{
    const struct disk_dir *dir = disk_directory(st->disk->disk);

    if (dir->n_removed_dirs > 0)
        log_event(LOG_WARN, "KV of other models made room on disk",
                  "path=\"%s\" directories=%u bytes=%llu", st->config.disk.path,
                  dir->n_removed_dirs, (unsigned long long)dir->n_removed_bytes);
    if (dir->is_new && dir->why_new[0])
        log_event(LOG_WARN, "the KV on disk cannot be used and begins anew",
                  "path=\"%s\" why=\"%s\"", st->config.disk.path, dir->why_new);
}

enum status disk_tier_open(struct store *st, struct buf *why)
{
    uint64_t began = clock_now_ns();
    struct disk_tier *d = calloc(1, sizeof *d);
    enum status s;

    if (!d)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the disk tier; lower --kv-device-bytes, "
                       "or leave out --kv-disk-path");
    st->disk = d;
    d->extent_bytes = disk_extent_bytes(st->block_bytes);
    d->n_slots = count_slots(d->extent_bytes);
    if ((s = allocate(st, d, why)) != OK || (s = open_disk(st, d, why)) != OK ||
        (s = init_extents(st, d, why)) != OK)
        return s; /* disk_tier_close() clears up */
    d->found.index_s = (double)(clock_now_ns() - began) * 1e-9;
    log_opened(st);
    return OK;
}

void disk_tier_close(struct store *st)
{
    struct disk_tier *d = st->disk;

    if (!d)
        return;
    if (disk_close(d->disk, clock_now_ns() + CLOSE_WAIT_NS) != OK)
        log_event(LOG_WARN, "the disk did not answer in time, writes may be lost", "path=\"%s\"",
                  st->config.disk.path);
    else
        device_free_pinned(st->config.device, d->staging_memory);
    free(d->units);
    free(d->offers);
    free(d->preload);
    free(d);
    st->disk = NULL;
}

uint32_t disk_tier_capacity(const struct store *st)
{
    return st->disk->n_capacity;
}

struct unit *take_unit(struct disk_tier *d)
{
    for (uint32_t i = 0; i < N_DISK_UNITS; i++)
        if (d->units[i].state == UNIT_FREE)
            return &d->units[i];
    return NULL;
}

uint64_t unit_tag(const struct disk_tier *d, const struct unit *u)
{
    return (uint64_t)(u - d->units);
}

/* --- leaving --- */

/* The blocks of the tree that these extents held lie there no more. */
static void give_extents(struct store *st, const uint32_t *extents, uint32_t n, bool erase)
{
    st->tier[CACHE_DISK].n_in_transfer += n;
    st->disk->n_clearing += n;
    disk_clear(st->disk->disk, extents, n, erase);
}

/* It has been taken out of the disk's order. */
static bool left_order(struct store *st, uint32_t node, bool erase)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t extents[NODE_N_BLOCKS_MAX], entry = st->info[node].entry;

    ktree_slots(st->tree, node, CACHE_DISK, extents, look.n_blocks);
    give_extents(st, extents, look.n_blocks, erase);
    if (lies_on_disk_only(&look) && is_awaited(st, ktree_key_at(st->tree, node, 0)))
        st->n_expected_lost += look.n_blocks;
    if (!ktree_leave(st->tree, node, CACHE_DISK))
        return false;
    node_left(st, node, entry);
    return true;
}

bool leave_disk(struct store *st, uint32_t node, bool erase)
{
    replace_remove(st->policy, order_of(st, CACHE_DISK), st->info[node].entry);
    return left_order(st, node, erase);
}

static bool evict_from_disk(struct store *st)
{
    struct replace_victim victim;

    if (replace_evict(st->policy, order_of(st, CACHE_DISK), &victim) != OK)
        return false;
    uint32_t node = st->node_of[victim.id];
    st->tier[CACHE_DISK].n_evicted += ktree_look(st->tree, node).n_blocks;
    (void)left_order(st, node, false);
    return true;
}

void drop_disk_below(struct store *st, uint32_t node, bool erase)
{
    uint32_t x, child;

    do {
        x = node;
        while ((child = child_in(st, x, CACHE_DISK)) != KTREE_NONE)
            x = child;
        (void)leave_disk(st, x, erase);
    } while (x != node);
}

/* --- offers --- */

static bool is_written_before(const struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    return node == KTREE_ROOT || lies_in(&look, CACHE_DISK) || st->info[node].is_offered ||
           st->info[node].is_writing;
}

static void fill_offer(const struct store *st, struct offer *o, uint32_t node, uint32_t n,
                       uint32_t n_tokens, const struct store_use *use)
{
    const struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);

    o->n = n;
    for (uint32_t i = 0; i < n; i++)
        o->keys[i] = *ktree_key_at(st->tree, node, i);
    o->parent = (struct kv_key){{0}};
    if (look.parent != KTREE_ROOT)
        o->parent = *ktree_key(st->tree, look.parent);
    o->is_registered = info->pos0 + n_tokens <= use->n_public;
    o->scope = o->is_registered ? (struct kv_scope){{0}} : use->scope;
    o->pos0 = info->pos0;
    o->n_tokens = n_tokens;
    o->depth = look.depth;
    o->n_uses = replace_n_uses(st->policy, info->entry);
    o->starts_segment = info->starts_segment;
    memcpy(o->ids, use->ids + info->pos0, n_tokens * sizeof *o->ids);
}

void disk_offer(struct store *st, uint32_t node, uint32_t n, const struct store_use *use, bool must)
{
    struct disk_tier *d = st->disk;
    struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t n_tokens = n < look.n_blocks ? n * KV_BLOCK_TOKENS : info->n_tokens;
    uint32_t end = info->pos0 + n_tokens;

    if (!use->ids || end > use->n_ids || info->tail_of != KTREE_NONE || info->is_offered ||
        info->is_writing || info->is_orphan || lies_in(&look, CACHE_DISK) ||
        d->n_offers == N_OFFERS || !is_written_before(st, look.parent) ||
        st->now_ns < d->no_write_until_ns || disk_is_hung(d->disk))
        return;
    /* The second use is the filter: most prompts come once. */
    if (!must && end > use->n_public &&
        replace_n_uses(st->policy, info->entry) < st->config.disk.min_uses)
        return;
    struct offer *o = d->offer_ring[(d->first_offer + d->n_offers) % N_OFFERS];
    fill_offer(st, o, node, n, n_tokens, use);
    d->n_offers++;
    info->is_offered = true;
}

void store_save(struct store *st, const struct kv_key *keys, uint32_t n,
                const struct store_use *use)
{
    uint32_t node, k;

    for (uint32_t i = 0; st->disk && i < n; i += k) {
        if ((node = ktree_find(st->tree, &keys[i])) == KTREE_NONE ||
            (k = ktree_look(st->tree, node).n_blocks) > n - i)
            return;
        disk_offer(st, node, k, use, true);
    }
}

/* These blocks are in no offer (or unit that writes) any more. */
static void unmark(struct store *st, const struct kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = ktree_find(st->tree, &keys[i]);
        if (node != KTREE_NONE)
            st->info[node].is_offered = st->info[node].is_writing = false;
    }
}

static void drop_offers(struct store *st)
{
    struct disk_tier *d = st->disk;

    for (; d->n_offers > 0; d->n_offers--) {
        const struct offer *o = d->offer_ring[d->first_offer];
        unmark(st, o->keys, o->n);
        d->first_offer = (d->first_offer + 1) % N_OFFERS;
    }
}

/* The offer goes on behind its first n blocks. */
static void shift_offer(struct offer *o, uint32_t n)
{
    uint32_t n_tokens = n * KV_BLOCK_TOKENS < o->n_tokens ? n * KV_BLOCK_TOKENS : o->n_tokens;

    o->parent = o->keys[n - 1];
    o->n -= n;
    memmove(o->keys, o->keys + n, o->n * sizeof *o->keys);
    memmove(o->ids, o->ids + n_tokens, (o->n_tokens - n_tokens) * sizeof *o->ids);
    o->pos0 += n_tokens;
    o->n_tokens -= n_tokens;
    o->starts_segment = false;
}

/* The first n blocks of an offer. */
static void copy_offer(struct offer *out, const struct offer *o, uint32_t n)
{
    *out = *o;
    out->n = n;
    if (n < o->n)
        out->n_tokens = n * KV_BLOCK_TOKENS;
}

/* --- writes --- */

/* Have the offer's beginning be a node: *n of its blocks, all of them unless the tree has cut it
 * meanwhile. KTREE_NONE: it is not there any more. */
static uint32_t node_of_offer(struct store *st, const struct offer *o, uint32_t *n)
{
    uint32_t node = ktree_find(st->tree, &o->keys[0]), lower = node, n_node;

    if (node == KTREE_NONE || st->info[node].is_orphan)
        return KTREE_NONE;
    n_node = ktree_look(st->tree, node).n_blocks;
    *n = n_node < o->n ? n_node : o->n;
    for (uint32_t i = 1; i < *n; i++)
        if (memcmp(ktree_key_at(st->tree, node, i), &o->keys[i], sizeof *o->keys) != 0)
            return KTREE_NONE;
    if (*n == n_node)
        return node;
    if (!node_split(st, lower, *n, &node)) /* others may go on in the rest, or nobody */
        return KTREE_NONE;
    st->info[lower].is_offered = false;
    return node;
}

/* Room in the policy's order, beside what is promised already, unless what lies there is worth
 * more. */
static bool make_disk_room(struct store *st, uint32_t entry, uint32_t n)
{
    struct disk_tier *d = st->disk;
    uint32_t order = order_of(st, CACHE_DISK);

    while (!replace_has_room(st->policy, order, (uint64_t)(d->n_writing + n) * st->block_bytes))
        if (!replace_admits(st->policy, order, entry) || !evict_from_disk(st))
            return false;
    return true;
}

/* The node's payload to staging: at once from memory that the host computes in or spilled to, else
 * by a copy of the device's. */
static bool save_payload(struct store *st, struct unit *u, uint32_t node)
{
    struct disk_tier *d = st->disk;
    struct ktree_node look = ktree_look(st->tree, node);
    bool on_device = lies_in(&look, CACHE_DEVICE);
    uint32_t from[NODE_N_BLOCKS_MAX], n = look.n_blocks;
    const unsigned char *memory = st->copies ? st->host : st->pool.base;

    ktree_slots(st->tree, node, on_device ? CACHE_DEVICE : CACHE_HOST, from, n);
    if (st->copies && on_device) {
        if (start_transfer(st, TRANSFER_SAVE, node, from, u->slots, n) != OK)
            return false;
        node_pin(st, node);
        u->state = UNIT_SAVING;
        return true;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(d->staging + u->slots[i] * d->extent_bytes, memory + from[i] * st->block_bytes,
               st->block_bytes);
    u->state = UNIT_SAVED;
    return true;
}

void unit_saved(struct store *st, const uint32_t *slots)
{
    for (uint32_t i = 0; i < N_DISK_UNITS; i++) {
        struct unit *u = &st->disk->units[i];
        if (u->state == UNIT_SAVING && u->slots[0] == slots[0])
            u->state = UNIT_SAVED;
    }
}

enum fate { FATE_WAITS, FATE_BEGUN, FATE_OVER };

/* The node, whose blocks are the offer's first n, becomes a unit. */
static enum fate begin_write(struct store *st, const struct offer *o, uint32_t node, uint32_t n)
{
    struct disk_tier *d = st->disk;
    struct store_tier *t = &st->tier[CACHE_DISK];
    struct unit *u = take_unit(d);

    /* Half of the staging is for those who wait for what they read. */
    if (!u || disk_n_free_slots(d->disk) < n + d->n_slots / 2 || t->n_free < n ||
        !disk_take_slots(d->disk, u->slots, n))
        return FATE_WAITS;
    u->is_stale = false;
    copy_offer(&u->what, o, n);
    if (!save_payload(st, u, node)) {
        disk_give_slots(d->disk, u->slots, n);
        return FATE_OVER;
    }
    for (uint32_t i = 0; i < n; i++)
        u->extents[i] = tier_pop(t);
    t->n_in_transfer += n;
    d->n_writing += n;
    st->info[node].is_offered = false;
    st->info[node].is_writing = true;
    return FATE_BEGUN;
}

/* What becomes of the offer now; it is shorter by what was dealt with. */
static enum fate try_offer(struct store *st, struct offer *o)
{
    uint32_t n, node = node_of_offer(st, o, &n);
    struct ktree_node look, parent;

    if (node == KTREE_NONE)
        return FATE_OVER;
    look = ktree_look(st->tree, node);
    parent = ktree_look(st->tree, look.parent);
    if (lies_in(&look, CACHE_DISK)) {
        st->info[node].is_offered = false;
    } else {
        if (look.parent != KTREE_ROOT && !lies_in(&parent, CACHE_DISK))
            return is_written_before(st, look.parent) ? FATE_WAITS : FATE_OVER;
        if (is_moving(st, node))
            return FATE_WAITS;
        if (!make_disk_room(st, st->info[node].entry, n))
            return FATE_OVER;
        enum fate fate = begin_write(st, o, node, n);
        if (fate != FATE_BEGUN)
            return fate;
    }
    if (n == o->n)
        return FATE_BEGUN;
    shift_offer(o, n);
    return FATE_WAITS;
}

/* The oldest first; what must wait goes to the end, so that nobody waits for who stands behind. */
static void begin_writes(struct store *st)
{
    struct disk_tier *d = st->disk;
    uint32_t n_tried = d->n_offers < N_OFFERS_TRIED ? d->n_offers : N_OFFERS_TRIED, n_begun = 0;

    while (n_tried-- > 0 && n_begun < N_WRITES_BEGUN) {
        uint32_t first = d->first_offer, end = (first + d->n_offers) % N_OFFERS;
        struct offer *o = d->offer_ring[first];
        enum fate fate = try_offer(st, o);

        d->first_offer = (first + 1) % N_OFFERS;
        if (fate == FATE_WAITS) { /* the places of a ring that is full are the same one */
            struct offer *other = d->offer_ring[end];
            d->offer_ring[end] = o;
            if (end != first)
                d->offer_ring[first] = other;
            continue;
        }
        d->n_offers--;
        n_begun += fate == FATE_BEGUN;
        if (fate == FATE_OVER)
            unmark(st, o->keys, o->n);
    }
}

static void fill_records(const struct offer *o, struct disk_record *records)
{
    for (uint32_t i = 0; i < o->n; i++) {
        struct disk_record *r = &records[i];
        uint32_t at = i * KV_BLOCK_TOKENS;

        *r = (struct disk_record){.key = o->keys[i],
                                  .parent = i ? o->keys[i - 1] : o->parent,
                                  .scope = o->scope,
                                  .pos0 = o->pos0 + at,
                                  .depth = o->depth,
                                  .n_uses = o->n_uses};
        r->n_tokens = o->n_tokens - at < KV_BLOCK_TOKENS ? o->n_tokens - at : KV_BLOCK_TOKENS;
        r->flags = (i == 0 && o->starts_segment ? DISK_STARTS_SEGMENT : 0) |
                   (o->is_registered ? DISK_REGISTERED : 0);
        memcpy(r->ids, o->ids + at, r->n_tokens * sizeof *r->ids);
    }
}

static void write_saved(struct store *st, struct unit *u)
{
    struct disk_record records[NODE_N_BLOCKS_MAX];

    fill_records(&u->what, records);
    if (disk_write(st->disk->disk, records, u->extents, u->slots, u->what.n,
                   unit_tag(st->disk, u)) == OK)
        u->state = UNIT_WRITING;
}

/* Blocks [i, ...) of what was written, as far as they are one node that the tree wants there.
 * Returns how many; 0: the tree does not have block i. */
static uint32_t place_written(struct store *st, const struct unit *u, uint32_t i)
{
    const struct kv_key *keys = &u->what.keys[i];
    uint32_t node = ktree_find(st->tree, keys), n_left = u->what.n - i, n;
    struct ktree_node look, parent;

    if (node == KTREE_NONE)
        return 0;
    look = ktree_look(st->tree, node);
    parent = ktree_look(st->tree, look.parent);
    n = look.n_blocks < n_left ? look.n_blocks : n_left;
    if (u->is_stale || st->info[node].is_orphan || st->info[node].tail_of != KTREE_NONE ||
        lies_in(&look, CACHE_DISK) || (look.parent != KTREE_ROOT && !lies_in(&parent, CACHE_DISK)))
        return 0;
    for (uint32_t k = 1; k < n; k++) /* it may have been computed again, in other company */
        if (memcmp(ktree_key_at(st->tree, node, k), &keys[k], sizeof *keys) != 0)
            n = k;
    if (n < look.n_blocks && !node_split(st, node, n, &node))
        return 0;
    ktree_place(st->tree, node, CACHE_DISK, u->extents + i);
    replace_insert(st->policy, order_of(st, CACHE_DISK), st->info[node].entry);
    return n;
}

static void write_done(struct store *st, struct unit *u, const struct disk_done *done)
{
    struct store_tier *t = &st->tier[CACHE_DISK];
    struct disk_tier *d = st->disk;

    d->n_writing -= u->what.n;
    unmark(st, u->what.keys, u->what.n);
    if (done->status != OK) { /* the extents come back by themselves */
        d->n_clearing += u->what.n;
        d->no_write_until_ns = st->now_ns + WRITE_PAUSE_NS;
        drop_offers(st);
        log_event(LOG_WARN, "KV could not be written to disk", "error=%s errno=%d path=\"%s\"",
                  status_name(done->status), done->error, st->config.disk.path);
    }
    for (uint32_t i = 0, n; done->status == OK && i < u->what.n; i += n) {
        n = place_written(st, u, i);
        t->n_in_transfer -= n ? n : 1;
        t->n_moved_in += n;
        if (n > 0)
            continue;
        give_extents(st, &u->extents[i], 1, true); /* it may be gone because somebody erased it */
        n = 1;
    }
    u->state = UNIT_FREE;
}

/* --- every step --- */

static uint64_t take_done(struct store *st, const struct disk_done *done)
{
    struct disk_tier *d = st->disk;

    switch (done->event) {
    case DISK_CLEARED:
        st->tier[CACHE_DISK].n_in_transfer--;
        d->n_clearing--;
        tier_push(&st->tier[CACHE_DISK], done->extents[0]);
        return 0;
    case DISK_WRITE_DONE: write_done(st, &d->units[done->tag], done); return 0;
    case DISK_READ_DONE:
        load_read_done(st, &d->units[done->tag], done);
        return done->n * d->extent_bytes;
    }
    return 0;
}

void disk_tier_poll(struct store *st)
{
    struct disk_tier *d = st->disk;
    struct disk_done done[4];
    uint64_t n_bytes = 0;
    uint32_t n;

    do {
        n = disk_poll(d->disk, clock_now_ns(), done, 4);
        for (uint32_t i = 0; i < n; i++)
            n_bytes += take_done(st, &done[i]);
    } while (n == 4 && n_bytes < POLL_BYTES);
    if (disk_is_hung(d->disk)) {
        drop_offers(st);
        return;
    }
    for (uint32_t i = 0; i < N_DISK_UNITS && d->n_writing > 0; i++)
        if (d->units[i].state == UNIT_SAVED)
            write_saved(st, &d->units[i]);
    load_poll(st);
    begin_writes(st);
}

/* While it hangs there is nothing to do but to look now and then. */
bool disk_tier_is_busy(const struct store *st)
{
    const struct disk_tier *d = st->disk;

    return !disk_is_hung(d->disk) &&
           (disk_is_busy(d->disk) || d->n_offers > 0 || d->at_preload < d->n_preload ||
            d->n_writing > 0 || d->n_reading > 0);
}

void disk_tier_reset(struct store *st)
{
    struct disk_tier *d = st->disk;
    struct replace_victim victim;

    drop_offers(st);
    d->at_preload = d->n_preload;
    for (uint32_t i = 0; i < N_DISK_UNITS; i++)
        d->units[i].is_stale = true;
    while (replace_evict(st->policy, order_of(st, CACHE_DISK), &victim) == OK)
        (void)left_order(st, st->node_of[victim.id], true);
}

/* --- watching --- */

void disk_tier_stats(const struct store *st, struct cache_disk_stats *out)
{
    const struct disk_tier *d = st->disk;
    const struct disk_dir *dir = disk_directory(d->disk);
    struct disk_stats stats;

    disk_stats(d->disk, &stats);
    *out = d->found;
    out->is_on = true;
    out->is_hung = disk_is_hung(d->disk);
    out->io = disk_io_name(d->disk);
    out->is_direct = dir->is_direct;
    out->extent_bytes = d->extent_bytes;
    out->n_read_bytes = stats.n_read_bytes;
    out->n_written_bytes = stats.n_written_bytes;
    out->n_reads_failed = stats.n_reads_failed;
    out->n_writes_failed = stats.n_writes_failed;
    out->n_timeouts = stats.n_timeouts;
    out->n_corrupt = stats.n_corrupt;
    out->n_not_worth = d->n_not_worth;
    out->n_preloaded_blocks = d->n_preloaded;
    out->read_bytes_per_s = d->bytes_per_s;
}

void disk_tier_check(const struct store *st)
{
    const struct disk_tier *d = st->disk;
    uint32_t n_writing = 0, n_reading = 0;

    for (uint32_t i = 0; i < N_DISK_UNITS; i++) {
        const struct unit *u = &d->units[i];
        bool writes = u->state == UNIT_SAVING || u->state == UNIT_SAVED || u->state == UNIT_WRITING;

        n_writing += writes ? u->what.n : 0;
        n_reading += u->state != UNIT_FREE && !writes ? u->what.n : 0;
    }
    ASSERT(n_writing == d->n_writing && n_reading == d->n_reading);
    ASSERT(st->tier[CACHE_DISK].n_in_transfer == d->n_writing + d->n_clearing);
    ASSERT(d->n_offers <= N_OFFERS);
    if (n_writing + n_reading + st->n_transfers == 0 && !disk_is_busy(d->disk))
        ASSERT(disk_n_free_slots(d->disk) == d->n_slots);
}
