#include "server/api/answer.h"

#include <inttypes.h>

#include "server/api/answer_documents.h"
#include "server/api/answer_service.h"
#include "server/api/call.h"
#include "server/http/error.h"
#include "server/api/render.h"
#include "server/server.h"
#include "server/api/tool_answer.h"
#include "server/api/writer.h"

static bool is_chat(const struct call *call)
{
    return call->shape->kind == PARAMS_CHAT;
}

/* --- pieces --- */

static void write_head(struct writer *w, const struct call *call, const char *object)
{
    write_puts(w, "{\"id\":");
    write_json(w, call->id, strlen(call->id));
    write_format(w, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", object,
                 call->created_s);
    write_json(w, call->params.model, strlen(call->params.model));
    write_format(w, ",\"system_fingerprint\":\"%s\"", call->srv->system_fingerprint);
    if (call->params.names_request) { /* as vLLM, where the body is vLLM's own */
        write_puts(w, ",\"request_id\":");
        write_json(w, call->id, strlen(call->id));
    }
    /* As OpenAI's, the answer names the tier when the request asked for one. Tarn has one tier. */
    if (is_chat(call) && call->params.has_service_tier)
        write_puts(w, ",\"service_tier\":\"default\"");
    write_puts(w, ",\"choices\":[");
}

static void write_usage(struct writer *w, const struct call *call)
{
    uint64_t n_prompt = 0, n_cached = 0, n_out = 0, n_cached_in[CACHE_N_TIERS] = {0};
    uint64_t n_written = 0, n_held = 0, n_thought = 0, n_right = 0, n_wrong = 0;

    for (uint32_t i = 0; i < call->n_choices; i++) {
        const struct choice *c = &call->choices[i];
        n_out += c->n_taken;
        if (c->request->n_prediction > 0) {
            uint32_t n_accepted = atomic_load(&c->request->n_accepted);
            n_right += n_accepted;
            n_wrong += atomic_load(&c->request->n_guessed) - n_accepted;
        }
        n_thought += c->n_thought_tokens;
        if (i % call->params.best_of != 0)
            continue; /* a prompt counts once, however many answers it gets */
        n_prompt += c->request->prompt.n_ids;
        n_cached += atomic_load(&c->request->n_cached);
        n_written += request_n_written(c->request);
        n_held += c->request->n_held;
        for (int t = 0; t < CACHE_N_TIERS; t++)
            n_cached_in[t] += atomic_load(&c->request->n_cached_in[t]);
    }
    write_format(w,
                 "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                 ",\"total_tokens\":%" PRIu64 ",\"prompt_tokens_details\":{\"audio_tokens\":0,"
                 "\"cached_tokens\":%" PRIu64 ",\"cache_write_tokens\":%" PRIu64
                 ",\"held_tokens\":%" PRIu64 ",\"cached_tokens_details\":{",
                 n_prompt, n_out, n_prompt + n_out, n_cached, n_written, n_held);
    for (uint32_t t = 0; t < call->srv->info->n_tiers; t++)
        write_format(w, "%s\"%s\":%" PRIu64, t ? "," : "", cache_tier_name((enum cache_tier)t),
                     n_cached_in[t]);
    /* Tarn generates plain text: OpenAI's other kinds of output tokens are 0. */
    write_format(w,
                 "}},\"completion_tokens_details\":{\"accepted_prediction_tokens\":%" PRIu64
                 ",\"audio_tokens\":0,\"reasoning_tokens\":%" PRIu64
                 ",\"rejected_prediction_tokens\":%" PRIu64 "}}",
                 n_right, n_thought, n_wrong);
}

static void write_logprobs(struct writer *w, const struct call *call, const struct choice *c)
{
    if (!call->params.logprobs || c->lp[LP_TOKENS].len == 0) {
        write_puts(w, ",\"logprobs\":null");
        return;
    }
    if (is_chat(call)) {
        write_puts(w, ",\"logprobs\":{\"content\":[");
        write_buf(w, &c->lp[LP_CONTENT]);
        write_puts(w, "],\"refusal\":null}");
        return;
    }
    write_puts(w, ",\"logprobs\":{\"tokens\":[");
    write_buf(w, &c->lp[LP_TOKENS]);
    write_puts(w, "],\"token_logprobs\":[");
    write_buf(w, &c->lp[LP_VALUES]);
    write_puts(w, "],\"top_logprobs\":[");
    write_buf(w, &c->lp[LP_TOPS]);
    write_puts(w, "],\"text_offset\":[");
    write_buf(w, &c->lp[LP_OFFSETS]);
    write_puts(w, "]}");
}

