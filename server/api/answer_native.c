#include "server/api/answer_native.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "server/api/call.h"
#include "server/api/logprobs.h"
#include "server/api/writer.h"
#include "server/http/error.h"
#include "server/server.h"

#define TEXT_BYTES_MAX (256u << 20)
#define FRAME_DONE "data: [DONE]\n\n"

void native_state_destroy(void *state)
{
    struct native_state *n = state;

    for (uint32_t i = 0; i < n->n_texts; i++)
        buf_fini(&n->texts[i]);
    free(n->texts);
    free(n);
}

/* --- logprobs --- */

/* The text of a token, null unless it is wanted and is UTF-8. */
static void write_token_text(struct writer *w, const struct call *call, uint32_t id)
{
    const struct native_state *n = call->shape_state;
    size_t len = 0;
    const char *text = n->names_tokens && call->srv->tokenizer
                           ? tokenizer_bytes(call->srv->tokenizer, id, &len)
                           : NULL;

    if (text && utf8_is_valid(text, len))
        write_json(w, text, len);
    else
        write_puts(w, "null");
}

static void write_triple(struct writer *w, const struct call *call, uint32_t id, float logprob,
                         bool is_first)
{
    if (is_first)
        write_puts(w, "[null");
    else
        write_format(w, "[%.9g", isfinite(logprob) ? (double)logprob : LOGPROB_LEAST);
    write_format(w, ",%u,", id);
    write_token_text(w, call, id);
    write_puts(w, "]");
}

static void write_tops(struct writer *w, const struct call *call, const struct out_top *tops,
                       uint32_t n)
{
    write_puts(w, "[");
    for (uint32_t k = 0; k < n; k++) {
        write_puts(w, k ? "," : "");
        write_triple(w, call, tops[k].id, tops[k].logprob, false);
    }
    write_puts(w, "]");
}

/* A list of tokens with their logprobs, and one of the alternatives where they are wanted. ids NULL:
 * those of the tokens. */
static void write_list(struct writer *w, const struct call *call, const char *name,
                       const struct out_token *tokens, const struct out_top *tops,
                       const uint32_t *ids, uint32_t from, uint32_t n)
{
    uint32_t n_tops = call->params.n_tops, n_kept = call->params.sampling.n_logprobs;

    write_format(w, ",\"%s_token_logprobs\":[", name);
    for (uint32_t i = from; i < n; i++) {
        write_puts(w, i > from ? "," : "");
        write_triple(w, call, ids ? ids[i] : tokens[i].id, tokens[i].logprob, ids && i == 0);
    }
    write_puts(w, "]");
    if (n_tops == 0)
        return;
    write_format(w, ",\"%s_top_logprobs\":[", name);
    for (uint32_t i = from; i < n; i++) {
        write_puts(w, i > from ? "," : "");
        if (ids && i == 0)
            write_puts(w, "null");
        else
            write_tops(w, call, tops + (size_t)i * n_kept, n_tops);
    }
    write_puts(w, "]");
}

static void write_logprobs(struct writer *w, const struct call *call, const struct choice *c)
{
    const struct native_state *n = call->shape_state;
    const struct request *r = c->request;
    /* The first answer to a prompt has the prompt's. */
    const struct request *first = call->choices[c->prompt_index * call->params.best_of].request;
    uint32_t n_prompt = first->prompt.n_ids;

    if (!call->params.logprobs)
        return;
    if (n->prompt_from >= 0 && first->prompt_out)
        write_list(w, call, "input", first->prompt_out, first->prompt_top, first->prompt.ids,
                   n->prompt_from < n_prompt ? (uint32_t)n->prompt_from : n_prompt, n_prompt);
    write_list(w, call, "output", r->out, r->out_top, NULL, 0, c->n_taken);
}

/* --- an answer --- */

static void write_finish(struct writer *w, const struct choice *c)
{
    const struct request *r = c->request;

    if (c->finish == FINISH_NONE) {
        write_puts(w, "null");
    } else if (c->finish == FINISH_LENGTH) {
        write_format(w, "{\"type\":\"length\",\"length\":%u}", c->n_taken);
    } else if (c->finish == FINISH_CANCELLED) {
        write_puts(w, "{\"type\":\"abort\",\"message\":\"the request was aborted\"}");
    } else if (r->stop_string >= 0) {
        const struct detok_stop *stop = &r->stopping.stops[r->stop_string];
        write_puts(w, "{\"type\":\"stop\",\"matched\":");
        write_json(w, stop->text, stop->len);
        write_puts(w, "}");
    } else if (c->n_taken > 0) { /* a stop id, or the end of the sequence */
        write_format(w, "{\"type\":\"stop\",\"matched\":%u}", r->out[c->n_taken - 1].id);
    } else {
        write_puts(w, "{\"type\":\"stop\"}");
    }
}

