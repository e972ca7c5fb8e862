/* auth.h - who is asking: API keys, tenants, scopes.
 *
 * A key names an account: limits, and a tenant. Accounts of one tenant share cached KV, others
 * never do: a tenant's scope is H(tenant, installation secret), and every block key hashes it.
 * A key without a tenant is its own; a server without keys has one account for everybody.
 *
 * Keys are kept as hashes (keys.h), and all of them are compared each time, so that the time an
 * answer takes tells neither how much of a key was right nor which one it was near.
 *
 * auth_reload() exchanges the whole set at once. An account lives on when its key's name and tenant
 * do: what it has used of its limits stays used. One that is gone ends with its last request.
 *
 * Owns    the set, the accounts (counted references), the tenants' counters.
 * Thread  auth_create/reload/destroy: main. All else: any.
 * Errors  ERR_UNAUTHORIZED with words. auth_create(), auth_reload(): as keys.h; each mistake is
 *         logged, and words say where to look.
 * Units   nanoseconds, tokens. */
#ifndef TARN_SERVER_AUTH_AUTH_H
#define TARN_SERVER_AUTH_AUTH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cache/cache.h"
#include "server/auth/keys.h"
#include "server/auth/ratelimit.h"

struct auth;
struct config;
struct server;

/* Label values in /metrics are for ever, so they are bounded: later tenants share "_other". */
#define AUTH_N_TENANTS_MAX 64

struct tenant {
    char name[KEY_NAME_BYTES];
    _Atomic uint64_t n_requests; /* let in */
    _Atomic uint64_t n_rate_limited;
    _Atomic uint64_t n_prompt_tokens, n_cached_tokens, n_generation_tokens; /* of ended answers */
};

struct account {
    /* Constant. */
    char name[KEY_NAME_BYTES];
    char tenant_name[KEY_NAME_BYTES];
    bool admin;
    struct kv_scope scope;
    uint64_t tenant_id;    /* of its tenant: what the scheduler is fair between */
    struct tenant *tenant; /* its counters */
    atomic_uint refs;
    /* Under lock. */
    pthread_mutex_t lock;
    struct limiter limiter;
    double weight;
    uint64_t kv_bytes;
};

/* Reads the key file of `config` and forgets it: says early what auth_create() would. */
NODISCARD enum status auth_check_config(const struct config *config, struct buf *why);
NODISCARD enum status auth_create(struct auth **out, const struct config *config, struct buf *why);
void auth_destroy(struct auth *auth); /* NULL is fine */
/* Reads the key file again; on an error everything stays as it was. */
NODISCARD enum status auth_reload(struct auth *auth, struct buf *why);

/* Some key is needed for everything but health. */
bool auth_needs_key(const struct auth *auth);
bool auth_has_admin_key(const struct auth *auth);

/* authorization: the header "Bearer KEY", x_api_key: a bare key; either may be NULL. On OK *out is
 * to be given to account_unref(). */
NODISCARD enum status auth_find(struct auth *auth, const char *authorization, const char *x_api_key,
                                struct account **out, struct buf *why);
void account_ref(struct account *a);
void account_unref(struct account *a); /* NULL is fine */
/* The same question without the account. */
NODISCARD enum status auth_check(const struct server *srv, const char *authorization,
                                 const char *x_api_key, struct buf *why);

/* The account's scope, narrowed by a request's cache_salt (NULL: not). */
void account_scope(const struct account *a, const struct kv_scope *salt, struct kv_scope *out);

/* What the scheduler knows a session by: another tenant's session of the same name is another one,
 * and nobody can find a name that falls together with it. Never 0. */
uint64_t account_session(const struct account *a, const char *name, size_t len);

/* For /metrics. */
void auth_each_tenant(struct auth *auth, void (*f)(void *arg, const struct tenant *t), void *arg);
void auth_each_account(struct auth *auth, void (*f)(void *arg, struct account *a), void *arg);
uint64_t auth_n_reloads(const struct auth *auth, bool failed);

#endif
