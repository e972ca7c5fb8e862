#include "server/http/http_slot.h"

#include <linux/tcp.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/http/watcher.h"

#define NO_DEADLINE UINT64_MAX
#define SECOND_NS UINT64_C(1000000000)
#define PROBE_PAUSE_MAX_NS (16 * SECOND_NS)

static const char probe_answer[] = "HTTP/1.1 100 Continue\r\n\r\n";
static const char late_answer[] =
    "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
    "Content-Length: 127\r\n\r\n"
    "{\"error\":{\"message\":\"the request did not arrive in time\",\"type\":"
    "\"invalid_request_error\",\"param\":null,\"code\":\"request_timeout\"}}";

struct slot {
    struct slots *slots;
    uint32_t index;
    int fd;
    struct slot *next; /* in the list of free or of admitted slots; under the lock of slots */
    pthread_mutex_t lock;
    /* Under lock. */
    bool guest;                        /* admitted beyond n_max */
    struct MHD_Connection *connection; /* NULL: free */
    enum slot_phase phase;
    bool cut;       /* the socket is shut down */
    bool told_late; /* a 408 was sent */
    bool suspended;
    bool offloaded;   /* suspended, and only slot_offload_end() resumes the connection */
    bool pending;     /* a wake-up came while the connection was not suspended */
    bool spoke;       /* at least one byte came since the connection began */
    bool interim;     /* "100 Continue" may be sent */
    uint64_t t_probe; /* time of the next "100 Continue" */
    uint64_t probe_pause_ns;
    uint64_t t_phase;        /* begin of the phase */
    uint64_t n_received;     /* bytes from the client when the connection became idle */
    void (*gone)(void *arg); /* NULL: not deferred */
    void *gone_arg;
    uint64_t t_checked; /* used by the watcher thread only */
    /* Used by the thread that has the request: the HTTP thread or a work thread. */
    bool in_flight; /* counted in n_in_flight */
    atomic_bool lost;
    atomic_bool streaming;
    atomic_bool half_closed; /* a FIN came, and the client may still read */
    _Atomic uint64_t deadline_ns;
    _Atomic uint64_t t_last_sent;
    _Atomic uint64_t wake_at_ns; /* 0: never */
};

struct slots {
    struct slots_config config;
    struct watcher *watcher;
    struct slot *slots; /* [n_slots] */
    uint32_t n_slots;   /* n_max + n_guests */
    atomic_uint n_in_flight;
    atomic_bool stopping;
    _Atomic uint64_t n_cut;
    atomic_uint n_used;    /* slots that are not free */
    atomic_uint n_leaving; /* used slots whose connection is cut but not closed yet */
    pthread_mutex_t lock;
    struct slot *free;       /* under lock */
    struct slot *admitted;   /* under lock: accepted, before slot_open(); oldest first */
    struct slot **admit_end; /* under lock */
};

static uint64_t deadline_after(uint64_t now_ns, uint64_t timeout_ns)
{
    return timeout_ns ? now_ns + timeout_ns : NO_DEADLINE;
}

/* --- wake-ups --- */

/* Send "100 Continue" if it is due. Under lock. Writing past MHD is safe here: the connection is
 * suspended, so MHD does not write, and no byte of the answer was sent yet. */
