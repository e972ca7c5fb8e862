#include "server/api/retention.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/detokenize.h"

#define CACHE_TTL_S_MAX 86400
#define OPTIONS_TTL_S 1800 /* OpenAI's default, and the only time in its schema */
#define CONTROL_TTL_S 300  /* Anthropic's default */
#define RETENTION_TTL_S 86400
#define NAME_BYTES 96
#define PIECE_BYTES_MAX (1u << 20) /* text of one token */

/* --- values --- */

static enum status check_object(const struct json *v, const char *name, struct buf *why)
{
    if (js_is(v, JS_OBJECT))
        return OK;
    return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", name,
                   js_type_name(js_typeof(v)));
}

/* Read the word at `key` of the object `name`; *word stays if it is absent or null. */
static enum status read_word(const struct json *object, const char *name, const char *key,
                             const char **word, struct buf *why)
{
    const struct json *v = js_get_set(object, key);
    char full[NAME_BYTES + 16];

    if (!v)
        return OK;
    snprintf(full, sizeof full, "%s.%s", name, key);
    return js_read_cstr(v, full, word, why);
}

static enum status read_ttl(const struct json *object, const char *name, uint32_t *ttl_s,
                            struct buf *why)
{
    static const struct {
        const char *word;
        uint32_t s;
    } times[] = {{"5m", 300}, {"30m", 1800}, {"1h", 3600}, {"24h", 86400}};
    const char *word = NULL;
    enum status s = read_word(object, name, "ttl", &word, why);

    for (size_t i = 0; word && i < ARRAY_SIZE(times); i++)
        if (strcmp(word, times[i].word) == 0) {
            *ttl_s = times[i].s;
            return OK;
        }
    if (s != OK || !word)
        return s;
    return buf_why(why, ERR_INVALID, "%s.ttl: \"%.20s\" is none of 5m, 30m, 1h, 24h", name, word);
}

enum status retention_read_control(const struct json *v, const char *name, uint32_t *ttl_s,
                                   struct buf *why)
{
    const char *type = "";
    enum status s = v ? check_object(v, name, why) : OK;

    if (s != OK || !v)
        return s;
    s = read_word(v, name, "type", &type, why);
    if (s == OK && strcmp(type, "ephemeral") != 0)
        s = buf_why(why, ERR_INVALID, "%s.type: expected \"ephemeral\", got \"%.20s\"", name, type);
    *ttl_s = CONTROL_TTL_S;
    return s == OK ? read_ttl(v, name, ttl_s, why) : s;
}

/* --- the body --- */

static void at_least(uint32_t *ttl_s, uint32_t other_s)
{
    *ttl_s = *ttl_s > other_s ? *ttl_s : other_s;
}

static enum status parse_retention(struct retention *r, const struct json *body, struct buf *why)
{
    const char *word = "in_memory";
    enum status s = js_get_str(body, "prompt_cache_retention", &word, NULL, why);

    if (s != OK || strcmp(word, "in_memory") == 0)
        return s;
    if (strcmp(word, "24h") != 0)
        return buf_why(why, ERR_INVALID,
                       "prompt_cache_retention: \"%.20s\" is none of in_memory, 24h", word);
    at_least(&r->ttl_s, RETENTION_TTL_S);
    return OK;
}

static enum status parse_options(struct retention *r, const struct json *body, struct buf *why)
{
    static const char name[] = "prompt_cache_options";
    const struct json *options = js_get_set(body, name);
    const char *mode = "implicit";

    r->break_ttl_s = OPTIONS_TTL_S;
    if (!options)
        return OK;
    enum status s = check_object(options, name, why);
    if (s == OK)
        s = read_word(options, name, "mode", &mode, why);
    if (s == OK)
        s = read_ttl(options, name, &r->break_ttl_s, why);
    if (s == OK && strcmp(mode, "implicit") == 0)
        at_least(&r->ttl_s, r->break_ttl_s);
    else if (s == OK && strcmp(mode, "explicit") != 0)
        s = buf_why(why, ERR_INVALID, "%s.mode: \"%.20s\" is none of implicit, explicit", name,
                    mode);
    return s;
}

enum status retention_parse(struct retention *r, const struct json *body, struct buf *why)
{
    int64_t ttl_s = 0;
    uint32_t control_s = 0;
    enum status s = js_get_i64(body, "cache_ttl", 0, CACHE_TTL_S_MAX, &ttl_s, why);

    *r = (struct retention){.ttl_s = (uint32_t)ttl_s};
    if (s == OK)
        s = parse_retention(r, body, why);
    if (s == OK)
        s = parse_options(r, body, why);
    if (s == OK)
        s = retention_read_control(js_get_set(body, "cache_control"), "cache_control", &control_s,
                                   why);
    at_least(&r->ttl_s, control_s);
    return s;
}

