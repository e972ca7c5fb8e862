#include "loadgen/load/target.h"

#include <stdlib.h>
#include <string.h>

#include "base/flags.h"

static const char *key_of(const struct options *o, bool is_b)
{
    const char *key = is_b && o->api_key_b[0] ? o->api_key_b : o->api_key;
    const char *env = getenv("OPENAI_API_KEY");

    return key[0] ? key : env && env[0] ? env : NULL;
}

static void fill_config(struct tarn_client_config *c, const struct target *t,
                        const struct options *o, bool is_b)
{
    *c = (struct tarn_client_config){
        .url = t->url,
        .unix_path = o->unix_path[0] && !is_b ? o->unix_path : NULL,
        .api_key = key_of(o, is_b),
        .admin_key = o->admin_api_key[0] ? o->admin_api_key : NULL,
        .ca_file = o->ca_file[0] ? o->ca_file : NULL,
        .tls_no_verify = o->insecure,
        .fresh_connections = o->fresh_connections,
        .headers = (const char *const *)o->headers.v,
        .n_headers = o->headers.n,
        .total_timeout_ms = (uint32_t)(o->request_timeout_s * 1e3),
    };
}

static enum status open_clients(struct target *t, const struct options *o, bool is_b,
                                struct buf *why)
{
    struct tarn_client_config c;
    uint32_t n = o->config.n_tenants ? o->config.n_tenants : 1;
    char words[512] = "";

    fill_config(&c, t, o, is_b);
    const char *key = c.api_key;
    for (uint32_t i = 0; i < n; i++) {
        const char *own = o->config.n_tenants ? o->config.tenants[i].api_key : "";
        c.api_key = own[0] ? own : key;
        enum tarn_error e = tarn_client_create(&t->clients[i], &c, words, sizeof words);
        if (e != TARN_OK)
            return buf_why(why, ERR_INVALID, "%s: %s", t->url, words);
        t->n_clients++;
    }
    return OK;
}

/* "none" or a number. */
static enum status read_real(const char *flag, const char *text, double *out, struct buf *why)
{
    *out = TARN_UNSET_REAL;
    if (strcmp(text, "none") == 0 || flag_parse_number(text, out) == OK)
        return OK;
    return buf_why(why, ERR_INVALID, "%s: expected a number, or none", flag);
}

static enum status read_ids(struct prompt_style *s, const char *text, struct buf *why)
{
    unsigned long long lo, hi;
    char rest;

    if (sscanf(text, "%9llu:%9llu%c", &lo, &hi, &rest) != 2 || lo >= hi)
        return buf_why(why, ERR_INVALID, "--token-ids: expected LO:HI, as in 300:500");
    s->id_lo = (uint32_t)lo;
    s->id_hi = (uint32_t)hi;
    return OK;
}

static enum status fill_style(struct target *t, const struct options *o, bool is_b, struct buf *why)
{
    struct prompt_style *s = &t->style;
    const char *as = is_b ? o->documents_as_b : o->documents_as;
    double seed;

    *s = (struct prompt_style){.tokens_per_word = 1, .stream = true, .model = t->model};
    s->ids = strcmp(o->prompt_format, "ids") == 0;
    s->kind = s->ids || strcmp(o->endpoint, "completions") == 0 ? TARN_COMPLETION : TARN_CHAT;
    s->documents_field = s->kind == TARN_CHAT && (as[0] ? strcmp(as, "field") == 0 : !o->compare);
    s->ignore_eos = o->ignore_eos;
    s->send_session = o->send_session;
    s->extra_body = o->extra_body[0] ? o->extra_body : NULL;
    enum status st = read_ids(s, o->token_ids, why);
    if (st == OK)
        st = read_real("--temperature", o->temperature, &s->temperature, why);
    if (st == OK)
        st = read_real("--top-p", o->top_p, &s->top_p, why);
    if (st == OK)
        st = read_real("--sampling-seed", o->sampling_seed, &seed, why);
    s->sampling_seed = st == OK && seed >= 0 && seed < 9e15 ? (int64_t)seed : TARN_UNSET;
    return st;
}

static void fill_url(struct target *t, const struct options *o, bool is_b)
{
    const char *url = !o->compare ? o->url : is_b ? o->url_b : o->url_a;

    if (url[0])
        snprintf(t->url, sizeof t->url, "%s", url);
    else
        snprintf(t->url, sizeof t->url, "http://%.400s:%u", o->host, (unsigned)o->port);
}

enum status target_open(struct target *t, const struct options *o, bool is_b, struct buf *why)
{
    struct buf words;

    memset(t, 0, sizeof *t);
    fill_url(t, o, is_b);
    const char *name = o->served_model[0] ? o->served_model : o->model;
    snprintf(t->model, sizeof t->model, "%s", o->compare && is_b ? "" : name);
    buf_init(&words, BUF_WHY_MAX);
    enum status s = fill_style(t, o, is_b, why);
    if (s == OK)
        s = open_clients(t, o, is_b, why);
    if (s == OK) {
        s = probe_ready(t->clients[0], o->ready_timeout_s, &words);
        if (s == OK && t->model[0] == '\0')
            s = probe_model(t->clients[0], t->model, sizeof t->model, &words);
        if (s != OK)
            buf_why(why, s, "%s: %s", t->url, buf_str(&words));
    }
    buf_fini(&words);
    if (s != OK)
        target_close(t);
    return s;
}

void target_calibrate(struct target *t, const struct options *o)
{
    if (!t->style.ids && strcmp(o->calibrate, "off") != 0)
        t->calibration = probe_calibrate(t->clients[0], &t->style);
}

void target_close(struct target *t)
{
    for (uint32_t i = 0; i < t->n_clients; i++)
        tarn_client_destroy(t->clients[i]);
    t->n_clients = 0;
}
