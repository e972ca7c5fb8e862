/* pool_map.c - device memory of instances on the same machine (CUDA IPC): who may map whose, and
 * when it is unmapped.
 *
 *   asker -> lender   MAP      the asker's machine
 *   lender -> asker   HANDLE   of its exported memory; or none
 *   asker -> lender   MAPPED   whether that worked: from here on LENT may name blocks in it
 *   lender -> asker   HANDLE   none: the memory goes away
 *   asker -> lender   MAPPED   no more
 *   lender -> asker   HANDLE   there is memory again
 *
 * A machine is named by a hash, keyed with the pool's secret, of what two processes have in common
 * if the driver lets them share memory: the boot, the namespaces of IPC and of processes, the user.
 * The first bytes stand in the directory, so that an instance asks only where it can succeed, and
 * never one of an older version. The lender compares all of it.
 *
 * Mapped memory is used by tickets, and unmapped when its connection is closed or the lender says
 * so, and the engine has forgotten the last of them: then no copy is under way. The lender does not
 * hear of that once the connection is closed: its memory stays for pull_ms more. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "cache/pool/pool_inner.h"

#define WORDS_MAX 128

/* --- the machine --- */

static bool add_file(struct hash_state *h, const char *path)
{
    char words[WORDS_MAX] = "";
    FILE *f = fopen(path, "re");
    bool done = f && fgets(words, sizeof words, f) && words[0];

    if (f)
        (void)fclose(f);
    hash_add(h, words, sizeof words);
    return done;
}

static bool add_link(struct hash_state *h, const char *path)
{
    char words[WORDS_MAX] = "";
    ssize_t n = readlink(path, words, sizeof words - 1);

    hash_add(h, words, sizeof words);
    return n > 0;
}

static bool name_machine(struct pool *p)
{
    static const char domain[] = "tarn pool machine";
    const char *more = p->config.machine ? p->config.machine : "";
    uint64_t user = geteuid();
    struct hash_state h;

    hash_begin(&h, sizeof p->machine, p->config.secret, POOL_SECRET_BYTES);
    hash_add(&h, domain, sizeof domain - 1);
    hash_add(&h, &user, sizeof user);
    bool done = add_file(&h, "/proc/sys/kernel/random/boot_id");
    done = add_link(&h, "/proc/self/ns/ipc") && done;
    done = add_link(&h, "/proc/self/ns/pid") && done;
    hash_add(&h, more, strlen(more));
    hash_end(&h, p->machine, sizeof p->machine);
    return done;
}

void pool_map_open(struct pool *p)
{
    p->can_map = p->config.map && name_machine(p);
    if (p->can_map)
        hash_hex(p->info.machine, p->machine, (sizeof p->info.machine - 1) / 2);
    else if (p->config.map)
        log_event(LOG_WARN, "GPU memory is not shared with other instances",
                  "why=\"/proc does not name this machine\"");
}

/* --- the asker --- */

/* Unmap memory that nothing uses any more. */
static void unmap_unused(struct pool *p, struct pool_map *m)
{
    if (!m->is_over || m->n_uses > 0)
        return;
    p->config.unmap(p->config.map_arg, m->memory);
    m->memory = NULL;
    p->live.n_mapped--;
    if (m->conn == POOL_NONE)
        return;
    p->conns[m->conn].map = POOL_NONE;
    pool_conn_say(p, m->conn, &(struct wire_message){.kind = WIRE_MAPPED});
}

void pool_map_close(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_N_MAPS; i++)
        if (p->maps[i].memory)
            p->config.unmap(p->config.map_arg, p->maps[i].memory);
}

void pool_map_begin(struct pool *p, uint32_t conn)
{
    struct pool_conn *c = &p->conns[conn];
    struct wire_message m = {.kind = WIRE_MAP};

    if (!p->can_map || strcmp(p->peers[c->peer].info.machine, p->info.machine) != 0)
        return;
    memcpy(m.machine, p->machine, sizeof m.machine);
    c->asked_memory = c->is_mapping = pool_conn_say(p, conn, &m);
    c->began_ns = p->now_ns;
}

/* Map the memory. POOL_NONE: impossible. */
static uint32_t open_mapping(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    uint32_t no = 0;
    void *memory = NULL;

    while (no < POOL_N_MAPS && p->maps[no].memory)
        no++;
    if (no == POOL_N_MAPS || p->config.map(p->config.map_arg, m->handle, &memory) != OK || !memory)
        return POOL_NONE;
    p->maps[no] = (struct pool_map){.memory = memory, .n_bytes = m->n_memory, .conn = conn};
    p->live.n_mapped++;
    log_event(LOG_INFO, "reads the GPU memory of another instance", "peer=%016llx bytes=%llu",
              (unsigned long long)p->conns[conn].peer_id, (unsigned long long)m->n_memory);
    return no;
}

