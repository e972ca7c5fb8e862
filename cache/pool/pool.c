/* pool.c - open, close, and the loop of the pool thread. */
#include "cache/pool/pool.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "cache/pool/pool_inner.h"

#define LOOKUP_MS 50u
#define PULL_MS 2000u
#define SLEEP_NS (4 * POOL_MS) /* at most, so that cache events are read soon enough */
#define TIMERS_NS POOL_MS      /* between two rounds over the slots */
#define PUBLISH_NS (100 * POOL_MS)
#define N_NEWS 1024u
#define N_BLOCKS_MAX (1u << 21) /* of the inventory: 128 MiB when it is full */
#define N_SEGMENTS_MAX (1u << 19)

void pool_due(struct pool *p, uint64_t at_ns)
{
    p->due_ns = at_ns < p->due_ns ? at_ns : p->due_ns;
}

void pool_mean_add(struct pool_mean *m, double value)
{
    m->value = m->n == 0 ? value : m->value + (value - m->value) / 8;
    m->n++;
}

void pool_wake(struct pool *p)
{
    /* The pool thread says that it sleeps before it looks at its queues for the last time. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&p->is_asleep, memory_order_relaxed) &&
        atomic_exchange(&p->is_asleep, false)) {
        uint64_t one = 1;
        ssize_t n = write(p->wake_fd, &one, sizeof one);
        (void)n; /* a full eventfd is readable, too */
    }
}

void pool_stay_alert(struct pool *p)
{
    p->alert_until_ns = clock_now_ns() + 2 * POOL_SPIN_NS;
}

/* --- the loop --- */

static void take_commands(struct pool *p)
{
    struct pool_command c;

    for (uint32_t i = 0; i < POOL_N_COMMANDS && spsc_pop(p->commands, &c); i++) {
        p->is_busy = true;
        switch (c.kind) {
        case POOL_LOOKUP: pool_lookup_begin(p, c.index); break;
        case POOL_FORGET: pool_lookup_forget(p, c.index); break;
        case POOL_READ: pool_read_begin(p, c.index); break;
        case POOL_QUERY: pool_query_begin(p, c.index); break;
        case POOL_DROP: pool_query_drop(p, c.index); break;
        case POOL_LEND: pool_lend_answer(p, c.index); break;
        case POOL_BACK: pool_lend_back(p, c.index); break;
        case POOL_OFFER: pool_offer_begin(p, c.index); break;
        case POOL_LEAVE:
            p->info.is_leaving = true;
            p->heartbeat_ns = 0;
            break;
        case POOL_LOAD:
            p->info.n_blocks = c.load.n_blocks;
            p->info.n_free_blocks = c.load.n_free_blocks;
            p->info.n_waiting = c.load.n_waiting;
            p->info.n_running = c.load.n_running;
            pool_balance_count_own(p, c.load.n_accesses);
            break;
        case POOL_REGISTER:
            transport_register(p->transport, c.memory.base, c.memory.n_bytes);
            break;
        case POOL_UNREGISTER:
            transport_unregister_all(p->transport);
            pool_map_revoke(p);
            break;
        case POOL_EXPORT: pool_map_export(p, &c); break;
        case POOL_COPIED: pool_read_copied(p, c.index, c.status); break;
        }
    }
}

static void take_directory(struct pool *p)
{
    struct directory_event *e = &p->event;

    directory_progress(p->directory, p->now_ns);
    while (directory_next(p->directory, e)) {
        p->is_busy = true;
        switch (e->kind) {
        case DIRECTORY_UP:
            log_event(LOG_INFO, "pool directory connected", "instance=%016llx",
                      (unsigned long long)p->info.id);
            pool_announce_all(p);
            p->heartbeat_ns = 0;
            break;
        case DIRECTORY_DOWN:
            log_event(LOG_WARN, "pool directory lost", "why=\"%s\"", e->why ? e->why : "");
            break;
        case DIRECTORY_INSTANCES: pool_peers_update(p); break;
        case DIRECTORY_FOUND:
        case DIRECTORY_COUNTED:
        case DIRECTORY_NOT_NOW:
            if (pool_tag_kind(e->tag) == POOL_TAG_OFFER)
                pool_offer_checked(p, e);
            else if (pool_tag_kind(e->tag) == POOL_TAG_COUNT)
                pool_announce_counted(p, e);
            else if (pool_tag_kind(e->tag) == POOL_TAG_BALANCE)
                pool_balance_found(p, e);
            else if (e->kind == DIRECTORY_FOUND)
                pool_lookup_found(p, e);
            else
                pool_lookup_not_now(p, e->tag);
            break;
        }
    }
    atomic_store_explicit(&p->can_look, directory_is_up(p->directory) && p->live.n_instances > 1,
                          memory_order_relaxed);
}

