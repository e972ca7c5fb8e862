#include "server/api/answer_messages.h"

#include <inttypes.h>
#include <stdlib.h>

#include "server/api/answer_documents.h"
#include "server/api/call.h"
#include "server/http/error.h"
#include "server/server.h"
#include "server/api/tool_answer.h"
#include "server/api/writer.h"

#define SIGNATURE_BYTES 16

/* Arguments of a call, which answers have as a value. */
static const struct js_limits argument_limits = {.n_values_max = 1u << 20,
                                                 .n_bytes_max = (size_t)256 << 20};

enum status messages_state_attach(struct call *call, struct json *chat)
{
    struct messages_state *m = calloc(1, sizeof *m);

    if (!m) {
        js_unref(chat);
        return ERR_NOMEM;
    }
    m->chat = chat;
    call->shape_state = m;
    return OK;
}

static void destroy_state(void *state)
{
    struct messages_state *m = state;

    js_unref(m->chat);
    free(m);
}

/* --- pieces --- */

/* Of a request's end, once it has ended: before, nothing was written to the cache. */
static void write_usage(struct writer *w, const struct choice *c)
{
    const struct request *r = c->request;
    uint32_t n_cached = atomic_load(&r->n_cached);
    uint32_t n_written = c->finish == FINISH_NONE ? 0 : request_n_written(r);

    write_format(w,
                 "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":%u,"
                 "\"cache_read_input_tokens\":%u,\"output_tokens\":%u,"
                 "\"output_tokens_details\":{\"thinking_tokens\":%" PRIu64
                 "},\"cache_creation\":null,\"server_tool_use\":null,\"inference_geo\":null,"
                 "\"service_tier\":\"standard\"}",
                 r->prompt.n_ids - n_cached - n_written, n_written, n_cached, c->n_taken,
                 c->n_thought_tokens);
}

static const char *stop_reason(const struct call *call, const struct choice *c)
{
    if (c->finish == FINISH_LENGTH)
        return c->n_taken < call->params.stopping.max_tokens ? "model_context_window_exceeded"
                                                             : "max_tokens";
    if (tool_answer_n_calls(c->tools) > 0)
        return "tool_use";
    return c->request->stop_string >= 0 ? "stop_sequence" : "end_turn";
}

static void write_stop(struct writer *w, const struct call *call, const struct choice *c)
{
    write_format(w, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(call, c));
    if (c->finish == FINISH_STOP && c->request->stop_string >= 0) {
        const struct detok_stop *stop = &c->request->stopping.stops[c->request->stop_string];
        write_json(w, stop->text, stop->len);
    } else {
        write_puts(w, "null");
    }
}

static void write_head(struct writer *w, const struct call *call)
{
    write_puts(w, "{\"id\":");
    write_json(w, call->id, strlen(call->id));
    write_puts(w, ",\"type\":\"message\",\"role\":\"assistant\",\"container\":null,"
                  "\"stop_details\":null,\"model\":");
    write_json(w, call->params.model, strlen(call->params.model));
    write_puts(w, ",\"content\":[");
}

