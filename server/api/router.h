/* router.h - the headers by which a router says whose a request is and how urgent it is.
 *
 *   x-llm-d-inference-fairness-id   a flow: the scheduler serves flows in turn, as it does tenants.
 *                                   KV and limits stay those of the key
 *   x-llm-d-inference-objective     a name of --router-objectives, whose priority replaces that of
 *                                   the body; an unknown name has no effect
 *   x-llm-d-slo-ttft-ms, x-llm-d-slo-tpot-ms    targets, which replace those of the body
 *
 * The older names x-gateway-inference-* and x-slo-* are read where the newer ones are absent. All
 * of them are ignored without --trust-router-headers: a client could pretend to be many flows.
 *
 * Owns    struct router_flows: router_flows_destroy().
 * Thread  any.
 * Errors  ERR_INVALID with words that name the header.
 * Units   milliseconds where a name ends in -ms. */
#ifndef TARN_SERVER_API_ROUTER_H
#define TARN_SERVER_API_ROUTER_H

#include <stdint.h>

#include "base/buf.h"

struct account;
struct http_exchange;
struct params;
struct server;

/* Flows that the server tells apart; all further ones are one flow. */
#define ROUTER_N_FLOWS_MAX 1000
/* Longest name of a flow. */
#define ROUTER_FLOW_BYTES_MAX 256

/* The flows seen so far. */
struct router_flows;
NODISCARD enum status router_flows_create(struct router_flows **out);
void router_flows_destroy(struct router_flows *f); /* NULL is fine */
uint32_t router_n_flows(struct router_flows *f);

/* Overwrite flow, priority and targets of p by what the headers say. */
NODISCARD enum status router_read_headers(struct params *p, const struct server *srv,
                                          const struct account *account,
                                          const struct http_exchange *x, struct buf *why);

#endif