/* After the events of a turn: send what had no room before, and end what is past its deadline. */
static void work(struct pool *p)
{
    pool_read_pump(p);
    pool_lend_pump(p);
    pool_attend_pump(p);
    pool_conns_sweep(p);
    if (p->now_ns < p->timers_ns && p->now_ns < p->round_due_ns) {
        pool_due(p, p->has_changed ? p->timers_ns : p->round_due_ns);
        return;
    }
    p->timers_ns = p->now_ns + TIMERS_NS;
    p->has_changed = false;
    pool_conns_timers(p);
    pool_lookup_timers(p);
    pool_lend_timers(p);
    pool_map_timers(p);
    pool_offer_timers(p);
    pool_balance_timers(p);
    pool_announce_timers(p);
    pool_conns_sweep(p);
    p->round_due_ns = p->due_ns;
}

static void publish(struct pool *p)
{
    uint32_t n = 0;

    if (p->now_ns < p->publish_ns)
        return;
    p->publish_ns = p->now_ns + PUBLISH_NS;
    const struct directory_instance *all = directory_instances(p->directory, &n);
    directory_stats(p->directory, &p->live.directory);
    p->live.n_segments = inventory_n_segments(p->inventory);
    p->live.n_events_lost = cache_events_n_overflows(p->config.events);
    p->live.lookup_s = p->lookup_s.value;
    p->live.read_latency_s = p->latency_s.value;
    p->live.read_bytes_per_s = p->bytes_per_s.value;
    p->live.query_s = p->query_s.value;
    n = n < DIRECTORY_INSTANCES_MAX ? n : DIRECTORY_INSTANCES_MAX;
    pthread_mutex_lock(&p->stats_lock);
    p->shared = p->live;
    pthread_mutex_unlock(&p->stats_lock);
    pthread_mutex_lock(&p->lock);
    p->instances[0] = p->info;
    if (n > 0)
        memcpy(p->instances + 1, all, n * sizeof *all);
    p->n_instances = n + 1;
    pthread_mutex_unlock(&p->lock);
}

/* Sleep until something happens or is due. Other threads write wake_fd only while is_asleep is set,
 * so their queues are looked at once more after that. Answers to announcements wake nobody: Redis
 * sends them for every batch of changes, and the next turn reads them all at once. */
static void wait_for_work(struct pool *p)
{
    struct pollfd fds[3] = {{.fd = p->wake_fd, .events = POLLIN},
                            {.fd = transport_fd(p->transport), .events = POLLIN},
                            {.fd = directory_fd(p->directory), .events = POLLIN}};
    nfds_t n_fds = directory_is_awaited(p->directory) ? 3 : 2;
    uint64_t now = clock_now_ns(), ns = p->due_ns > now ? p->due_ns - now : 0, n;
    struct timespec timeout = {.tv_sec = (time_t)(ns / POOL_SECOND),
                               .tv_nsec = (long)(ns % POOL_SECOND)};

    atomic_store(&p->is_asleep, true);
    atomic_thread_fence(memory_order_seq_cst);
    if (spsc_is_empty(p->commands) && !pool_note_waits(p) &&
        (!p->attend_out || spsc_is_empty(p->attend_out)) && ns > 0)
        (void)ppoll(fds, n_fds, &timeout, NULL);
    atomic_store(&p->is_asleep, false);
    if (fds[0].revents != 0) {
        ssize_t n_read = read(p->wake_fd, &n, sizeof n);
        (void)n_read; /* one read empties an eventfd */
    }
}

/* Posted messages that can wait are passed on with the next one that cannot, or after
 * SLEEP_NS. */
static void wake_engine(struct pool *p)
{
    if (p->has_posted_later && p->posted_later_ns == 0)
        p->posted_later_ns = p->now_ns + SLEEP_NS;
    if (!p->has_posted && (!p->has_posted_later || p->now_ns < p->posted_later_ns))
        return;
    if (p->config.wake)
        p->config.wake(p->config.wake_arg);
    p->has_posted = p->has_posted_later = false;
    p->posted_later_ns = 0;
}

