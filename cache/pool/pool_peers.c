/* pool_peers.c - the other instances, as the directory lists them and as they have behaved. */
#include <string.h>

#include "cache/pool/pool_inner.h"

#define N_TIMEOUTS_ROW 4u /* then the peer is not asked for a while */
#define PAUSE_FIRST_NS (250 * POOL_MS)
#define PAUSE_LAST_NS (10 * POOL_SECOND)
#define RATE_PULLS 4u /* times pull_ms: so long a measured rate is believed without reads */

struct pool_peer *pool_peer_by_id(struct pool *p, uint64_t id)
{
    uint32_t no;

    return map_get(&p->peer_of_id, id, &no) ? &p->peers[no] : NULL;
}

static void remove_peer(struct pool *p, struct pool_peer *peer)
{
    map_remove(&p->peer_of_id, peer->info.id);
    peer->is_used = false;
}

static struct pool_peer *add_peer(struct pool *p, uint64_t id)
{
    uint32_t no = 0;

    while (no < p->n_peers && p->peers[no].is_used)
        no++;
    if (no == DIRECTORY_INSTANCES_MAX)
        return NULL;
    p->n_peers = no < p->n_peers ? p->n_peers : no + 1;
    p->peers[no] = (struct pool_peer){.is_used = true, .conn = POOL_NONE, .info.id = id};
    atomic_store_explicit(&p->query_ns[no], 0, memory_order_relaxed);
    map_put(&p->peer_of_id, id, no);
    return &p->peers[no];
}

void pool_peers_update(struct pool *p)
{
    uint32_t n;
    const struct directory_instance *all = directory_instances(p->directory, &n);

    for (uint32_t i = 0; i < p->n_peers; i++)
        p->peers[i].is_listed = false;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].id == p->info.id || all[i].id == 0)
            continue;
        struct pool_peer *peer = pool_peer_by_id(p, all[i].id);
        if (!peer)
            peer = add_peer(p, all[i].id);
        if (!peer)
            continue;
        peer->info = all[i];
        peer->is_listed = true;
        peer->n_offered_blocks = 0;
    }
    for (uint32_t i = 0; i < p->n_peers; i++) /* a connection outlives the list: Redis may be new */
        if (p->peers[i].is_used && !p->peers[i].is_listed && p->peers[i].conn == POOL_NONE)
            remove_peer(p, &p->peers[i]);
    p->live.n_instances = n + 1;
    p->publish_ns = 0;
}

bool pool_peer_is_usable(const struct pool *p, const struct pool_peer *peer)
{
    return peer->is_listed && p->now_ns >= peer->paused_until_ns &&
           memcmp(peer->info.fingerprint, p->info.fingerprint, sizeof p->info.fingerprint) == 0;
}

static void pause_peer(struct pool *p, struct pool_peer *peer)
{
    peer->pause_ns = peer->pause_ns ? peer->pause_ns * 2 : PAUSE_FIRST_NS;
    if (peer->pause_ns > PAUSE_LAST_NS)
        peer->pause_ns = PAUSE_LAST_NS;
    peer->paused_until_ns = p->now_ns + peer->pause_ns;
}

void pool_peer_timed_out(struct pool *p, struct pool_peer *peer)
{
    p->live.n_peer_timeouts++;
    if (++peer->n_timeouts_row < N_TIMEOUTS_ROW)
        return;
    /* A connection over a network that was cut for a while may take minutes to recover. */
    peer->n_timeouts_row = 0;
    if (peer->conn != POOL_NONE)
        pool_conn_fail(p, peer->conn, true, "the peer does not answer");
}

void pool_peer_answered(struct pool_peer *peer)
{
    peer->n_timeouts_row = 0;
    peer->pause_ns = 0;
}

double pool_peer_rate(const struct pool *p, struct pool_peer *peer)
{
    if (p->now_ns > peer->last_done_ns + RATE_PULLS * p->pull_ns)
        peer->bytes_per_s = 0;
    return peer->bytes_per_s;
}

void pool_peer_closed(struct pool *p, struct pool_peer *peer, bool is_peers_fault)
{
    peer->conn = POOL_NONE;
    peer->n_reads_out = 0;
    if (is_peers_fault)
        pause_peer(p, peer);
    if (!peer->is_listed)
        remove_peer(p, peer);
}

uint32_t pool_peer_connect(struct pool *p, struct pool_peer *peer)
{
    if (peer->conn == POOL_NONE) {
        peer->conn = pool_conn_open(p, (uint32_t)(peer - p->peers));
        if (peer->conn == POOL_NONE)
            pause_peer(p, peer);
    }
    return peer->conn;
}
