#include "server/api/answer_response.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/api/answer_documents.h"
#include "server/api/call.h"
#include "server/api/citations.h"
#include "server/api/documents.h"
#include "server/api/response_output.h"
#include "server/api/tool_answer.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/server.h"

#define RESPONSE_BYTES_MAX (1u << 30)
#define ANNOTATION_BYTES_MAX (64u << 10)
#define FOLLOW_BYTES_MAX ((size_t)1 << 20)

struct response_answer {
    struct response_ask ask;
    struct response_output output;
    struct response_follower *follower; /* of the client that made a call in the background */
    struct buf echo;                    /* what the response repeats of its request */
    struct buf logprobs;                /* of tokens whose text has not come */
    struct buf blank; /* white space that begins no message, unless text follows */
    uint32_t n_calls; /* of tools, that are items */
    uint32_t n_cited; /* citations that are annotations */
    bool began;       /* the first events were written */
};

static struct response_answer *state_of(const struct call *call)
{
    return call->shape_state;
}

enum status response_answer_create(struct call *call, struct response_ask **ask)
{
    struct response_answer *st = calloc(1, sizeof *st);

    if (!st)
        return ERR_NOMEM;
    call->shape_state = st;
    response_make_id(call->id);
    response_output_init(&st->output);
    memcpy(st->output.id, call->id, sizeof st->output.id);
    buf_init(&st->echo, RESPONSE_BYTES_MAX);
    buf_init(&st->logprobs, RESPONSE_BYTES_MAX);
    buf_init(&st->blank, RESPONSE_BYTES_MAX);
    *ask = &st->ask;
    return OK;
}

enum status response_answer_begin(struct call *call)
{
    struct response_answer *st = state_of(call);

    st->output.in_summary = st->ask.wants_summary;
    return response_ask_write(&st->ask, &call->params, &st->echo);
}

static void destroy(void *state)
{
    struct response_answer *st = state;

    response_ask_fini(&st->ask);
    response_output_fini(&st->output);
    buf_fini(&st->echo);
    buf_fini(&st->logprobs);
    buf_fini(&st->blank);
    free(st);
}

/* --- the response --- */

static void write_usage(struct writer *w, const struct call *call)
{
    const struct choice *c = &call->choices[0];
    const struct request *r = c->request;

    write_format(w,
                 ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
                 "\"cache_write_tokens\":%" PRIu64 "},\"output_tokens\":%u,"
                 "\"output_tokens_details\":{\"reasoning_tokens\":%" PRIu64
                 "},\"total_tokens\":%u}",
                 r->prompt.n_ids, atomic_load(&r->n_cached), (uint64_t)request_n_written(r),
                 c->n_taken, c->n_thought_tokens, r->prompt.n_ids + c->n_taken);
}

static const char *failure_code(enum status s)
{
    return s == ERR_BUSY      ? "rate_limit_exceeded"
           : s == ERR_INVALID ? "invalid_prompt"
                              : "server_error";
}

static bool is_over(const char *status)
{
    return strcmp(status, "in_progress") != 0 && strcmp(status, "queued") != 0;
}

/* The response as of now. words: of the failure s; NULL: none. */
static void write_response(struct writer *w, const struct call *call, const char *status,
                           enum status s, const char *words)
{
    const struct response_answer *st = state_of(call);

