/* kv_store_load.c - what is read from slow tiers: for waiting requests, at start, and what another
 * instance hands over.
 *
 * Where there is a host tier, nodes are read into it and fetched from there like any other node;
 * else, and from another process's device memory, they are read to the device, within
 * prefetch_share. The first of the waiting requests gets
 * room regardless of the share, even if that evicts what was read for others. So the reads of at
 * least one request always end, however small the tier is. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

/* A node whose read timed out is not read again for this many timeouts. A node for which there was
 * no room is not read again for NO_ROOM_NS, except for the first request. */
#define VAIN_TIMEOUTS 10
#define NO_ROOM_NS UINT64_C(100000000)
/* Weight of a new value in the moving mean of the read rate, and the bytes that one value covers.
 */
#define RATE_SHARE 0.3
#define RATE_BYTES (UINT64_C(4) << 20)
/* Units that may preload at a time; the others are kept for waiting requests. */
#define N_PRELOADING 8

uint64_t store_n_load_events(const struct store *st)
{
    return st->n_load_events;
}

/* --- the rate of reads --- */

static void measure_begin(const struct store *st, struct slow_tier *w)
{
    if (w->n_reading == 0) {
        w->busy_since_ns = st->now_ns;
        w->n_busy_bytes = 0;
    }
}

/* The rate is bytes over the time in which any read was under way, however many ran in parallel. */
static void measure_end(const struct store *st, struct slow_tier *w, uint32_t n)
{
    w->n_busy_bytes += n * tier_extent_bytes(w->t);
    if (w->n_busy_bytes < RATE_BYTES || st->now_ns <= w->busy_since_ns)
        return;
    double rate = (double)w->n_busy_bytes / ((double)(st->now_ns - w->busy_since_ns) * 1e-9);
    w->bytes_per_s += (w->bytes_per_s == 0 ? 1 : RATE_SHARE) * (rate - w->bytes_per_s);
    w->busy_since_ns = st->now_ns;
    w->n_busy_bytes = 0;
}

/* --- reading --- */

enum read_end { READ_OVER, READ_TOO_LATE, READ_NO_ROOM };

static void clear_reading(struct store *st, const struct slow_tier *w, const struct unit *u,
                          enum read_end end)
{
    for (uint32_t i = 0; i < u->what.n; i++) {
        uint32_t node = ktree_find(st->tree, &u->what.keys[i]);

        if (node == KTREE_NONE || !u->buffers[i])
            continue; /* gone, or placed */
        st->info[node].is_reading = false;
        if (end == READ_TOO_LATE)
            st->info[node].no_load_until_ns = st->now_ns + VAIN_TIMEOUTS * w->timeout_ns;
        else if (end == READ_NO_ROOM)
            st->info[node].no_load_ahead_until_ns = st->now_ns + NO_ROOM_NS;
    }
}

/* The slow tier from which a node is read. A node that lies on disk is not remote, too. */
static enum cache_tier tier_to_read(const struct ktree_node *look)
{
    return lies_in(look, CACHE_DISK) ? CACHE_DISK : CACHE_REMOTE;
}

enum status begin_read(struct store *st, uint32_t node, const void *owner, double due_s,
                       enum read_for read_for)
{
    struct ktree_node look = ktree_look(st->tree, node);
    struct slow_tier *w = st->slow[tier_to_read(&look)];
    struct unit *u = take_unit(w);
    uint32_t n = look.n_blocks;
    enum status s;

    if (st->sleeps)
        return ERR_UNAVAILABLE;
    if (!u)
        return ERR_BUSY;
    ktree_slots(st->tree, node, w->which, u->blocks, n);
    u->is_near = w->which == CACHE_REMOTE && tier_remote_is_near(w->t, u->blocks[0]);
    if (u->is_near ? !tier_remote_stage_near(w->t, u->buffers, n)
                   : !tier_stage(w->t, u->buffers, n))
        return ERR_BUSY;
    s = tier_read(w->t, u->blocks, u->buffers, n, false, unit_tag(w, u));
    if (s != OK) {
        tier_unstage(w->t, u->buffers, n);
        return s;
    }
    measure_begin(st, w);
    u->state = UNIT_READING;
    u->owner = owner;
    u->due_s = due_s;
    u->read_for = read_for;
    u->began_ns = st->now_ns;
    u->n_reserved = 0;
    u->what.n = n;
    for (uint32_t i = 0; i < n; i++)
        u->what.keys[i] = *ktree_key_at(st->tree, node, i);
    w->n_reading += n;
    st->info[node].is_reading = true;
    return OK;
}

