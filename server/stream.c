#include "server/stream.h"

#include <math.h>
#include <stdio.h>

#include "server/server.h"
#include "server/writer.h"

#define TEXT_BYTES_MAX (256u << 20)
#define LOGPROB_LEAST (-9999.0) /* JSON has no infinity; vLLM writes this number */

void choice_init(struct choice *c, struct request *request, const struct tokenizer *tokenizer)
{
    const struct stopping *st = &request->stopping;

    *c = (struct choice){.request = request, .has_detok = tokenizer != NULL};
    buf_init(&c->text, TEXT_BYTES_MAX);
    buf_init(&c->ids, TEXT_BYTES_MAX);
    for (int i = 0; i < LP_N; i++)
        buf_init(&c->lp[i], TEXT_BYTES_MAX);
    if (tokenizer)
        detok_init(&c->detok, tokenizer, st->stops, st->n_stops, st->show_special,
                   request->text_continues, st->include_stop);
}

void choice_fini(struct choice *c)
{
    if (c->has_detok)
        detok_fini(&c->detok);
    buf_fini(&c->text);
    buf_fini(&c->ids);
    for (int i = 0; i < LP_N; i++)
        buf_fini(&c->lp[i]);
    request_unref(c->request);
    c->request = NULL;
}

bool choice_has_delta(const struct choice *c)
{
    return c->text.len > 0 || c->ids.len > 0 || c->lp[LP_TOKENS].len > 0;
}

void choice_reset_delta(struct choice *c)
{
    buf_reset(&c->text);
    buf_reset(&c->ids);
    for (int i = 0; i < LP_N; i++)
        buf_reset(&c->lp[i]);
}

/* --- logprobs --- */

static double clamped(float logprob)
{
    return isfinite(logprob) ? logprob : LOGPROB_LEAST;
}

static const char *token_bytes(const struct server *srv, uint32_t id, size_t *len)
{
    *len = 0;
    return srv->tokenizer ? tokenizer_bytes(srv->tokenizer, id, len) : "";
}

static void write_comma(struct writer *w)
{
    if (w->out->len > 0)
        write_puts(w, ",");
}

/* "token":..., "logprob":..., "bytes":[...] */
static void write_token(struct writer *w, const struct server *srv, uint32_t id, float logprob)
{
    size_t len;
    const char *bytes = token_bytes(srv, id, &len);

    write_puts(w, "{\"token\":");
    write_json(w, bytes, len);
    write_puts(w, ",\"logprob\":");
    write_number(w, clamped(logprob));
    write_puts(w, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        write_format(w, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    write_puts(w, "]");
}

static enum status add_chat_logprob(struct choice *c, const struct server *srv, uint32_t i)
{
    const struct out_token *t = &c->request->out[i];
    uint32_t n_top = c->request->sampling.n_logprobs;
    struct writer w = {&c->lp[LP_CONTENT], OK};

    write_comma(&w);
    write_token(&w, srv, t->id, t->logprob);
    write_puts(&w, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < n_top; k++) {
        const struct out_top *top = &c->request->out_top[(size_t)i * n_top + k];
        write_puts(&w, k ? "," : "");
        write_token(&w, srv, top->id, top->logprob);
        write_puts(&w, "}");
    }
    write_puts(&w, "]}");
    return w.status;
}

static void write_top_member(struct writer *w, const struct server *srv, uint32_t id,
                             float logprob, const char *separator)
{
    size_t len;
    const char *bytes = token_bytes(srv, id, &len);

    write_puts(w, separator);
    write_json(w, bytes, len);
    write_puts(w, ":");
    write_number(w, clamped(logprob));
}

/* An object of the best tokens, and the chosen one if it is not among them. */
static void write_tops(struct writer *w, const struct server *srv, const struct request *r,
                       uint32_t i)
{
    uint32_t n_top = r->sampling.n_logprobs;
    bool chosen_is_there = false;

    write_comma(w);
    write_puts(w, "{");
    for (uint32_t k = 0; k < n_top; k++) {
        const struct out_top *top = &r->out_top[(size_t)i * n_top + k];
        write_top_member(w, srv, top->id, top->logprob, k ? "," : "");
        chosen_is_there |= top->id == r->out[i].id;
    }
    if (!chosen_is_there)
        write_top_member(w, srv, r->out[i].id, r->out[i].logprob, n_top ? "," : "");
    write_puts(w, "}");
}

static enum status add_completion_logprob(struct choice *c, const struct server *srv, uint32_t i)
{
    const struct out_token *t = &c->request->out[i];
    size_t len;
    const char *bytes = token_bytes(srv, t->id, &len);
    struct writer w[LP_N];
    enum status s = OK;

    for (int k = 0; k < LP_N; k++) {
        w[k] = (struct writer){&c->lp[k], OK};
        if (k != LP_TOPS)
            write_comma(&w[k]);
    }
    write_json(&w[LP_TOKENS], bytes, len);
    write_number(&w[LP_VALUES], clamped(t->logprob));
    write_tops(&w[LP_TOPS], srv, c->request, i);
    write_format(&w[LP_OFFSETS], "%llu", (unsigned long long)c->n_chars);
    for (size_t k = 0; k < len; k++)
        c->n_chars += ((unsigned char)bytes[k] & 0xc0) != 0x80; /* first bytes of characters */
    for (int k = 0; k < LP_N; k++)
        s = s == OK ? w[k].status : s;
    return s;
}

/* --- tokens --- */

/* The token that ends the answer by itself is no part of its text, as in vLLM. */
static bool is_terminator(const struct choice *c, const struct engine_info *info, uint32_t i)
{
    const struct stopping *st = &c->request->stopping;
    uint32_t id = c->request->out[i].id;

    if (st->include_stop || i + 1 < st->min_tokens)
        return false;
    for (uint32_t k = 0; !st->ignore_eos && k < info->n_eos_ids; k++)
        if (info->eos_ids[k] == id)
            return true;
    for (uint32_t k = 0; k < st->n_stop_ids; k++)
        if (st->stop_ids[k] == id)
            return true;
    return false;
}

static enum status take_token(struct choice *c, const struct server *srv, const struct params *p,
                              enum params_kind kind, uint32_t i)
{
    uint32_t id = c->request->out[i].id;
    enum status s = OK;

    if (c->has_detok && !is_terminator(c, srv->info, i))
        s = detok_feed(&c->detok, id, &c->text);
    if (s == OK && p->return_token_ids)
        s = buf_printf(&c->ids, "%s%u", c->ids.len ? "," : "", id);
    if (s == OK && p->logprobs)
        s = kind == PARAMS_CHAT ? add_chat_logprob(c, srv, i) : add_completion_logprob(c, srv, i);
    return s;
}

enum status choice_take(struct choice *c, const struct server *srv, const struct params *p,
                        enum params_kind kind, uint32_t n_max)
{
    enum status s = OK;

    if (c->finish != FINISH_NONE)
        return OK;
    request_poll(c->request);
    /* In this order: a finish seen here means that n_out below is final. */
    enum finish_reason finish = request_finish(c->request);
    uint32_t n_out = request_n_out(c->request);
    uint32_t end = n_out - c->n_taken > n_max ? c->n_taken + n_max : n_out;
    for (; s == OK && c->n_taken < end; c->n_taken++)
        s = take_token(c, srv, p, kind, c->n_taken);
    if (s == OK && finish != FINISH_NONE && c->n_taken == n_out) {
        c->finish = finish;
        if (c->has_detok)
            s = detok_finish(&c->detok, &c->text);
    }
    return s;
}