    write_format(w, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64, call->id,
                 call->created_s);
    write_format(w, ",\"status\":\"%s\",\"completed_at\":", status);
    if (strcmp(status, "completed") == 0)
        write_format(w, "%" PRId64, (int64_t)(clock_unix_ns() / 1000000000u));
    else
        write_puts(w, "null");
    write_puts(w, ",\"error\":");
    if (words) {
        write_format(w, "{\"code\":\"%s\",\"message\":", failure_code(s));
        write_json(w, words, strlen(words));
        write_puts(w, "}");
    } else {
        write_puts(w, "null");
    }
    write_format(w, ",\"incomplete_details\":%s",
                 strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    write_buf(w, &st->echo);
    write_puts(w, ",\"output\":[");
    write_buf(w, &st->output.items);
    write_puts(w, "]");
    /* Until the end OpenAI's answers have null, which its schema forbids. */
    if (is_over(status) && call->choices) {
        write_usage(w, call);
        answer_write_documents(w, call);
    } else {
        write_puts(w, ",\"usage\":null");
    }
    write_puts(w, "}");
}

/* Keep the response, whose JSON is final. An answer that is not kept is an answer all the same. */
static void keep(struct call *call, const struct buf *json)
{
    struct response_answer *st = state_of(call);
    struct response_turn *turn = st->ask.turn;

    if (!st->ask.store)
        return;
    enum status s = buf_append(&turn->output, buf_str(&st->output.items), st->output.items.len);
    atomic_store(&turn->is_final, s == OK);
    if (st->ask.background)
        responses_update(call->srv->responses, turn, json);
    else if (s == OK)
        s = responses_keep(call->srv->responses, call->account->owner, turn, json, RESPONSE_FINAL);
    if (s != OK)
        log_event_each(LOG_WARN, "response_not_kept", "id=%s reason=\"%s\"", call->http_id,
                       status_words(s));
}

static const char *final_status(const struct call *call)
{
    return call->choices[0].finish == FINISH_LENGTH ? "incomplete" : "completed";
}

/* --- output --- */

/* The documents that the search found. */
static void write_results(struct writer *w, const struct call *call)
{
    const struct prompt *p = &call->prompts[0];
    const char *before = "";

    for (uint32_t i = 0; i < p->n_documents; i++) {
        const struct document_use *u = &p->documents[i];
        size_t len = 0;
        if (!u->is_retrieved)
            continue;
        write_format(w, "%s{\"file_id\":", before);
        write_json(w, buf_str(&u->id), u->id.len);
        write_puts(w, ",\"filename\":");
        write_json(w, buf_str(&u->title), u->title.len);
        write_puts(w, ",\"score\":");
        write_number(w, u->score);
        write_puts(w, ",\"text\":");
        const char *text = u->text ? js_string(u->text, &len) : "";
        write_json(w, text, len);
        write_puts(w, ",\"attributes\":null}");
        before = ",";
    }
}

static void write_search(struct writer *w, const struct call *call)
{
    struct response_answer *st = state_of(call);
    struct writer fields = {&st->output.fields, OK};

    response_output_open(&st->output, w, RESPONSE_SEARCH);
    write_puts(&fields, ",\"queries\":[");
    write_json(&fields, buf_str(&st->ask.query), st->ask.query.len);
    write_puts(&fields, "],\"results\":");
    if (st->ask.wants_results) {
        write_puts(&fields, "[");
        write_results(&fields, call);
        write_puts(&fields, "]");
    } else {
        write_puts(&fields, "null");
    }
    if (w->status == OK)
        w->status = fields.status;
    response_output_end(&st->output, w, "completed");
}

static void append(struct writer *w, struct buf *to, const char *bytes, size_t len)
{
    if (w->status == OK)
        w->status = buf_append(to, bytes, len);
}

static bool is_blank(const struct buf *b)
{
    for (size_t i = 0; i < b->len; i++)
        if (!strchr(" \n\t\r", b->data[i]) || b->data[i] == '\0')
            return false;
    return true;
}

static void add_annotations(struct response_answer *st, struct writer *w, const struct call *call,
                            const struct choice *c)
{
    const struct prompt *p = &call->prompts[0];
    uint32_t n = 0;
    struct buf one;

    const struct citation *found = c->citations ? citations_found(c->citations, &n) : NULL;
    buf_init(&one, ANNOTATION_BYTES_MAX);
    for (; st->n_cited < n && w->status == OK; st->n_cited++) {
        const struct document_use *u = &p->documents[found[st->n_cited].document];
        const struct buf *id = u->id.len > 0 ? &u->id : &u->title;
        struct writer a = {&one, OK};
        buf_reset(&one);
        write_puts(&a, "{\"type\":\"file_citation\",\"file_id\":");
        write_json(&a, buf_str(id), id->len);
        write_puts(&a, ",\"filename\":");
        write_json(&a, buf_str(&u->title), u->title.len);
        write_format(&a, ",\"index\":%" PRIu64 "}", found[st->n_cited].begin);
        w->status = a.status;
        response_output_annotate(&st->output, w, &one);
    }
    buf_fini(&one);
}

static void add_thoughts(struct response_answer *st, struct writer *w, const struct choice *c)
{
    const struct buf none = {0};

    if (c->thoughts.len == 0)
        return;
    if (st->output.open != RESPONSE_REASONING)
        response_output_open(&st->output, w, RESPONSE_REASONING);
    response_output_text(&st->output, w, c->thoughts.data, c->thoughts.len, &none);
}

static void add_text(struct response_answer *st, struct writer *w, const char *text, size_t len)
{
    if (len == 0)
        return;
    if (st->output.open != RESPONSE_MESSAGE) {
        append(w, &st->blank, text, len);
        if (is_blank(&st->blank))
            return;
        response_output_open(&st->output, w, RESPONSE_MESSAGE);
        response_output_text(&st->output, w, buf_str(&st->blank), st->blank.len, &st->logprobs);
        buf_reset(&st->blank);
    } else {
        response_output_text(&st->output, w, text, len, &st->logprobs);
    }
    buf_reset(&st->logprobs);
}

/* More arguments of the open call. */
static void add_arguments(struct response_answer *st, struct writer *w, const struct choice *c)
{
    struct tool_call_view v;
    const struct buf none = {0};

    if (st->output.open != RESPONSE_CALL)
        return;
    tool_answer_view(c->tools, st->n_calls - 1, &v);
    size_t n_before = st->output.text.len;
    if (v.arguments->len > n_before)
        response_output_text(&st->output, w, v.arguments->data + n_before,
                             v.arguments->len - n_before, &none);
}

/* Add text and the calls that stand in it. */
static void add_text_and_calls(struct response_answer *st, struct writer *w, const struct choice *c)
{
    struct tool_call_view v;
    size_t at = 0;

    for (; st->n_calls < tool_answer_n_calls(c->tools); add_arguments(st, w, c)) {
        tool_answer_view(c->tools, st->n_calls++, &v);
        add_text(st, w, buf_str(&c->text) + at, v.text_at - at);
        at = v.text_at;
        response_output_open(&st->output, w, RESPONSE_NONE);
        append(w, &st->output.call_id, v.id, strlen(v.id));
        append(w, &st->output.name, buf_str(v.name), v.name->len);
        response_output_open(&st->output, w, RESPONSE_CALL);
        buf_reset(&st->blank);
    }
    add_text(st, w, buf_str(&c->text) + at, c->text.len - at);
}

static void add_delta(struct call *call, const struct choice *c, struct writer *w)
{
    struct response_answer *st = state_of(call);

    if (c->lp[LP_CONTENT].len > 0) {
        append(w, &st->logprobs, ",", st->logprobs.len > 0);
        append(w, &st->logprobs, c->lp[LP_CONTENT].data, c->lp[LP_CONTENT].len);
    }
    add_thoughts(st, w, c);
    add_arguments(st, w, c);
    add_text_and_calls(st, w, c);
    if (st->output.open == RESPONSE_MESSAGE)
        add_annotations(st, w, call, c);
}

static void add_end(struct call *call, struct writer *w)
{
    struct response_answer *st = state_of(call);
    struct response_output *o = &st->output;
    bool has_output = o->n_items > (st->ask.searches ? 1u : 0u);

    /* An answer without anything is an empty message. */
    if (o->open == RESPONSE_NONE && !has_output) {
        response_output_open(o, w, RESPONSE_MESSAGE);
        if (st->blank.len > 0)
            response_output_text(o, w, st->blank.data, st->blank.len, &st->logprobs);
    } else if (o->open == RESPONSE_MESSAGE && st->logprobs.len > 0) {
        response_output_text(o, w, "", 0, &st->logprobs);
    }
    response_output_end(o, w, final_status(call));
}

/* --- whole --- */

static enum status write_whole(struct call *call, struct buf *out)
{
    struct writer w = {out, OK}; /* no events: written to at the end only */

