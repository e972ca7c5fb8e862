/* tokenizer_load.c - everything but the model: decoder, post-processor, tokenizer_config.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define CONFIG_BYTES_MAX (16u << 20)

/* ---- decoder ---- */

/* A decoder is supported if it rewrites each token separately, with another form for the first
 * token of a text, and then drops at most one space at the start. Any other decoder is refused. */
static enum status set_bytes(struct tok_vocab *v, struct tok_token *t, const struct buf *bytes)
{
    if (bytes->len == t->bytes_len && memcmp(buf_str(bytes), t->bytes, bytes->len) == 0)
        return OK;
    t->bytes = arena_dup(&v->strings, buf_str(bytes), bytes->len);
    t->bytes_len = (uint32_t)bytes->len;
    return t->bytes ? OK : ERR_NOMEM;
}

/* Set the first form. Call it when `bytes` is final, because the two often share memory. */
static enum status set_first(struct tok_vocab *v, struct tok_token *t, const struct buf *first)
{
    size_t skipped = t->bytes_len - first->len;

    t->first = NULL;
    t->first_len = (uint32_t)first->len;
    if (first->len <= t->bytes_len && memcmp(buf_str(first), t->bytes + skipped, first->len) == 0)
        t->first = skipped ? t->bytes + skipped : NULL;
    else if (!(t->first = arena_dup(&v->strings, buf_str(first), first->len)))
        return ERR_NOMEM;
    return OK;
}

/* Convert byte-level letters to bytes. A token with any other letter is unchanged. */
static enum status decode_letters(const char *text, size_t len, struct buf *out)
{
    enum status s = OK;

    for (const char *p = text, *end = p + len; p < end && s == OK;) {
        int byte = tok_letter_byte(utf8_next(&p));
        if (byte < 0) {
            buf_reset(out);
            return buf_append(out, text, len);
        }
        s = buf_putc(out, (char)byte);
    }
    return s;
}

struct replacement {
    struct tok_regex *pattern;
    const char *content;
    size_t len;
};

static enum status decode_replace(const struct replacement *r, const char *text, size_t len,
                                  struct buf *out)
{
    struct tok_find find;
    size_t done = 0, start, end;
    enum status s = tok_find_init(&find, r->pattern);

    while (s == OK) {
        s = tok_find_next(&find, text, len, done, &start, &end);
        if (s == OK && start == end)
            s = ERR_NOT_FOUND; /* an empty match would insert text everywhere, which no decoder
                                  means */
        if (s == OK)
            s = buf_append(out, text + done, start - done);
        if (s == OK)
            s = buf_append(out, r->content, r->len);
        if (s == OK)
            done = end;
    }
    tok_find_fini(&find);
    return s == ERR_NOT_FOUND ? buf_append(out, text + done, len - done) : s;
}

/* Convert byte-level letters (r is NULL), or apply a replacement. */
static enum status rewrite(const struct replacement *r, const char *text, size_t len,
                           struct buf *out)
{
    buf_reset(out);
    return r ? decode_replace(r, text, len, out) : decode_letters(text, len, out);
}

static enum status rewrite_token(struct tok_vocab *v, const struct replacement *r,
                                 struct tok_token *t, struct buf *out)
{
    const char *first = t->first;
    enum status s = rewrite(r, t->bytes, t->bytes_len, out);

    if (s == OK)
        s = set_bytes(v, t, out);
    if (s == OK && first)
        s = rewrite(r, first, t->first_len, out);
    return s == OK && first ? set_first(v, t, out) : s;
}

/* Rewrite all tokens except added ones, which are their own content with every decoder. */
static enum status rewrite_all(struct tokenizer *t, const struct replacement *r)
{
    struct buf out;
    enum status s = OK;

    buf_init(&out, (size_t)TOK_FILE_BYTES_MAX * 4);
    for (uint32_t i = 0; i < t->vocab.n_tokens && s == OK; i++) {
        struct tok_token *token = &t->vocab.tokens[i];
        if (token->piece && !(token->flags & TOK_ADDED))
            s = rewrite_token(&t->vocab, r, token, &out);
    }
    buf_fini(&out);
    return s;
}

static enum status decode_byte_tokens(struct tokenizer *t)
{
    uint32_t ids[256];
    enum status s = OK;
    struct buf byte;

