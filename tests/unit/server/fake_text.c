#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "tests/unit/server/fake_inner.h"

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                             unsigned flags, struct buf *ids)
{
    enum status s = flags & TOKENIZE_ADD_SPECIAL ? buf_u32(ids, FAKE_BOS) : OK;

    (void)t;
    for (size_t i = 0; s == OK && i < len; i++)
        s = buf_u32(ids, (unsigned char)text[i]);
    return s;
}

enum status tokenizer_encode_mixed(const struct tokenizer *t, const char *text, size_t len,
                                   unsigned flags, const struct ranges *untrusted, struct buf *ids)
{
    (void)untrusted; /* this tokenizer has no special tokens */
    return tokenizer_encode(t, text, len, flags, ids);
}

const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *len)
{
    *len = id < 256 ? 1 : id < FAKE_N_VOCAB ? (id == FAKE_BOS ? 3 : 4) : 0;
    return id < 256 ? &t->bytes[id] : id == FAKE_BOS ? "<s>" : "</s>";
}

const char *tokenizer_first_bytes(const struct tokenizer *t, uint32_t id, size_t *len)
{
    return tokenizer_bytes(t, id, len);
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *len)
{
    return tokenizer_bytes(t, id, len);
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    (void)t;
    return 256;
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len)
{
    (void)t, (void)piece, (void)len;
    return TOKEN_NONE;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    (void)t;
    return id >= 256;
}

const char *tokenizer_bos_text(const struct tokenizer *t)
{
    (void)t;
    return "<s>";
}

const char *tokenizer_eos_text(const struct tokenizer *t)
{
    (void)t;
    return "</s>";
}

void detok_init(struct detok *d, const struct tokenizer *tok, const struct detok_stop *stops,
                uint32_t n_stops, bool show_special, bool continues, bool include_stop)
{
    memset(d, 0, sizeof *d);
    d->tok = tok;
    d->stops = stops;
    d->n_stops = n_stops;
    d->show_special = show_special;
    d->continues = continues;
    d->include_stop = include_stop;
    d->stopped_by = -1;
    buf_init(&d->held, 1 << 20);
}

void detok_fini(struct detok *d)
{
    buf_fini(&d->held);
}

/* Hold back incomplete characters, and with stop strings all text until the end: simple, and the
 * whole text is right. */
enum status detok_feed(struct detok *d, uint32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(d->tok, id, &len);

    if (d->stopped_by >= 0 || (id >= 256 && !d->show_special))
        return OK;
    enum status s = buf_append(&d->held, bytes, len);
    if (s == OK && d->n_stops == 0 && utf8_is_valid(d->held.data, d->held.len)) {
        s = buf_append(out, d->held.data, d->held.len);
        buf_reset(&d->held);
    }
    for (uint32_t i = 0; s == OK && i < d->n_stops; i++) {
        uint32_t n = d->stops[i].len;
        if (d->held.len < n || memcmp(d->held.data + d->held.len - n, d->stops[i].text, n) != 0)
            continue;
        d->stopped_by = (int)i;
        d->held.len -= d->include_stop ? 0 : n;
        s = buf_append(out, d->held.data, d->held.len);
        buf_reset(&d->held);
        break;
    }
    return s;
}

enum status detok_finish(struct detok *d, struct buf *out)
{
    enum status s = d->held.len ? buf_append(out, d->held.data, d->held.len) : OK;

    buf_reset(&d->held);
    return s;
}

static const char *text_of(const struct json *v)
{
    return js_is(v, JS_STRING) ? js_string(v, NULL) : "";
}

enum status chat_template_render(const struct chat_template *t, const struct json *context,
                                 int64_t now_s, struct buf *out, struct buf *why)
{
    const struct json *messages = js_get(context, "messages");
    const struct json *documents = js_get(context, "documents");
    enum status s = buf_puts(out, text_of(js_get(context, "bos_token")));

    (void)t;
    if (s == OK && atomic_load(&fake_clock_s))
        s = buf_printf(out, "%lld\n", (long long)now_s / atomic_load(&fake_clock_s));
    if (js_get(context, "raise"))
        return buf_why(why, ERR_INVALID, "raised");
    for (size_t i = 0; s == OK && i < js_len(documents); i++)
        s = buf_printf(out, "[%s|%s]", text_of(js_get(js_at(documents, i), "title")),
                       text_of(js_get(js_at(documents, i), "text")));
    for (size_t i = 0; s == OK && i < js_len(messages); i++)
        s = buf_printf(out, "%s: %s\n", text_of(js_get(js_at(messages, i), "role")),
                       text_of(js_get(js_at(messages, i), "content")));
    if (s == OK && js_bool(js_get(context, "add_generation_prompt")))
        s = buf_puts(out, "assistant: ");
    return s;
}

/* Every source is refused: a test without the engine has no template of a request. */
enum status chat_template_create_guest(struct chat_template **out, const char *source, size_t len,
                                       struct buf *why)
{
    (void)source;
    *out = NULL;
    return buf_why(why, ERR_INVALID, "%zu bytes that are no template", len);
}

void chat_template_destroy(struct chat_template *t)
{
    ASSERT(!t);
}

/* A single text is found by its bytes, and several are not. */
enum status chat_template_render_marked(const struct chat_template *t, const struct json *context,
                                        int64_t now_s, const struct chat_text *untrusted,
                                        size_t n_untrusted, struct buf *out, struct ranges *marked,
                                        struct buf *why)
{
    size_t start = out->len;
    enum status s = chat_template_render(t, context, now_s, out, why);

    if (s != OK || n_untrusted != 1)
        return s;
    const char *at = memmem(out->data + start, out->len - start, untrusted->p, untrusted->len);
    size_t begin = at ? (size_t)(at - (const char *)out->data) : 0;
    return at ? ranges_add(marked, begin, begin + untrusted->len) : OK;
}

bool chat_template_uses(const struct chat_template *t, const char *variable)
{
    (void)t;
    if (strcmp(variable, "strftime_now") == 0)
        return atomic_load(&fake_clock_s) > 0;
    return strcmp(variable, "documents") == 0 && atomic_load(&fake_uses_documents);
}

bool chat_template_mentions(const struct chat_template *t, const char *word)
{
    (void)t;
    (void)word;
    return false;
}
