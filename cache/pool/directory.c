#include "cache/pool/directory_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"

#define PAUSE_MIN_NS 100000000ull
#define PAUSE_MAX_NS 5000000000ull
#define STABLE_NS 5000000000ull /* a connection of this age begins again with the shortest pause */
#define CLOSE_NS 100000000ull
#define ROUNDS_MAX 16 /* of reading, in one directory_progress() */

/* --- commands --- */

bool directory_send(struct directory *d, int argc, const char *const *argv, const size_t *lengths,
                    redis_link_reply *reply, uint32_t what)
{
    size_t own[8];

    if (!lengths) {
        ASSERT(argc <= 8);
        for (int i = 0; i < argc; i++)
            own[i] = strlen(argv[i]);
    }
    return redis_link_send(d->link, argc, argv, lengths ? lengths : own, reply, what);
}

/* The first words of an error of Redis, and what they mean for whoever reads the log. */
static const char *words_of(const char *error)
{
    static const struct {
        const char *begins, *words;
    } known[] = {
        {"NOAUTH", "Redis wants a password: redis://:password@host"},
        {"WRONGPASS", "Redis refuses the user or the password"},
        {"ERR invalid password", "Redis refuses the user or the password"},
        {"ERR AUTH <password> called without any", "the URL has a password, but Redis has none"},
        {"ERR Client sent AUTH, but no password", "the URL has a password, but Redis has none"},
        {"NOPERM", "the user of Redis has no right to a command or key of the pool"},
        {"DENIED", "Redis is in protected mode: set a password or bind an address"},
        {"LOADING", "Redis is loading its data"},
        {"MASTERDOWN", "this Redis is a replica without its master"},
        {"READONLY", "this Redis is a replica that cannot be written"},
        {"NOREPLICAS", "Redis misses the replicas that it wants before a write"},
        {"MISCONF", "Redis does not accept writes: it cannot save to its disk"},
        {"OOM", "Redis is full (maxmemory)"},
        {"BUSY", "Redis is busy with a script"},
        {"WRONGTYPE", "a key of the pool has another type: other data uses its names"},
        {"ERR DB index", "Redis has no database of the number in the URL"},
        {"ERR invalid DB index", "Redis has no database of the number in the URL"},
        {"ERR SELECT is not allowed", "a Redis cluster is not supported"},
        {"MOVED", "a Redis cluster is not supported"},
        {"CROSSSLOT", "a Redis cluster is not supported"},
        {"CLUSTERDOWN", "a Redis cluster is not supported"},
        {"ERR max number of clients", "Redis has too many clients (maxclients)"},
        {"ERR unknown command", "Redis 6.2 or newer is needed"},
        {"ERR syntax error", "Redis 6.2 or newer is needed"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strncmp(error, known[i].begins, strlen(known[i].begins)) == 0)
            return known[i].words;
    return "Redis answered with an error";
}

void directory_refused(struct directory *d, const struct redis_view *error)
{
    log_event(LOG_INFO, "redis refused", "words=\"%.200s\"", error->text);
    redis_link_end(d->link, words_of(error->text));
}

void directory_answered(void *arg, const struct redis_view *reply, uint32_t what)
{
    (void)what;
    if (reply && reply->kind == REDIS_ERROR)
        directory_refused(arg, reply);
}

/* --- connection --- */

static void enter(struct directory *d, enum directory_state state)
{
    d->state = state;
    d->state_since = d->answered_at = d->now;
    d->was_waiting = false;
    d->n_answers = 0;
}

static uint64_t next_pause(struct directory *d)
{
    uint64_t pause = PAUSE_MIN_NS << (d->n_tries < 6 ? d->n_tries : 6);

    if (pause > PAUSE_MAX_NS)
        pause = PAUSE_MAX_NS;
    d->n_tries++;
    return pause / 2 + (uint64_t)((double)(pause / 2) * rng_uniform(d->id, d->n_draws++));
}

static void lost(void *arg, const char *why)
{
    struct directory *d = arg;
    bool was_up = d->state == STATE_UP;

    if (was_up && d->now - d->state_since >= STABLE_NS)
        d->n_tries = 0;
    if (was_up || !d->why || strcmp(why, d->why) != 0)
        d->must_tell_down = true;
    d->must_tell_up = false;
    d->why = why;
    d->is_beating = d->was_written = false;
    enter(d, STATE_PAUSE);
    d->retry_at = d->now + next_pause(d);
}

static void probed(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;

    directory_answered(arg, reply, what);
    if (!reply || reply->kind == REDIS_ERROR)
        return;
    if (reply->kind != REDIS_LIST) {
        redis_link_end(d->link, REDIS_TYPE_WORDS);
        return;
    }
    enter(d, STATE_UP);
    d->why = NULL;
    d->stats.n_connects++;
    d->must_tell_up = true;
    if (d->record.len > 0)
        directory_beat(d);
}

/* The last command of the greeting has its answer only when all before it were accepted. */
static void greet(void *arg)
{
    struct directory *d = arg;
    const struct directory_url *u = &d->url;
    char database[16], probe[KEY_BYTES_MAX];

    enter(d, STATE_GREETING);
    if (u->password[0]) {
        const char *argv[] = {"AUTH", u->user, u->password};
        const char *without_user[] = {"AUTH", u->password};
        directory_send(d, u->user[0] ? 3 : 2, u->user[0] ? argv : without_user, NULL,
                       directory_answered, 0);
    }
    snprintf(database, sizeof database, "%u", u->database);
    if (u->database > 0)
        directory_send(d, 2, (const char *[]){"SELECT", database}, NULL, directory_answered, 0);
    if (d->record.len > 0)
        directory_write_self(d);
    snprintf(probe, sizeof probe, "%sprobe", d->prefix);
    directory_send(d, 3, (const char *[]){"HRANDFIELD", probe, "1"}, NULL, probed, 0);
}

static void connect_now(struct directory *d)
{
    const struct directory_url *u = &d->url;

    enter(d, STATE_CONNECTING);
    if (u->is_unix)
        redis_link_connect(d->link, u->host, 0);
    else
        redis_link_connect(d->link, d->addresses.address[d->n_tries % d->addresses.n], u->port);
}

static void begin_connect(struct directory *d)
{
    if (d->url.is_unix || d->is_numeric) {
        connect_now(d);
        return;
    }
    enter(d, STATE_RESOLVING);
    d->resolver = directory_resolve_begin(d->url.host, d->resolved_fd);
    if (!d->resolver)
        lost(d, "the name of Redis cannot be resolved: no thread");
}

static void take_addresses(struct directory *d)
{
    if (!directory_resolve_take(d->resolver, &d->addresses))
        return;
    d->resolver = NULL;
    if (d->addresses.n > 0)
        connect_now(d);
    else
        lost(d, "the name of Redis has no address");
}

/* End a connection on which nothing is answered. The time counts from the first call that found
 * commands waiting, so that a caller that was stopped itself blames nobody. */
static void check_silence(struct directory *d)
{
    bool is_waiting = d->state == STATE_CONNECTING || redis_link_n_pending(d->link) > 0;
    uint64_t n_answers = redis_link_n_answers(d->link);

    if (!is_waiting || !d->was_waiting || n_answers != d->n_answers)
        d->answered_at = d->now;
    d->was_waiting = is_waiting;
    d->n_answers = n_answers;
    if (d->now - d->answered_at <= d->timeout_ns)
        return;
    d->stats.n_timeouts++;
    redis_link_end(d->link, d->state == STATE_CONNECTING ? "Redis cannot be reached: timeout"
                                                         : "Redis does not answer: timeout");
}

static void read_and_write(struct directory *d)
{
    struct epoll_event events[4];

    for (int round = 0; round < ROUNDS_MAX; round++) {
        int n = epoll_wait(d->epoll, events, ARRAY_SIZE(events), 0);
        if (n <= 0)
            return;
        for (int i = 0; i < n; i++) {
            eventfd_t ignored;
            if (events[i].data.ptr == d->link)
                redis_link_progress(d->link, events[i].events);
            else
                eventfd_read(d->resolved_fd, &ignored);
        }
    }
}

void directory_progress(struct directory *d, uint64_t now_ns)
{
    if (now_ns > d->now)
        d->now = now_ns;
    read_and_write(d);
    if (d->state == STATE_PAUSE && d->now >= d->retry_at)
        begin_connect(d);
    else if (d->state == STATE_RESOLVING)
        take_addresses(d);
    else if (d->state != STATE_PAUSE)
        check_silence(d);
}

/* --- segments --- */

size_t directory_segment_key(const struct directory *d, char out[KEY_BYTES_MAX],
                             const uint8_t key[DIRECTORY_SEGMENT_BYTES])
{
    size_t n = (size_t)snprintf(out, KEY_BYTES_MAX, "%ss:", d->prefix);

    memcpy(out + n, key, DIRECTORY_SEGMENT_BYTES);
    return n + DIRECTORY_SEGMENT_BYTES;
}

void directory_field(char out[8], uint64_t id)
{
    for (int i = 0; i < 8; i++)
        out[i] = (char)(id >> (56 - 8 * i));
}

/* A segment's key that holds something else harms nobody but this segment. */
static void segment_answered(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;

    d->n_quiet--;
    if (!reply)
        d->stats.n_dropped++;
    else if (reply->kind == REDIS_ERROR && strncmp(reply->text, "WRONGTYPE", 9) == 0)
        d->stats.n_dropped++;
    else
        directory_answered(arg, reply, what);
}

static void expiry_answered(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;

    d->n_quiet--;
    directory_answered(arg, reply, what);
}

/* Send a command whose answer nobody waits for. */
static bool send_quietly(struct directory *d, int argc, const char *const *argv,
                         const size_t *lengths, redis_link_reply *reply)
{
    bool is_sent = directory_send(d, argc, argv, lengths, reply, 0);

    d->n_quiet += is_sent;
    return is_sent;
}

static bool withdraw(struct directory *d, uint64_t id, const uint8_t key[DIRECTORY_SEGMENT_BYTES])
{
    char name[KEY_BYTES_MAX], field[8];
    size_t n = directory_segment_key(d, name, key);

    directory_field(field, id);
    return send_quietly(d, 3, (const char *[]){"HDEL", name, field}, (size_t[]){4, n, 8},
                        segment_answered);
}

static bool announce(struct directory *d, const struct directory_segment *s)
{
    char name[KEY_BYTES_MAX], field[8], value[16], ttl[16];
    size_t n = directory_segment_key(d, name, s->key);

    directory_field(field, d->id);
    size_t n_value = (size_t)snprintf(value, sizeof value, "%u", s->tier * 256u + s->n_blocks);
    size_t n_ttl = (size_t)snprintf(ttl, sizeof ttl, "%u", d->segment_ttl_s);
    return send_quietly(d, 4, (const char *[]){"HSET", name, field, value},
                        (size_t[]){4, n, 8, n_value}, segment_answered) &&
           send_quietly(d, 3, (const char *[]){"EXPIRE", name, ttl}, (size_t[]){6, n, n_ttl},
                        expiry_answered);
}

uint32_t directory_announce(struct directory *d, const struct directory_segment *segments,
                            uint32_t n)
{
    uint32_t i = 0;

    while (i < n && d->state == STATE_UP &&
           redis_link_n_pending(d->link) + 2 <= PENDING_ANNOUNCED_MAX &&
           (segments[i].n_blocks > 0 ? announce(d, &segments[i])
                                     : withdraw(d, d->id, segments[i].key)))
        i++;
    d->stats.n_announced += i;
    d->stats.n_dropped += n - i;
    return i;
}

void directory_forget(struct directory *d, uint64_t instance,
                      const uint8_t key[DIRECTORY_SEGMENT_BYTES])
{
    if (d->state == STATE_UP && redis_link_n_pending(d->link) < PENDING_ANNOUNCED_MAX)
        withdraw(d, instance, key);
}

/* --- events --- */

bool directory_next(struct directory *d, struct directory_event *out)
{
    out->tag = out->at = out->n_holders = out->n_counts = 0;
    out->why = NULL;
    if (d->must_tell_down) {
        d->must_tell_down = false;
        out->kind = DIRECTORY_DOWN;
        out->why = d->why ? d->why : "the connection to Redis broke";
        return true;
    }
    if (d->must_tell_up) {
        d->must_tell_up = false;
        out->kind = DIRECTORY_UP;
        return true;
    }
    if (d->must_tell_instances) {
        d->must_tell_instances = false;
        out->kind = DIRECTORY_INSTANCES;
        return true;
    }
    return directory_look_next(d, out);
}

/* --- life --- */

static enum status set_names(struct directory *d, const struct directory_config *config,
                             struct buf *why)
{
    const char *pool = config->pool && config->pool[0] ? config->pool : "default";
    enum status s = directory_url_parse(&d->url, config->url, why);

    if (s != OK)
        return s;
    if (strlen(pool) > 63 || pool[strspn(pool, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0')
        return buf_why(why, ERR_INVALID,
                       "the name of a pool has at most 63 characters of a-z, 0-9 and -");
    snprintf(d->prefix, sizeof d->prefix, "tarn:%s:", pool);
    d->is_numeric = !d->url.is_unix && directory_resolve_numeric(&d->addresses, d->url.host);
    return OK;
}

static enum status open_parts(struct directory *d)
{
    const struct redis_link_hooks hooks = {.connected = greet, .lost = lost};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};

    d->instances = calloc(DIRECTORY_INSTANCES_MAX, sizeof *d->instances);
    if (!d->instances || map_init(&d->alive, DIRECTORY_INSTANCES_MAX) != OK)
        return ERR_NOMEM;
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    d->resolved_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->epoll < 0 || d->resolved_fd < 0 ||
        epoll_ctl(d->epoll, EPOLL_CTL_ADD, d->resolved_fd, &e) != 0)
        return ERR_IO;
    return redis_link_open(&d->link, d->epoll, &hooks, d);
}

enum status directory_open(struct directory **out, const struct directory_config *config,
                           struct buf *why)
{
    struct directory *d = NULL;
    enum status s;

    ASSERT(config->id != 0);
    if (!redis_link_is_built())
        return buf_why(
            why, ERR_UNSUPPORTED,
            "this Tarn was built without hiredis: install libhiredis-dev and build again");
    d = calloc(1, sizeof *d);
    if (!d)
        return buf_why(why, ERR_NOMEM, "%s", status_words(ERR_NOMEM));
    d->epoll = d->resolved_fd = -1;
    d->id = config->id;
    d->instance_ttl_ms = config->instance_ttl_ms ? config->instance_ttl_ms : 3000;
    d->segment_ttl_s = config->segment_ttl_s ? config->segment_ttl_s : 600;
    d->timeout_ns = (config->timeout_ms ? config->timeout_ms : 500) * 1000000ull;
    buf_init(&d->record, RECORD_BYTES_MAX);
    directory_looks_init(d);
    s = set_names(d, config, why);
    if (s == OK) {
        s = open_parts(d);
        if (s != OK)
            buf_why(why, s, "%s", status_words(s));
    }
    if (s != OK) {
        directory_close(d);
        return s;
    }
    *out = d;
    return OK;
}

static void say_goodbye(struct directory *d)
{
    char key[KEY_BYTES_MAX], ids[KEY_BYTES_MAX], id[ID_HEX_BYTES + 1];
    uint64_t until = clock_now_ns() + CLOSE_NS, now;
    struct epoll_event e;

    directory_id_write(id, d->id);
    snprintf(key, sizeof key, "%si:%s", d->prefix, id);
    snprintf(ids, sizeof ids, "%sids", d->prefix);
    directory_send(d, 2, (const char *[]){"DEL", key}, NULL, directory_answered, 0);
    directory_send(d, 3, (const char *[]){"SREM", ids, id}, NULL, directory_answered, 0);
    while (d->state == STATE_UP && redis_link_n_pending(d->link) > 0 &&
           (now = clock_now_ns()) < until)
        if (epoll_wait(d->epoll, &e, 1, (int)((until - now) / 1000000) + 1) > 0)
            read_and_write(d);
}

void directory_close(struct directory *d)
{
    if (!d)
        return;
    if (d->state == STATE_UP)
        say_goodbye(d);
    redis_link_close(d->link);
    directory_resolve_leave(d->resolver);
    directory_looks_fini(d);
    if (d->resolved_fd >= 0)
        close(d->resolved_fd);
    if (d->epoll >= 0)
        close(d->epoll);
    map_fini(&d->alive);
    free(d->instances);
    buf_fini(&d->record);
    explicit_bzero(&d->url, sizeof d->url);
    free(d);
}

int directory_fd(const struct directory *d)
{
    return d->epoll;
}

bool directory_is_awaited(const struct directory *d)
{
    return d->state != STATE_UP || redis_link_n_pending(d->link) > d->n_quiet;
}

bool directory_is_up(const struct directory *d)
{
    return d->state == STATE_UP;
}

void directory_stats(const struct directory *d, struct directory_stats *out)
{
    *out = d->stats;
    out->is_up = d->state == STATE_UP;
}
