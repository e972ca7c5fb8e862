#include "server/api/stream.h"

#include <stdlib.h>
#include <string.h>

#include "server/api/citations.h"
#include "server/api/logprobs.h"
#include "server/server.h"
#include "server/api/tool_answer.h"

#define TEXT_BYTES_MAX (256u << 20)
/* One list of an echoed prompt's logprobs, in one frame of a stream. */
#define ECHO_FRAME_BYTES (256u << 10)

void choice_init(struct choice *c, struct request *request, const struct tokenizer *tokenizer)
{
    const struct stopping *st = &request->stopping;

    *c = (struct choice){.request = request, .has_detok = tokenizer != NULL};
    buf_init(&c->text, TEXT_BYTES_MAX);
    buf_init(&c->held, TEXT_BYTES_MAX);
    buf_init(&c->raw, TEXT_BYTES_MAX);
    buf_init(&c->said, TEXT_BYTES_MAX);
    buf_init(&c->thoughts, TEXT_BYTES_MAX);
    buf_init(&c->token_ends, TEXT_BYTES_MAX);
    buf_init(&c->ids, TEXT_BYTES_MAX);
    buf_init(&c->ranked, TEXT_BYTES_MAX);
    c->n_tops = request->sampling.n_logprobs;
    for (int i = 0; i < LP_N; i++)
        buf_init(&c->lp[i], TEXT_BYTES_MAX);
    if (!tokenizer)
        return;
    detok_init(&c->detok, tokenizer, NULL, 0, st->show_special, request->text_continues, false);
    c->detok.n_shown = st->n_shown;
    memcpy(c->detok.shown, st->shown, sizeof st->shown);
    detok_init(&c->chars, tokenizer, NULL, 0, st->show_special, request->text_continues, false);
    detok_init(&c->prompt_chars, tokenizer, NULL, 0, true, false, false);
}

enum status choice_reason(struct choice *c, const struct reasoning_format *format,
                          enum reasoning_place place)
{
    c->reasoning = malloc(sizeof *c->reasoning);
    if (!c->reasoning)
        return ERR_NOMEM;
    reasoning_parser_init(c->reasoning, format, place);
    return OK;
}

void choice_fini(struct choice *c)
{
    if (c->reasoning)
        reasoning_parser_fini(c->reasoning);
    free(c->reasoning);
    c->reasoning = NULL;
    buf_fini(&c->said);
    buf_fini(&c->thoughts);
    buf_fini(&c->token_ends);
    if (c->has_detok) {
        detok_fini(&c->detok);
        detok_fini(&c->chars);
        detok_fini(&c->prompt_chars);
    }
    buf_fini(&c->text);
    buf_fini(&c->held);
    buf_fini(&c->raw);
    tool_answer_destroy(c->tools);
    c->tools = NULL;
    citations_destroy(c->citations);
    c->citations = NULL;
    buf_fini(&c->ids);
    buf_fini(&c->ranked);
    for (int i = 0; i < LP_N; i++)
        buf_fini(&c->lp[i]);
    request_unref(c->request);
    c->request = NULL;
}

bool choice_has_delta(const struct choice *c)
{
    return c->text.len > 0 || c->thoughts.len > 0 || c->ids.len > 0 || c->lp[LP_TOKENS].len > 0 ||
           tool_answer_has_delta(c->tools);
}

bool choice_has_prompt_left(const struct choice *c)
{
    return c->scored && c->n_echoed < c->scored->prompt.n_ids;
}

void choice_reset_delta(struct choice *c)
{
    buf_reset(&c->text);
    buf_reset(&c->thoughts);
    tool_answer_reset_delta(c->tools);
    buf_reset(&c->ids);
    for (int i = 0; i < LP_N; i++)
        buf_reset(&c->lp[i]);
}

/* --- tokens --- */

/* Return the buffer for text that no stop string can take back. */
static struct buf *certain(struct choice *c)
{
    return c->tools || c->reasoning ? &c->raw : &c->text;
}

/* Release what no stop string can take back any more. */
static enum status release_text(struct choice *c)
{
    uint64_t n = atomic_load(&c->request->n_text_bytes) - c->n_released;

    if (c->held.len == 0)
        return OK;
    n = n < c->held.len ? n : c->held.len;
    enum status s = buf_append(certain(c), c->held.data, n);
    if (s == OK)
        buf_consume(&c->held, n);
    c->n_released += n;
    return s;
}

/* Whether the place where the reasoning ends, or that there is none, is not known yet. */
static bool may_reason(const struct choice *c)
{
    return c->reasoning && c->reasoning->end_at == UINT64_MAX &&
           c->reasoning->state != REASONING_TEXT;
}

static enum status feed_token(struct choice *c, uint32_t id)
{
    struct buf *out = c->request->stopping.n_stops > 0 ? &c->held : certain(c);
    size_t n_before = out->len;
    enum status s = detok_feed(&c->detok, id, out);

    c->n_bytes += out->len - n_before;
    if (s == OK && may_reason(c))
        s = buf_append(&c->token_ends, &c->n_bytes, sizeof c->n_bytes);
    return s;
}

/* The tokens whose text begins in the reasoning. */
static void count_thoughts(struct choice *c)
{
    const struct reasoning_parser *p = c->reasoning;
    size_t n = c->token_ends.len / sizeof(uint64_t);
    uint64_t begin = 0;

    if (!p->has_begun || p->end_at == UINT64_MAX) {
        c->n_thought_tokens = p->has_begun ? n : 0;
        return;
    }
    c->n_thought_tokens = 0;
    for (size_t i = 0; i < n && begin < p->end_at; i++) {
        c->n_thought_tokens++;
        memcpy(&begin, c->token_ends.data + i * sizeof begin, sizeof begin);
    }
    buf_fini(&c->token_ends);
}

