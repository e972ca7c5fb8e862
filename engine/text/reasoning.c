#include "engine/text/reasoning.h"

#include <string.h>

#include "base/check.h"

#define HELD_BYTES_MAX ((size_t)1 << 30) /* a feed adds a piece to what is held */
#define MESSAGES_BYTES_MAX ((size_t)512) /* taken at once: each message moves what is behind it */
#define PLACE_GROWTH 8                   /* a call of gpt_oss is given with all of its header */
#define NO_TEXTS .behind = "", .before_form = ""
#define THINK_TAGS .begins = {"<think>"}, .ends = {"</think>"}, .empty = "<think></think>", NO_TEXTS

static const struct reasoning_format formats[] = {
    {.name = "deepseek_r1", THINK_TAGS, .is_implied = true},
    {.name = "deepseek_v3", THINK_TAGS},
    {.name = "glm45", THINK_TAGS},
    {.name = "qwen3", THINK_TAGS},
    {.name = "mistral",
     .begins = {"[THINK]"},
     .ends = {"[/THINK]"},
     .empty = "[THINK][/THINK]",
     NO_TEXTS},
    {.name = "seed_oss",
     .begins = {"<seed:think>"},
     .ends = {"</seed:think>"},
     .empty = "<seed:think></seed:think>",
     NO_TEXTS},
    {.name = "gemma4",
     .begins = {"<|channel>thought"},
     .ends = {"<channel|>"},
     .empty = "<|channel>thought\n<channel|>",
     NO_TEXTS,
     .words = {"<|channel>"}},
    {.name = "gpt_oss",
     .begins = {"<|channel|>analysis<|message|>"},
     .ends = {"<|end|>"},
     .empty = REASONING_FINAL,
     .behind = "<|start|>assistant",
     .before_form = REASONING_FINAL,
     .has_channels = true,
     .words = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}},
    {.name = "granite",
     .begins = {"Here is my thought process:", "Here's my thought process:"},
     .ends = {"Here is my response:", "Here's my response:"},
     .empty = "Here is my thought process:Here is my response:",
     NO_TEXTS},
};

