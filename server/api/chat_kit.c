#include "server/api/chat_kit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "server/api/documents.h"
#include "server/server.h"

#define HASH_BYTES 32

/* A request's kit. */
struct guest {
    struct chat_kit kit; /* first: chat_kit_put() gets its address */
    struct chat_template *template;
    uint8_t hash[HASH_BYTES];
    atomic_uint refs;
    uint64_t used; /* larger: later */
};

struct chat_kits {
    pthread_mutex_t lock;              /* of all below */
    struct guest *kept[CHAT_KITS_MAX]; /* NULL: free */
    uint64_t n_uses;
};

void chat_kit_fill(struct chat_kit *kit, const struct chat_template *template,
                   const struct config *config)
{
    kit->template = template;
    kit->documents_lead = documents_lead(template);
    chat_traits_find(&kit->traits, template);
    kit->tool_format =
        tool_format_find(config->tool_call_parser ? config->tool_call_parser : "auto", template);
    kit->reasoning =
        reasoning_find(config->reasoning_parser ? config->reasoning_parser : "auto", template);
}

static void drop(struct guest *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    chat_template_destroy(g->template);
    free(g);
}

enum status chat_kits_create(struct chat_kits **out)
{
    struct chat_kits *kits = calloc(1, sizeof *kits);

    *out = kits;
    if (!kits)
        return ERR_NOMEM;
    pthread_mutex_init(&kits->lock, NULL);
    return OK;
}

void chat_kits_destroy(struct chat_kits *kits)
{
    if (!kits)
        return;
    for (uint32_t i = 0; i < CHAT_KITS_MAX; i++)
        drop(kits->kept[i]);
    pthread_mutex_destroy(&kits->lock);
    free(kits);
}

/* The kept kit of this hash, with a reference more; NULL: there is none. */
static struct guest *find(struct chat_kits *kits, const uint8_t hash[HASH_BYTES])
{
    struct guest *found = NULL;

    pthread_mutex_lock(&kits->lock);
    for (uint32_t i = 0; i < CHAT_KITS_MAX && !found; i++)
        if (kits->kept[i] && memcmp(kits->kept[i]->hash, hash, HASH_BYTES) == 0)
            found = kits->kept[i];
    if (found) {
        atomic_fetch_add(&found->refs, 1);
        found->used = ++kits->n_uses;
    }
    pthread_mutex_unlock(&kits->lock);
    return found;
}

/* Keep a kit in place of the one that was used the longest ago. */
static void keep(struct chat_kits *kits, struct guest *g)
{
    uint32_t place = 0;

    atomic_fetch_add(&g->refs, 1);
    pthread_mutex_lock(&kits->lock);
    for (uint32_t i = 0; i < CHAT_KITS_MAX; i++)
        if (!kits->kept[i] || (kits->kept[place] && kits->kept[i]->used < kits->kept[place]->used))
            place = i;
    struct guest *old = kits->kept[place];
    kits->kept[place] = g;
    g->used = ++kits->n_uses;
    pthread_mutex_unlock(&kits->lock);
    drop(old);
}

static enum status make(struct guest **out, const struct server *srv, const char *source,
                        size_t len, const uint8_t hash[HASH_BYTES], struct buf *why)
{
    struct guest *g = calloc(1, sizeof *g);
    struct buf inner;

    if (!g)
        return buf_why(why, ERR_NOMEM, "chat_template: out of memory");
    atomic_init(&g->refs, 1);
    memcpy(g->hash, hash, HASH_BYTES);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = chat_template_create_guest(&g->template, source, len, &inner);
    if (s != OK)
        buf_why(why, s, "chat_template: %s", buf_str(&inner));
    buf_fini(&inner);
    if (s != OK) {
        free(g);
        return s;
    }
    chat_kit_fill(&g->kit, g->template, srv->config);
    *out = g;
    return OK;
}

enum status chat_kit_get(const struct chat_kit **out, const struct server *srv,
                         const struct json *body, struct buf *why)
{
    uint8_t hash[HASH_BYTES];
    const char *source = NULL;
    size_t len = 0;
    enum status s = js_get_str(body, "chat_template", &source, &len, why);

    *out = NULL;
    if (s != OK)
        return s;
    *out = &srv->kit;
    if (len == 0)
        return OK;
    *out = NULL;
    if (!srv->config->trust_request_chat_template)
        return buf_why(why, ERR_UNSUPPORTED,
                       "chat_template: not allowed; the server's operator sets a template with "
                       "--chat-template, or allows those of requests with "
                       "--trust-request-chat-template");
    hash_blake2b(hash, sizeof hash, source, len, NULL, 0);
    struct guest *g = find(srv->chat_kits, hash);
    if (!g) {
        s = make(&g, srv, source, len, hash, why);
        if (s != OK)
            return s;
        keep(srv->chat_kits, g);
    }
    *out = &g->kit;
    return OK;
}

void chat_kit_put(const struct server *srv, const struct chat_kit *kit)
{
    if (kit && kit != &srv->kit)
        drop((struct guest *)(void *)(uintptr_t)kit);
}