static void write_ids(struct writer *w, const char *key, const uint32_t *ids, uint32_t n)
{
    write_format(w, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        write_format(w, "%s%u", i ? "," : "", ids[i]);
    write_puts(w, "]");
}

static void write_prompt_ids(struct writer *w, const struct choice *c)
{
    write_ids(w, "prompt_token_ids", c->request->prompt.ids, c->request->prompt.n_ids);
}

/* The prompt's list is in its first choice. */
static void write_ranked(struct writer *w, const struct call *call, const struct choice *c)
{
    if (!call->params.prompt_logprobs)
        return;
    write_puts(w, ",\"prompt_logprobs\":[");
    write_buf(w, &call->choices[c->prompt_index * call->params.best_of].ranked);
    write_puts(w, "]");
}

static void write_token_ids(struct writer *w, const struct call *call, const struct choice *c)
{
    if (!call->params.return_token_ids)
        return;
    write_puts(w, ",\"token_ids\":[");
    write_buf(w, &c->ids);
    write_puts(w, "]");
}

static void write_finish(struct writer *w, const struct call *call, const struct choice *c)
{
    const struct stopping *st = &c->request->stopping;
    const char *calls = call->params.tools.is_old ? "function_call" : "tool_calls";
    bool is_calls = c->finish == FINISH_STOP && tool_answer_n_calls(c->tools) > 0;

    write_format(w, ",\"finish_reason\":\"%s\",\"stop_reason\":",
                 is_calls ? calls : finish_reason_name(c->finish));
    if (c->finish == FINISH_STOP && c->request->stop_string >= 0) {
        const struct detok_stop *stop = &st->stops[c->request->stop_string];
        write_json(w, stop->text, stop->len);
    } else if (c->finish == FINISH_STOP && c->request->stop_id >= 0) {
        write_format(w, "%d", c->request->stop_id);
    } else {
        write_puts(w, "null");
    }
}

/* vLLM's two names of it. */
static void write_thoughts(struct writer *w, const struct choice *c)
{
    write_puts(w, "\"reasoning_content\":");
    write_json(w, buf_str(&c->thoughts), c->thoughts.len);
    write_puts(w, ",\"reasoning\":");
    write_json(w, buf_str(&c->thoughts), c->thoughts.len);
}

/* --- a whole answer --- */

static void write_choice(struct writer *w, const struct call *call, const struct choice *c)
{
    write_format(w, "{\"index\":%u,", c->place);
    if (is_chat(call)) {
        write_puts(w, "\"message\":{\"role\":\"assistant\",\"content\":");
        if (c->text.len == 0 && (tool_answer_n_calls(c->tools) > 0 || c->thoughts.len > 0))
            write_puts(w, "null");
        else
            write_json(w, buf_str(&c->text), c->text.len);
        if (c->thoughts.len > 0) {
            write_puts(w, ",");
            write_thoughts(w, c);
        }
        if (tool_answer_n_calls(c->tools) > 0) {
            write_puts(w, ",");
            tool_answer_write(w, c->tools);
        }
        write_puts(w, ",\"refusal\":null,\"annotations\":[]}"); /* those are of web searches */
    } else {
        write_puts(w, "\"text\":");
        write_json(w, buf_str(&c->text), c->text.len);
    }
    write_logprobs(w, call, c);
    write_finish(w, call, c);
    write_token_ids(w, call, c);
    if (!is_chat(call) && call->params.return_token_ids)
        write_prompt_ids(w, c);
    if (!is_chat(call))
        write_ranked(w, call, c);
    answer_write_citations(w, call, c);
    write_puts(w, "}");
}

/* The answer with this place in the response, one of prompt place / n. */
static const struct choice *find_choice(const struct call *call, uint32_t place)
{
    const struct choice *c = &call->choices[place / call->params.n * call->params.best_of];

    while (c->place != place)
        c++;
    return c;
}

static enum status write_whole(struct call *call, struct buf *out)
{
    struct writer w = {out, OK};

    write_head(&w, call, is_chat(call) ? "chat.completion" : "text_completion");
    for (uint32_t i = 0; i < call->n_prompts * call->params.n; i++) {
        write_puts(&w, i ? "," : "");
        write_choice(&w, call, find_choice(call, i));
    }
    write_puts(&w, "],");
    write_usage(&w, call);
    answer_write_documents(&w, call);
    if (is_chat(call) && call->params.return_token_ids)
        write_prompt_ids(&w, &call->choices[0]);
    if (is_chat(call))
        write_ranked(&w, call, &call->choices[0]);
    answer_write_service(&w, call);
    write_puts(&w, "}");
    return w.status;
}

/* --- frames --- */

static enum status open_stream(struct call *call)
{
    struct writer w = {&call->frame_head, OK};

    write_puts(&w, "data: ");
    write_head(&w, call, is_chat(call) ? "chat.completion.chunk" : "text_completion");
    return w.status;
}

static void begin_frame(struct writer *w, const struct call *call, const struct choice *c)
{
    write_buf(w, &call->frame_head);
    write_format(w, "{\"index\":%u", c->place);
}

static void end_frame(struct writer *w, const struct call *call)
{
    if (call->params.continuous_usage) {
        write_puts(w, ",");
        write_usage(w, call);
    } else if (call->params.include_usage) {
        write_puts(w, ",\"usage\":null"); /* as OpenAI, in every frame */
    }
    write_puts(w, "}\n\n");
}

static enum status write_begin(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};
    const struct prompt *prompt = &call->prompts[c->prompt_index];

    if (is_chat(call)) {
        begin_frame(&w, call, c);
        write_puts(&w, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
                       "\"logprobs\":null,\"finish_reason\":null}]");
        if (call->params.return_token_ids && c->index == 0)
            write_prompt_ids(&w, c);
        if (c->index == 0)
            answer_write_documents(&w, call);
        end_frame(&w, call);
    } else if (prompt->text.len > 0 || c->scored || call->params.return_token_ids ||
               (c->index == 0 && answer_has_documents(call))) {
        begin_frame(&w, call, c);
        write_puts(&w, ",\"text\":");
        write_json(&w, buf_str(&prompt->text), prompt->text.len);
        if (c->n_echoed > 0)
            write_logprobs(&w, call, c);
        else
            write_puts(&w, ",\"logprobs\":null");
        write_puts(&w, ",\"finish_reason\":null");
        if (call->params.return_token_ids)
            write_prompt_ids(&w, c);
        write_puts(&w, "}]");
        if (c->index == 0)
            answer_write_documents(&w, call);
        end_frame(&w, call);
    }
    return w.status;
}

