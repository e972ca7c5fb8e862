#include "server/api/tool_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/call_parser.h"

#define ARGUMENTS_BYTES_MAX (64u << 20)
#define ID_CHARS 24u
#define SHORT_ID_CHARS 9u
#define NUMBER_CHARS 10u

struct one_call {
    char id[sizeof "functions.:" + TOOL_NAME_BYTES_MAX + NUMBER_CHARS];
    struct buf name, arguments;
    size_t text_at; /* as in struct tool_call_view */
    size_t n_sent;  /* bytes of the arguments */
    bool is_sent;   /* the id and the name */
};

struct tool_answer {
    struct call_parser parser;
    bool short_ids;
    bool is_old;            /* as in struct tools_use */
    struct one_call *calls; /* [n] */
    uint32_t n, cap;
    struct buf *text; /* during a feed */
};

enum status tool_answer_create(struct tool_answer **out, const struct tools_use *u)
{
    struct tool_answer *t = calloc(1, sizeof *t);

    *out = t;
    if (!t)
        return ERR_NOMEM;
    t->short_ids = u->short_ids;
    t->is_old = u->is_old;
    const struct call_names names = {buf_str(&u->names), u->names.len, buf_str(&u->types),
                                     u->types.len};
    call_parser_init(&t->parser, u->format, &names, u->n_calls_max);
    return OK;
}

void tool_answer_destroy(struct tool_answer *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n; i++) {
        buf_fini(&t->calls[i].name);
        buf_fini(&t->calls[i].arguments);
    }
    free(t->calls);
    call_parser_fini(&t->parser);
    free(t);
}

/* --- reading --- */

/* Ids are random, because a client may join the calls of several answers in one history. */
static void make_id(char *out, bool is_short)
{
    static const char chars[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint32_t n = is_short ? SHORT_ID_CHARS : ID_CHARS;
    uint8_t bytes[ID_CHARS];

    hash_random(bytes, sizeof bytes);
    if (!is_short) {
        memcpy(out, "call_", 5);
        out += 5;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = chars[bytes[i] % (sizeof chars - 1)];
    out[n] = '\0';
}

/* An id with the call's name and number, which the model's template shows the model again. */
static void make_numbered_id(struct tool_answer *t, struct one_call *c)
{
    snprintf(c->id, sizeof c->id, "functions.%.*s:%u", (int)c->name.len, buf_str(&c->name),
             t->parser.number);
    for (uint32_t i = 0; &t->calls[i] != c; i++)
        if (strcmp(t->calls[i].id, c->id) == 0) {
            make_id(c->id, false);
            return;
        }
}

static enum status on_text(void *ctx, const char *bytes, size_t len)
{
    struct tool_answer *t = ctx;

    return buf_append(t->text, bytes, len);
}

static enum status on_call(void *ctx, const char *name, size_t len)
{
    struct tool_answer *t = ctx;

    if (t->n == t->cap) {
        uint32_t cap = 2 * t->cap + 2;
        struct one_call *more = realloc(t->calls, cap * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        t->calls = more;
        t->cap = cap;
    }
    struct one_call *c = &t->calls[t->n++];
    *c = (struct one_call){.text_at = t->text->len};
    buf_init(&c->name, TOOL_NAME_BYTES_MAX + 1);
    buf_init(&c->arguments, ARGUMENTS_BYTES_MAX);
    enum status s = buf_append(&c->name, name, len);
    if (t->parser.format->is_numbered)
        make_numbered_id(t, c);
    else
        make_id(c->id, t->short_ids);
    return s;
}

static enum status on_arguments(void *ctx, const char *bytes, size_t len)
{
    struct tool_answer *t = ctx;

    return buf_append(&t->calls[t->n - 1].arguments, bytes, len);
}

enum status tool_answer_feed(struct tool_answer *t, const char *bytes, size_t len, bool is_end,
                             struct buf *text)
{
    const struct call_sink sink = {t, on_text, on_call, on_arguments};

    t->text = text;
    enum status s = call_parser_feed(&t->parser, bytes, len, &sink);
    if (s == OK && is_end)
        s = call_parser_finish(&t->parser, &sink);
    t->text = NULL;
    return s;
}

/* --- writing --- */

uint32_t tool_answer_n_calls(const struct tool_answer *t)
{
    return t ? t->n : 0;
}

void tool_answer_view(const struct tool_answer *t, uint32_t i, struct tool_call_view *out)
{
    const struct one_call *c = &t->calls[i];

    *out = (struct tool_call_view){.id = c->id,
                                   .name = &c->name,
                                   .arguments = &c->arguments,
                                   .text_at = c->text_at,
                                   .is_sent = c->is_sent,
                                   .n_sent = c->n_sent};
}

static void write_head(struct writer *w, const struct one_call *c)
{
    write_format(w, "\"id\":\"%s\",\"type\":\"function\",", c->id);
}

static void write_function(struct writer *w, const char *key, const struct one_call *c,
                           bool with_name, size_t from)
{
    write_format(w, "\"%s\":{", key);
    if (with_name) {
        write_puts(w, "\"name\":");
        write_json(w, buf_str(&c->name), c->name.len);
        write_puts(w, ",");
    }
    write_puts(w, "\"arguments\":");
    write_json(w, buf_str(&c->arguments) + from, c->arguments.len - from);
    write_puts(w, "}");
}

/* An answer in the older form has one call. */
void tool_answer_write(struct writer *w, const struct tool_answer *t)
{
    if (t->is_old) {
        write_function(w, "function_call", &t->calls[0], true, 0);
        return;
    }
    write_puts(w, "\"tool_calls\":[");
    for (uint32_t i = 0; i < t->n; i++) {
        write_puts(w, i ? ",{" : "{");
        write_head(w, &t->calls[i]);
        write_function(w, "function", &t->calls[i], true, 0);
        write_puts(w, "}");
    }
    write_puts(w, "]");
}

static bool has_news(const struct one_call *c)
{
    return !c->is_sent || c->n_sent < c->arguments.len;
}

bool tool_answer_has_delta(const struct tool_answer *t)
{
    for (uint32_t i = t ? t->n : 0; i-- > 0;)
        if (has_news(&t->calls[i]))
            return true;
    return false;
}

void tool_answer_write_delta(struct writer *w, const struct tool_answer *t)
{
    const char *before = "{";

    if (t->is_old) {
        const struct one_call *c = &t->calls[0];
        write_function(w, "function_call", c, !c->is_sent, c->n_sent);
        return;
    }
    write_puts(w, "\"tool_calls\":[");
    for (uint32_t i = 0; i < t->n; i++) {
        const struct one_call *c = &t->calls[i];
        if (!has_news(c))
            continue;
        write_format(w, "%s\"index\":%u,", before, i);
        if (!c->is_sent)
            write_head(w, c);
        write_function(w, "function", c, !c->is_sent, c->n_sent);
        write_puts(w, "}");
        before = ",{";
    }
    write_puts(w, "]");
}

void tool_answer_reset_delta(struct tool_answer *t)
{
    for (uint32_t i = 0; t && i < t->n; i++) {
        t->calls[i].is_sent = true;
        t->calls[i].n_sent = t->calls[i].arguments.len;
    }
}
