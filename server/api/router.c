#include "server/api/router.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "server/api/estimates.h"
#include "server/api/params.h"
#include "server/auth/auth.h"
#include "server/http/http.h"
#include "server/server.h"

/* No account_flow() is 0, and none is 1 but by a hash of 64 bits. */
#define OTHER_FLOWS 1

struct router_flows {
    pthread_mutex_t lock;
    struct map seen;
};

enum status router_flows_create(struct router_flows **out)
{
    struct router_flows *f = calloc(1, sizeof *f);

    *out = NULL;
    if (!f)
        return ERR_NOMEM;
    if (map_init(&f->seen, ROUTER_N_FLOWS_MAX) != OK) {
        free(f);
        return ERR_NOMEM;
    }
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return OK;
}

void router_flows_destroy(struct router_flows *f)
{
    if (!f)
        return;
    map_fini(&f->seen);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

uint32_t router_n_flows(struct router_flows *f)
{
    pthread_mutex_lock(&f->lock);
    uint32_t n = f->seen.n;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static const char *header(const struct http_exchange *x, const char *name, const char *old_name)
{
    const char *text = http_header(x, name);

    return text ? text : http_header(x, old_name);
}

/* Read a number of milliseconds from the first of the headers that the request has. */
static enum status read_ms(const struct http_exchange *x, const char *name, const char *old_name,
                           double *ms, struct buf *why)
{
    const char *text = header(x, name, old_name);
    char *end;

    if (!text)
        return OK;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !(v >= 0 && v <= SLO_MS_MAX))
        return buf_why(why, ERR_INVALID,
                       "header %s: expected milliseconds from 0 (no target) to %.0f, got \"%.40s\"",
                       name, SLO_MS_MAX, text);
    *ms = v;
    return OK;
}

/* Names come from clients, so their number is bounded. */
static uint64_t find_flow(struct router_flows *f, const struct account *account, const char *name,
                          size_t len)
{
    uint64_t id = account_flow(account, name, len);
    uint32_t one;

    pthread_mutex_lock(&f->lock);
    bool is_known = map_get(&f->seen, id, &one);
    if (!is_known && f->seen.n < ROUTER_N_FLOWS_MAX) {
        map_put(&f->seen, id, 1);
        is_known = true;
    }
    pthread_mutex_unlock(&f->lock);
    return is_known ? id : OTHER_FLOWS;
}

static enum status read_flow(struct params *p, const struct server *srv,
                             const struct account *account, const struct http_exchange *x,
                             struct buf *why)
{
    const char *text =
        header(x, "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id");
    size_t len = text ? strlen(text) : 0;

    if (len > ROUTER_FLOW_BYTES_MAX)
        return buf_why(why, ERR_INVALID,
                       "header x-llm-d-inference-fairness-id: longer than %d bytes",
                       ROUTER_FLOW_BYTES_MAX);
    if (len > 0)
        p->flow = find_flow(srv->router_flows, account, text, len);
    return OK;
}

enum status router_read_headers(struct params *p, const struct server *srv,
                                const struct account *account, const struct http_exchange *x,
                                struct buf *why)
{
    const char *objective;
    int32_t priority;

    if (!srv->config->trust_router_headers)
        return OK;
    enum status s = read_flow(p, srv, account, x, why);
    objective = header(x, "x-llm-d-inference-objective", "x-gateway-inference-objective");
    if (objective && config_objective(srv->config, objective, &priority))
        p->priority = -priority; /* a lower one goes first here */
    if (s == OK)
        s = read_ms(x, "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms", &p->slo_ttft_ms, why);
    return s == OK ? read_ms(x, "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms", &p->slo_tpot_ms, why) : s;
}