static void end_unit(struct store *st, struct slow_tier *w, struct unit *u)
{
    u->state = UNIT_FREE;
    w->n_reading -= u->what.n;
    st->n_load_events++;
}

/* Forget the nodes of a unit that cannot be read, and all nodes below them; but not a node that was
 * evicted during the read and lies in another block of the tier since. */
static void drop_unreadable(struct store *st, const struct slow_tier *w, const struct unit *u)
{
    for (uint32_t i = 0; i < u->what.n; i++) {
        uint32_t node = ktree_find(st->tree, &u->what.keys[i]), block;
        struct ktree_node look;

        if (node == KTREE_NONE)
            continue;
        look = ktree_look(st->tree, node);
        if (!lies_in(&look, w->which))
            continue;
        ktree_slots(st->tree, node, w->which, &block, 1);
        if (block != u->blocks[i])
            continue;
        if (w->which == CACHE_DISK)
            drop_disk_below(st, node, false);
        else
            drop_remote(st, node);
    }
}

static double seconds_since(const struct store *st, uint64_t ns)
{
    return st->now_ns > ns ? (double)(st->now_ns - ns) * 1e-9 : 0;
}

void load_read_done(struct store *st, struct slow_tier *w, struct unit *u, enum status status)
{
    double seconds = seconds_since(st, u->began_ns);

    if (status == OK) {
        measure_end(st, w, u->what.n);
        u->state = UNIT_READ;
        u->read_s = seconds / u->what.n;
        u->give_up_ns = st->now_ns + w->timeout_ns;
        return;
    }
    st->tier[w->which].lost_s += seconds;
    clear_reading(st, w, u, status == ERR_TIMEOUT ? READ_TOO_LATE : READ_OVER);
    if (status != ERR_TIMEOUT)
        drop_unreadable(st, w, u);
    end_unit(st, w, u);
}

/* --- placing --- */

static bool is_of_first(const struct store *st, const struct unit *u)
{
    return u->owner && u->owner == st->load_first;
}

/* Room on the device for n blocks behind `parent`, for a policy entry. */
static bool make_load_room(struct store *st, const struct unit *u, uint32_t parent, uint32_t entry,
                           uint32_t n)
{
    bool done;

    if (u->read_for == READ_AT_START)
        return tier_n_free(device_tier(st)) >= n;
    move_pin(st, KTREE_ROOT, parent); /* the parent must not be evicted to make room */
    done = (is_of_first(st, u) || make_room_ahead(st, n, u->due_s)) &&
           (u->read_for != READ_ADOPTED || tier_n_free(device_tier(st)) >= n ||
            replace_admits(st->policy, CACHE_DEVICE, entry)) &&
           make_device_room(st, n);
    move_pin(st, parent, KTREE_ROOT);
    return done;
}

/* The same on the host, for a policy entry. */
static bool make_host_load_room(struct store *st, const struct unit *u, uint32_t parent,
                                uint32_t entry, uint32_t n)
{
    struct ktree_node look = ktree_look(st->tree, parent);
    bool is_below = parent != KTREE_ROOT && lies_in(&look, CACHE_HOST), done;

    if (u->read_for == READ_AT_START)
        return tier_n_free(host_tier(st)) >= n;
    if (is_below)
        replace_pin(st->policy, CACHE_HOST, st->info[parent].entry);
    done = make_host_room(st, entry, n, is_of_first(st, u) || u->read_for == READ_FOR_LOAN);
    if (is_below)
        replace_unpin(st->policy, CACHE_HOST, st->info[parent].entry);
    return done;
}

/* The node that begins with block i of the unit, if it still lies in slow tiers only. Returns its
 * number of blocks; 0: there is none. */
