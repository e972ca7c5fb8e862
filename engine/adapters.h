/* adapters.h - the LoRA adapters that requests can name.
 *
 * A request that begins with an adapter keeps it until its end: unloading or replacing an adapter
 * only takes the name away, and the memory is freed when the last request has ended. All loaded
 * adapters may serve rows of one step.
 *
 * KV that was computed with an adapter has a scope of its own, which hashes the adapter's content:
 * adapter_narrow(). So such KV never matches that of the model alone or of another adapter, in any
 * tier, on disk and on other instances, and the same adapter under another name finds it.
 *
 * Owns    the list, a reference to each adapter in it, and adapters that wait to be freed.
 * Thread  any: a lock guards the list. adapters_free_unused(): engine thread. adapters_destroy():
 *         no reference is left but those of the list.
 * Errors  adapters_load(): as adapter_load(); ERR_INVALID: the name is taken, or is no name;
 *         ERR_TOO_LARGE: as many adapters as the limit are loaded. adapters_unload():
 *         ERR_NOT_FOUND.
 * Units   adapters. */
#ifndef TARN_ENGINE_ADAPTERS_H
#define TARN_ENGINE_ADAPTERS_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

/* Most adapters that may be loaded at once. */
#define ADAPTERS_MAX 1024
/* Bound on a name, its end included. */
#define ADAPTER_NAME_BYTES 256

struct adapter;
struct adapters;
struct model_config;
struct weights;

struct adapters_config {
    const struct model_config *model;
    const struct weights *weights;
    enum weight_layout layout; /* of the device */
    uint32_t n_max, rank_max;
    /* Bring an adapter to a device that is not a host's; NULL: not needed. */
    enum status (*place)(void *arg, struct adapter *a);
    void *arg;
};

NODISCARD enum status adapters_create(struct adapters **out, const struct adapters_config *config);
void adapters_destroy(struct adapters *as); /* NULL is fine */
uint32_t adapters_max(const struct adapters *as);

/* Load the adapter of folder `dir` under a name. `replace`: in place of the adapter that has the
 * name; else such a name is refused. base: the model's name in lists; NULL: the server's. */
NODISCARD enum status adapters_load(struct adapters *as, const char *name, const char *dir,
                                    const char *base, bool replace, struct buf *why);
/* Take the name away. */
NODISCARD enum status adapters_unload(struct adapters *as, const char *name, struct buf *why);
/* A reference, or NULL. as NULL: there are no adapters. */
struct adapter *adapters_find(struct adapters *as, const char *name);
/* References of the first n_max adapters in the order of loading; return their number. */
uint32_t adapters_list(struct adapters *as, struct adapter **out, uint32_t n_max);

struct adapter *adapter_ref(struct adapter *a); /* returns a */
void adapter_unref(struct adapter *a);          /* NULL is fine */
const char *adapter_name(const struct adapter *a);
const char *adapter_path(const struct adapter *a);
const char *adapter_base(const struct adapter *a); /* NULL: not given */
/* Running and waiting sequences, after the latest step. */
uint32_t adapter_n_running(const struct adapter *a);
uint32_t adapter_n_waiting(const struct adapter *a);

/* Narrow a scope to KV that is computed with the adapter. */
void adapter_narrow(const struct adapter *a, struct kv_scope *scope);

/* Free the adapters that no request uses any more and that lie on a device. */
void adapters_free_unused(struct adapters *as);

#endif