/* The lender's memory goes away: end what reads from it. */
static void end_mapping(struct pool *p, uint32_t conn)
{
    uint32_t map = p->conns[conn].map;

    if (map == POOL_NONE) {
        pool_conn_say(p, conn, &(struct wire_message){.kind = WIRE_MAPPED});
        return;
    }
    for (uint32_t i = 0; i < POOL_N_TICKETS; i++)
        if (p->tickets[i].map == map && p->tickets[i].stage == POOL_HOLDING) {
            pool_read_end_all(p, i, ERR_NOT_FOUND);
            pool_lookup_lost(p, i);
        }
    p->maps[map].is_over = true;
    unmap_unused(p, &p->maps[map]);
}

void pool_map_handle(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];
    bool was_mapping = c->is_mapping;

    if (!c->asked_memory || (m->n_memory > 0 && c->map != POOL_NONE)) {
        pool_conn_fail(p, conn, true, "a handle that nobody asked for");
        return;
    }
    c->is_mapping = false;
    if (m->n_memory == 0 && !was_mapping)
        end_mapping(p, conn);
    if (m->n_memory > 0) {
        c->map = open_mapping(p, conn, m);
        pool_conn_say(
            p, conn, &(struct wire_message){.kind = WIRE_MAPPED, .is_mapped = c->map != POOL_NONE});
    }
    if (was_mapping)
        pool_lookup_member(p, conn); /* lookups have waited for this */
}

void pool_map_use(struct pool *p, struct pool_ticket *t)
{
    ASSERT(t->map == POOL_NONE);
    t->map = p->conns[t->conn].map;
    if (t->map != POOL_NONE)
        p->maps[t->map].n_uses++;
}

void pool_map_release(struct pool *p, struct pool_ticket *t)
{
    if (t->map == POOL_NONE)
        return;
    p->maps[t->map].n_uses--;
    unmap_unused(p, &p->maps[t->map]);
    t->map = POOL_NONE;
}

/* --- the lender --- */

/* Say the handle, if there is memory and the peer may have it. */
static void say_handle(struct pool *p, uint32_t conn)
{
    struct pool_conn *c = &p->conns[conn];
    struct wire_message m = {.kind = WIRE_HANDLE};

    if (c->wants_memory && p->n_exported > 0) {
        m.n_memory = p->n_exported;
        memcpy(m.handle, p->handle, sizeof m.handle);
    }
    c->was_handed = pool_conn_say(p, conn, &m) && m.n_memory > 0;
}

void pool_map_asked(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];

    if (c->wants_memory) {
        pool_conn_fail(p, conn, true, "device memory is asked for twice");
        return;
    }
    c->wants_memory = p->can_map && hash_equal_secret(m->machine, p->machine, sizeof p->machine);
    say_handle(p, conn);
}

void pool_map_answered(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];

    if (!c->was_handed) {
        if (m->is_mapped || !c->wants_memory)
            pool_conn_fail(p, conn, true, "no device memory was lent");
        return;
    }
    c->was_handed = m->is_mapped;
    c->reads_device = m->is_mapped && p->n_exported > 0;
}

void pool_map_export(struct pool *p, const struct pool_command *c)
{
    memcpy(p->handle, c->memory.handle, sizeof p->handle);
    p->n_exported = c->memory.n_bytes;
    for (uint32_t i = 0; i < POOL_N_CONNS; i++)
        if (p->conns[i].wants_memory && !p->conns[i].was_handed)
            say_handle(p, i);
}

static void end_revoke(struct pool *p)
{
    p->is_revoking = false;
    atomic_store(&p->is_unregistered, true);
    p->has_posted = true; /* the engine waits for it */
}

void pool_map_revoke(struct pool *p)
{
    p->n_exported = 0;
    p->is_revoking = true;
    p->revoke_until_ns = p->now_ns + p->pull_ns;
    for (uint32_t i = 0; i < POOL_N_CONNS; i++)
        if (p->conns[i].was_handed) {
            p->conns[i].reads_device = false;
            pool_conn_say(p, i, &(struct wire_message){.kind = WIRE_HANDLE});
        }
    pool_map_timers(p);
}

void pool_map_timers(struct pool *p)
{
    uint64_t until_ns = p->revoke_until_ns;
    bool is_mapped = p->now_ns < p->left_until_ns && p->now_ns < until_ns;

    if (is_mapped && p->left_until_ns < until_ns)
        until_ns = p->left_until_ns;
    for (uint32_t i = 0; i < POOL_N_CONNS && p->is_revoking; i++) {
        if (p->conns[i].was_handed && p->now_ns >= p->revoke_until_ns)
            pool_conn_fail(p, i, true, "the peer does not unmap device memory");
        else
            is_mapped |= p->conns[i].was_handed;
    }
    if (!p->is_revoking)
        return;
    if (is_mapped)
        pool_due(p, until_ns);
    else
        end_revoke(p);
}

void pool_map_closed(struct pool *p, uint32_t conn)
{
    struct pool_conn *c = &p->conns[conn];

    if (c->map != POOL_NONE) {
        struct pool_map *m = &p->maps[c->map];
        m->conn = c->map = POOL_NONE;
        m->is_over = true;
        unmap_unused(p, m);
    }
    if (c->was_handed)
        p->left_until_ns = p->now_ns + p->pull_ns;
    c->is_mapping = c->was_handed = c->reads_device = false;
    c->asked_memory = c->wants_memory = false;
}