static enum status take_token(struct choice *c, const struct server *srv, const struct params *p,
                              enum params_kind kind, uint32_t i)
{
    const struct request *r = c->request;
    uint32_t id = r->out[i].id;
    bool in_text = c->has_detok && i < atomic_load(&r->n_text_ids);
    enum status s = OK;

    if (in_text)
        s = feed_token(c, id);
    if (s == OK && p->return_token_ids)
        s = buf_printf(&c->ids, "%s%u", c->ids.len ? "," : "", id);
    if (s == OK && p->logprobs)
        s = kind == PARAMS_CHAT ? logprobs_add_chat(c, srv, i)
                                : logprobs_add_completion(c, srv, i, in_text);
    return s;
}

static bool has_failed(enum finish_reason finish)
{
    return finish == FINISH_ERROR || finish == FINISH_CANCELLED;
}

/* Write the logprobs that are published so far: to write all of them at the end would block the
 * HTTP thread for long. The other answers to the same prompt copy what the first answer wrote. */
static enum status take_prompt_so_far(struct choice *c, const struct server *srv, uint32_t n_there)
{
    enum status s = OK;

    if (c->first && c->first != c)
        return choice_has_prompt_left(c->first) ? OK : logprobs_copy_prompt(c, c->first);
    while (s == OK && c->n_echoed < n_there)
        s = logprobs_add_prompt(c, srv, c->n_echoed++);
    return s;
}

/* Write one frame of a stream, once all logprobs are published: clients measure the time to the
 * first token by the first frame. */
static enum status take_prompt_frame(struct choice *c, const struct server *srv, uint32_t n_there)
{
    enum status s = OK;

    while (s == OK && n_there == c->scored->prompt.n_ids && choice_has_prompt_left(c) &&
           c->lp[LP_TOPS].len < ECHO_FRAME_BYTES)
        s = logprobs_add_prompt(c, srv, c->n_echoed++);
    return s;
}

/* Write logprobs of the echoed prompt. */
static enum status take_prompt(struct choice *c, const struct server *srv, bool is_stream)
{
    /* In this order: without an error all logprobs are published before the end is. */
    enum finish_reason finish = request_finish(c->request);
    uint32_t n_there = atomic_load(&c->scored->n_prompt_out);
    enum status s =
        is_stream ? take_prompt_frame(c, srv, n_there) : take_prompt_so_far(c, srv, n_there);

    if (choice_has_prompt_left(c) && has_failed(finish))
        c->finish = finish;
    return s;
}

/* Write what is published so far of prompt_logprobs, which only a prompt's first request has. */
static enum status take_ranked(struct choice *c, const struct server *srv, const struct params *p)
{
    uint32_t n_there = c->request->prompt_out ? atomic_load(&c->request->n_prompt_out) : 0;
    enum status s = OK;

    while (s == OK && c->n_ranked < n_there)
        s = logprobs_add_ranked(c, srv, p->n_prompt_tops, c->n_ranked++);
    return s;
}

static enum status take(struct choice *c, const struct server *srv, const struct params *p,
                        enum params_kind kind, uint32_t n_max)
{
    enum status s = OK;

    if (c->finish != FINISH_NONE)
        return OK;
    request_poll(c->request);
    if (choice_has_prompt_left(c)) {
        s = take_prompt(c, srv, p->stream);
        if (s != OK || p->stream || choice_has_prompt_left(c))
            return s;
    }
    /* In this order: after a finish is read, n_out is final. */
    enum finish_reason finish = request_finish(c->request);
    if (p->prompt_logprobs)
        s = take_ranked(c, srv, p);
    uint32_t n_out = request_n_out(c->request);
    uint32_t end = n_out - c->n_taken > n_max ? c->n_taken + n_max : n_out;
    for (; s == OK && c->n_taken < end; c->n_taken++)
        s = take_token(c, srv, p, kind, c->n_taken);
    if (s == OK && finish != FINISH_NONE && c->n_taken == n_out) {
        c->finish = finish;
        if (c->has_detok)
            s = detok_finish(&c->detok, c->request->stopping.n_stops > 0 ? &c->held : certain(c));
    }
    return s == OK ? release_text(c) : s;
}

/* Tell reasoning, text and calls apart in what was read. */
static enum status sort_out(struct choice *c, bool includes)
{
    struct buf *said = c->reasoning ? (c->tools ? &c->said : &c->text) : &c->raw;
    bool is_end = c->finish != FINISH_NONE, counts = may_reason(c);
    enum status s = OK;

    if (c->reasoning) {
        s = reasoning_parser_feed(c->reasoning, buf_str(&c->raw), c->raw.len, &c->thoughts, said);
        if (s == OK && is_end)
            s = reasoning_parser_finish(c->reasoning, &c->thoughts, said);
        if (counts)
            count_thoughts(c);
        if (!includes)
            buf_reset(&c->thoughts);
    }
    if (s == OK && c->tools)
        s = tool_answer_feed(c->tools, buf_str(said), said->len, is_end, &c->text);
    buf_reset(&c->raw);
    buf_reset(&c->said);
    return s;
}

enum status choice_take(struct choice *c, const struct server *srv, const struct params *p,
                        enum params_kind kind, uint32_t n_max)
{
    size_t n_before = c->text.len;
    bool was_over = c->finish != FINISH_NONE;
    enum status s = take(c, srv, p, kind, n_max);

    if (s == OK && (c->tools || c->reasoning) && !was_over)
        s = sort_out(c, p->include_reasoning);
    if (s != OK || !c->citations)
        return s;
    return citations_feed(c->citations, buf_str(&c->text) + n_before, c->text.len - n_before);
}
