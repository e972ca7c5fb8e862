#include "loadgen/load/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "loadgen/load/workload_inner.h"

const char *workload_kind_name(enum workload_kind kind)
{
    static const char *const names[N_WORKLOADS] = {"random", "lengths", "prefix", "multiturn",
                                                   "rag",    "mix",     "trace",  "file"};

    return names[kind];
}

uint64_t workload_id(const struct workload *w, enum id_space space, uint64_t number)
{
    return draw_mix(draw_mix(w->config.seed, (uint64_t)space), number);
}

static uint32_t cut(double x, uint32_t max)
{
    double most = max ? max : DIST_MAX;

    x = round(x);
    return x < 1 ? 1 : x > most ? (uint32_t)most : (uint32_t)x;
}

uint32_t workload_draw_input(const struct workload *w, const struct load_request *r, struct draw *d)
{
    const struct workload_config *c = &w->config;
    const struct tenant *t = &c->tenants[r->tenant];

    return cut(dist_draw(t->has_input ? &t->input : &c->input, r->index, d) * c->input_scale,
               c->input_max);
}

uint32_t workload_draw_output(const struct workload *w, const struct load_request *r,
                              struct draw *d)
{
    const struct workload_config *c = &w->config;
    const struct tenant *t = &c->tenants[r->tenant];

    return cut(dist_draw(t->has_output ? &t->output : &c->output, r->index, d) * c->output_scale,
               c->output_max);
}

enum status workload_add(struct load_request *r, enum part_role role, uint64_t id,
                         uint32_t n_tokens)
{
    return load_request_add(r, role, id, n_tokens) ? OK : ERR_NOMEM;
}

/* --- the kinds --- */

static enum status fill_random(struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    enum status s = OK;
    struct draw d, of_prefix;

    draw_init(&d, c->seed, DRAW_LENGTH, r->index);
    uint32_t n = workload_draw_input(w, r, &d);
    r->n_output_tokens = workload_draw_output(w, r, &d);
    if (c->has_prefix) {
        uint32_t k = w->popularity.n ? weighted_draw(&w->popularity, &d) : 0;
        /* The length belongs to the prefix, not to the request. */
        draw_init(&of_prefix, c->seed, DRAW_PREFIX, k);
        s = workload_add(r, PART_SYSTEM, workload_id(w, ID_PREFIX, k),
                         dist_draw(&c->prefix_len, k, &of_prefix));
    }
    return s == OK ? workload_add(r, PART_USER, workload_id(w, ID_OWN, r->index), n) : s;
}

static enum status fill_lengths(struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    struct draw d;

    draw_init(&d, c->seed, DRAW_LENGTH, r->index);
    const struct trace_row *row = &w->trace.rows[draw_below(&d, w->trace.n_rows)];
    uint32_t n = cut(row->input_len * c->input_scale, c->input_max);
    r->n_output_tokens = c->output_given ? workload_draw_output(w, r, &d)
                                         : cut(row->output_len * c->output_scale, c->output_max);
    return workload_add(r, PART_USER, workload_id(w, ID_OWN, r->index), n);
}

static double draw_pause(const struct workload_config *c, struct draw *d)
{
    return c->think_s * (c->think_cv == 0 ? draw_exp(d) : draw_lognormal(d, 1, c->think_cv));
}

static void begin_session(struct workload *w, const struct load_request *r)
{
    struct draw d;

    draw_init(&d, w->config.seed, DRAW_SESSION, w->n_sessions++);
    w->n_turns = dist_draw(&w->config.turns, r->index, &d);
    w->turn = 0;
    w->session_tenant = r->tenant;
    w->session_arrival_s = r->arrival_s;
}

/* The prompt of turn k has all earlier questions and answers, and one new question. Lengths are
 * drawn again from the stream of each turn: the conversation needs no memory. */