static uint32_t node_to_place(const struct store *st, const struct unit *u, uint32_t i,
                              uint32_t *node)
{
    struct ktree_node look;

    *node = ktree_find(st->tree, &u->what.keys[i]);
    if (!u->buffers[i]) /* placed before, even if evicted since */
        return 0;
    if (*node == KTREE_NONE || st->info[*node].is_orphan)
        return 0;
    look = ktree_look(st->tree, *node);
    if (!lies_slow_only(&look) || look.n_blocks > u->what.n - i)
        return 0;
    for (uint32_t k = 0; k < look.n_blocks; k++)
        if (memcmp(ktree_key_at(st->tree, *node, k), &u->what.keys[i + k], sizeof *u->what.keys) !=
            0)
            return 0;
    return look.n_blocks;
}

/* Give up the node that was being copied to memory. */
static void cancel_piece(struct store *st, struct unit *u)
{
    struct store_tier *t = &st->tier[unit_tier(st, u)];

    if (u->n_reserved == 0)
        return;
    tier_drop(t->t, u->to, u->n_reserved, false);
    t->n_placing -= u->n_reserved;
    u->n_reserved = 0;
}

/* Reserve blocks in memory for n blocks of the unit from i on. */
static bool begin_piece(struct store *st, struct unit *u, uint32_t i, uint32_t n, uint32_t node)
{
    struct store_tier *t = &st->tier[unit_tier(st, u)];
    uint32_t parent = ktree_look(st->tree, node).parent, entry = st->info[node].entry;

    if (unit_tier(st, u) == CACHE_HOST ? !make_host_load_room(st, u, parent, entry, n)
                                       : !make_load_room(st, u, parent, entry, n))
        return false;
    if (!tier_reserve(t->t, u->to, n))
        return false;
    t->n_placing += n;
    u->at = i;
    u->n_reserved = n;
    u->n_copied = 0;
    return true;
}

/* Copy blocks to memory as far as this poll's budget goes. True: all are there. */
static bool copy_piece(struct store *st, struct unit *u)
{
    while (u->n_copied < u->n_reserved && take_copy_budget(st, st->block_bytes)) {
        const void *from = u->buffers[u->at + u->n_copied];
        enum status s =
            tier_write(st->tier[unit_tier(st, u)].t, &u->to[u->n_copied], &from, NULL, 1, 0);

        ASSERT(s == OK); /* a copy in memory */
        u->n_copied++;
    }
    return u->n_copied == u->n_reserved;
}

/* Whether the instance that lends the node's blocks keeps its copy. */
static bool is_borrowed(const struct store *st, const struct slow_tier *w, uint32_t node)
{
    struct pool_found found;
    uint32_t slot;

    ktree_slots(st->tree, node, CACHE_REMOTE, &slot, 1);
    tier_remote_found(w->t, slot, &found);
    return found.keeps;
}

/* The bytes are in memory, or (is_moving_in) on the way there: the node lies there now. Kernels
 * that read a node on its way are ordered behind the move. */
static void enter_piece(struct store *st, const struct slow_tier *w, struct unit *u, uint32_t node,
                        bool is_moving_in)
{
    enum cache_tier which = unit_tier(st, u);
    struct node_info *info = &st->info[node];
    uint32_t n = u->n_reserved;

    for (uint32_t k = 0; k < n; k++) /* end_move() gives back the buffers of a move */
        u->buffers[u->at + k] = NULL;
    ktree_place(st->tree, node, which, u->to);
    if (w->which == CACHE_REMOTE) {
        info->is_borrowed = u->read_for == READ_FOR_REQUEST && is_borrowed(st, w, node);
        (void)leave_remote(st, node);
    }
    replace_insert(st->policy, which, info->entry);
    if (is_moving_in) {
        node_pin(st, node);
        info->fetch_no = st->n_moves_begun;
    }
    st->tier[which].n_placing -= n;
    u->n_reserved = 0;
    info->is_reading = false;
    info->read_from = u->read_for == READ_FOR_REQUEST ? (uint8_t)w->which : 0;
    info->read_s = u->read_s * n;
    if (u->read_for == READ_AT_START)
        st->disk->n_preloaded += n;
    if (which == CACHE_HOST) {
        st->n_loaded_to_host += n;
        return;
    }
    if (u->read_for == READ_FOR_REQUEST && replace_n_expected(st->policy, info->entry) > 0) {
        info->is_prefetched = true;
        st->n_prefetched += n;
    }
    st->tier[CACHE_DEVICE].n_moved_in += n;
    st->n_fetched_ahead += n;
}

