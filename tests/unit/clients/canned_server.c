#include "tests/unit/clients/canned_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"

#define NS_PER_MS 1000000ull
#define POLL_MS 5

struct canned_server {
    int fd;
    char url[64];
    const struct canned *answers;
    size_t n_answers, next;
    pthread_t thread;
    atomic_bool stop;
    atomic_size_t n_written, n_connections, n_requests, n_released;
    pthread_mutex_t lock;
    struct buf requests; /* under the lock */
};

/* False when the server is to stop. */
static bool wait_for(struct canned_server *s, int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};

    while (!atomic_load(&s->stop))
        if (poll(&p, 1, POLL_MS) > 0)
            return true;
    return false;
}

static void pause_ms(struct canned_server *s, unsigned ms)
{
    uint64_t end = clock_now_ns() + ms * NS_PER_MS;

    while (clock_now_ns() < end && !atomic_load(&s->stop))
        clock_sleep_ns(NS_PER_MS / 4);
}

/* Wait for the test to release one more piece. */
static void wait_for_release(struct canned_server *s)
{
    while (!atomic_load(&s->stop) && atomic_load(&s->n_released) == 0)
        clock_sleep_ns(NS_PER_MS / 4);
    if (atomic_load(&s->n_released) > 0)
        atomic_fetch_sub(&s->n_released, 1);
}

static size_t content_length(const char *head)
{
    const char *p = strcasestr(head, "content-length:");

    return p ? strtoul(p + 15, NULL, 10) : 0;
}

static bool read_request(struct canned_server *s, int fd)
{
    char chunk[4096];
    struct buf in;
    const char *end = NULL;
    bool whole = false;

    buf_init(&in, 64u << 20);
    while (!whole && wait_for(s, fd, POLLIN)) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n <= 0)
            break;
        ASSERT(buf_append(&in, chunk, (size_t)n) == OK);
        end = strstr(in.data, "\r\n\r\n");
        whole = end && in.len >= (size_t)(end + 4 - in.data) + content_length(in.data);
    }
    pthread_mutex_lock(&s->lock);
    if (in.len > 0)
        ASSERT(buf_append(&s->requests, in.data, in.len) == OK);
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->n_requests, whole);
    buf_fini(&in);
    return whole;
}

static bool write_all(struct canned_server *s, int fd, const char *data, size_t n)
{
    while (n > 0 && wait_for(s, fd, POLLOUT)) {
        ssize_t done = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done <= 0)
            return false;
        atomic_fetch_add(&s->n_written, (size_t)done);
        data += done;
        n -= (size_t)done;
    }
    return n == 0;
}

static bool write_answer(struct canned_server *s, int fd, const struct canned *c)
{
    size_t len = c->len ? c->len : strlen(c->text);
    size_t step = c->split ? c->split : len ? len : 1;

    pause_ms(s, c->delay_ms);
    for (size_t k = 0; k < (c->repeat ? c->repeat : 1); k++)
        for (size_t at = 0; at < len; at += step) {
            if (c->gate_at && at >= c->gate_at)
                wait_for_release(s);
            if (!write_all(s, fd, c->text + at, len - at < step ? len - at : step))
                return false;
            pause_ms(s, c->split_ms);
        }
    return true;
}

static void end_connection(struct canned_server *s, int fd, enum canned_then then)
{
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    char byte;

    if (then == CANNED_HOLD)
        while (wait_for(s, fd, POLLIN) && read(fd, &byte, 1) > 0)
            continue;
    if (then == CANNED_RESET)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

static void serve(struct canned_server *s, int fd)
{
    static const int one = 1;
    enum canned_then then = CANNED_NEXT;

    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    while (then == CANNED_NEXT && read_request(s, fd)) {
        const struct canned *c = &s->answers[s->next];
        if (s->next + 1 < s->n_answers)
            s->next++;
        then = c->then;
        if (!write_answer(s, fd, c))
            then = CANNED_CLOSE;
        pause_ms(s, c->then_ms);
    }
    end_connection(s, fd, then);
}

static void *run(void *arg)
{
    struct canned_server *s = arg;

    while (wait_for(s, s->fd, POLLIN)) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            continue;
        atomic_fetch_add(&s->n_connections, 1);
        serve(s, fd);
    }
    return NULL;
}

static struct canned_server *start(int fd, const struct canned *answers, size_t n)
{
    struct canned_server *s = calloc(1, sizeof *s);

    ASSERT(s && fd >= 0 && n > 0);
    ASSERT(listen(fd, 64) == 0);
    s->fd = fd;
    s->answers = answers;
    s->n_answers = n;
    buf_init(&s->requests, 256u << 20);
    pthread_mutex_init(&s->lock, NULL);
    ASSERT(pthread_create(&s->thread, NULL, run, s) == 0);
    return s;
}

struct canned_server *canned_start(const struct canned *answers, size_t n)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ASSERT(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    ASSERT(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    struct canned_server *s = start(fd, answers, n);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    return s;
}

struct canned_server *canned_start_unix(const char *path, const struct canned *answers, size_t n)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    unlink(path);
    ASSERT(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    struct canned_server *s = start(fd, answers, n);
    snprintf(s->url, sizeof s->url, "http://localhost");
    return s;
}

const char *canned_url(const struct canned_server *s)
{
    return s->url;
}

const char *canned_requests(struct canned_server *s)
{
    pthread_mutex_lock(&s->lock);
    const char *text = buf_str(&s->requests);
    pthread_mutex_unlock(&s->lock);
    return text;
}

bool canned_has_request(struct canned_server *s)
{
    return atomic_load(&s->n_requests) > 0;
}

void canned_release(struct canned_server *s)
{
    atomic_fetch_add(&s->n_released, 1);
}

size_t canned_n_written(struct canned_server *s)
{
    return atomic_load(&s->n_written);
}

size_t canned_n_connections(struct canned_server *s)
{
    return atomic_load(&s->n_connections);
}

void canned_stop(struct canned_server *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    close(s->fd);
    pthread_mutex_destroy(&s->lock);
    buf_fini(&s->requests);
    free(s);
}