    tok_vocab_byte_tokens(&t->vocab, ids);
    buf_init(&byte, 8);
    for (unsigned b = 0; b < 256 && s == OK; b++) {
        if (ids[b] == TOKEN_NONE || (t->vocab.tokens[ids[b]].flags & TOK_ADDED))
            continue;
        buf_reset(&byte);
        s = buf_putc(&byte, (char)b);
        if (s == OK)
            s = set_bytes(&t->vocab, &t->vocab.tokens[ids[b]], &byte);
    }
    buf_fini(&byte);
    return s;
}

static enum status load_replace(struct tokenizer *t, const struct json *node, struct buf *why)
{
    struct replacement r = {.content = NULL};
    enum status s = js_get_str(node, "content", &r.content, &r.len, why);

    if (s == OK && !r.content)
        s = buf_why(why, ERR_INVALID, "decoder: Replace.content: expected a string");
    if (s == OK)
        s = tok_regex_from_json(&r.pattern, js_get(node, "pattern"), "decoder", why);
    if (s == OK)
        s = rewrite_all(t, &r);
    tok_regex_destroy(r.pattern);
    return s;
}

/* Replace every U+2581 by a space; in the first token of a text, by nothing. */
static enum status rewrite_meta(struct tokenizer *t, const struct replacement *space,
                                bool strips_first)
{
    const struct replacement nothing = {.pattern = space->pattern, .content = ""};
    struct buf first;
    enum status s = OK;

    buf_init(&first, (size_t)TOK_FILE_BYTES_MAX * 4);
    for (uint32_t i = 0; i < t->vocab.n_tokens && s == OK; i++) {
        struct tok_token *token = &t->vocab.tokens[i];
        if (!token->piece || (token->flags & TOK_ADDED))
            continue;
        const char *bytes = token->bytes;
        size_t len = token->bytes_len;
        token->first = NULL;
        s = rewrite_token(&t->vocab, space, token, &first);
        if (s == OK && strips_first && token->bytes != bytes)
            s = rewrite(&nothing, bytes, len, &first);
        if (s == OK && strips_first && token->bytes != bytes)
            s = set_first(&t->vocab, token, &first);
    }
    buf_fini(&first);
    return s;
}

static enum status load_metaspace(struct tokenizer *t, const struct json *node, struct buf *why)
{
    const char *meta = "\xe2\x96\x81";
    size_t len = 3;
    enum tok_prepend prepend = TOK_PREPEND_ALWAYS;
    struct replacement space = {.content = " ", .len = 1};
    enum status s = js_get_str(node, "replacement", &meta, &len, why);

    if (s == OK)
        s = tok_metaspace_prepend(node, &prepend, why);
    if (s == OK)
        s = tok_regex_create(&space.pattern, meta, len, true, "decoder", why);
    if (s == OK)
        s = rewrite_meta(t, &space, prepend != TOK_PREPEND_NEVER);
    tok_regex_destroy(space.pattern);
    return s;
}

/* Apply the replacements of WordPiece's cleanup to a token, one after the other. */
static enum status clean_up(struct buf *text, struct buf *spare)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    enum status s = OK;

    for (size_t i = 0; i < ARRAY_SIZE(pairs) && s == OK; i++) {
        const char *from = buf_str(text), *end = from + text->len, *found;
        size_t len = strlen(pairs[i][0]);
        if (!memmem(from, text->len, pairs[i][0], len))
            continue;
        buf_reset(spare);
        for (; s == OK && (found = memmem(from, (size_t)(end - from), pairs[i][0], len));
             from = found + len) {
            s = buf_append(spare, from, (size_t)(found - from));
            if (s == OK)
                s = buf_puts(spare, pairs[i][1]);
        }
        if (s == OK)
            s = buf_append(spare, from, (size_t)(end - from));
        struct buf swap = *text;
        *text = *spare;
        *spare = swap;
    }
    return s;
}

struct wordpiece_decoder {
    const char *prefix;
    size_t prefix_len;
    bool cleanup;
    struct buf text, spare;
};

/* A token that continues a word loses its prefix; any other one gets a leading space, except at the
 * start of a text. Added tokens are treated in the same way here. */
static enum status join_words(struct tok_vocab *v, struct wordpiece_decoder *d, struct tok_token *t)
{
    const char *bytes = t->bytes;
    size_t len = t->bytes_len;
    bool inside = len >= d->prefix_len && memcmp(bytes, d->prefix, d->prefix_len) == 0;

