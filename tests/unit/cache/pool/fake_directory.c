/* A directory in memory, shared by all pools of the process. */
#include "tests/unit/cache/pool/fake_directory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cache/pool/directory.h"

enum { N_MEMBERS = 16, N_HELD = 4096, N_QUEUE = 512 };

struct directory {
    uint64_t id;
    int fd;
    bool was_up;
    uint64_t n_seen; /* of fake.n_changes */
    struct directory_instance list[N_MEMBERS];
    uint32_t n_list;
    struct directory_event queue[N_QUEUE];
    uint32_t first, n;
};

static struct {
    pthread_mutex_t lock;
    struct directory_instance members[N_MEMBERS];
    uint32_t n_members;
    uint64_t n_changes;
    struct held {
        uint64_t id;
        struct directory_segment segment;
    } held[N_HELD];
    uint32_t n_held;
    bool is_down, is_silent;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- for tests --- */

void fake_directory_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.n_members = fake.n_held = 0;
    fake.is_down = fake.is_silent = false;
    fake.n_changes++;
    pthread_mutex_unlock(&fake.lock);
}

void fake_directory_set(bool is_down, bool is_silent)
{
    pthread_mutex_lock(&fake.lock);
    fake.is_down = is_down;
    fake.is_silent = is_silent;
    pthread_mutex_unlock(&fake.lock);
}

static struct directory_instance *member(uint64_t id)
{
    for (uint32_t i = 0; i < fake.n_members; i++)
        if (fake.members[i].id == id)
            return &fake.members[i];
    return NULL;
}

static struct held *held(uint64_t id, const uint8_t *key)
{
    for (uint32_t i = 0; i < fake.n_held; i++)
        if (fake.held[i].id == id && memcmp(fake.held[i].segment.key, key, 16) == 0)
            return &fake.held[i];
    return NULL;
}

static void put_member(const struct directory_instance *info)
{
    struct directory_instance *m = member(info->id);

    if (!m && fake.n_members < N_MEMBERS) {
        m = &fake.members[fake.n_members++];
        memset(m, 0, sizeof *m);
    }
    if (!m || memcmp(m, info, sizeof *m) == 0)
        return;
    *m = *info;
    fake.n_changes++;
}

void fake_directory_join(const struct directory_instance *info)
{
    pthread_mutex_lock(&fake.lock);
    put_member(info);
    pthread_mutex_unlock(&fake.lock);
}

void fake_directory_hold(uint64_t id, const struct directory_segment *s)
{
    struct held *h;

    pthread_mutex_lock(&fake.lock);
    h = held(id, s->key);
    if (!h && s->n_blocks > 0 && fake.n_held < N_HELD)
        h = &fake.held[fake.n_held++];
    if (h && s->n_blocks > 0)
        *h = (struct held){id, *s};
    else if (h)
        *h = fake.held[--fake.n_held];
    pthread_mutex_unlock(&fake.lock);
}

uint32_t fake_directory_blocks(uint64_t id, const struct kv_key *key)
{
    pthread_mutex_lock(&fake.lock);
    struct held *h = held(id, key->bytes);
    uint32_t n = h ? h->segment.n_blocks : 0;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

bool fake_directory_is_leaving(uint64_t id)
{
    pthread_mutex_lock(&fake.lock);
    struct directory_instance *m = member(id);
    bool is = m && m->is_leaving;
    pthread_mutex_unlock(&fake.lock);
    return is;
}

/* --- directory.h --- */

enum status directory_open(struct directory **out, const struct directory_config *config,
                           struct buf *why)
{
    struct directory *d = calloc(1, sizeof *d);

    (void)why;
    if (!d)
        return ERR_NOMEM;
    d->id = config->id;
    d->fd = eventfd(0, EFD_NONBLOCK);
    *out = d;
    return OK;
}

void directory_close(struct directory *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&fake.lock);
    struct directory_instance *m = member(d->id);
    if (m) {
        *m = fake.members[--fake.n_members];
        fake.n_changes++;
    }
    pthread_mutex_unlock(&fake.lock);
    close(d->fd);
    free(d);
}

int directory_fd(const struct directory *d)
{
    return d->fd;
}

static struct directory_event *add_event(struct directory *d, enum directory_event_kind kind,
                                         uint64_t tag)
{
    struct directory_event *e = &d->queue[(d->first + d->n++) % N_QUEUE];

    if (d->n > N_QUEUE)
        abort();
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->tag = tag;
    return e;
}