    if (state_of(call)->ask.searches)
        write_search(&w, call);
    add_delta(call, &call->choices[0], &w);
    add_end(call, &w);
    write_response(&w, call, final_status(call), OK, NULL);
    if (w.status == OK)
        keep(call, out);
    return w.status;
}

/* --- stream --- */

static void write_response_event(struct call *call, struct writer *w, const char *name,
                                 const struct buf *response)
{
    response_event_begin(&state_of(call)->output, w, name);
    write_puts(w, ",\"response\":");
    write_buf(w, response);
    response_event_end(w);
}

/* Write an event with the response as of now. */
static void write_state(struct call *call, struct writer *w, const char *name, const char *status,
                        enum status s, const char *words)
{
    struct buf response;
    struct writer r = {&response, OK};

    buf_init(&response, RESPONSE_BYTES_MAX);
    write_response(&r, call, status, s, words);
    if (w->status == OK)
        w->status = r.status;
    write_response_event(call, w, name, &response);
    if (w->status == OK && is_over(status))
        keep(call, &response);
    buf_fini(&response);
}

/* Say to clients that ask for a response in the background how far it is. */
static enum status tell(struct call *call, const char *status, bool is_new)
{
    struct response_answer *st = state_of(call);
    struct buf json;
    struct writer w = {&json, OK};