static enum status fill_multiturn(struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    uint64_t session = w->n_sessions - 1;
    enum status s = OK;
    struct draw d;

    r->session = session + 1;
    r->turn = w->turn;
    r->follows = w->turn > 0;
    r->leads = w->turn + 1 < w->n_turns;
    if (c->has_system) {
        draw_init(&d, c->seed, DRAW_PREFIX, 0);
        s = workload_add(r, PART_SYSTEM, workload_id(w, ID_SYSTEM, 0),
                         dist_draw(&c->system_len, 0, &d));
    }
    for (uint32_t k = 0; s == OK && k <= w->turn; k++) {
        uint64_t id = workload_id(w, ID_TURN, draw_mix(session, k));
        draw_init(&d, c->seed, DRAW_LENGTH, draw_mix(session, k) >> 8);
        s = workload_add(r, PART_USER, id, workload_draw_input(w, r, &d));
        uint32_t n_output = workload_draw_output(w, r, &d);
        r->think_s = draw_pause(c, &d);
        if (s == OK && k < w->turn) {
            s = workload_add(r, PART_ASSISTANT, id + 1, n_output);
            if (s == OK)
                r->parts[r->n_parts - 1].answer_of = k;
        }
        r->n_output_tokens = n_output;
    }
    w->turn++;
    return s;
}

static enum status fill_trace(struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    enum status s = OK;
    struct draw d;

    if (r->index >= w->trace.n_rows)
        return ERR_NOT_FOUND;
    const struct trace_row *row = &w->trace.rows[r->index];
    if (c->arrival.kind == ARRIVAL_TRACE)
        r->arrival_s = row->at_s / c->trace_speed;
    r->session = row->session;
    draw_init(&d, c->seed, DRAW_LENGTH, r->index);
    r->n_output_tokens = c->output_given ? workload_draw_output(w, r, &d)
                                         : cut(row->output_len * c->output_scale, c->output_max);
    uint32_t left = c->input_max ? c->input_max : UINT32_MAX;
    for (uint32_t i = 0; s == OK && left > 0 && i < row->n_parts; i++) {
        const struct trace_part *p = &w->trace.parts[row->first_part + i];
        uint32_t n = cut(p->n_tokens * c->input_scale, left);
        s = workload_add(r, p->role, p->id, n);
        left -= n;
    }
    if (row->n_parts == 0)
        s = workload_add(r, PART_USER, workload_id(w, ID_OWN, r->index),
                         cut(row->input_len * c->input_scale, c->input_max));
    return s;
}

static enum status fill(struct workload *w, struct load_request *r)
{
    switch (w->config.kind) {
    case WORKLOAD_RANDOM:
    case WORKLOAD_PREFIX:
    case WORKLOAD_MIX: return fill_random(w, r);
    case WORKLOAD_LENGTHS: return fill_lengths(w, r);
    case WORKLOAD_MULTITURN: return fill_multiturn(w, r);
    case WORKLOAD_RAG: return workload_rag_fill(w, r);
    case WORKLOAD_TRACE: return fill_trace(w, r);
    case WORKLOAD_FILE: return workload_file_fill(w, r);
    case N_WORKLOADS: break;
    }
    return ERR_INTERNAL;
}

/* --- what all kinds share --- */

static void draw_tenant(struct workload *w, struct load_request *r)
{
    struct draw d;

    draw_init(&d, w->config.seed, DRAW_TENANT, r->index);
    r->tenant = weighted_draw(&w->shares, &d);
}

static void apply_tenant(const struct workload *w, struct load_request *r)
{
    const struct tenant *t = &w->config.tenants[r->tenant];

    if (!r->has_priority) {
        r->priority = t->priority;
        r->has_priority = t->has_priority;
    }
    r->slo = slo_is_set(&t->slo) ? t->slo : w->config.slo;
}

static void draw_trouble(const struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    struct draw d;

    draw_init(&d, c->seed, DRAW_TROUBLE, r->index);
    double disconnect = draw_unit(&d), slow = draw_unit(&d), when = draw_unit(&d);
    uint32_t n = r->n_output_tokens ? r->n_output_tokens : 1;
    if (disconnect < c->disconnect_share) {
        /* Anywhere in the answer; one in n + 1 before its first token. */
        r->disconnect_after = (uint32_t)(when * (n + 1.0));
        r->disconnect_s = 0.2 * draw_unit(&d);
    } else if (slow < c->slow_share) {
        r->slow_reader = true;
    }
    draw_init(&d, c->seed, DRAW_VERIFY, r->index);
    r->verify = draw_unit(&d) < c->verify_share && r->disconnect_after == NO_DISCONNECT;
}

enum status workload_next(struct workload *w, struct load_request *r)
{
    bool goes_on = w->config.kind == WORKLOAD_MULTITURN && w->turn < w->n_turns;

