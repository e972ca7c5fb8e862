#include "server/api/response_read.h"

#include <string.h>

#include "server/api/writer.h"

static void write_value(struct writer *w, const struct json *v, const char *otherwise)
{
    if (!v)
        write_puts(w, otherwise);
    else if (w->status == OK)
        w->status = js_write(w->out, v);
}

static void write_member(struct writer *w, const struct json *body, const char *name,
                         const char *otherwise)
{
    write_format(w, ",\"%s\":", name);
    write_value(w, js_get_set(body, name), otherwise);
}

/* OpenAI's answers have all members of a function. */
static void write_tool(struct writer *w, const struct json *tool)
{
    const struct json *type = js_get(tool, "type");

    if (strcmp(js_string(type, NULL), "function") != 0) {
        write_value(w, tool, "null");
        return;
    }
    write_puts(w, "{\"type\":\"function\"");
    write_member(w, tool, "name", "null");
    write_member(w, tool, "description", "null");
    write_member(w, tool, "parameters", "null");
    write_member(w, tool, "strict", "null");
    write_puts(w, "}");
}

static void write_tools(struct writer *w, const struct json *tools)
{
    write_puts(w, ",\"tools\":[");
    for (size_t i = 0; i < js_len(tools); i++) {
        write_puts(w, i ? "," : "");
        write_tool(w, js_at(tools, i));
    }
    write_puts(w, "]");
}

/* OpenAI's answers have all members of a format with a schema, which is always enforced here. */
static void write_form(struct writer *w, const struct json *format)
{
    const struct json *type = js_get(format, "type");

    if (!js_is(type, JS_STRING) || strcmp(js_string(type, NULL), "json_schema") != 0) {
        write_value(w, format, "{\"type\":\"text\"}");
        return;
    }
    write_puts(w, "{\"type\":\"json_schema\"");
    write_member(w, format, "description", "null");
    write_member(w, format, "name", "null");
    write_member(w, format, "schema", "null");
    write_member(w, format, "strict", "true");
    write_puts(w, "}");
}

static void write_text(struct writer *w, const struct json *text)
{
    write_puts(w, ",\"text\":{\"format\":");
    write_form(w, js_get_set(text, "format"));
    write_member(w, text, "verbosity", "\"medium\"");
    write_puts(w, "}");
}

static void write_sampling(struct writer *w, const struct sampling *s)
{
    write_puts(w, ",\"temperature\":");
    write_number(w, (double)s->temperature);
    write_puts(w, ",\"top_p\":");
    write_number(w, (double)s->top_p);
    write_puts(w, ",\"presence_penalty\":");
    write_number(w, (double)s->presence_penalty);
    write_puts(w, ",\"frequency_penalty\":");
    write_number(w, (double)s->frequency_penalty);
}

enum status response_ask_write(const struct response_ask *a, const struct params *p,
                               struct buf *out)
{
    const struct json *body = a->body, *reasoning = js_get_set(body, "reasoning");
    struct writer w = {out, OK};

    write_format(&w, ",\"background\":%s,\"store\":%s", a->background ? "true" : "false",
                 a->store ? "true" : "false");
    write_member(&w, body, "instructions", "null");
    write_member(&w, body, "max_output_tokens", "null");
    write_member(&w, body, "max_tool_calls", "null");
    write_member(&w, body, "metadata", "{}");
    write_puts(&w, ",\"model\":");
    write_json(&w, p->model, strlen(p->model));
    write_member(&w, body, "parallel_tool_calls", "true");
    write_member(&w, body, "previous_response_id", "null");
    write_member(&w, body, "prompt_cache_key", "null");
    write_member(&w, body, "prompt_cache_retention", "null");
    write_puts(&w, ",\"reasoning\":{\"effort\":");
    write_value(&w, js_get_set(reasoning, "effort"), "null");
    write_member(&w, reasoning, "summary", "null");
    write_puts(&w, "}");
    write_member(&w, body, "safety_identifier", "null");
    write_puts(&w, ",\"service_tier\":\"default\""); /* Tarn has one tier */
    write_sampling(&w, &p->sampling);
    write_text(&w, js_get_set(body, "text"));
    write_member(&w, body, "tool_choice", "\"auto\"");
    write_tools(&w, js_get_set(body, "tools"));
    write_member(&w, body, "top_logprobs", "0");
    write_member(&w, body, "truncation", "\"disabled\"");
    write_member(&w, body, "user", "null"); /* as OpenAI's answers, against its schema */
    return w.status;
}