static enum status write_delta(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    bool has_calls = tool_answer_has_delta(c->tools), has_thoughts = c->thoughts.len > 0;
    bool has_text = c->text.len > 0 || (!has_calls && !has_thoughts);

    begin_frame(&w, call, c);
    write_puts(&w, is_chat(call) ? ",\"delta\":{" : ",");
    if (has_thoughts) {
        write_thoughts(&w, c);
        write_puts(&w, has_text || has_calls ? "," : "");
    }
    if (has_text) {
        write_puts(&w, is_chat(call) ? "\"content\":" : "\"text\":");
        write_json(&w, buf_str(&c->text), c->text.len);
    }
    if (has_calls) {
        write_puts(&w, has_text ? "," : "");
        tool_answer_write_delta(&w, c->tools);
    }
    write_puts(&w, is_chat(call) ? "}" : "");
    write_logprobs(&w, call, c);
    write_puts(&w, ",\"finish_reason\":null");
    write_token_ids(&w, call, c);
    write_puts(&w, "}]");
    end_frame(&w, call);
    return w.status;
}

static enum status write_end(struct call *call, const struct choice *c, struct buf *out)
{
    struct writer w = {out, OK};

    begin_frame(&w, call, c);
    write_puts(&w, is_chat(call) ? ",\"delta\":{},\"logprobs\":null"
                                 : ",\"text\":\"\",\"logprobs\":null");
    write_finish(&w, call, c);
    answer_write_citations(&w, call, c);
    write_puts(&w, "}]");
    end_frame(&w, call);
    return w.status;
}

#define FRAME_DONE "data: [DONE]\n\n"

static enum status write_end_of_stream(struct call *call, struct buf *out)
{
    struct writer w = {out, OK};

    if (call->params.include_usage || answer_has_service(call)) {
        write_buf(&w, &call->frame_head);
        write_puts(&w, "],");
        write_usage(&w, call);
        answer_write_service(&w, call);
        write_puts(&w, "}\n\n");
    }
    write_puts(&w, FRAME_DONE);
    return w.status;
}

static enum status write_error(struct call *call, enum status s, const char *words, struct buf *out)
{
    enum status st = buf_puts(out, "data: ");

    (void)call;
    if (st == OK)
        st = error_write(out, s, NULL, words);
    return st == OK ? buf_puts(out, "\n\n" FRAME_DONE) : st;
}

#define COMMON                                                                                     \
    .keep_alive = ": keep-alive\n\n", .whole = write_whole, .open = open_stream,                   \
    .begin = write_begin, .delta = write_delta, .end = write_end, .finish = write_end_of_stream,   \
    .error = write_error, .prompts = render_write

const struct shape answer_chat = {
    .name = "chat", .id_prefix = "chatcmpl", .kind = PARAMS_CHAT, .takes_id = true, COMMON};
const struct shape answer_completion = {.name = "completions",
                                        .id_prefix = "cmpl",
                                        .kind = PARAMS_COMPLETION,
                                        .takes_id = true,
                                        COMMON};