    load_request_init(r, w->n_made);
    if (w->failed)
        return ERR_NOT_FOUND;
    if (goes_on) {
        r->tenant = w->session_tenant;
        r->arrival_s = w->session_arrival_s;
    } else {
        draw_tenant(w, r);
        r->arrival_s = arrival_next_s(&w->arrival);
        if (w->config.kind == WORKLOAD_MULTITURN)
            begin_session(w, r);
    }
    enum status s = fill(w, r);
    if (s != OK) {
        w->failed = true;
        load_request_fini(r);
        return s;
    }
    apply_tenant(w, r);
    draw_trouble(w, r);
    w->n_made++;
    return OK;
}

/* --- opening --- */

static enum status check(const struct workload_config *c, struct buf *why)
{
    bool needs_data =
        c->kind == WORKLOAD_LENGTHS || c->kind == WORKLOAD_TRACE || c->kind == WORKLOAD_FILE;

    if (needs_data && !c->data)
        return buf_why(why, ERR_INVALID, "workload %s: needs --data", workload_kind_name(c->kind));
    if (c->arrival.kind == ARRIVAL_TRACE && c->kind != WORKLOAD_TRACE && c->kind != WORKLOAD_FILE)
        return buf_why(why, ERR_INVALID,
                       "workload %s has no times of its own: give a --rate or "
                       "a --concurrency",
                       workload_kind_name(c->kind));
    if (!(c->input_scale > 0) || !(c->output_scale > 0) || !(c->trace_speed > 0))
        return buf_why(why, ERR_INVALID, "scales and speeds must be above 0");
    if (c->kind == WORKLOAD_PREFIX && c->n_prefixes == 0)
        return buf_why(why, ERR_INVALID, "workload prefix: needs at least one prefix");
    return arrival_check(&c->arrival, why);
}

/* Two example tenants, used when none was named. */
static enum status add_usual_tenants(struct workload_config *c, struct buf *why)
{
    enum status s = OK;
    const char *const usual[] = {
        "name=interactive,share=0.7,priority=0,input=lognormal:200:1,output=lognormal:64:1,"
        "ttft=1000,tpot=100",
        "name=batch,share=0.3,priority=10,input=lognormal:800:1,output=lognormal:256:1,"
        "e2el=60000",
    };

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(usual); i++)
        s = tenant_parse(&c->tenants[c->n_tenants++], usual[i], why);
    return s;
}

static enum status open_shares(struct workload *w, struct buf *why)
{
    struct workload_config *c = &w->config;
    double shares[N_TENANTS_MAX];
    enum status s = OK;

    if (c->n_tenants == 0 && c->kind == WORKLOAD_MIX)
        s = add_usual_tenants(c, why);
    if (c->n_tenants == 0) {
        c->tenants[0] = (struct tenant){.share = 1};
        c->n_tenants = 1;
    }
    for (uint32_t i = 0; i < c->n_tenants; i++)
        shares[i] = c->tenants[i].share;
    if (s == OK && weighted_init(&w->shares, shares, c->n_tenants) != OK)
        s = buf_why(why, ERR_INVALID, "the tenants' shares must be 0 or above, not all 0");
    return s;
}

/* Choose the speed at which the data's own times have the mean rate of the configuration. */
static enum status hold_rate(struct workload *w, struct buf *why)
{
    bool is_trace = w->config.kind == WORKLOAD_TRACE;
    size_t n = is_trace ? w->trace.n_rows : w->n_rows;
    double span_s = 0;

    if (n > 1)
        span_s = is_trace ? w->trace.rows[n - 1].at_s - w->trace.rows[0].at_s
                          : w->rows[n - 1].at_s - w->rows[0].at_s;
    if (!(span_s > 0))
        return buf_why(why, ERR_INVALID, "%s: all rows have one time: no rate can be held",
                       w->config.data);
    w->config.trace_speed = w->config.arrival.rate / ((double)(n - 1) / span_s);
    return OK;
}

static enum status open_kind(struct workload *w, struct buf *why)
{
    const struct workload_config *c = &w->config;
    enum status s = OK;

    if (c->kind == WORKLOAD_LENGTHS || c->kind == WORKLOAD_TRACE)
        s = trace_load(&w->trace, c->data, &c->trace, why);
    if (s == OK && c->arrival.kind == ARRIVAL_TRACE && c->kind == WORKLOAD_TRACE &&
        !w->trace.has_times)
        s = buf_why(why, ERR_INVALID, "%s: has no times: give a --rate or a --concurrency",
                    c->data);
    if (c->kind == WORKLOAD_PREFIX)
        s = weighted_init_zipf(&w->popularity, c->n_prefixes, c->zipf);
    if (c->kind == WORKLOAD_RAG)
        s = workload_rag_open(w, why);
    if (c->kind == WORKLOAD_FILE)
        s = workload_file_open(w, why);
    if (s == OK && c->arrival.kind == ARRIVAL_TRACE && c->arrival.rate > 0)
        s = hold_rate(w, why);
    return s == ERR_NOMEM ? buf_why(why, s, "out of memory") : s;
}

