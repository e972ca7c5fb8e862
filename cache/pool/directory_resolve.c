#include "cache/pool/directory_inner.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* The thread and the directory each hold a reference; the last one frees. */
struct resolver {
    _Atomic uint32_t n_refs;
    _Atomic bool is_done;
    int fd; /* a duplicate: the directory may be closed before the thread ends */
    char host[256];
    struct resolved result;
};

static void resolve(struct resolved *out, const char *host, int flags)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *all = NULL;

    out->n = 0;
    if (getaddrinfo(host, NULL, &hints, &all) != 0)
        return;
    for (const struct addrinfo *a = all; a && out->n < RESOLVED_MAX; a = a->ai_next)
        if (getnameinfo(a->ai_addr, a->ai_addrlen, out->address[out->n], sizeof out->address[0],
                        NULL, 0, NI_NUMERICHOST) == 0)
            out->n++;
    freeaddrinfo(all);
}

bool directory_resolve_numeric(struct resolved *out, const char *host)
{
    resolve(out, host, AI_NUMERICHOST);
    return out->n > 0;
}

static void unref(struct resolver *r)
{
    if (atomic_fetch_sub(&r->n_refs, 1) == 1) {
        close(r->fd);
        free(r);
    }
}

static void *thread_main(void *arg)
{
    struct resolver *r = arg;

    resolve(&r->result, r->host, 0);
    atomic_store(&r->is_done, true);
    eventfd_write(r->fd, 1);
    unref(r);
    return NULL;
}

struct resolver *directory_resolve_begin(const char *host, int fd)
{
    struct resolver *r = calloc(1, sizeof *r);
    pthread_attr_t attr;
    pthread_t thread;

    if (!r)
        return NULL;
    atomic_init(&r->n_refs, 2);
    strncpy(r->host, host, sizeof r->host - 1);
    r->fd = dup(fd);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (r->fd < 0 || pthread_create(&thread, &attr, thread_main, r) != 0) {
        if (r->fd >= 0)
            close(r->fd);
        free(r);
        r = NULL;
    }
    pthread_attr_destroy(&attr);
    return r;
}

bool directory_resolve_take(struct resolver *r, struct resolved *out)
{
    if (!atomic_load(&r->is_done))
        return false;
    *out = r->result;
    unref(r);
    return true;
}

void directory_resolve_leave(struct resolver *r)
{
    if (r)
        unref(r);
}