/* A node never lies in a faster tier than its parent: fetch what comes before a node that goes to
 * the device. False: there is no room now. */
static bool fetch_before(struct store *st, uint32_t parent)
{
    uint32_t top, x;
    bool done = true;

    do {
        top = KTREE_ROOT;
        for (x = parent; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent) {
            struct ktree_node look = ktree_look(st->tree, x);

            if (lies_in(&look, CACHE_DEVICE))
                break;
            top = x;
        }
        if (top == KTREE_ROOT)
            break;
        st->is_ahead = true;
        move_pin(st, KTREE_ROOT, x); /* making room must evict no part of the path */
        replace_pin(st->policy, CACHE_HOST, st->info[parent].entry);
        done = fetch_node(st, top);
        replace_unpin(st->policy, CACHE_HOST, st->info[parent].entry);
        move_pin(st, x, KTREE_ROOT);
        st->is_ahead = false;
    } while (done);
    return done;
}

enum place_result { PLACED, PLACE_COPIES, PLACE_WAITS, PLACE_NEVER };

/* Only the first request waits for room: the buffers of the others must not be in its way. */
static bool may_wait_for_room(const struct store *st, const struct unit *u)
{
    return is_of_first(st, u);
}

/* Blocks [i, i + n) of the unit are this node. */
static enum place_result place_piece(struct store *st, const struct slow_tier *w, struct unit *u,
                                     uint32_t i, uint32_t n, uint32_t node)
{
    uint32_t parent = ktree_look(st->tree, node).parent;
    struct ktree_node look = ktree_look(st->tree, parent);
    bool copies = tier_is_addressable(st->tier[unit_tier(st, u)].t);

    if (st->sleeps) /* the tiers were found empty, and must stay so */
        return PLACE_NEVER;
    if (parent != KTREE_ROOT && lies_slow_only(&look))
        return st->info[parent].is_reading ? PLACE_WAITS : PLACE_NEVER;
    if (u->n_reserved > 0 && (u->at != i || u->n_reserved != n))
        cancel_piece(st, u); /* the node was split */
    if (copies && u->n_reserved == 0 && st->copy_left == 0)
        return PLACE_COPIES; /* at the next poll: blocks are not reserved for longer than needed */
    if (u->is_near && load_tier(st) == CACHE_HOST && !fetch_before(st, parent))
        return may_wait_for_room(st, u) ? PLACE_WAITS : PLACE_NEVER;
    if (u->n_reserved == 0 && !begin_piece(st, u, i, n, node))
        return may_wait_for_room(st, u) ? PLACE_WAITS : PLACE_NEVER;
    if (copies) {
        if (!copy_piece(st, u))
            return PLACE_COPIES;
        tier_unstage(w->t, u->buffers + i, n);
        enter_piece(st, w, u, node, false);
        return PLACED;
    }
    if (!begin_move(st, MOVE_LOAD, node, u->to, u->buffers + i, n)) {
        cancel_piece(st, u);
        return may_wait_for_room(st, u) ? PLACE_WAITS : PLACE_NEVER;
    }
    st->moves[st->n_moves_begun % N_MOVES].from = w->which;
    enter_piece(st, w, u, node, true);
    return PLACED;
}

/* Give back the buffers that no move gives back. */
static void give_buffers(const struct slow_tier *w, struct unit *u)
{
    for (uint32_t i = 0; i < u->what.n; i++)
        if (u->buffers[i])
            tier_unstage(w->t, &u->buffers[i], 1);
}

/* Place what can be placed now. True: the unit is over, whether it was placed or not. */
static bool place_unit(struct store *st, struct slow_tier *w, struct unit *u)
{
    enum place_result result = PLACED;
    uint32_t node;

    for (uint32_t i = 0, n; i < u->what.n && result == PLACED; i += n ? n : 1) {
        n = node_to_place(st, u, i, &node);
        if (n > 0)
            result = place_piece(st, w, u, i, n, node);
    }
    if (result == PLACE_COPIES || (result == PLACE_WAITS && st->now_ns < u->give_up_ns))
        return false;
    cancel_piece(st, u);
    clear_reading(st, w, u, result == PLACED ? READ_OVER : READ_NO_ROOM);
    give_buffers(w, u);
    end_unit(st, w, u);
    return true;
}