static void probe(struct slot *slot, uint64_t now_ns)
{
    if (!atomic_load(&slot->half_closed) || slot->slots->config.local || !slot->suspended ||
        slot->phase != SLOT_WORK || now_ns < slot->t_probe)
        return;
    /* The watcher sees a failed send as a certain loss, so the result is not needed here. */
    (void)!send(slot->fd, probe_answer, sizeof probe_answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    slot->t_probe = now_ns + slot->probe_pause_ns;
    slot->probe_pause_ns = slot->probe_pause_ns * 2 < PROBE_PAUSE_MAX_NS ? slot->probe_pause_ns * 2
                                                                         : PROBE_PAUSE_MAX_NS;
}

bool slot_suspend(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    bool again = slot->pending || atomic_load(&slot->lost);
    slot->pending = false;
    if (!again) {
        atomic_store(&slot->deadline_ns, NO_DEADLINE); /* the client waits for the server */
        slot->suspended = true;
        MHD_suspend_connection(slot->connection);
        probe(slot, clock_now_ns());
    }
    pthread_mutex_unlock(&slot->lock);
    return !again;
}

void slot_wake(void *arg)
{
    struct slot *slot = arg;

    pthread_mutex_lock(&slot->lock);
    if (slot->suspended && !slot->offloaded) {
        slot->suspended = false;
        MHD_resume_connection(slot->connection);
    } else if (slot->connection) {
        slot->pending = true;
    }
    pthread_mutex_unlock(&slot->lock);
}

bool slot_told_late(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    bool told = slot->told_late;
    pthread_mutex_unlock(&slot->lock);
    return told;
}

bool slot_lost(const struct slot *slot)
{
    return atomic_load(&slot->lost);
}

void slot_set_streaming(struct slot *slot)
{
    atomic_store(&slot->t_last_sent, clock_now_ns());
    atomic_store(&slot->streaming, true);
}

uint64_t slot_idle_ns(const struct slot *slot)
{
    return clock_now_ns() - atomic_load(&slot->t_last_sent);
}

/* --- the watcher's callbacks, under its lock --- */

/* Shut down the socket. Under lock. MHD notices it, closes the connection and calls back. */
static void shut(struct slot *slot)
{
    if (!slot->cut)
        atomic_fetch_add(&slot->slots->n_leaving, 1);
    slot->cut = true;
    atomic_store(&slot->deadline_ns, NO_DEADLINE);
    shutdown(slot->fd, SHUT_RDWR);
}

/* Close a connection that missed its deadline. Under lock. */
static void cut_late(struct slot *slot)
{
    static const char *const names[] = {"idle", "header", "body", "work", "send"};
    bool answer = slot->phase == SLOT_HEADER || slot->phase == SLOT_BODY;

    atomic_fetch_add(&slot->slots->n_cut, 1);
    if (answer && slot->slots->config.plain &&
        send(slot->fd, late_answer, sizeof late_answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        answer = false; /* the connection is closed all the same */
    slot->told_late = answer && slot->slots->config.plain;
    shut(slot);
    log_event(LOG_DEBUG, "connection was late", "phase=%s answered=%d", names[slot->phase], answer);
}

/* Bytes from the client since the connection began; 0 for a Unix socket, which has no count. */
static uint64_t n_received(const struct slot *slot)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;

    return getsockopt(slot->fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_bytes_received
                                                                       : 0;
}

/* Enter the header phase. Under lock. The phase is later already if MHD read the header before the
 * watcher saw its first byte. */
static void begin_header(struct slot *slot, uint64_t now_ns)
{
    if (slot->phase != SLOT_IDLE)
        return;
    slot->phase = SLOT_HEADER;
    slot->t_phase = now_ns;
    slot->spoke = true;
    atomic_store(&slot->deadline_ns, deadline_after(now_ns, slot->slots->config.header_timeout_ns));
}

/* MHD's epoll set is edge-triggered. When bytes and a FIN arrive together, MHD reads the bytes and
 * never notices the FIN. shutdown(SHUT_RD) raises another edge, and loses no input, because the
 * client has already shut down this direction. */
static void on_input(void *arg, bool end)
{
    struct slot *slot = arg;

    pthread_mutex_lock(&slot->lock);
    if (end)
        shutdown(slot->fd, SHUT_RD);
    else
        begin_header(slot, clock_now_ns());
    pthread_mutex_unlock(&slot->lock);
}

/* epoll does not report input that MHD has read before the watcher thread ran. So the watcher also
 * compares the kernel's count of received bytes, once a second. */
static void check_input(struct slot *slot, uint64_t now_ns)
{
    pthread_mutex_lock(&slot->lock);
    if (slot->phase == SLOT_IDLE && n_received(slot) != slot->n_received)
        begin_header(slot, now_ns);
    pthread_mutex_unlock(&slot->lock);
}

static void cancel(struct slot *slot, bool lose)
{
    pthread_mutex_lock(&slot->lock);
    void (*gone)(void *) = slot->gone;
    void *arg = slot->gone_arg;
    if (lose)
        atomic_store(&slot->lost, true);
    pthread_mutex_unlock(&slot->lock);
    if (gone)
        gone(arg); /* slot_finish() waits for this callback, so arg is still valid */
    slot_wake(slot);
}

static void on_lost(void *arg)
{
    cancel(arg, true);
}

static bool on_half_closed(void *arg)
{
    struct slot *slot = arg;
    const struct slots_config *c = &slot->slots->config;

    pthread_mutex_lock(&slot->lock);
    bool waits = c->local || (c->plain && slot->interim);
    atomic_store(&slot->half_closed, waits);
    slot->t_probe = 0;
    slot->probe_pause_ns = SECOND_NS;
    probe(slot, clock_now_ns());
    pthread_mutex_unlock(&slot->lock);
    if (waits && atomic_load(&slot->streaming)) {
        atomic_store(&slot->t_last_sent, 0); /* a comment is due now */
        slot_wake(slot);
    }
    return waits;
}

/* Whether the request is deferred or on a work thread. */
static bool is_in_work(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    bool yes = slot->gone || slot->offloaded;
    pthread_mutex_unlock(&slot->lock);
    return yes;
}

static void on_each_cancel(void *arg)
{
    if (is_in_work(arg))
        cancel(arg, false);
}

static void on_each_lose(void *arg)
{
    if (is_in_work(arg))
        cancel(arg, true);
}

/* Whether bytes wait that the HTTP thread has not read: then the server is late, not the client.
 * Under lock. */
static bool is_ours_to_read(const struct slot *slot)
{
    int n = 0;

    return slot->phase <= SLOT_BODY && ioctl(slot->fd, FIONREAD, &n) == 0 && n > 0;
}

static void check_deadline(struct slot *slot, uint64_t now_ns)
{
    pthread_mutex_lock(&slot->lock);
    if (atomic_load(&slot->deadline_ns) <= now_ns) {
        if (is_ours_to_read(slot))
            atomic_store(&slot->deadline_ns, now_ns + SECOND_NS);
        else
            cut_late(slot);
    }
    pthread_mutex_unlock(&slot->lock);
}

static void on_tick(void *arg, uint64_t now_ns)
{
    struct slot *slot = arg;

    if (atomic_load(&slot->deadline_ns) <= now_ns)
        check_deadline(slot, now_ns);
    if (now_ns - slot->t_checked >= SECOND_NS) {
        slot->t_checked = now_ns;
        check_input(slot, now_ns);
    }
    if (atomic_load(&slot->half_closed)) {
        pthread_mutex_lock(&slot->lock);
        probe(slot, now_ns);
        pthread_mutex_unlock(&slot->lock);
    }
    /* t_last_sent may be newer than now_ns, so the difference is signed. */
    if (atomic_load(&slot->streaming) &&
        (int64_t)(now_ns - atomic_load(&slot->t_last_sent)) >= (int64_t)SECOND_NS)
        slot_wake(slot);
    uint64_t at_ns = atomic_load(&slot->wake_at_ns);
    if (at_ns && at_ns <= now_ns && atomic_compare_exchange_strong(&slot->wake_at_ns, &at_ns, 0))
        slot_wake(slot);
}

/* --- admission and eviction of connections --- */

static void give(struct slots *s, struct slot *slot)
{
    pthread_mutex_lock(&s->lock);
    slot->next = s->free;
    s->free = slot;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_sub(&s->n_used, 1);
}

/* Remove the admitted slot with this descriptor from the list. NULL: there is none. */
static struct slot *take_admitted(struct slots *s, int fd)
{
    struct slot **p, *slot;

    pthread_mutex_lock(&s->lock);
    for (p = &s->admitted; *p && (*p)->fd != fd; p = &(*p)->next)
        continue;
    slot = *p;
    if (slot) {
        *p = slot->next;
        if (!*p)
            s->admit_end = p;
    }
    pthread_mutex_unlock(&s->lock);
    return slot;
}

static uint32_t n_live(const struct slots *s)
{
    uint32_t n_leaving = atomic_load(&s->n_leaving), n_used = atomic_load(&s->n_used);

    return n_used > n_leaving ? n_used - n_leaving : 0;
}

bool slots_have_room(struct slots *s)
{
    return atomic_load(&s->n_used) < s->n_slots;
}

/* In the order of eviction. New connections come late, as their request may be on its way. */
enum eviction { EVICT_SILENT, EVICT_IDLE, EVICT_STALLED, EVICT_NEW, EVICT_NEVER };

/* Under lock. */
static enum eviction eviction_of(const struct slot *slot, uint64_t now_ns)
{
    bool is_new = slot->t_phase + SECOND_NS > now_ns;

    if (!slot->connection || slot->cut || slot->phase > SLOT_BODY)
        return EVICT_NEVER;
    if (slot->phase == SLOT_BODY)
        return slot->guest && !is_new ? EVICT_STALLED : EVICT_NEVER; /* a guest's was refused */
    if (slot->phase == SLOT_HEADER)
        return is_new ? EVICT_NEVER : EVICT_STALLED;
    if (slot->spoke)
        return EVICT_IDLE;
    return is_new ? EVICT_NEW : EVICT_SILENT;
}

/* NULL: all are busy. */
static struct slot *find_idlest(struct slots *s, uint64_t now_ns)
{
    enum eviction best = EVICT_NEVER;
    uint64_t t_best = 0;
    struct slot *found = NULL;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];
        pthread_mutex_lock(&slot->lock);
        enum eviction e = eviction_of(slot, now_ns);
        if (e < best || (e == best && e != EVICT_NEVER && slot->t_phase < t_best)) {
            best = e;
            t_best = slot->t_phase;
            found = slot;
        }
        pthread_mutex_unlock(&slot->lock);
    }
    return found;
}

/* Close an idle connection. False: a request has begun on it since it was chosen. */
static bool evict(struct slot *slot, uint64_t now_ns)
{
    int n_unread = 0;
    bool closed = false;

    pthread_mutex_lock(&slot->lock);
    if (slot->connection && slot->phase == SLOT_IDLE &&
        (n_received(slot) != slot->n_received ||
         (ioctl(slot->fd, FIONREAD, &n_unread) == 0 && n_unread > 0)))
        begin_header(slot, now_ns);
    if (eviction_of(slot, now_ns) != EVICT_NEVER) {
        shut(slot);
        closed = true;
    }
    pthread_mutex_unlock(&slot->lock);
    return closed;
}

static void evict_idlest(struct slots *s)
{
    uint64_t now_ns = clock_now_ns();
    struct slot *slot;

    while ((slot = find_idlest(s, now_ns)) != NULL)
        if (evict(slot, now_ns)) {
            log_event(LOG_DEBUG, "idlest connection closed for a new one", "%s", "");
            return;
        }
}

/* Evict one connection at a time: while a slow HTTP thread has not closed the last victim, another
 * eviction would make no room sooner. */
void slots_make_room(struct slots *s)
{
    if (atomic_load(&s->n_leaving) == 0)
        evict_idlest(s);
}

struct slot *slots_admit(struct slots *s, int fd)
{
    /* An admitted slot with the same descriptor is stale: the kernel reuses a number only after
     * close(), so MHD closed that connection before it began. */
    struct slot *slot = take_admitted(s, fd);

    if (slot)
        give(s, slot);
    if (n_live(s) >= s->config.n_max)
        evict_idlest(s);
    pthread_mutex_lock(&s->lock);
    slot = s->free;
    if (slot) {
        s->free = slot->next;
        slot->fd = fd;
        slot->next = NULL;
        *s->admit_end = slot;
        s->admit_end = &slot->next;
    }
    pthread_mutex_unlock(&s->lock);
    if (slot) {
        pthread_mutex_lock(&slot->lock);
        slot->guest = atomic_fetch_add(&s->n_used, 1) >= s->config.n_max;
        pthread_mutex_unlock(&slot->lock);
    }
    return slot;
}

void slot_dismiss(struct slot *slot)
{
    if (take_admitted(slot->slots, slot->fd))
        give(slot->slots, slot);
}

bool slot_is_surplus(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    if (n_live(slot->slots) <= slot->slots->config.n_max)
        slot->guest = false;
    bool surplus = slot->guest;
    pthread_mutex_unlock(&slot->lock);
    return surplus;
}

/* --- a connection --- */

static void reset(struct slot *slot, struct MHD_Connection *connection)
{
    const struct slots_config *c = &slot->slots->config;
    uint64_t now_ns = clock_now_ns();

    pthread_mutex_lock(&slot->lock);
    if (slot->cut)
        atomic_fetch_sub(&slot->slots->n_leaving, 1);
    slot->connection = connection;
    slot->phase = SLOT_IDLE;
    slot->t_phase = now_ns;
    slot->n_received = 0;
    slot->told_late = false;
    slot->cut = slot->suspended = slot->offloaded = slot->pending = false;
    slot->spoke = slot->interim = false;
    slot->gone = NULL;
    atomic_store(&slot->deadline_ns,
                 connection ? deadline_after(now_ns, c->header_timeout_ns) : NO_DEADLINE);
    atomic_store(&slot->lost, false);
    atomic_store(&slot->streaming, false);
    atomic_store(&slot->half_closed, false);
    pthread_mutex_unlock(&slot->lock);
}

struct slot *slot_open(struct slots *s, struct MHD_Connection *connection, int fd)
{
    struct slot *slot = take_admitted(s, fd);

    if (!slot)
        return NULL;
    slot->in_flight = false;
    reset(slot, connection);
    if (watcher_add(s->watcher, slot->index, fd, slot) == OK)
        return slot;
    reset(slot, NULL);
    give(s, slot);
    return NULL;
}

void slot_close(struct slot *slot)
{
    watcher_remove(slot->slots->watcher, slot->index);
    reset(slot, NULL);
    give(slot->slots, slot);
}

void *slot_owner(const struct slot *slot)
{
    return slot->slots->config.owner;
}

void slot_input(struct slot *slot)
{
    on_input(slot, false);
}

void slot_shut(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    shut(slot);
    pthread_mutex_unlock(&slot->lock);
}

void slot_set_interim(struct slot *slot, bool allowed)
{
    pthread_mutex_lock(&slot->lock);
    slot->interim = allowed;
    pthread_mutex_unlock(&slot->lock);
}

bool slot_enter(struct slot *slot, enum slot_phase phase)
{
    const struct slots_config *c = &slot->slots->config;
    uint64_t deadline_ns = NO_DEADLINE, now_ns = clock_now_ns();

    if (phase == SLOT_BODY)
        deadline_ns = deadline_after(now_ns, c->body_timeout_ns);
    else if (phase == SLOT_SEND)
        deadline_ns = deadline_after(now_ns, c->write_timeout_ns);
    pthread_mutex_lock(&slot->lock);
    slot->t_phase = now_ns;
    slot->spoke = true;
    bool alive = !slot->cut;
    if (alive) {
        slot->phase = phase;
        if (phase == SLOT_IDLE)
            slot->n_received = n_received(slot);
        atomic_store(&slot->deadline_ns, deadline_ns);
    }
    pthread_mutex_unlock(&slot->lock);
    return alive;
}

void slot_body_came(struct slot *slot, uint64_t n_bytes)
{
    uint64_t timeout_ns = slot->slots->config.body_timeout_ns;

    if (timeout_ns)
        atomic_store(&slot->deadline_ns,
                     slot->t_phase + timeout_ns + n_bytes * (SECOND_NS / SLOT_BODY_RATE_MIN));
}

void slot_sending(struct slot *slot)
{
    uint64_t now_ns = clock_now_ns();

    atomic_store(&slot->t_last_sent, now_ns);
    atomic_store(&slot->deadline_ns, deadline_after(now_ns, slot->slots->config.write_timeout_ns));
}

static void count_in(struct slot *slot)
{
    if (!slot->in_flight)
        atomic_fetch_add(&slot->slots->n_in_flight, 1);
    slot->in_flight = true;
}

void slot_wake_at(struct slot *slot, uint64_t at_ns)
{
    atomic_store(&slot->wake_at_ns, at_ns);
}

/* The order matters. Clearing gone stops new calls of it, watcher_mute() waits for a running call,
 * and only then may the socket be watched for the next request. */
void slot_finish(struct slot *slot)
{
    slot_wake_at(slot, 0);
    pthread_mutex_lock(&slot->lock);
    slot->gone = NULL;
    slot->suspended = slot->pending = slot->interim = false;
    atomic_store(&slot->half_closed, false);
    atomic_store(&slot->streaming, false);
    atomic_store(&slot->deadline_ns, NO_DEADLINE);
    pthread_mutex_unlock(&slot->lock);
    watcher_mute(slot->slots->watcher, slot->index);
    atomic_store(&slot->lost, false);
    if (slot->in_flight)
        atomic_fetch_sub(&slot->slots->n_in_flight, 1);
    slot->in_flight = false;
    if (slot_enter(slot, SLOT_IDLE))
        watcher_watch(slot->slots->watcher, slot->index, WATCH_INPUT);
}

enum status slot_defer(struct slot *slot, void (*gone)(void *arg), void *arg)
{
    if (atomic_load(&slot->slots->stopping))
        return ERR_UNAVAILABLE;
    count_in(slot);
    atomic_store(&slot->t_last_sent, clock_now_ns());
    pthread_mutex_lock(&slot->lock);
    slot->gone = gone;
    slot->gone_arg = arg;
    pthread_mutex_unlock(&slot->lock);
    /* epoll reports at once a client that has left already. */
    watcher_watch(slot->slots->watcher, slot->index, WATCH_LEAVE);
    return OK;
}

void slot_offload_begin(struct slot *slot)
{
    count_in(slot);
    pthread_mutex_lock(&slot->lock);
    slot->suspended = slot->offloaded = true;
    MHD_suspend_connection(slot->connection);
    pthread_mutex_unlock(&slot->lock);
    watcher_watch(slot->slots->watcher, slot->index, WATCH_LEAVE);
}

void slot_offload_end(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    slot->suspended = slot->offloaded = slot->pending = false;
    MHD_resume_connection(slot->connection);
    pthread_mutex_unlock(&slot->lock);
}

/* --- all of them --- */

enum status slots_create(struct slots **out, const struct slots_config *config)
{
    static const struct watcher_callbacks callbacks = {
        .input = on_input, .lost = on_lost, .tick = on_tick, .half_closed = on_half_closed};
    struct slots *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return ERR_NOMEM;
    s->config = *config;
    s->n_slots = config->n_max + config->n_guests;
    s->admit_end = &s->admitted;
    pthread_mutex_init(&s->lock, NULL);
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    for (uint32_t i = s->n_slots; s->slots && i-- > 0;) {
        struct slot *slot = &s->slots[i];
        pthread_mutex_init(&slot->lock, NULL);
        slot->slots = s;
        slot->index = i;
        atomic_init(&slot->deadline_ns, NO_DEADLINE);
        slot->next = s->free;
        s->free = slot;
    }
    enum status st = s->slots ? watcher_create(&s->watcher, s->n_slots, &callbacks) : ERR_NOMEM;
    if (st != OK) {
        slots_destroy(s);
        return st;
    }
    *out = s;
    return OK;
}

void slots_destroy(struct slots *s)
{
    if (!s)
        return;
    watcher_destroy(s->watcher);
    for (uint32_t i = 0; s->slots && i < s->n_slots; i++)
        pthread_mutex_destroy(&s->slots[i].lock);
    pthread_mutex_destroy(&s->lock);
    free(s->slots);
    free(s);
}

uint32_t slots_n_in_flight(const struct slots *s)
{
    return atomic_load(&s->n_in_flight);
}

int slots_tick_fd(const struct slots *s)
{
    return watcher_tick_fd(s->watcher);
}

uint64_t slots_n_cut(const struct slots *s)
{
    return atomic_load(&s->n_cut);
}

void slots_cancel(struct slots *s, bool lose)
{
    watcher_for_each(s->watcher, lose ? on_each_lose : on_each_cancel);
}

uint32_t slots_cut_all(struct slots *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];
        pthread_mutex_lock(&slot->lock);
        if (slot->connection && !slot->cut)
            shut(slot);
        pthread_mutex_unlock(&slot->lock);
    }
    return atomic_load(&s->n_used);
}

void slots_stop(struct slots *s)
{
    atomic_store(&s->stopping, true);
}
