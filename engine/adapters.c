#include "engine/adapters.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/model/adapter.h"

struct adapters {
    struct adapters_config c;
    pthread_mutex_t load_lock; /* one adapter is loaded at a time */
    bool sleeps;               /* under load_lock */
    pthread_mutex_t lock;      /* of the list */
    struct adapter **list;     /* [n] in the order of loading */
    uint32_t n;
    uint64_t n_loaded;      /* ever */
    struct adapter *placed; /* all that are on a device, the list's and those of requests */
    atomic_uint n_unused;   /* of those: without a reference */
};

enum status adapters_create(struct adapters **out, const struct adapters_config *config)
{
    struct adapters *as = calloc(1, sizeof *as);

    *out = NULL;
    ASSERT(config->n_max > 0 && config->n_max <= ADAPTERS_MAX);
    if (!as)
        return ERR_NOMEM;
    as->c = *config;
    as->list = calloc(config->n_max, sizeof(struct adapter *));
    if (!as->list) {
        free(as);
        return ERR_NOMEM;
    }
    pthread_mutex_init(&as->load_lock, NULL);
    pthread_mutex_init(&as->lock, NULL);
    *out = as;
    return OK;
}

void adapters_destroy(struct adapters *as)
{
    if (!as)
        return;
    for (uint32_t i = 0; i < as->n; i++)
        adapter_unref(as->list[i]);
    adapters_free_unused(as);
    /* The device ends before a request that some thread still reads. */
    for (struct adapter *a = as->placed, *next; a; a = next) {
        next = a->next; /* that thread frees the adapter, once it is on no device */
        adapter_displace(a);
    }
    pthread_mutex_destroy(&as->load_lock);
    pthread_mutex_destroy(&as->lock);
    free(as->list);
    free(as);
}

uint32_t adapters_max(const struct adapters *as)
{
    return as->c.n_max;
}

/* --- references --- */

struct adapter *adapter_ref(struct adapter *a)
{
    atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    return a;
}

void adapter_unref(struct adapter *a)
{
    if (a && a->on_device) { /* only the engine thread may free memory of a device */
        struct adapters *as = a->owner;

        pthread_mutex_lock(&as->lock);
        if (atomic_fetch_sub(&a->refs, 1) == 1)
            atomic_fetch_add(&as->n_unused, 1);
        pthread_mutex_unlock(&as->lock);
    } else if (a && atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1) {
        adapter_free(a);
    }
}

