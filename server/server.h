/* server.h - the state that all handlers share: configuration, engine, names.
 *
 * Owns    nothing but the two lists; main owns config, engine and http.
 * Thread  constant after server_init(), but for `draining` (set by main, read by all) and
 *         unknown_log.
 * Errors  server_init(): ERR_NOMEM.
 * Units   created_s: Unix seconds. */
#ifndef TARN_SERVER_SERVER_H
#define TARN_SERVER_SERVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/text/chat_traits.h"
#include "server/api/chat_kit.h"
#include "engine/engine.h"
#include "engine/text/spans.h"
#include "server/config.h"
#include "server/api/unknown_fields.h"

struct auth;
struct background;
struct embeddings;
struct http_server;
struct library;
struct preambles;
struct publisher;
struct responses;
struct router_flows;
struct running;
struct tally;

struct server {
    const struct config *config;
    struct engine *engine;
    const struct engine_info *info;
    const struct tokenizer *tokenizer;    /* may be NULL: dummy weights without one */
    const struct chat_template *template; /* may be NULL; also that of the kit */
    struct span_marks *span_marks;        /* where a document may end */
    struct chat_kit kit;                  /* of the template */
    struct chat_kits *chat_kits;          /* of requests; lock themselves */
    char **model_names;                   /* [n_model_names], the first one is used in answers */
    uint32_t n_model_names;
    struct preambles *preambles;   /* the operator's; NULL: none. Borrowed: set by main */
    struct library *library;       /* documents; NULL: off. Borrowed: set by main */
    struct embeddings *embeddings; /* NULL: no --embedding-model. Borrowed: set by main */
    struct embeddings *classifier; /* NULL: no --rerank-model. Borrowed: set by main */
    struct publisher *kv_events;   /* NULL: none. Borrowed: set by main */
    struct auth *auth;
    struct tally *tally;               /* counters of the HTTP side */
    struct router_flows *router_flows; /* locks itself */
    int64_t created_s;
    uint64_t wait_timeout_ns; /* of what a call waits for before it is submitted (wait.h) */
    char system_fingerprint[32];
    struct structured *structured;  /* forms of answers; locks itself */
    struct responses *responses;    /* of /v1/responses; locks itself */
    struct running *running;        /* calls that the engine has; locks itself */
    struct background *background;  /* of /v1/responses; locks itself; closed by main */
    struct unknown_log unknown_log; /* locks itself */
    atomic_bool draining;
};

/* `engine` is open; both are borrowed. */
NODISCARD enum status server_init(struct server *srv, const struct config *config,
                                  struct engine *engine);
void server_fini(struct server *srv);

/* Find a name of the model; NULL: the model has no such name. The result lives as long as *srv. */
const char *server_find_model(const struct server *srv, const char *name);

#endif
