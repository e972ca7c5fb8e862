#include "cache/pool/directory_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <hiredis/async.h>
#include <hiredis/hiredis.h>

#include "base/check.h"

/* Of a reply that is not complete yet; hiredis keeps its bytes until it is. */
#define UNREAD_BYTES_MAX (64u << 10)

#if HIREDIS_MAJOR >= 1
typedef size_t n_elements;
#else
typedef int n_elements;
#endif

struct redis_link {
    struct redis_link_hooks hooks;
    void *arg;
    int epoll;
    redisAsyncContext *context;          /* NULL: not connected */
    redisReplyObjectFunctions unbounded; /* of hiredis */
    redisReplyObjectFunctions bounded;   /* the same within bounds */
    uint32_t interest;                   /* EPOLLIN, EPOLLOUT */
    bool is_registered;
    const char *why; /* set before hiredis ends the connection, where the reason is known */
    uint64_t n_sent, n_begun, n_answers;
};

/* A command whose reply has not come yet. */
struct command {
    redis_link_reply *reply;
    uint32_t what;
};

bool redis_link_is_built(void)
{
    return true;
}

/* --- bounded replies ---
 *
 * hiredis puts no bound on lists and texts, and its assertion about replies that nobody asked
 * for would end the whole process. Both are refused where the reader creates objects: it then ends
 * the connection as if memory were exhausted. */

static bool may_begin(const redisReadTask *task)
{
    struct redis_link *l = task->privdata;

    if (task->parent)
        return true;
    if (l->n_begun == l->n_sent) {
        l->why = "Redis sent a reply that was not asked for";
        return false;
    }
    l->n_begun++;
    return true;
}

static void *create_text(const redisReadTask *task, char *text, size_t n)
{
    struct redis_link *l = task->privdata;
    /* hiredis itself ends the connection at an error before the first command. */
    bool is_greeting = !task->parent && task->type == REDIS_REPLY_ERROR && l->n_begun == l->n_sent;

    if (n > REDIS_TEXT_MAX) {
        l->why = "a reply of Redis is too long";
        return NULL;
    }
    return is_greeting || may_begin(task) ? l->unbounded.createString(task, text, n) : NULL;
}

static void *create_list(const redisReadTask *task, n_elements n)
{
    struct redis_link *l = task->privdata;

    if (task->parent || (int64_t)n > (int64_t)REDIS_ELEMENTS_MAX || (int64_t)n < 0) {
        l->why = "a reply of Redis is too long";
        return NULL;
    }
    return may_begin(task) ? l->unbounded.createArray(task, n) : NULL;
}

static void *create_number(const redisReadTask *task, long long v)
{
    struct redis_link *l = task->privdata;

    return may_begin(task) ? l->unbounded.createInteger(task, v) : NULL;
}

static void *create_nothing(const redisReadTask *task)
{
    struct redis_link *l = task->privdata;

    return may_begin(task) ? l->unbounded.createNil(task) : NULL;
}

#if HIREDIS_MAJOR >= 1
static void *create_double(const redisReadTask *task, double v, char *text, size_t n)
{
    struct redis_link *l = task->privdata;

    return may_begin(task) ? l->unbounded.createDouble(task, v, text, n) : NULL;
}

static void *create_bool(const redisReadTask *task, int v)
{
    struct redis_link *l = task->privdata;

    return may_begin(task) ? l->unbounded.createBool(task, v) : NULL;
}
#endif

static void bound_replies(struct redis_link *l)
{
    redisReader *reader = l->context->c.reader;

    l->unbounded = *reader->fn;
    l->bounded = l->unbounded;
    l->bounded.createString = create_text;
    l->bounded.createArray = create_list;
    l->bounded.createInteger = create_number;
    l->bounded.createNil = create_nothing;
#if HIREDIS_MAJOR >= 1
    l->bounded.createDouble = create_double;
    l->bounded.createBool = create_bool;
#endif
    reader->fn = &l->bounded;
    reader->privdata = l;
}

static struct redis_view view_of(const redisReply *r)
{
    struct redis_view v = {.kind = REDIS_NOTHING, .inner = r};

    switch (r->type) {
    case REDIS_REPLY_INTEGER:
        v.kind = REDIS_NUMBER;
        v.number = r->integer;
        break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
        v.kind = r->type == REDIS_REPLY_ERROR ? REDIS_ERROR : REDIS_TEXT;
        v.text = r->str;
        v.n = r->len;
        break;
    case REDIS_REPLY_ARRAY:
        v.kind = REDIS_LIST;
        v.n = r->elements;
        break;
    }
    return v;
}

struct redis_view redis_link_at(const struct redis_view *list, size_t i)
{
    const redisReply *r = list->inner;

    ASSERT(list->kind == REDIS_LIST && i < list->n);
    return view_of(r->element[i]);
}

/* --- what hiredis calls --- */

static void set_interest(struct redis_link *l, uint32_t interest)
{
    struct epoll_event e = {.events = interest, .data.ptr = l};

    if (interest == l->interest && l->is_registered)
        return;
    l->interest = interest;
    epoll_ctl(l->epoll, l->is_registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, l->context->c.fd, &e);
    l->is_registered = true;
}

static void add_read(void *arg)
{
    struct redis_link *l = arg;

    set_interest(l, l->interest | EPOLLIN);
}