void adapters_free_unused(struct adapters *as)
{
    if (!as || atomic_load_explicit(&as->n_unused, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&as->lock);
    for (struct adapter **at = &as->placed; *at;) {
        struct adapter *a = *at;

        if (atomic_load(&a->refs) > 0) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        adapter_displace(a);
        adapter_free(a);
        atomic_fetch_sub(&as->n_unused, 1);
    }
    pthread_mutex_unlock(&as->lock);
}

/* --- the list --- */

/* The place of a name; n: there is none. */
static uint32_t find(const struct adapters *as, const char *name)
{
    uint32_t i = 0;

    while (i < as->n && strcmp(as->list[i]->name, name) != 0)
        i++;
    return i;
}

struct adapter *adapters_find(struct adapters *as, const char *name)
{
    struct adapter *a = NULL;

    if (!as)
        return NULL;
    pthread_mutex_lock(&as->lock);
    uint32_t i = find(as, name);
    if (i < as->n)
        a = adapter_ref(as->list[i]);
    pthread_mutex_unlock(&as->lock);
    return a;
}

uint32_t adapters_list(struct adapters *as, struct adapter **out, uint32_t n_max)
{
    uint32_t n = 0;

    if (!as)
        return 0;
    pthread_mutex_lock(&as->lock);
    for (; n < as->n && n < n_max; n++)
        out[n] = adapter_ref(as->list[n]);
    pthread_mutex_unlock(&as->lock);
    return n;
}

/* Whether the name may be given to another adapter. */
static enum status check_place(struct adapters *as, const char *name, bool replace, struct buf *why)
{
    enum status s = OK;

    pthread_mutex_lock(&as->lock);
    bool is_taken = find(as, name) < as->n;
    if (is_taken && !replace)
        s = buf_why(why, ERR_INVALID,
                    "lora_name: the adapter \"%.200s\" is loaded already; load_inplace replaces it",
                    name);
    else if (!is_taken && as->n == as->c.n_max)
        s = buf_why(why, ERR_TOO_LARGE,
                    "%u adapters are loaded, the most that {max_loras} allows; unload one first",
                    as->n);
    pthread_mutex_unlock(&as->lock);
    return s;
}

/* Enter the adapter; return the one whose name it takes, or NULL. */
static struct adapter *enter(struct adapters *as, struct adapter *a)
{
    struct adapter *before = NULL;

    pthread_mutex_lock(&as->lock);
    uint32_t i = find(as, a->name);
    a->number = ++as->n_loaded;
    if (i < as->n)
        before = as->list[i];
    else
        as->n++;
    as->list[i] = a;
    if (a->on_device) {
        a->next = as->placed;
        as->placed = a;
    }
    pthread_mutex_unlock(&as->lock);
    return before;
}

static enum status load(struct adapters *as, const struct adapter_source *source, bool replace,
                        struct buf *why)
{
    struct adapter *a = NULL;
    enum status s = check_place(as, source->name, replace, why);

    if (s == OK)
        s = adapter_load(&a, source, why);
    if (s == OK && as->c.place && (s = as->c.place(as->c.arg, a)) != OK) {
        adapter_free(a);
        return buf_why(why, s, "the adapter cannot be brought to the device: %s", status_words(s));
    }
    if (s != OK)
        return s;
    a->owner = as;
    log_event(LOG_INFO, "adapter loaded", "name=\"%s\" dir=\"%s\" rank=%u mb=%.1f", a->name,
              a->path, a->rank, (double)a->n_bytes * 1e-6);
    adapter_unref(enter(as, a));
    return OK;
}

enum status adapters_load(struct adapters *as, const char *name, const char *dir, const char *base,
                          bool replace, struct buf *why)
{
    const struct adapter_source source = {.name = name,
                                          .dir = dir,
                                          .base = base,
                                          .model = as->c.model,
                                          .weights = as->c.weights,
                                          .layout = as->c.layout,
                                          .rank_max = as->c.rank_max};

    pthread_mutex_lock(&as->load_lock);
    enum status s = as->sleeps ? buf_why(why, ERR_UNAVAILABLE,
                                         "the model sleeps: POST /wake_up, and load it then")
                               : load(as, &source, replace, why);
    pthread_mutex_unlock(&as->load_lock);
    return s;
}

bool adapters_sleep(struct adapters *as)
{
    if (!as)
        return true;
    if (pthread_mutex_trylock(&as->load_lock) != 0)
        return false;
    as->sleeps = true;
    pthread_mutex_unlock(&as->load_lock);
    return true;
}

void adapters_wake(struct adapters *as)
{
    if (!as)
        return;
    pthread_mutex_lock(&as->load_lock); /* nobody holds it for long: nothing is loaded */
    as->sleeps = false;
    pthread_mutex_unlock(&as->load_lock);
}

enum status adapters_unload(struct adapters *as, const char *name, struct buf *why)
{
    struct adapter *a = NULL;

    pthread_mutex_lock(&as->lock);
    uint32_t i = find(as, name);
    if (i < as->n) {
        a = as->list[i];
        memmove(as->list + i, as->list + i + 1, (as->n - i - 1) * sizeof(struct adapter *));
        as->n--;
    }
    pthread_mutex_unlock(&as->lock);
    if (!a)
        return buf_why(why, ERR_NOT_FOUND, "lora_name: the adapter \"%.200s\" is not loaded", name);
    log_event(LOG_INFO, "adapter unloaded", "name=\"%s\"", name);
    adapter_unref(a);
    return OK;
}

const char *adapter_name(const struct adapter *a)
{
    return a->name;
}

const char *adapter_path(const struct adapter *a)
{
    return a->path;
}

const char *adapter_base(const struct adapter *a)
{
    return a->base;
}

uint32_t adapter_n_running(const struct adapter *a)
{
    return atomic_load(&a->n_running);
}

uint32_t adapter_n_waiting(const struct adapter *a)
{
    return atomic_load(&a->n_waiting);
}

void adapter_narrow(const struct adapter *a, struct kv_scope *scope)
{
    const struct kv_scope wide = *scope;

    _Static_assert(ADAPTER_HASH_BYTES >= 16 && ADAPTER_HASH_BYTES <= 64, "a key of the hash");
    hash_blake2b(scope->bytes, sizeof scope->bytes, wide.bytes, sizeof wide.bytes, a->hash,
                 sizeof a->hash);
}