static void *pool_main(void *arg)
{
    struct pool *p = arg;
    uint32_t n_events;

    while (!atomic_load_explicit(&p->is_stopping, memory_order_acquire)) {
        p->now_ns = clock_now_ns();
        p->due_ns = p->now_ns + SLEEP_NS;
        p->is_busy = false;
        take_commands(p);
        pool_attend_pump(p);
        pool_announce_events(p);
        take_directory(p);
        bool may_wait = transport_progress(p->transport, p->now_ns);
        pool_conns_events(p, &n_events);
        pool_note_turn(p);
        work(p);
        publish(p);
        wake_engine(p);
        if (!may_wait || n_events > 0 || p->is_busy)
            p->has_changed = true;
        else if (p->now_ns < p->alert_until_ns)
            sched_yield();
        else
            wait_for_work(p);
    }
    return NULL;
}

/* --- open, close --- */

/* Memory for the slots. Most paths are far shorter than the longest one, and their pages exist only
 * once they are used, so calloc() and not memory_zeroed(). */
static void *arena(struct pool *p, size_t n, size_t size)
{
    void *memory = calloc(n, size);

    ASSERT(p->n_arenas < ARRAY_SIZE(p->arenas));
    p->arenas[p->n_arenas++] = memory;
    return memory;
}

/* Give each ticket its part of the arenas; the same for leases and offers below. */
static bool place_tickets(struct pool *p)
{
    struct kv_key *keys = arena(p, (size_t)POOL_N_TICKETS * POOL_PATH_MAX, sizeof *keys);
    uint32_t *starts = arena(p, (size_t)POOL_N_TICKETS * (DIRECTORY_PATH_MAX + 1), sizeof *starts);
    uint8_t *bytes = arena(p, (size_t)POOL_N_TICKETS * POOL_PATH_MAX, 2);

    if (!keys || !starts || !bytes)
        return false;
    for (uint32_t i = 0; i < POOL_N_TICKETS; i++) {
        p->tickets[i].keys = keys + (size_t)i * POOL_PATH_MAX;
        p->tickets[i].is_near = bytes + (size_t)i * 2 * POOL_PATH_MAX;
        p->tickets[i].was_read = p->tickets[i].is_near + POOL_PATH_MAX;
        p->tickets[i].map = POOL_NONE;
        p->tickets[i].starts = starts + (size_t)i * (DIRECTORY_PATH_MAX + 1);
        p->tickets[i].conn = p->tickets[i].peer = POOL_NONE;
        if (i < POOL_TICKETS_MAX && !spsc_push(p->tickets_free, &i))
            return false;
    }
    for (uint32_t i = 0; i < POOL_N_READS; i++)
        p->reads_free[p->n_reads_free++] = POOL_N_READS - 1 - i;
    return true;
}

static bool place_leases(struct pool *p)
{
    size_t n = (size_t)POOL_LEASES_MAX * POOL_PATH_MAX;
    struct kv_key *keys = arena(p, n, sizeof *keys);
    const void **memory = arena(p, n, sizeof *memory);
    uint32_t *crc = arena(p, n, sizeof *crc);
    uint32_t *place = arena(p, n, sizeof *place);
    uint8_t *bytes = arena(p, n, 2);

    if (!keys || !memory || !crc || !place || !bytes)
        return false;
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++) {
        struct pool_lease *l = &p->leases[i];
        l->keys = keys + (size_t)i * POOL_PATH_MAX;
        l->memory = memory + (size_t)i * POOL_PATH_MAX;
        l->crc = crc + (size_t)i * POOL_PATH_MAX;
        l->place = place + (size_t)i * POOL_PATH_MAX;
        l->n_tokens = bytes + (size_t)i * 2 * POOL_PATH_MAX;
        l->has_crc = l->n_tokens + POOL_PATH_MAX;
        l->conn = POOL_NONE;
    }
    return true;
}

static bool place_offers(struct pool *p)
{
    size_t path_bytes =
        POOL_PATH_MAX * (sizeof(struct kv_key) + 2 * WIRE_META_BYTES + sizeof(struct pool_meta));
    uint8_t *bytes = arena(p, POOL_OFFERS_MAX, path_bytes);

    if (!bytes)
        return false;
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++, bytes += path_bytes) {
        struct pool_meta *meta = (struct pool_meta *)(void *)bytes;
        uint8_t *rest = bytes + POOL_PATH_MAX * sizeof *meta;
        p->taken[i].meta = meta;
        p->taken[i].conn = p->offers_out[i].conn = POOL_NONE;
        p->offers_out[i].keys = (struct kv_key *)(void *)rest;
        rest += POOL_PATH_MAX * sizeof(struct kv_key);
        p->offers_out[i].meta = rest;
        p->taken[i].wire_meta = rest + POOL_PATH_MAX * WIRE_META_BYTES;
    }
    return true;
}