    buf_reset(&d->text);
    enum status s = inside ? OK : buf_putc(&d->text, ' ');
    if (s == OK)
        s = buf_append(&d->text, bytes + (inside ? d->prefix_len : 0),
                       len - (inside ? d->prefix_len : 0));
    if (s == OK && d->cleanup)
        s = clean_up(&d->text, &d->spare);
    if (s == OK)
        s = set_bytes(v, t, &d->text);
    buf_reset(&d->text);
    if (s == OK)
        s = buf_append(&d->text, bytes, len);
    if (s == OK && d->cleanup)
        s = clean_up(&d->text, &d->spare);
    return s == OK ? set_first(v, t, &d->text) : s;
}

static enum status load_wordpiece(struct tokenizer *t, const struct json *node, struct buf *why)
{
    struct wordpiece_decoder d = {.prefix = "##", .prefix_len = 2, .cleanup = true};
    enum status s = js_get_str(node, "prefix", &d.prefix, &d.prefix_len, why);

    if (s == OK)
        s = js_get_bool(node, "cleanup", &d.cleanup, why);
    buf_init(&d.text, (size_t)TOK_FILE_BYTES_MAX * 2);
    buf_init(&d.spare, (size_t)TOK_FILE_BYTES_MAX * 2);
    for (uint32_t i = 0; i < t->vocab.n_tokens && s == OK; i++)
        if (t->vocab.tokens[i].piece)
            s = join_words(&t->vocab, &d, &t->vocab.tokens[i]);
    buf_fini(&d.text);
    buf_fini(&d.spare);
    return s;
}

/* Only the form in SentencePiece conversions: one space off the start, after Fuse. */
static enum status load_strip(struct tokenizer *t, const struct json *node, bool fused,
                              struct buf *why)
{
    const char *content = "";
    int64_t start = 0, stop = 0;
    enum status s = js_get_str(node, "content", &content, NULL, why);

    if (s == OK)
        s = js_get_i64(node, "start", 0, INT32_MAX, &start, why);
    if (s == OK)
        s = js_get_i64(node, "stop", 0, INT32_MAX, &stop, why);
    if (s != OK || (start == 0 && stop == 0))
        return s;
    if (!fused || strcmp(content, " ") != 0 || start != 1 || stop != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "decoder: a Strip other than one space off the "
                       "start, after Fuse, is not supported");
    t->strips_first_space = true;
    return OK;
}

static enum status load_decoder(struct tokenizer *t, const struct json *node, bool *fused,
                                struct buf *why)
{
    const char *type;
    enum status s = tok_node_type(node, "decoder", &type, why);

    if (s != OK)
        return s;
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = js_get(node, "decoders");
        if (!js_is(list, JS_ARRAY))
            return buf_why(why, ERR_INVALID, "decoder.decoders: expected an array");
        for (size_t i = 0; i < js_len(list) && s == OK; i++)
            s = load_decoder(t, js_at(list, i), fused, why);
        return s;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return rewrite_all(t, NULL);
    if (strcmp(type, "Replace") == 0)
        return load_replace(t, node, why);
    if (strcmp(type, "ByteFallback") == 0)
        return decode_byte_tokens(t);
    if (strcmp(type, "Strip") == 0)
        return load_strip(t, node, *fused, why);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(t, node, why);
    if (strcmp(type, "WordPiece") == 0)
        return load_wordpiece(t, node, why);
    if (strcmp(type, "Fuse") != 0)
        return buf_why(why, ERR_UNSUPPORTED, "decoder: type %s is not supported", type);
    *fused = true;
    return OK;
}

enum status tok_decoder_load(struct tokenizer *t, const struct json *node, struct buf *why)
{
    bool fused = false;

    for (uint32_t i = 0; i < t->vocab.n_tokens; i++) {
        t->vocab.tokens[i].bytes = t->vocab.tokens[i].piece;
        t->vocab.tokens[i].bytes_len = t->vocab.tokens[i].piece_len;
    }
    if (!js_is(node, JS_NULL))
        return load_decoder(t, node, &fused, why);
    /* A file without a decoder: undo what the pre-tokenizer does. */
    return tok_pretok_has_byte_level(t->pretok) ? rewrite_all(t, NULL) : OK;
}