enum status workload_create(struct workload **out, const struct workload_config *config,
                            struct buf *why)
{
    struct workload *w = calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return buf_why(why, ERR_NOMEM, "out of memory");
    w->config = *config;
    w->config.has_prefix |= config->kind == WORKLOAD_PREFIX;
    enum status s = check(&w->config, why);
    if (s == OK)
        s = open_shares(w, why);
    if (s == OK)
        s = open_kind(w, why);
    if (s != OK) {
        workload_destroy(w);
        return s;
    }
    arrival_init(&w->arrival, &w->config.arrival, config->seed);
    *out = w;
    return OK;
}

void workload_destroy(struct workload *w)
{
    if (!w)
        return;
    weighted_fini(&w->shares);
    weighted_fini(&w->popularity);
    trace_fini(&w->trace);
    corpus_fini(&w->corpus);
    workload_file_close(w);
    free(w->order);
    free(w);
}

uint64_t workload_size(const struct workload *w)
{
    switch (w->config.kind) {
    case WORKLOAD_TRACE: return w->trace.n_rows;
    case WORKLOAD_FILE: return w->n_rows;
    default: return 0;
    }
}

uint32_t workload_n_tenants(const struct workload *w)
{
    return w->config.n_tenants;
}

const char *workload_tenant_name(const struct workload *w, uint32_t tenant)
{
    return w->config.tenants[tenant].name;
}

/* --- tenants --- */

static enum status set_tenant(struct tenant *t, const char *key, const char *value, struct buf *why)
{
    double x;

    if (strcmp(key, "name") == 0 || strcmp(key, "key") == 0) {
        char *at = key[0] == 'n' ? t->name : t->api_key;
        size_t size = key[0] == 'n' ? sizeof t->name : sizeof t->api_key;
        if (strlen(value) >= size)
            return buf_why(why, ERR_INVALID, "%s: longer than %zu bytes", key, size - 1);
        memcpy(at, value, strlen(value) + 1);
        return OK;
    }
    if (strcmp(key, "share") == 0) {
        if (flag_parse_number(value, &t->share) != OK || t->share < 0)
            return buf_why(why, ERR_INVALID, "share: expected a number of 0 or above");
        return OK;
    }
    if (strcmp(key, "priority") == 0) {
        if (flag_parse_number(value, &x) != OK || x != floor(x) || fabs(x) > INT32_MAX)
            return buf_why(why, ERR_INVALID, "priority: expected a whole number");
        t->priority = (int32_t)x;
        t->has_priority = true;
        return OK;
    }
    if (strcmp(key, "input") == 0) {
        t->has_input = true;
        return dist_parse(&t->input, value, why);
    }
    if (strcmp(key, "output") == 0) {
        t->has_output = true;
        return dist_parse(&t->output, value, why);
    }
    enum status s = slo_set(&t->slo, key, value, why);
    if (s == ERR_NOT_FOUND)
        return buf_why(why, ERR_INVALID,
                       "\"%s\" is none of name, share, priority, input, output, "
                       "key, ttft, tpot, e2el, normalized",
                       key);
    return s;
}

enum status tenant_parse(struct tenant *t, const char *text, struct buf *why)
{
    char copy[1024];
    char *save = NULL;
    enum status s = OK;

    *t = (struct tenant){.share = 1};
    if (strlen(text) >= sizeof copy)
        return buf_why(why, ERR_INVALID, "longer than %zu bytes", sizeof copy - 1);
    memcpy(copy, text, strlen(text) + 1);
    for (char *one = strtok_r(copy, ",", &save); s == OK && one; one = strtok_r(NULL, ",", &save)) {
        char *equals = strchr(one, '=');
        if (!equals)
            return buf_why(why, ERR_INVALID, "\"%s\": expected NAME=VALUE", one);
        *equals = '\0';
        s = set_tenant(t, one, equals + 1, why);
    }
    if (s == OK && t->name[0] == '\0')
        return buf_why(why, ERR_INVALID, "a tenant needs name=NAME");
    return s;
}