/* A node is placed after its parent, which may belong to a later unit: repeat while any unit ends.
 */
void load_poll(struct store *st, struct slow_tier *w)
{
    bool again = w->n_reading > 0;

    while (again) {
        again = false;
        for (uint32_t i = 0; i < N_UNITS; i++)
            if (w->units[i].state == UNIT_READ)
                again |= place_unit(st, w, &w->units[i]);
    }
}

/* --- reads for waiting requests --- */

/* Nodes path[end, begin) of a path, deepest first, that are read from one tier. */
struct part {
    enum cache_tier tier;
    uint32_t end, begin;
};

/* The expected time to read a part; 0: not known. A part that is being read needs no latency. */
static double read_seconds(const struct store *st, const struct part *p)
{
    const struct slow_tier *w = st->slow[p->tier];
    struct ktree_node from = ktree_look(st->tree, st->path[p->begin - 1]);
    struct ktree_node to = ktree_look(st->tree, st->path[p->end]);
    uint32_t n_blocks = to.n_before + to.n_blocks - from.n_before;
    double bytes = (double)n_blocks * (double)tier_extent_bytes(w->t), rate = w->bytes_per_s;
    double latency_s = 0;

    if (p->tier == CACHE_REMOTE) {
        uint32_t slot;
        struct pool_found found;

        ktree_slots(st->tree, st->path[p->begin - 1], CACHE_REMOTE, &slot, 1);
        tier_remote_found(w->t, slot, &found);
        rate = found.bytes_per_s;
        latency_s = st->info[st->path[p->begin - 1]].is_reading ? 0 : found.latency_s;
    }
    return rate > 0 ? latency_s + bytes / rate : 0;
}

/* The time to compute nodes path[end, begin). */
static double compute_seconds(const struct store *st, uint32_t end, uint32_t begin)
{
    const struct node_info *a = &st->info[st->path[begin - 1]], *b = &st->info[st->path[end]];

    return compute_time(st, a->pos0, b->pos0 + b->n_tokens - a->pos0);
}

/* Remove from the listed nodes path[*end, n) those at the end that are expected to be computed
 * faster than read. A path lies on disk first, then on another instance. */
static void cut_unworthy(struct store *st, uint32_t *end, uint32_t n)
{
    struct part disk = {CACHE_DISK, *end, n}, remote = {CACHE_REMOTE, *end, *end};
    double disk_s, remote_s;

    if (!st->config.seconds)
        return;
    while (remote.begin < n) {
        struct ktree_node look = ktree_look(st->tree, st->path[remote.begin]);

        if (tier_to_read(&look) == CACHE_DISK)
            break;
        remote.begin++;
    }
    disk.end = remote.begin;
    disk_s = disk.end < n ? read_seconds(st, &disk) : 0;
    remote_s = remote.begin > remote.end ? read_seconds(st, &remote) : 0;
    if (remote.begin > remote.end && remote_s > 0 &&
        (remote_s >= compute_seconds(st, remote.end, remote.begin) &&
         disk_s + remote_s >= compute_seconds(st, remote.end, n))) {
        st->slow[CACHE_REMOTE]->n_not_worth++;
        *end = remote.begin;
    }
    if (disk.end < n && disk_s > 0 &&
        disk_s + (*end < remote.begin ? remote_s : 0) >= compute_seconds(st, *end, n)) {
        st->slow[CACHE_DISK]->n_not_worth++;
        *end = n;
    }
}

void store_load_first(struct store *st, const void *owner)
{
    if (st->load_first != owner) {
        st->load_first = owner;
        st->n_load_events++; /* the new first request may read more */
    }
}

static uint32_t n_reading(const struct store *st)
{
    uint32_t n = 0;

    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
        n += st->slow[t] ? st->slow[t]->n_reading : 0;
    return n;
}

/* Whether a node is read from mapped device memory. */
static bool is_near(const struct store *st, uint32_t node, const struct ktree_node *look)
{
    uint32_t slot;

    if (tier_to_read(look) != CACHE_REMOTE)
        return false;
    ktree_slots(st->tree, node, CACHE_REMOTE, &slot, 1);
    return tier_remote_is_near(st->slow[CACHE_REMOTE]->t, slot);
}