    buf_init(&json, RESPONSE_BYTES_MAX);
    write_response(&w, call, status, OK, NULL);
    if (w.status == OK && is_new)
        w.status = responses_keep(call->srv->responses, call->account->owner, st->ask.turn, &json,
                                  call->params.stream ? RESPONSE_STREAMING : RESPONSE_RUNNING);
    else if (w.status == OK)
        responses_update(call->srv->responses, st->ask.turn, &json);
    buf_fini(&json);
    return w.status;
}

static void begin_events(struct call *call, struct writer *w)
{
    state_of(call)->began = true;
    if (!state_of(call)->ask.background)
        write_state(call, w, "response.created", "in_progress", OK, NULL);
    else if (w->status == OK)
        w->status = tell(call, "in_progress", false); /* begin_background() wrote the begin */
    write_state(call, w, "response.in_progress", "in_progress", OK, NULL);
}

static enum status open_stream(struct call *call)
{
    state_of(call)->output.streams = true;
    return OK;
}

static enum status write_begin(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    (void)c;
    begin_events(call, &w);
    if (state_of(call)->ask.searches)
        write_search(&w, call);
    return w.status;
}

static enum status write_delta(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    add_delta(call, c, &w);
    return w.status;
}

static enum status write_end(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    (void)c;
    add_end(call, &w);
    return w.status;
}

static enum status write_finish(struct call *call, struct buf *out)
{
    struct writer w = {out, OK};
    const char *status = final_status(call);

    write_state(call, &w,
                strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete",
                status, OK, NULL);
    return w.status;
}

/* OpenAI's schema has no event for this: the stream ends. */
static void write_cancelled(struct call *call, struct writer *w)
{
    struct buf response;
    struct writer r = {&response, w->status};

    buf_init(&response, RESPONSE_BYTES_MAX);
    write_response(&r, call, "cancelled", OK, NULL);
    w->status = r.status;
    if (w->status == OK)
        keep(call, &response);
    buf_fini(&response);
}

static enum status write_error(struct call *call, enum status s, const char *words, struct buf *out)
{
    struct writer w = {out, OK};

    if (!state_of(call)->began)
        begin_events(call, &w);
    response_output_end(&state_of(call)->output, &w, "incomplete");
    if (atomic_load(&call->is_cancelled))
        write_cancelled(call, &w);
    else
        write_state(call, &w, "response.failed", "failed", s, words);
    return w.status;
}

static enum status write_prompts(const struct call *call, struct buf *out)
{
    return buf_printf(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%u}",
                      prompt_n_ids(&call->prompts[0]));
}

/* --- in the background --- */

/* Write the first events, before the engine's first token. */
static enum status begin_background(struct call *call)
{
    struct buf events;
    struct writer w = {&events, OK};

    buf_init(&events, RESPONSE_BYTES_MAX);
    write_state(call, &w, "response.created", "queued", OK, NULL);
    write_state(call, &w, "response.queued", "queued", OK, NULL);
    responses_append(call->srv->responses, state_of(call)->ask.turn, &events);
    buf_fini(&events);
    return w.status;
}

static enum status accept(struct call *call, struct http_exchange *x)
{
    struct response_answer *st = state_of(call);
    struct responses *responses = call->srv->responses;
    struct buf json;
    enum status s = tell(call, "queued", true);

    if (s == OK && call->params.stream)
        s = begin_background(call);
    if (s == OK && call->params.stream) {
        s = responses_follow(&st->follower, responses, call->account->owner, call->id, -1);
        if (s == OK)
            response_follower_wake(st->follower, http_wake, http_waker(x));
    } else if (s == OK) {
        buf_init(&json, RESPONSE_BYTES_MAX);
        s = responses_get(responses, call->account->owner, call->id, &json);
        if (s == OK)
            http_reply(x, 200, "application/json", &json);
        buf_fini(&json);
    }
    if (s != OK) /* nothing would end it */
        (void)responses_delete(responses, call->account->owner, call->id);
    return s;
}

static enum http_next follow(struct call *call, struct buf *out)
{
    bool is_last;

    if (response_follower_take(state_of(call)->follower, out, FOLLOW_BYTES_MAX, &is_last) != OK)
        return HTTP_ABORT;
    return is_last ? HTTP_DONE : HTTP_WAIT;
}

static void leave(struct call *call)
{
    response_follower_close(state_of(call)->follower);
    state_of(call)->follower = NULL;
}

static void written(struct call *call, const struct buf *out, bool is_last)
{
    const struct response_turn *turn = state_of(call)->ask.turn;

    responses_append(call->srv->responses, turn, out);
    if (!is_last)
        return;
    if (!atomic_load(&turn->is_final)) /* the end could not be written: memory is short */
        (void)tell(call, "failed", false);
    responses_end(call->srv->responses, turn);
}

static const struct shape_background background = {
    .accept = accept, .follow = follow, .left = leave, .written = written};

const struct shape answer_response = {.name = "responses",
                                      .id_prefix = "resp",
                                      .kind = PARAMS_CHAT,
                                      .keep_alive = ": keep-alive\n\n",
                                      .whole = write_whole,
                                      .open = open_stream,
                                      .begin = write_begin,
                                      .delta = write_delta,
                                      .end = write_end,
                                      .finish = write_finish,
                                      .error = write_error,
                                      .prompts = write_prompts,
                                      .background = &background,
                                      .destroy = destroy};