static void write_call_head(struct writer *w, const struct tool_call_view *v)
{
    write_format(w, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", v->id);
    write_json(w, buf_str(v->name), v->name->len);
    write_puts(w, ",\"caller\":{\"type\":\"direct\"},\"input\":");
}

static void end_signature(struct hash_state *h, char out[2 * SIGNATURE_BYTES + 1])
{
    uint8_t bytes[SIGNATURE_BYTES];

    hash_end(h, bytes, sizeof bytes);
    hash_hex(out, bytes, sizeof bytes);
}

/* --- a whole answer --- */

/* Write the arguments as an object. The arguments of a cut call are none: their text is in the
 * member that Anthropic's documents name for it. */
static void write_input(struct writer *w, const struct buf *arguments)
{
    struct json *v = NULL;

    if (arguments->len == 0) {
        write_puts(w, "{}");
        return;
    }
    enum status s =
        js_parse_limited(&v, buf_str(arguments), arguments->len, &argument_limits, NULL);
    if (s == OK && js_is(v, JS_OBJECT)) {
        write_buf(w, arguments);
    } else {
        write_puts(w, "{\"INVALID_JSON\":");
        write_json(w, buf_str(arguments), arguments->len);
        write_puts(w, "}");
    }
    js_unref(v);
}

static const char *write_text(struct writer *w, const char *comma, const char *text, size_t len)
{
    if (len == 0)
        return comma;
    write_format(w, "%s{\"type\":\"text\",\"citations\":null,\"text\":", comma);
    write_json(w, text, len);
    write_puts(w, "}");
    return ",";
}

static const char *write_thoughts(struct writer *w, const struct choice *c)
{
    char signature[2 * SIGNATURE_BYTES + 1];
    struct hash_state h;

    if (c->thoughts.len == 0)
        return "";
    write_puts(w, "{\"type\":\"thinking\",\"thinking\":");
    write_json(w, buf_str(&c->thoughts), c->thoughts.len);
    hash_begin(&h, SIGNATURE_BYTES, NULL, 0);
    hash_add(&h, buf_str(&c->thoughts), c->thoughts.len);
    end_signature(&h, signature);
    write_format(w, ",\"signature\":\"%s\"}", signature);
    return ",";
}

/* Write thoughts, then text and calls in their order. */
static void write_content(struct writer *w, const struct choice *c)
{
    struct tool_call_view v;
    const char *comma = write_thoughts(w, c);
    size_t at = 0;

    for (uint32_t i = 0; i < tool_answer_n_calls(c->tools); i++) {
        tool_answer_view(c->tools, i, &v);
        comma = write_text(w, comma, buf_str(&c->text) + at, v.text_at - at);
        at = v.text_at;
        write_puts(w, comma);
        write_call_head(w, &v);
        write_input(w, v.arguments);
        write_puts(w, "}");
        comma = ",";
    }
    write_text(w, comma, buf_str(&c->text) + at, c->text.len - at);
}

static enum status write_whole(struct call *call, struct buf *out)
{
    const struct choice *c = &call->choices[0];
    struct writer w = {out, OK};

    write_head(&w, call);
    write_content(&w, c);
    write_puts(&w, "],");
    write_stop(&w, call, c);
    write_puts(&w, ",");
    write_usage(&w, c);
    answer_write_documents(&w, call);
    write_puts(&w, "}");
    return w.status;
}

/* --- events --- */

static enum status open_stream(struct call *call)
{
    (void)call;
    return OK;
}

static enum status write_begin(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    write_puts(&w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    write_head(&w, call);
    write_puts(&w, "],\"stop_reason\":null,\"stop_sequence\":null,");
    write_usage(&w, c);
    answer_write_documents(&w, call);
    write_puts(&w, "}}\n\n");
    return w.status;
}

/* Write text[0, len) as the member `key` of a delta of the open block. */
static void write_text_delta(struct writer *w, const struct messages_state *m, const char *type,
                             const char *key, const char *text, size_t len)
{
    write_format(w,
                 "event: content_block_delta\ndata: {\"type\":\"content_block_delta\","
                 "\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":",
                 m->n_blocks - 1, type, key);
    write_json(w, text, len);
    write_puts(w, "}}\n\n");
}

static void close_block(struct writer *w, struct messages_state *m)
{
    char signature[2 * SIGNATURE_BYTES + 1];

    if (m->block == MESSAGES_NO_BLOCK)
        return;
    if (m->block == MESSAGES_THINKING) {
        end_signature(&m->thoughts, signature);
        write_text_delta(w, m, "signature_delta", "signature", signature, strlen(signature));
    }
    write_format(w,
                 "event: content_block_stop\ndata: {\"type\":\"content_block_stop\","
                 "\"index\":%u}\n\n",
                 m->n_blocks - 1);
    m->block = MESSAGES_NO_BLOCK;
}

static void begin_block(struct writer *w, struct messages_state *m, enum messages_block block)
{
    close_block(w, m);
    write_format(w,
                 "event: content_block_start\ndata: {\"type\":\"content_block_start\","
                 "\"index\":%u,\"content_block\":",
                 m->n_blocks++);
    m->block = block;
}

static void write_thought_deltas(struct writer *w, struct messages_state *m,
                                 const struct buf *thoughts)
{
    if (thoughts->len == 0)
        return;
    if (m->block != MESSAGES_THINKING) {
        begin_block(w, m, MESSAGES_THINKING);
        write_puts(w, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
        hash_begin(&m->thoughts, SIGNATURE_BYTES, NULL, 0);
    }
    hash_add(&m->thoughts, thoughts->data, thoughts->len);
    write_text_delta(w, m, "thinking_delta", "thinking", buf_str(thoughts), thoughts->len);
}

static void write_text_deltas(struct writer *w, struct messages_state *m, const char *text,
                              size_t len)
{
    if (len == 0)
        return;
    if (m->block != MESSAGES_TEXT) {
        begin_block(w, m, MESSAGES_TEXT);
        write_puts(w, "{\"type\":\"text\",\"citations\":null,\"text\":\"\"}}\n\n");
    }
    write_text_delta(w, m, "text_delta", "text", text, len);
}

static void write_arguments(struct writer *w, struct messages_state *m,
                            const struct tool_call_view *v)
{
    if (v->n_sent < v->arguments->len)
        write_text_delta(w, m, "input_json_delta", "partial_json",
                         buf_str(v->arguments) + v->n_sent, v->arguments->len - v->n_sent);
}

/* A call's arguments are complete before text or another call begins, so the rest of those of the
 * open call come first. */
static enum status write_delta(struct call *call, const struct choice *c, struct buf *out)
{
    struct messages_state *m = call->shape_state;
    struct writer w = {out, OK};
    struct tool_call_view v;
    size_t at = 0;

    if (m->block == MESSAGES_CALL) {
        tool_answer_view(c->tools, m->n_calls - 1, &v);
        write_arguments(&w, m, &v);
    }
    write_thought_deltas(&w, m, &c->thoughts);
    for (; m->n_calls < tool_answer_n_calls(c->tools); m->n_calls++) {
        tool_answer_view(c->tools, m->n_calls, &v);
        write_text_deltas(&w, m, buf_str(&c->text) + at, v.text_at - at);
        at = v.text_at;
        begin_block(&w, m, MESSAGES_CALL);
        write_call_head(&w, &v);
        write_puts(&w, "{}}}\n\n");
        write_arguments(&w, m, &v);
    }
    write_text_deltas(&w, m, buf_str(&c->text) + at, c->text.len - at);
    return w.status;
}

static enum status write_end(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    close_block(&w, call->shape_state);
    write_puts(&w, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    write_stop(&w, call, c);
    write_puts(&w, "},");
    write_usage(&w, c);
    write_puts(&w, "}\n\n");
    return w.status;
}

static enum status write_end_of_stream(struct call *call, struct buf *out)
{
    (void)call;
    return buf_puts(out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static enum status write_error(struct call *call, enum status s, const char *words, struct buf *out)
{
    enum status st = buf_puts(out, "event: error\ndata: ");

    if (st == OK)
        st = error_write_anthropic(out, status_http(s), s, NULL, words, call->http_id);
    return st == OK ? buf_puts(out, "\n\n") : st;
}

/* The answer of /v1/messages/count_tokens. */
static enum status write_count(const struct call *call, struct buf *out)
{
    return buf_printf(out, "{\"input_tokens\":%u}", prompt_n_ids(&call->prompts[0]));
}

const struct shape answer_messages = {.name = "messages",
                                      .id_prefix = "msg",
                                      .kind = PARAMS_CHAT,
                                      .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                      .whole = write_whole,
                                      .open = open_stream,
                                      .begin = write_begin,
                                      .delta = write_delta,
                                      .end = write_end,
                                      .finish = write_end_of_stream,
                                      .error = write_error,
                                      .prompts = write_count,
                                      .destroy = destroy_state};