void directory_progress(struct directory *d, uint64_t now_ns)
{
    (void)now_ns;
    pthread_mutex_lock(&fake.lock);
    if (d->was_up == fake.is_down) {
        d->was_up = !fake.is_down;
        add_event(d, d->was_up ? DIRECTORY_UP : DIRECTORY_DOWN, 0)->why = "the test says so";
    }
    if (d->n_seen != fake.n_changes) {
        d->n_seen = fake.n_changes;
        d->n_list = 0;
        for (uint32_t i = 0; i < fake.n_members; i++)
            if (fake.members[i].id != d->id)
                d->list[d->n_list++] = fake.members[i];
        add_event(d, DIRECTORY_INSTANCES, 0);
    }
    pthread_mutex_unlock(&fake.lock);
}

bool directory_is_awaited(const struct directory *d)
{
    (void)d;
    return true;
}

bool directory_is_up(const struct directory *d)
{
    return d->was_up;
}

void directory_heartbeat(struct directory *d, const struct directory_instance *self)
{
    if (d->was_up)
        fake_directory_join(self);
}

const struct directory_instance *directory_instances(const struct directory *d, uint32_t *n)
{
    *n = d->n_list;
    return d->list;
}

uint32_t directory_announce(struct directory *d, const struct directory_segment *segments,
                            uint32_t n)
{
    n = n < 100 ? n : 100; /* the rest is to be announced again */
    for (uint32_t i = 0; i < n; i++)
        fake_directory_hold(d->id, &segments[i]);
    return n;
}

enum status directory_lookup(struct directory *d, const uint8_t (*keys)[DIRECTORY_SEGMENT_BYTES],
                             uint32_t n, uint64_t tag)
{
    if (!d->was_up || n > DIRECTORY_PATH_MAX)
        return ERR_UNAVAILABLE;
    pthread_mutex_lock(&fake.lock);
    if (!fake.is_silent) {
        struct directory_event *e = add_event(d, DIRECTORY_FOUND, tag);
        for (uint32_t at = n; at-- > 0 && e->n_holders == 0;) {
            e->at = at;
            for (uint32_t i = 0; i < fake.n_held && e->n_holders < DIRECTORY_HOLDERS_MAX; i++) {
                const struct held *h = &fake.held[i];
                if (memcmp(h->segment.key, keys[at], 16) == 0 && h->id != d->id && member(h->id))
                    e->holders[e->n_holders++] =
                        (struct directory_holder){h->id, h->segment.tier, h->segment.n_blocks};
            }
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return OK;
}

enum status directory_count(struct directory *d, const uint8_t (*keys)[DIRECTORY_SEGMENT_BYTES],
                            uint32_t n, uint64_t tag)
{
    if (!d->was_up)
        return ERR_UNAVAILABLE;
    pthread_mutex_lock(&fake.lock);
    struct directory_event *e = add_event(d, DIRECTORY_COUNTED, tag);
    e->n_counts = n;
    for (uint32_t at = 0; at < n; at++) {
        uint64_t first = UINT64_MAX;
        for (uint32_t i = 0; i < fake.n_held; i++) {
            if (memcmp(fake.held[i].segment.key, keys[at], 16) != 0 || !member(fake.held[i].id) ||
                fake.held[i].segment.tier >= DIRECTORY_TIER_DISK)
                continue;
            e->counts[at].n_holders++;
            first = fake.held[i].id < first ? fake.held[i].id : first;
        }
        e->counts[at].is_first = first == d->id;
    }
    pthread_mutex_unlock(&fake.lock);
    return OK;
}

void directory_forget(struct directory *d, uint64_t instance,
                      const uint8_t key[DIRECTORY_SEGMENT_BYTES])
{
    struct directory_segment none = {0};

    (void)d;
    memcpy(none.key, key, sizeof none.key);
    fake_directory_hold(instance, &none);
}

bool directory_next(struct directory *d, struct directory_event *out)
{
    if (d->n == 0)
        return false;
    *out = d->queue[d->first];
    d->first = (d->first + 1) % N_QUEUE;
    d->n--;
    return true;
}

void directory_stats(const struct directory *d, struct directory_stats *out)
{
    *out = (struct directory_stats){.is_up = d->was_up};
}
