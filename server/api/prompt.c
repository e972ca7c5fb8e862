#include "server/api/prompt.h"

#include <string.h>

#include "engine/text/detokenize.h"
#include "server/api/documents.h"
#include "server/server.h"

void prompt_init(struct prompt *p, uint32_t n_ids_max)
{
    buf_init(&p->ids, (size_t)n_ids_max * sizeof(uint32_t));
    buf_init(&p->text, PROMPT_TEXT_BYTES_MAX);
    buf_init(&p->span_ends, REQUEST_N_SPANS_MAX * sizeof(uint32_t));
    p->n_public = 0;
    p->documents = NULL;
    p->n_documents = 0;
    p->documents_in_template = p->documents_have_moved = p->wants_citations = false;
    p->is_adapted = false;
    p->documents_note[0] = '\0';
    p->n_breaks = 0;
    p->reasoning = REASONING_MAY_BEGIN;
    p->scope = NULL;
}

void prompt_fini(struct prompt *p)
{
    buf_fini(&p->ids);
    buf_fini(&p->text);
    buf_fini(&p->span_ends);
    document_uses_free(p->documents, p->n_documents);
    p->documents = NULL;
    p->n_documents = 0;
}

uint32_t prompt_n_ids(const struct prompt *p)
{
    return (uint32_t)(p->ids.len / sizeof(uint32_t));
}

uint32_t prompt_n_span_ends(const struct prompt *p)
{
    return (uint32_t)(p->span_ends.len / sizeof(uint32_t));
}

const uint32_t *prompt_span_ends(const struct prompt *p)
{
    return (const uint32_t *)(const void *)p->span_ends.data;
}

const uint32_t *prompt_ids(const struct prompt *p)
{
    return (const uint32_t *)(const void *)p->ids.data;
}

enum status prompt_text_flags(const struct json *body, bool add_special, unsigned *flags,
                              struct buf *why)
{
    bool parse_special = true;
    enum status s = js_get_bool(body, "parse_special", &parse_special, why);

    *flags =
        (parse_special ? TOKENIZE_PARSE_SPECIAL : 0) | (add_special ? TOKENIZE_ADD_SPECIAL : 0);
    return s;
}

enum status prompt_say_tokenizing(const struct prompt *p, enum status s, struct buf *why)
{
    if (s == ERR_TOO_LARGE)
        return buf_why(why, s, "the prompt has more than the %zu tokens that this server accepts",
                       p->ids.max / sizeof(uint32_t));
    return buf_why(why, s, "the prompt cannot be tokenized: %s", status_words(s));
}

enum status prompt_append_text(struct prompt *p, const struct server *srv, const char *text,
                               size_t len, unsigned flags, const struct ranges *untrusted,
                               struct buf *why)
{
    if (!srv->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED, "prompt: this model has no tokenizer, send token ids");
    enum status s = tokenizer_encode_mixed(srv->tokenizer, text, len, flags, untrusted, &p->ids);
    return s == OK ? OK : prompt_say_tokenizing(p, s, why);
}

enum status prompt_from_text(struct prompt *p, const struct server *srv, const char *text,
                             size_t len, unsigned flags, struct buf *why)
{
    struct ranges all = {0};
    enum status s = flags & TOKENIZE_PARSE_SPECIAL ? OK : ranges_add(&all, 0, len);

    if (s != OK)
        return buf_why(why, s, "out of memory");
    s = prompt_append_text(p, srv, text, len, flags, &all, why);
    ranges_fini(&all);
    return s;
}

enum status prompt_from_ids(struct prompt *p, const struct server *srv, const struct json *ids,
                            const char *name, struct buf *why)
{
    size_t n = js_len(ids);

    if (!js_is(ids, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "%s: expected an array of token ids, got %s", name,
                       js_type_name(js_typeof(ids)));
    if (n > p->ids.max / sizeof(uint32_t))
        return buf_why(why, ERR_TOO_LARGE,
                       "the prompt has %zu tokens, more than the %zu that this server accepts", n,
                       p->ids.max / sizeof(uint32_t));
    enum status s = buf_reserve(&p->ids, n * sizeof(uint32_t));
    for (size_t i = 0; s == OK && i < n; i++) {
        const struct json *id = js_at(ids, i);
        if (!js_is(id, JS_INT))
            return buf_why(why, ERR_INVALID, "%s[%zu]: expected a token id, got %s", name, i,
                           js_type_name(js_typeof(id)));
        if (js_int(id) < 0 || js_int(id) >= srv->info->n_vocab)
            return buf_why(why, ERR_INVALID, "%s[%zu]: token id %lld is outside of [0, %u)", name,
                           i, (long long)js_int(id), srv->info->n_vocab);
        s = buf_u32(&p->ids, (uint32_t)js_int(id));
    }
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

enum status prompt_decode(const struct server *srv, const uint32_t *ids, uint32_t n,
                          bool shows_special, struct buf *out)
{
    struct detok d;
    enum status s = OK;

    if (!srv->tokenizer)
        return ERR_UNSUPPORTED;
    detok_init(&d, srv->tokenizer, NULL, 0, shows_special, false, false);
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = detok_feed(&d, ids[i], out);
    if (s == OK)
        s = detok_finish(&d, out);
    detok_fini(&d);
    return s;
}
