#include "engine/text/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/jinja_eval.h"
#include "engine/text/jinja/jinja_lexer.h"
#include "engine/text/jinja/jinja_marks.h"
#include "engine/text/jinja/jinja_parser.h"

/* Real templates have 1 to 20 KB; their tree takes about 100 times as much. */
#define SOURCE_MAX_BYTES ((size_t)1 << 20)
#define TREE_MAX_BYTES ((size_t)256 << 20)
/* Memory of one render: structure and the texts made on the way, and a bit for each byte of them
 * that is marked; strings of the context are borrowed. The limit protects the HTTP threads from a
 * hostile template. */
#define RENDER_MAX_BYTES ((size_t)144 << 20)

/* Of a template that came with a request: about a tenth of a second. */
#define GUEST_TREE_MAX_BYTES ((size_t)16 << 20)
#define GUEST_RENDER_MAX_BYTES ((size_t)32 << 20)
#define GUEST_STEPS_MAX 1000000u

struct chat_template {
    struct arena arena;
    bool is_guest;
    struct jinja_node *root;
    struct jinja_tokens tokens;
};

/* Convert newlines to \n and drop the last one: jinja2's keep_trailing_newline=False. */
static enum status normalize(struct jinja_run *r, const char *source, size_t len,
                             struct jinja_str *out)
{
    char *p;
    size_t n = 0;

    TRY(jinja_alloc(r, len + 1, &p));
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        p[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && p[n - 1] == '\n')
        n--;
    *out = (struct jinja_str){p, n};
    return OK;
}

static enum status parse(struct jinja_run *r, struct chat_template *t, const char *source,
                         size_t len)
{
    struct jinja_str text;

    if (len > SOURCE_MAX_BYTES)
        return jinja_fail(r, ERR_TOO_LARGE, "the source is longer than %zu bytes",
                          SOURCE_MAX_BYTES);
    if (!jinja_utf8_valid(source, len))
        return jinja_fail(r, ERR_INVALID, "the source is not UTF-8");
    TRY(normalize(r, source, len, &text));
    TRY(jinja_lex(r, text.p, text.len, &t->tokens));
    return jinja_parse(r, &t->tokens, &t->root);
}

static enum status create(struct chat_template **out, const char *source, size_t len, bool is_guest,
                          struct buf *why)
{
    struct chat_template *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t)
        return buf_why(why, ERR_NOMEM, "out of memory for a chat template");
    t->is_guest = is_guest;
    arena_init(&t->arena, is_guest ? GUEST_TREE_MAX_BYTES : TREE_MAX_BYTES);
    struct jinja_run r = {
        .arena = &t->arena, .why = why, .line = 1, .out_max_bytes = SOURCE_MAX_BYTES};
    enum status s = parse(&r, t, source, len);
    if (s != OK) {
        chat_template_destroy(t);
        return s;
    }
    *out = t;
    return OK;
}

enum status chat_template_create(struct chat_template **out, const char *source, size_t len,
                                 struct buf *why)
{
    return create(out, source, len, false, why);
}

enum status chat_template_create_guest(struct chat_template **out, const char *source, size_t len,
                                       struct buf *why)
{
    *out = NULL;
    if (len > CHAT_TEMPLATE_GUEST_BYTES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "has %zu bytes, at most %u are taken", len,
                       CHAT_TEMPLATE_GUEST_BYTES_MAX);
    return create(out, source, len, true, why);
}

void chat_template_destroy(struct chat_template *t)
{
    if (!t)
        return;
    arena_fini(&t->arena);
    free(t);
}

static enum status render(struct jinja_run *r, const struct chat_template *t,
                          const struct json *context, struct buf *out, struct ranges *marked)
{
    struct jinja_value variables;
    struct jinja_scope *scope;
    struct jinja_out text = {0};
    enum jinja_flow flow;

    TRY(jinja_from_json(r, context, &variables));
    if (variables.type != JINJA_DICT)
        return jinja_fail(r, ERR_INVALID, "the context must be an object");
    r->context = variables.dict;
    TRY(jinja_scope_new(r, NULL, &scope));
    TRY(jinja_exec(r, scope, t->root, &text, &flow));
    if (marked)
        TRY(jinja_marks_ranges(r, text.p, text.len, out->len, marked));
    enum status s = buf_append(out, text.p, text.len);
    return s == OK ? OK : jinja_fail(r, s, "no room for %zu bytes of output", text.len);
}

enum status chat_template_render(const struct chat_template *t, const struct json *context,
                                 int64_t now_s, struct buf *out, struct buf *why)
{
    return chat_template_render_marked(t, context, now_s, NULL, 0, out, NULL, why);
}

enum status chat_template_render_marked(const struct chat_template *t, const struct json *context,
                                        int64_t now_s, const struct chat_text *untrusted,
                                        size_t n_untrusted, struct buf *out, struct ranges *marked,
                                        struct buf *why)
{
    struct arena arena;
    enum status s = OK;

    arena_init(&arena, t->is_guest ? GUEST_RENDER_MAX_BYTES : RENDER_MAX_BYTES);
    struct jinja_run r = {.arena = &arena,
                          .why = why,
                          .now_s = now_s,
                          .steps_max = t->is_guest ? GUEST_STEPS_MAX : 0,
                          .line = 1,
                          .out_max_bytes = out->max - out->len};
    for (size_t i = 0; s == OK && i < n_untrusted; i++)
        s = jinja_marks_set(&r, untrusted[i].p, untrusted[i].len);
    if (s == OK)
        s = render(&r, t, context, out, marked);
    arena_fini(&arena);
    return s;
}

bool chat_template_uses(const struct chat_template *t, const char *variable)
{
    for (size_t i = 0; i < t->tokens.n; i++) {
        const struct jinja_token *token = &t->tokens.items[i];
        bool attribute = i > 0 && t->tokens.items[i - 1].type == TOK_DOT;
        if (token->type == TOK_NAME && !attribute && jinja_str_is(token->text, variable))
            return true;
    }
    return false;
}

bool chat_template_mentions(const struct chat_template *t, const char *word)
{
    for (size_t i = 0; i < t->tokens.n; i++) {
        const struct jinja_token *token = &t->tokens.items[i];
        if ((token->type == TOK_STRING || token->type == TOK_DATA) &&
            memmem(token->text.p, token->text.len, word, strlen(word)))
            return true;
    }
    return false;
}