static void del_read(void *arg)
{
    struct redis_link *l = arg;

    set_interest(l, l->interest & ~(uint32_t)EPOLLIN);
}

static void add_write(void *arg)
{
    struct redis_link *l = arg;

    set_interest(l, l->interest | EPOLLOUT);
}

static void del_write(void *arg)
{
    struct redis_link *l = arg;

    set_interest(l, l->interest & ~(uint32_t)EPOLLOUT);
}

static const char *words_of(const redisAsyncContext *context)
{
    switch (context->err ? context->err : context->c.err) {
    case REDIS_ERR_EOF: return "Redis closed the connection";
    case REDIS_ERR_PROTOCOL: return "the other side does not speak the protocol of Redis";
    case REDIS_ERR_OOM: return "out of memory";
    case REDIS_ERR_OTHER: /* words of Redis before the first command */
        if (strstr(context->c.errstr, "max number of clients"))
            return "Redis has too many clients (maxclients)";
        return "Redis refused the connection";
    default: return "the connection to Redis broke";
    }
}

/* The last hook that hiredis calls, after all callbacks: also at failed connects. */
static void cleanup(void *arg)
{
    struct redis_link *l = arg;
    const char *why = l->why ? l->why : words_of(l->context);

    if (l->is_registered)
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->context->c.fd, NULL);
    l->is_registered = false;
    l->context = NULL;
    if (l->hooks.lost)
        l->hooks.lost(l->arg, why);
}

static void connected(const redisAsyncContext *context, int status)
{
    struct redis_link *l = context->data;

    if (status == REDIS_OK)
        l->hooks.connected(l->arg);
    else if (!l->why)
        l->why = errno ? strerrordesc_np(errno) : "cannot connect to Redis";
}

static void answered(redisAsyncContext *context, void *reply, void *arg)
{
    struct redis_link *l = context->data;
    struct command *c = arg;

    l->n_answers++;
    if (reply) {
        struct redis_view v = view_of(reply);
        c->reply(l->arg, &v, c->what);
    } else {
        c->reply(l->arg, NULL, c->what);
    }
    free(c);
}

/* --- the interface --- */

enum status redis_link_open(struct redis_link **out, int epoll,
                            const struct redis_link_hooks *hooks, void *arg)
{
    struct redis_link *l = calloc(1, sizeof *l);

    if (!l)
        return ERR_NOMEM;
    l->hooks = *hooks;
    l->arg = arg;
    l->epoll = epoll;
    *out = l;
    return OK;
}

void redis_link_close(struct redis_link *l)
{
    if (!l)
        return;
    l->hooks.lost = NULL;
    if (l->context)
        redisAsyncFree(l->context);
    free(l);
}

void redis_link_connect(struct redis_link *l, const char *address, uint16_t port)
{
    ASSERT(!l->context);
    errno = 0;
    l->context = port ? redisAsyncConnect(address, port) : redisAsyncConnectUnix(address);
    l->why = NULL;
    l->interest = 0;
    l->n_sent = l->n_begun = l->n_answers = 0;
    if (!l->context) {
        l->hooks.lost(l->arg, "out of memory");
        return;
    }
    l->context->data = l;
    l->context->ev.data = l;
    l->context->ev.cleanup = cleanup;
    if (l->context->err) {
        l->why = errno ? strerrordesc_np(errno) : "cannot connect to Redis";
        redisAsyncFree(l->context);
        return;
    }
    bound_replies(l);
    l->context->ev.addRead = add_read;
    l->context->ev.delRead = del_read;
    l->context->ev.addWrite = add_write;
    l->context->ev.delWrite = del_write;
    redisAsyncSetConnectCallback(l->context, connected);
}

bool redis_link_is_open(const struct redis_link *l)
{
    return l->context != NULL;
}

void redis_link_end(struct redis_link *l, const char *why)
{
    if (!l->context || l->why)
        return;
    l->why = why;
    redisAsyncFree(l->context);
}

bool redis_link_send(struct redis_link *l, int argc, const char *const *argv, const size_t *lengths,
                     redis_link_reply *reply, uint32_t what)
{
    struct command *c = l->context && !l->why ? malloc(sizeof *c) : NULL;

    if (!c)
        return false;
    *c = (struct command){reply, what};
    if (redisAsyncCommandArgv(l->context, answered, c, argc, (const char **)argv, lengths) !=
        REDIS_OK) {
        free(c);
        return false;
    }
    l->n_sent++;
    return true;
}

uint32_t redis_link_n_pending(const struct redis_link *l)
{
    return l->context ? (uint32_t)(l->n_sent - l->n_answers) : 0;
}

uint64_t redis_link_n_answers(const struct redis_link *l)
{
    return l->n_answers;
}

void redis_link_progress(struct redis_link *l, uint32_t epoll_events)
{
    bool is_over = epoll_events & (EPOLLERR | EPOLLHUP);

    if (l->context && (epoll_events & EPOLLIN || (is_over && l->interest & EPOLLIN)))
        redisAsyncHandleRead(l->context);
    if (l->context && (epoll_events & EPOLLOUT || (is_over && l->interest & EPOLLOUT)))
        redisAsyncHandleWrite(l->context);
    /* hiredis keeps what is read of a reply until the reply is complete. */
    if (l->context && l->context->c.reader->len > UNREAD_BYTES_MAX)
        redis_link_end(l, "a reply of Redis is too long");
}
