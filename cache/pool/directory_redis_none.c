/* directory_redis_none.c - a program without hiredis: directory_open() refuses before any of this
 * is called. */
#include "cache/pool/directory_inner.h"

bool redis_link_is_built(void)
{
    return false;
}

struct redis_view redis_link_at(const struct redis_view *list, size_t i)
{
    (void)i;
    return *list;
}

enum status redis_link_open(struct redis_link **out, int epoll,
                            const struct redis_link_hooks *hooks, void *arg)
{
    (void)out, (void)epoll, (void)hooks, (void)arg;
    return ERR_UNSUPPORTED;
}

void redis_link_close(struct redis_link *l)
{
    (void)l;
}

void redis_link_connect(struct redis_link *l, const char *address, uint16_t port)
{
    (void)l, (void)address, (void)port;
}

bool redis_link_is_open(const struct redis_link *l)
{
    (void)l;
    return false;
}

void redis_link_end(struct redis_link *l, const char *why)
{
    (void)l, (void)why;
}

bool redis_link_send(struct redis_link *l, int argc, const char *const *argv, const size_t *lengths,
                     redis_link_reply *reply, uint32_t what)
{
    (void)l, (void)argc, (void)argv, (void)lengths, (void)reply, (void)what;
    return false;
}

uint32_t redis_link_n_pending(const struct redis_link *l)
{
    (void)l;
    return 0;
}

uint64_t redis_link_n_answers(const struct redis_link *l)
{
    (void)l;
    return 0;
}

void redis_link_progress(struct redis_link *l, uint32_t epoll_events)
{
    (void)l, (void)epoll_events;
}