static void init_lists(struct pool *p)
{
    link_init(&p->waiting_reads);
    link_init(&p->attend_turns);
    link_init(&p->attends_ended);
    p->query_memory_left = p->attend_memory_left = POOL_QUERY_MEMORY;
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        p->query_stack[p->n_query_stack++] = POOL_QUERIES_MAX - 1 - i;
    for (uint32_t i = 0; i < POOL_N_ATTENDS; i++)
        p->attends[i].conn = POOL_NONE;
    for (uint32_t i = 0; i < POOL_N_SENDS; i++)
        p->sends[i].next_free = i + 1 < POOL_N_SENDS ? i + 1 : POOL_NONE;
}

static enum status create_queues(struct pool *p)
{
    enum status s = spsc_create(&p->commands, sizeof(struct pool_command), POOL_N_COMMANDS);

    if (s == OK)
        s = spsc_create(&p->tickets_free, sizeof(uint32_t), POOL_N_TICKETS);
    if (s == OK)
        s = spsc_create(&p->reads_done, sizeof(struct pool_read_done), POOL_N_READS);
    if (s == OK)
        s = spsc_create(&p->places, sizeof(uint32_t), POOL_N_READS);
    if (s == OK)
        s = spsc_create(&p->asks, sizeof(uint32_t), POOL_LEASES_MAX);
    if (s == OK)
        s = spsc_create(&p->returns, sizeof(uint32_t), POOL_LEASES_MAX);
    if (s == OK)
        s = spsc_create(&p->offers, sizeof(uint32_t), POOL_OFFERS_MAX);
    if (s == OK)
        s = spsc_create(&p->news, sizeof(struct pool_news), N_NEWS);
    if (s == OK)
        s = spsc_create(&p->queries_free, sizeof(uint32_t), POOL_QUERIES_MAX);
    if (s == OK)
        s = spsc_create(&p->copies, sizeof(struct pool_copy), POOL_COPIES_MAX);
    if (s == OK && p->config.attend)
        s = spsc_create(&p->attend_in, sizeof(uint32_t), POOL_N_ATTENDS);
    if (s == OK && p->config.attend)
        s = spsc_create(&p->attend_out, sizeof(uint32_t), POOL_N_ATTENDS);
    return s;
}

static enum status create_memory(struct pool *p)
{
    enum status s = create_queues(p);

    if (s == OK)
        s = inventory_open(&p->inventory, N_BLOCKS_MAX, N_SEGMENTS_MAX);
    if (s == OK)
        s = pool_notes_open(p);
    if (s == OK)
        s = pool_balance_open(p);
    if (s == OK)
        s = map_init(&p->conn_of_number, POOL_N_CONNS);
    if (s == OK)
        s = map_init(&p->peer_of_id, DIRECTORY_INSTANCES_MAX);
    p->peers = calloc(DIRECTORY_INSTANCES_MAX, sizeof *p->peers);
    p->instances = calloc(DIRECTORY_INSTANCES_MAX + 1, sizeof *p->instances);
    if (s == OK &&
        (!p->peers || !p->instances || !place_tickets(p) || !place_leases(p) || !place_offers(p)))
        s = ERR_NOMEM;
    init_lists(p);
    return s;
}