/* --- breakpoints --- */

static void add_breakpoint(struct breakpoints *b, struct breakpoint at)
{
    if (b->n == REQUEST_N_BREAKS_MAX) {
        memmove(b->v, b->v + 1, (REQUEST_N_BREAKS_MAX - 1) * sizeof *b->v);
        b->n--;
    }
    b->v[b->n++] = at;
}

/* Read the breakpoint of a content part, or of a message (part < 0). `at`: its place; at.ttl_s: the
 * time of a prompt_cache_breakpoint. */
static enum status read_breakpoint(struct breakpoints *b, const struct json *holder, int part,
                                   struct breakpoint at, struct buf *why)
{
    const struct json *control = js_get_set(holder, "cache_control");
    const struct json *point = js_get_set(holder, "prompt_cache_breakpoint");
    const char *mode = "explicit";
    uint32_t ttl_s = 0;
    char place[NAME_BYTES / 2], name[NAME_BYTES];

    if (!control && !point)
        return OK;
    snprintf(place, sizeof place, part < 0 ? "messages[%u]" : "messages[%u].content[%d]",
             at.message, part);
    snprintf(name, sizeof name, "%s.cache_control", place);
    enum status s = retention_read_control(control, name, &ttl_s, why);
    snprintf(name, sizeof name, "%s.prompt_cache_breakpoint", place);
    if (s == OK && point) {
        at_least(&ttl_s, at.ttl_s);
        s = check_object(point, name, why);
        if (s == OK)
            s = read_word(point, name, "mode", &mode, why);
        if (s == OK && strcmp(mode, "explicit") != 0)
            s = buf_why(why, ERR_INVALID, "%s.mode: expected \"explicit\", got \"%.20s\"", name,
                        mode);
    }
    at.ttl_s = ttl_s;
    if (s == OK && ttl_s > 0 && at.n_bytes > 0)
        add_breakpoint(b, at);
    return s;
}

static size_t text_bytes(const struct json *part)
{
    const struct json *text = js_get_set(part, "text");
    size_t len = 0;

    if (!text)
        text = js_get_set(part, "refusal");
    if (js_is(text, JS_STRING))
        (void)js_string(text, &len);
    return len;
}

static enum status read_message(struct breakpoints *b, const struct json *message, uint32_t i,
                                uint32_t ttl_s, struct buf *why)
{
    const struct json *content = js_get_set(message, "content");
    struct breakpoint at = {.message = i, .ttl_s = ttl_s};
    enum status s = OK;

    if (js_is(content, JS_STRING))
        (void)js_string(content, &at.n_bytes);
    for (size_t k = 0; s == OK && js_is(content, JS_ARRAY) && k < js_len(content); k++) {
        at.n_bytes += (k > 0) + text_bytes(js_at(content, k));
        s = read_breakpoint(b, js_at(content, k), (int)k, at, why);
    }
    return s == OK ? read_breakpoint(b, message, -1, at, why) : s;
}

enum status breakpoints_read(struct breakpoints *b, const struct json *body, struct buf *why)
{
    const struct json *messages = js_get(body, "messages");
    struct retention r;
    enum status s = retention_parse(&r, body, why);

    b->n = 0;
    for (size_t i = 0; s == OK && i < js_len(messages); i++)
        s = read_message(b, js_at(messages, i), (uint32_t)i, r.break_ttl_s, why);
    return s;
}

enum status breakpoints_place(const struct breakpoints *b, const size_t *ends,
                              const struct tokenizer *t, const uint32_t *ids, uint32_t n_ids,
                              struct request_break *out, uint32_t *n_out)
{
    size_t n_bytes = 0;
    uint32_t next = 0;
    struct detok d;
    struct buf piece;
    enum status s = OK;

    *n_out = 0;
    buf_init(&piece, PIECE_BYTES_MAX);
    detok_init(&d, t, NULL, 0, true, false, false);
    for (uint32_t i = 0; s == OK && next < b->n && i <= n_ids; i++) {
        if (i < n_ids)
            s = detok_feed(&d, ids[i], &piece);
        n_bytes += piece.len;
        buf_reset(&piece);
        for (; next < b->n && (i == n_ids || n_bytes > ends[next]); next++)
            if (ends[next] > 0 && i > 0)
                out[(*n_out)++] = (struct request_break){i, b->v[next].ttl_s};
    }
    detok_fini(&d);
    buf_fini(&piece);
    return s;
}