/* Whether the node is within prefetch_share. On the host the policy decides instead. */
static bool may_load(const struct store *st, uint32_t node, const void *owner)
{
    struct ktree_node look = ktree_look(st->tree, node);

    if (st->load_first == owner)
        return true;
    return st->now_ns >= st->info[node].no_load_ahead_until_ns &&
           ((load_tier(st) == CACHE_HOST && !is_near(st, node, &look)) ||
            st->n_prefetched + n_reading(st) + look.n_blocks <= prefetch_limit(st));
}

/* List the nodes of the path to `node` that lie in slow tiers only in st->path, deepest first. */
static uint32_t list_slow_part(struct store *st, uint32_t node)
{
    uint32_t n = 0;

    for (uint32_t x = node; x != KTREE_ROOT;) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (!lies_slow_only(&look))
            break;
        st->path[n++] = x;
        x = look.parent;
    }
    return n;
}

/* Whether a node can be read now or later. */
static bool is_readable(const struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    return !st->info[node].is_orphan && st->now_ns >= st->info[node].no_load_until_ns &&
           !tier_is_hung(st->slow[tier_to_read(&look)]->t);
}

enum store_load_state store_load(struct store *st, const struct kv_key *keys, uint32_t n,
                                 const void *owner, double due_s, bool must)
{
    uint32_t n_listed, n_under_way = 0, end = 0;

    if (!st->slow[CACHE_DISK] && !st->slow[CACHE_REMOTE])
        return STORE_LOADED;
    n_listed = list_slow_part(st, store_match_all(st, keys, n).node);
    if (n_listed > 0 && !must)
        cut_unworthy(st, &end, n_listed);
    while (n_listed-- > end) {
        uint32_t node = st->path[n_listed];
        enum status s = OK;

        if (!is_readable(st, node))
            break; /* the nodes behind it cannot be used either */
        if (!st->info[node].is_reading) {
            if (!may_load(st, node, owner) ||
                (s = begin_read(st, node, owner, due_s, READ_FOR_REQUEST)) == ERR_BUSY)
                return STORE_CANNOT_LOAD;
            if (s != OK)
                break; /* the lease is over */
        }
        n_under_way++;
    }
    return n_under_way > 0 ? STORE_LOADING : STORE_LOADED;
}

void store_note_wait(struct store *st, enum cache_tier tier, double seconds, bool useful)
{
    if (useful)
        st->tier[tier].saved_s -= seconds;
    else
        st->tier[tier].lost_s += seconds;
}

/* --- at start --- */

/* Preloading fills at most half of the tier: the rest is for the first requests. */
static bool has_preload_room(const struct store *st, uint32_t n)
{
    return st->disk->n_preloaded + st->disk->slow.n_reading + n <=
           tier_n_blocks(st->tier[load_tier(st)].t) / 2;
}

static void preload_next(struct store *st)
{
    struct store_disk *d = st->disk;
    uint32_t node = ktree_find(st->tree, &d->preload[d->at_preload].first);
    struct ktree_node look = ktree_look(st->tree, node == KTREE_NONE ? KTREE_ROOT : node);
    struct ktree_node parent = ktree_look(st->tree, node == KTREE_NONE ? KTREE_ROOT : look.parent);
    bool is_wanted =
        node != KTREE_NONE && lies_slow_only(&look) && !st->info[node].is_reading &&
        has_preload_room(st, look.n_blocks) &&
        (look.parent == KTREE_ROOT || !lies_slow_only(&parent) || st->info[look.parent].is_reading);

    if (!is_wanted || begin_read(st, node, NULL, STORE_NO_DUE, READ_AT_START) == OK)
        d->at_preload++;
}

void load_preload(struct store *st)
{
    struct store_disk *d = st->disk;
    uint32_t n_under_way = 0, at;

    if (d->at_preload == d->n_preload)
        return;
    for (uint32_t i = 0; i < N_UNITS; i++)
        n_under_way +=
            d->slow.units[i].state == UNIT_READING || d->slow.units[i].state == UNIT_READ;
    do {
        at = d->at_preload;
        preload_next(st);
        n_under_way++;
    } while (d->at_preload > at && d->at_preload < d->n_preload && n_under_way < N_PRELOADING);
}