static enum status open_network(struct pool *p, struct buf *why)
{
    const struct pool_config *c = &p->config;
    uint64_t keys_bytes = POOL_PATH_MAX * (uint64_t)(KV_KEY_BYTES + WIRE_META_BYTES);
    uint64_t data_bytes = POOL_READ_MAX * c->block_bytes;
    uint64_t payload_max = keys_bytes > data_bytes ? keys_bytes : data_bytes;
    if (c->attend && payload_max < POOL_QUERY_BYTES_MAX)
        payload_max = POOL_QUERY_BYTES_MAX;
    if (payload_max < POOL_NOTE_BYTES_MAX)
        payload_max = POOL_NOTE_BYTES_MAX;
    struct transport_config t = {.kind = c->transport,
                                 .listen = c->listen,
                                 .announce_host = c->announce_host,
                                 .n_conns_max = POOL_N_CONNS,
                                 .payload_max = payload_max};
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = transport_open(&p->transport, &t, &words);
    if (s != OK)
        buf_why(why, s, "{pool_listen}: %s", buf_str(&words));
    else if ((s = directory_open(&p->directory, &c->directory, &words)) != OK)
        buf_why(why, s, "{pool}: %s", buf_str(&words));
    buf_fini(&words);
    if (s == OK && (p->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        s = buf_why(why, ERR_IO, "{pool}: no eventfd: %s", strerror(errno));
    return s;
}

/* Borrowed words become the pool's. */
static void copy_config(struct pool *p, const struct pool_config *config)
{
    struct pool_config *c = &p->config;

    *c = *config;
    snprintf(p->info.name, sizeof p->info.name, "%s", c->name ? c->name : "");
    snprintf(p->info.http, sizeof p->info.http, "%s", c->http ? c->http : "");
    snprintf(p->info.version, sizeof p->info.version, "%s", TARN_VERSION);
    memcpy(p->info.fingerprint, c->fingerprint, sizeof p->info.fingerprint);
    while (c->directory.id == 0)
        hash_random(&c->directory.id, sizeof c->directory.id);
    p->info.id = c->directory.id;
    p->lookup_ns = (c->lookup_ms ? c->lookup_ms : LOOKUP_MS) * POOL_MS;
    p->pull_ns = (c->pull_ms ? c->pull_ms : PULL_MS) * POOL_MS;
    memcpy(p->self.secret, c->secret, sizeof p->self.secret);
    memcpy(p->self.fingerprint, c->fingerprint, sizeof p->self.fingerprint);
    p->self.id = c->directory.id;
    p->self.block_bytes = c->block_bytes;
}

static enum status start_threads(struct pool *p, struct buf *why)
{
    if (p->config.attend)
        p->has_attend_thread = pthread_create(&p->attend_thread, NULL, pool_attend_main, p) == 0;
    if (!p->config.attend || p->has_attend_thread)
        p->has_thread = pthread_create(&p->thread, NULL, pool_main, p) == 0;
    return p->has_thread ? OK : buf_why(why, ERR_NOMEM, "{pool}: no thread");
}

enum status pool_open(struct pool **out, const struct pool_config *config, struct buf *why)
{
    struct pool *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return buf_why(why, ERR_NOMEM, "{pool}: out of memory");
    p->wake_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->stats_lock, NULL);
    copy_config(p, config);
    enum status s = create_memory(p);
    if (s != OK)
        buf_why(why, s, "{pool}: out of memory");
    else
        s = open_network(p, why);
    if (s == OK) {
        pool_map_open(p);
        snprintf(p->info.address, sizeof p->info.address, "%s", transport_address(p->transport));
        snprintf(p->live.transport, sizeof p->live.transport, "%s", transport_kind(p->transport));
        p->live.n_instances = 1;
        p->shared = p->live;
        p->instances[0] = p->info;
        p->n_instances = 1;
        cache_events_request_all(config->events);
        s = start_threads(p, why);
    }
    if (s != OK) {
        pool_close(p);
        return s;
    }
    *out = p;
    return OK;
}

void pool_close(struct pool *p)
{
    uint64_t one = 1;

    if (!p)
        return;
    atomic_store(&p->is_stopping, true);
    if (p->has_thread) {
        ssize_t n = write(p->wake_fd, &one, sizeof one);
        (void)n;
        pthread_join(p->thread, NULL);
    }
    if (p->has_attend_thread)
        pool_attend_stop(p);
    transport_close(p->transport);
    pool_map_close(p);
    directory_close(p->directory);
    inventory_close(p->inventory);
    pool_notes_close(p);
    pool_balance_close(p);
    for (uint32_t i = 0; i < POOL_N_CONNS; i++)
        free(p->conns[i].reads);
    struct spsc *queues[] = {p->commands,  p->tickets_free, p->reads_done, p->asks,
                             p->returns,   p->offers,       p->news,       p->queries_free,
                             p->attend_in, p->attend_out,   p->copies,     p->places};
    for (uint32_t i = 0; i < ARRAY_SIZE(queues); i++)
        spsc_destroy(queues[i]);
    for (uint32_t i = 0; i < p->n_arenas; i++)
        free(p->arenas[i]);
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        free(p->queries[i].buffer.memory);
    for (uint32_t i = 0; i < POOL_N_ATTENDS; i++)
        free(p->attends[i].buffer.memory);
    map_fini(&p->conn_of_number);
    map_fini(&p->peer_of_id);
    free(p->peers);
    free(p->instances);
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->stats_lock);
    free(p);
}

/* --- watching --- */

void pool_stats(struct pool *p, struct pool_stats *out)
{
    pthread_mutex_lock(&p->stats_lock);
    *out = p->shared;
    pthread_mutex_unlock(&p->stats_lock);
}

uint32_t pool_instances(struct pool *p, struct directory_instance *out, uint32_t n_max)
{
    pthread_mutex_lock(&p->lock);
    uint32_t n = p->n_instances < n_max ? p->n_instances : n_max;
    memcpy(out, p->instances, n * sizeof *out);
    pthread_mutex_unlock(&p->lock);
    return n;
}