/* ---- post-processor ---- */

static enum status push_id(struct tokenizer *t, struct tok_vec *ids, const struct json *id,
                           struct buf *why)
{
    if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) >= t->vocab.n_tokens)
        return buf_why(why, ERR_INVALID, "post_processor: an id is not in the vocabulary");
    return tok_push(ids, (uint32_t)js_int(id));
}

static enum status push_special(struct tokenizer *t, struct tok_vec *ids, const struct json *node,
                                const struct json *special, struct buf *why)
{
    const char *name = NULL;
    enum status s = js_get_str(special, "id", &name, NULL, why);

    if (s != OK)
        return s;
    const struct json *list =
        js_get(js_get(js_get(node, "special_tokens"), name ? name : ""), "ids");
    if (!js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "post_processor.special_tokens: no ids for \"%.80s\"",
                       name ? name : "");
    for (size_t i = 0; i < js_len(list) && s == OK; i++)
        s = push_id(t, ids, js_at(list, i), why);
    return s;
}

static enum status read_template(struct tokenizer *t, const struct json *node,
                                 struct tok_vec *before, struct tok_vec *after, struct buf *why)
{
    const struct json *single = js_get(node, "single");
    bool seen = false;
    enum status s = OK;

    if (!js_is(single, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "post_processor.single: expected an array");
    for (size_t i = 0; i < js_len(single) && s == OK; i++) {
        const struct json *special = js_get(js_at(single, i), "SpecialToken");
        if (js_get(js_at(single, i), "Sequence"))
            seen = true;
        else if (special)
            s = push_special(t, seen ? after : before, node, special, why);
        else
            s = buf_why(why, ERR_INVALID,
                        "post_processor.single[%zu]: neither a SpecialToken "
                        "nor a Sequence",
                        i);
    }
    if (s == OK && !seen)
        s = buf_why(why, ERR_INVALID, "post_processor.single: has no Sequence");
    return s;
}

/* {"cls": ["<s>", 0], "sep": ["</s>", 2]} */
static enum status read_pair(struct tokenizer *t, const struct json *node, struct tok_vec *before,
                             struct tok_vec *after, struct buf *why)
{
    enum status s = push_id(t, before, js_at(js_get(node, "cls"), 1), why);

    return s == OK ? push_id(t, after, js_at(js_get(node, "sep"), 1), why) : s;
}

/* before = new + before, after = after + new: a later processor is outside an earlier one. */
static enum status wrap(struct tokenizer *t, struct tok_vec *before, const struct tok_vec *after)
{
    enum status s = OK;

    for (size_t i = 0; i < t->before.n && s == OK; i++)
        s = tok_push(before, t->before.v[i]);
    for (size_t i = 0; i < after->n && s == OK; i++)
        s = tok_push(&t->after, after->v[i]);
    if (s == OK) {
        struct tok_vec old = t->before;
        t->before = *before;
        *before = old;
    }
    return s;
}

static enum status load_processor(struct tokenizer *t, const char *type, const struct json *node,
                                  struct buf *why)
{
    struct tok_vec before = {0}, after = {0};
    enum status s;

    if (strcmp(type, "ByteLevel") == 0)
        return OK; /* changes offsets only */
    if (strcmp(type, "TemplateProcessing") == 0)
        s = read_template(t, node, &before, &after, why);
    else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        s = read_pair(t, node, &before, &after, why);
    else
        return buf_why(why, ERR_UNSUPPORTED, "post_processor: type %s is not supported", type);
    if (s == OK)
        s = wrap(t, &before, &after);
    if (s == OK)
        s = tok_pair_load(t, type, node);
    tok_vec_fini(&before);
    tok_vec_fini(&after);
    return s;
}

enum status tok_processor_load(struct tokenizer *t, const struct json *node, struct buf *why)
{
    const char *type;

    if (js_is(node, JS_NULL))
        return OK;
    enum status s = tok_node_type(node, "post_processor", &type, why);
    if (s != OK || strcmp(type, "Sequence") != 0)
        return s == OK ? load_processor(t, type, node, why) : s;
    const struct json *list = js_get(node, "processors");
    if (!js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "post_processor.processors: expected an array");
    for (size_t i = 0; i < js_len(list) && s == OK; i++)
        s = tok_processor_load(t, js_at(list, i), why);
    return s;
}

/* ---- tokenizer_config.json and chat_template.jinja ---- */

enum status tok_copy_text(char **out, const char *s, size_t len)
{
    char *copy = malloc(len + 1);