static void write_meta(struct writer *w, const struct call *call, const struct choice *c)
{
    const struct request *r = c->request;
    uint64_t end = atomic_load(&r->t_finish), begin = atomic_load(&r->t_submit);

    end = end ? end : clock_now_ns();
    write_puts(w, "\"meta_info\":{\"id\":");
    write_json(w, r->id, strlen(r->id));
    write_puts(w, ",\"finish_reason\":");
    write_finish(w, c);
    write_format(w, ",\"prompt_tokens\":%u,\"completion_tokens\":%u,\"cached_tokens\":%u",
                 r->prompt.n_ids, c->n_taken, atomic_load(&r->n_cached));
    write_puts(w, ",\"e2e_latency\":");
    write_number(w, end > begin && begin ? (double)(end - begin) * 1e-9 : 0);
    write_logprobs(w, call, c);
    write_puts(w, "}");
}

static void write_one(struct writer *w, const struct call *call, const struct choice *c,
                      const struct buf *text)
{
    const struct native_state *n = call->shape_state;

    write_puts(w, "{");
    if (n->is_list)
        write_format(w, "\"index\":%u,", c->place);
    write_puts(w, "\"text\":");
    write_json(w, buf_str(text), text->len);
    write_puts(w, ",\"output_ids\":[");
    for (uint32_t i = 0; i < c->n_taken; i++)
        write_format(w, "%s%u", i ? "," : "", c->request->out[i].id);
    write_puts(w, "],");
    write_meta(w, call, c);
    write_puts(w, "}");
}

static enum status write_whole(struct call *call, struct buf *out)
{
    const struct native_state *n = call->shape_state;
    struct writer w = {out, OK};
    bool is_first = true;

    write_puts(&w, n->is_list ? "[" : "");
    for (uint32_t i = 0; i < call->n_choices; i++) {
        if (call->choices[i].place == CHOICE_LEFT_OUT)
            continue;
        write_puts(&w, is_first ? "" : ",");
        write_one(&w, call, &call->choices[i], &call->choices[i].text);
        is_first = false;
    }
    write_puts(&w, n->is_list ? "]" : "");
    return w.status;
}

/* --- a stream --- */

static enum status open_stream(struct call *call)
{
    struct native_state *n = call->shape_state;

    n->texts = calloc(call->n_choices, sizeof *n->texts);
    if (!n->texts)
        return ERR_NOMEM;
    for (; n->n_texts < call->n_choices; n->n_texts++)
        buf_init(&n->texts[n->n_texts], TEXT_BYTES_MAX);
    return OK;
}

static enum status write_begin(struct call *call, const struct choice *c, struct buf *out)
{
    (void)call;
    (void)c;
    (void)out;
    return OK; /* the first frame is that of the first text */
}

static enum status write_frame(struct call *call, const struct choice *c, struct buf *out)
{
    const struct native_state *n = call->shape_state;
    struct writer w = {out, OK};

    write_puts(&w, "data: ");
    write_one(&w, call, c, &n->texts[c->index]);
    write_puts(&w, "\n\n");
    return w.status;
}

/* The last text is written by the frame that says how the answer ended. */
static enum status write_delta(struct call *call, const struct choice *c, struct buf *out)
{
    struct native_state *n = call->shape_state;
    enum status s = buf_append(&n->texts[c->index], buf_str(&c->text), c->text.len);

    return s == OK && c->finish == FINISH_NONE ? write_frame(call, c, out) : s;
}

static enum status write_end_of_stream(struct call *call, struct buf *out)
{
    (void)call;
    return buf_puts(out, FRAME_DONE);
}

static enum status write_error(struct call *call, enum status s, const char *words, struct buf *out)
{
    enum status st = buf_puts(out, "data: ");

    (void)call;
    if (st == OK)
        st = error_write(out, s, NULL, words);
    return st == OK ? buf_puts(out, "\n\n" FRAME_DONE) : st;
}

const struct shape answer_native = {.name = "generate",
                                    .id_prefix = "generate",
                                    .kind = PARAMS_COMPLETION,
                                    .takes_id = true,
                                    .keep_alive = ": keep-alive\n\n",
                                    .whole = write_whole,
                                    .open = open_stream,
                                    .begin = write_begin,
                                    .delta = write_delta,
                                    .end = write_frame,
                                    .finish = write_end_of_stream,
                                    .error = write_error,
                                    .destroy = native_state_destroy};