static const struct reasoning_format *by_name(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const struct reasoning_format *reasoning_find(const char *name, const struct chat_template *t)
{
    if (strcmp(name, "auto") != 0)
        return by_name(name);
    if (!t)
        return NULL;
    if (chat_template_mentions(t, "[THINK]"))
        return by_name("mistral");
    if (chat_template_mentions(t, "Here is my thought process:"))
        return by_name("granite");
    if (chat_template_mentions(t, "<|channel|>analysis<|message|>"))
        return by_name("gpt_oss");
    if (chat_template_mentions(t, "</seed:think>"))
        return by_name("seed_oss");
    if (chat_template_mentions(t, "<|channel>thought"))
        return by_name("gemma4");
    if (!chat_template_mentions(t, "</think>"))
        return NULL;
    /* DeepSeek V3.1 and later have a switch, named `thinking`; R1 always thinks. */
    bool is_r1 = chat_template_mentions(t, "<｜Assistant｜>") && !chat_template_uses(t, "thinking");
    return by_name(is_r1 ? "deepseek_r1" : "qwen3");
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* --- prompts --- */

static bool ends_with(const char *text, size_t len, const char *word)
{
    size_t n = word ? strlen(word) : SIZE_MAX;

    return n <= len && memcmp(text + len - n, word, n) == 0;
}

enum reasoning_place reasoning_place_of(const struct reasoning_format *f, const char *prompt,
                                        size_t len)
{
    while (len > 0 && is_space(prompt[len - 1]))
        len--;
    if (f->has_channels)
        return ends_with(prompt, len, f->empty)       ? REASONING_ENDED
               : ends_with(prompt, len, f->begins[0]) ? REASONING_BEGAN
                                                      : REASONING_MAY_BEGIN;
    if (ends_with(prompt, len, f->ends[0]) || ends_with(prompt, len, f->ends[1]))
        return REASONING_ENDED;
    if (ends_with(prompt, len, f->begins[0]) || ends_with(prompt, len, f->begins[1]))
        return REASONING_BEGAN;
    return REASONING_MAY_BEGIN;
}

/* Of messages: thoughts that go on, thoughts that are just over, or something else. */
static enum reasoning_place place_of_messages(const struct reasoning_parser *p)
{
    if (p->message == MESSAGE_THOUGHTS)
        return REASONING_BEGAN;
    bool is_behind = p->message == MESSAGE_NONE && p->thoughts_at > 0 &&
                     p->thoughts_at == p->n_fed - p->held.len;
    return is_behind ? REASONING_MAY_BEGIN : REASONING_ENDED;
}

enum reasoning_place reasoning_place_in(const struct reasoning_format *f, const char *text,
                                        size_t len)
{
    struct reasoning_format marked = *f;
    struct reasoning_parser p;
    struct buf unused;
    enum status s;

    marked.is_implied = false;
    buf_init(&unused, PLACE_GROWTH * len + PLACE_GROWTH);
    reasoning_parser_init(&p, &marked, REASONING_MAY_BEGIN);
    s = reasoning_parser_feed(&p, text, len, &unused, &unused);
    bool is_inside = s == OK && p.has_begun && p.end_at == UINT64_MAX;
    enum reasoning_place place = is_inside ? REASONING_BEGAN : REASONING_ENDED;
    if (s == OK && f->has_channels)
        place = place_of_messages(&p);
    reasoning_parser_fini(&p);
    buf_fini(&unused);
    return place;
}

const char *reasoning_prefix(const struct reasoning_format *f, enum reasoning_place place)
{
    if (place == REASONING_ENDED)
        return f->empty;
    return place == REASONING_BEGAN || f->is_implied ? f->begins[0] : "";
}

/* --- answers --- */

void reasoning_parser_init(struct reasoning_parser *p, const struct reasoning_format *format,
                           enum reasoning_place place)
{
    *p = (struct reasoning_parser){
        .format = format,
        .state = place == REASONING_ENDED ? REASONING_BEFORE_TEXT : REASONING_AT_START,
        .is_inside =
            place == REASONING_BEGAN || (format->is_implied && place == REASONING_MAY_BEGIN),
        .end_at = UINT64_MAX,
    };
    p->has_begun = p->is_inside;
    if (format->has_channels && place == REASONING_BEGAN)
        p->message = MESSAGE_THOUGHTS;
    if (format->has_channels && place == REASONING_ENDED) {
        p->message = MESSAGE_TEXT;
        p->state = REASONING_TEXT;
    }
    buf_init(&p->held, HELD_BYTES_MAX);
}

void reasoning_parser_fini(struct reasoning_parser *p)
{
    buf_fini(&p->held);
    *p = (struct reasoning_parser){0};
}

static const char *held(const struct reasoning_parser *p)
{
    return buf_str(&p->held);
}

static enum status give(struct reasoning_parser *p, size_t n, struct buf *out)
{
    enum status s = n > 0 ? buf_append(out, held(p), n) : OK;

    if (s == OK)
        buf_consume(&p->held, n);
    return s;
}

static size_t n_space_first(const struct reasoning_parser *p)
{
    size_t n = 0;

    while (n < p->held.len && is_space(held(p)[n]))
        n++;
    return n;
}

static void begin_thoughts(struct reasoning_parser *p, size_t n_dropped)
{
    buf_consume(&p->held, n_dropped);
    p->has_begun = true;
    p->state = REASONING_BEFORE_THOUGHTS;
}

/* Look for a begin marker behind white space. */
static void take_start(struct reasoning_parser *p, bool is_end)
{
    size_t at = n_space_first(p), there = p->held.len - at;
    bool is_more = at < REASONING_SPACE_MAX && there == 0;

    for (size_t i = 0; i < 2 && p->format->begins[i] && at < REASONING_SPACE_MAX; i++) {
        const char *word = p->format->begins[i];
        size_t n = strlen(word);
        if (memcmp(held(p) + at, word, there < n ? there : n) != 0)
            continue;
        if (there >= n) {
            begin_thoughts(p, at + n);
            return;
        }
        is_more = true;
    }
    if (is_more && !is_end)
        return;
    if (p->is_inside)
        begin_thoughts(p, 0);
    else
        p->state = REASONING_TEXT;
}

/* The first end marker: its place and length; false: there is none. */
static bool find_end(const struct reasoning_parser *p, size_t *at, size_t *len)
{
    bool found = false;

    for (size_t i = 0; i < 2 && p->format->ends[i]; i++) {
        size_t n = strlen(p->format->ends[i]);
        const char *there = memmem(held(p), p->held.len, p->format->ends[i], n);
        if (!there || (found && (size_t)(there - held(p)) > *at))
            continue;
        *at = (size_t)(there - held(p));
        *len = n;
        found = true;
    }
    return found;
}

/* The bytes at the end that may be the begin of an end marker. */
static size_t n_partial(const struct reasoning_parser *p)
{
    size_t most = 0;

    for (size_t i = 0; i < 2 && p->format->ends[i]; i++) {
        size_t n = strlen(p->format->ends[i]) - 1;
        n = n < p->held.len ? n : p->held.len;
        while (n > 0 && memcmp(held(p) + p->held.len - n, p->format->ends[i], n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

static enum status take_thoughts(struct reasoning_parser *p, bool is_end, struct buf *thoughts)
{
    size_t at, len, end;
    bool found = find_end(p, &at, &len);

    end = found ? at : p->held.len - (is_end ? 0 : n_partial(p));
    size_t n = end;
    while (n > 0 && end - n < REASONING_SPACE_MAX && is_space(held(p)[n - 1]))
        n--;
    enum status s = give(p, n, thoughts);
    if (s != OK || (!found && !is_end))
        return s;
    buf_consume(&p->held, found ? end - n + len : p->held.len);
    if (found) {
        p->end_at = p->n_fed - p->held.len;
        p->state = REASONING_BEFORE_TEXT;
    }
    return OK;
}

static enum status take_all(struct reasoning_parser *p, bool is_end, struct buf *thoughts,
                            struct buf *text)
{
    enum status s = OK;

    if (p->format->has_channels)
        return reasoning_take_messages(p, is_end, thoughts, text);
    if (p->state == REASONING_AT_START)
        take_start(p, is_end);
    if (p->state == REASONING_BEFORE_THOUGHTS) {
        buf_consume(&p->held, n_space_first(p));
        if (p->held.len > 0)
            p->state = REASONING_THOUGHTS;
    }
    if (p->state == REASONING_THOUGHTS)
        s = take_thoughts(p, is_end, thoughts);
    if (p->state == REASONING_BEFORE_TEXT) {
        buf_consume(&p->held, n_space_first(p));
        if (p->held.len > 0)
            p->state = REASONING_TEXT;
    }
    return s == OK && p->state == REASONING_TEXT ? give(p, p->held.len, text) : s;
}

enum status reasoning_parser_feed(struct reasoning_parser *p, const char *bytes, size_t len,
                                  struct buf *thoughts, struct buf *text)
{
    size_t most = p->format->has_channels ? MESSAGES_BYTES_MAX : len;
    enum status s = OK;

    for (size_t n; s == OK && len > 0; bytes += n, len -= n) {
        n = len < most ? len : most;
        s = buf_append(&p->held, bytes, n);
        p->n_fed += n;
        if (s == OK)
            s = take_all(p, false, thoughts, text);
    }
    return s;
}

enum status reasoning_parser_finish(struct reasoning_parser *p, struct buf *thoughts,
                                    struct buf *text)
{
    return take_all(p, true, thoughts, text);
}