    if (!copy)
        return ERR_NOMEM;
    memcpy(copy, s, len);
    copy[len] = '\0';
    free(*out);
    *out = copy;
    return OK;
}

/* "bos_token": "<s>", or {"content": "<s>", ...}. */
static enum status read_token(struct tokenizer *t, const struct json *config, const char *key,
                              char **text, uint32_t *id, struct buf *why)
{
    const struct json *v = js_get_set(config, key);
    size_t len;

    if (!v)
        return OK;
    if (js_is(v, JS_OBJECT))
        v = js_get(v, "content");
    if (!js_is(v, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "tokenizer_config.json: %s: expected a string or "
                       "{\"content\": string}",
                       key);
    const char *s = js_string(v, &len);
    *id = tok_vocab_find(&t->vocab, s, len);
    return tok_copy_text(text, s, len);
}

/* The template named "default" in a list of {name, template}, else the first one. */
static enum status read_template_list(struct tokenizer *t, const struct json *list, struct buf *why)
{
    const struct json *chosen = NULL;

    for (size_t i = 0; i < js_len(list); i++) {
        const struct json *name = js_get(js_at(list, i), "name");
        const struct json *text = js_get(js_at(list, i), "template");
        if (!js_is(name, JS_STRING) || !js_is(text, JS_STRING))
            return buf_why(why, ERR_INVALID,
                           "tokenizer_config.json: chat_template[%zu]: expected "
                           "{\"name\": string, \"template\": string}",
                           i);
        if (!chosen || strcmp(js_string(name, NULL), "default") == 0)
            chosen = text;
    }
    if (!chosen)
        return OK;
    size_t len;
    const char *s = js_string(chosen, &len);
    return tok_copy_text(&t->chat_template, s, len);
}

static enum status read_config(struct tokenizer *t, const struct json *config, struct buf *why)
{
    const struct json *template = js_get_set(config, "chat_template");
    size_t len;

    if (!js_is(config, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "tokenizer_config.json: expected an object");
    enum status s = read_token(t, config, "bos_token", &t->bos_text, &t->bos_id, why);
    if (s == OK)
        s = read_token(t, config, "eos_token", &t->eos_text, &t->eos_id, why);
    if (s != OK || !template)
        return s;
    if (js_is(template, JS_ARRAY))
        return read_template_list(t, template, why);
    if (!js_is(template, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "tokenizer_config.json: chat_template: expected a string "
                       "or an array");
    const char *text = js_string(template, &len);
    return tok_copy_text(&t->chat_template, text, len);
}

/* A template file has precedence over tokenizer_config.json, as in Hugging Face. */
static enum status read_template_file(struct tokenizer *t, const char *path, struct buf *why)
{
    struct buf text;

    buf_init(&text, CONFIG_BYTES_MAX);
    enum status s = file_read(&text, path, why);
    if (s == OK &&
        (!utf8_is_valid(buf_str(&text), text.len) || memchr(buf_str(&text), 0, text.len)))
        s = buf_why(why, ERR_INVALID, "%s: not UTF-8 text", path);
    if (s == OK)
        s = tok_copy_text(&t->chat_template, buf_str(&text), text.len);
    buf_fini(&text);
    return s;
}

/* Both files may be absent. A file that exists but cannot be opened is an error: without its
 * template a model would give nonsense. */
enum status tok_config_load(struct tokenizer *t, const char *dir, struct buf *why)
{
    struct json *config = NULL;
    struct buf path;

    buf_init(&path, 65536);
    enum status s = buf_printf(&path, "%s/tokenizer_config.json", dir);
    if (s == OK && access(buf_str(&path), F_OK) == 0) {
        s = js_parse_file(&config, buf_str(&path), CONFIG_BYTES_MAX, why);
        if (s == OK)
            s = read_config(t, config, why);
        js_unref(config);
    }
    buf_reset(&path);
    if (s == OK)
        s = buf_printf(&path, "%s/chat_template.jinja", dir);
    if (s == OK && access(buf_str(&path), F_OK) == 0)
        s = read_template_file(t, buf_str(&path), why);
    buf_fini(&path);
    return s;
}
