/* workload_sharegpt.c - conversations in ShareGPT's format, as `vllm bench serve` asks them:
 *
 *     [{"conversations": [{"value": "a question"}, {"value": "its answer"}, ...]}, ...]
 *
 * A request is the first text of a conversation, and the second says how long the answer is to be.
 * vLLM's tool counts both with a tokenizer and leaves out very short and very long ones. The load
 * generator has no tokenizer and estimates both from bytes. */
#include <stdlib.h>
#include <string.h>

#include "loadgen/load/lines.h"
#include "loadgen/load/workload_inner.h"

/* English text has about four bytes a token in today's vocabularies. */
#define BYTES_PER_TOKEN 4u
/* vLLM's limits. */
#define N_LEAST 4u
#define N_PROMPT_MOST 1024u
#define N_BOTH_MOST 2048u

static const struct json *text_of(const struct json *conversation, size_t i)
{
    return js_get(js_at(js_get(conversation, "conversations"), i), "value");
}

const struct json *workload_sharegpt_prompt(const struct json *conversation)
{
    return text_of(conversation, 0);
}

static uint32_t estimate_tokens(const struct json *text)
{
    size_t n = 0;

    js_string(text, &n);
    n = (n + BYTES_PER_TOKEN - 1) / BYTES_PER_TOKEN;
    return n < DIST_MAX ? (uint32_t)n : DIST_MAX;
}

static bool is_wanted(const struct workload_config *c, uint32_t n_prompt, uint32_t n_answer)
{
    double n_output = c->output_given ? dist_mean(&c->output) : n_answer;

    return n_prompt >= N_LEAST && (c->output_given || n_answer >= N_LEAST) &&
           n_prompt <= N_PROMPT_MOST && n_prompt + n_output <= N_BOTH_MOST;
}

static enum status add_conversation(struct workload *w, struct json *conversation, size_t i,
                                    struct buf *why)
{
    const struct json *prompt = text_of(conversation, 0), *answer = text_of(conversation, 1);

    if (js_len(js_get(conversation, "conversations")) < 2)
        return OK;
    if (!js_is(prompt, JS_STRING) || !js_is(answer, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "%s: [%zu].conversations: expected objects with a text "
                       "in value",
                       w->config.data, i);
    struct file_row row = {
        .o = conversation, .n_output = estimate_tokens(answer), .tenant = UINT32_MAX, .line = i};
    if (!is_wanted(&w->config, estimate_tokens(prompt), row.n_output))
        return OK;
    enum status s = workload_file_add(w, &row);
    if (s == OK)
        js_ref(conversation);
    return s;
}

enum status workload_sharegpt_read(struct workload *w, struct buf *why)
{
    struct json *all = NULL;
    enum status s = js_parse_file(&all, w->config.data, LINES_FILE_BYTES_MAX, why);

    if (s == OK && !js_is(all, JS_ARRAY))
        s = buf_why(why, ERR_INVALID, "%s: expected a JSON array of conversations", w->config.data);
    for (size_t i = 0; s == OK && i < js_len(all); i++)
        s = add_conversation(w, js_at(all, i), i, why);
    if (s == OK && w->n_rows == 0)
        s = buf_why(why, ERR_INVALID,
                    "%s: holds no conversation of two texts whose lengths vLLM "
                    "would take (%u to %u tokens)",
                    w->config.data, N_LEAST, N_PROMPT_MOST);
    js_unref(all);
    return s;
}
