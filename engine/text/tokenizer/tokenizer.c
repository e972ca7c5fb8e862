/* tokenizer.c - the public functions: load, encode, queries. */
#include "engine/text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

/* ---- load ---- */

enum status tok_node_type(const struct json *node, const char *where, const char **type,
                          struct buf *why)
{
    const struct json *t = js_get(node, "type");

    if (!js_is(node, JS_OBJECT) || !js_is(t, JS_STRING))
        return buf_why(why, ERR_INVALID, "%s: expected an object with a string \"type\"", where);
    *type = js_string(t, NULL);
    return OK;
}

/* Files before 2021 have no type; the fields tell it. */
static const char *guess_type(const struct json *model)
{
    if (js_is(js_get(model, "vocab"), JS_ARRAY))
        return "Unigram";
    return js_get(model, "max_input_chars_per_word") ? "WordPiece" : "BPE";
}

static enum status check_model(struct tokenizer *t, const struct json *root, struct buf *why)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece"}; /* enum tok_model */
    const struct json *model = js_get(root, "model");

    if (!js_is(root, JS_OBJECT) || !js_is(model, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "tokenizer.json: model: expected an object, got %s",
                       js_type_name(js_typeof(model)));
    const char *type = guess_type(model);
    enum status s = js_get_str(model, "type", &type, NULL, why);
    if (s != OK)
        return s;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(type, names[i]) == 0) {
            t->model = (enum tok_model)i;
            return OK;
        }
    }
    return buf_why(why, ERR_UNSUPPORTED, "tokenizer.json: model.type %s is not supported", type);
}

static enum status load_model(struct tokenizer *t, const struct json *model, struct buf *why)
{
    switch (t->model) {
    case TOK_BPE:
        return tok_bpe_load(&t->bpe, &t->vocab, tok_pretok_is_byte_level(t->pretok), model, why);
    case TOK_UNIGRAM: return tok_unigram_load(&t->unigram, &t->vocab, model, why);
    case TOK_WORDPIECE: return tok_wordpiece_load(&t->wordpiece, model, why);
    }
    return ERR_INTERNAL;
}

/* Raise *len_max to the longest added token. False: one of them also strips white space around
 * it. */
static bool measure_added(const struct tok_trie *trie, uint32_t *len_max)
{
    for (uint32_t i = 0; i < trie->n_tokens; i++) {
        const struct tok_added *a = &trie->tokens[i];
        if (a->lstrip || a->rstrip)
            return false;
        if (a->len > *len_max)
            *len_max = a->len;
    }
    return true;
}

/* Set token_bytes_max, if every byte of a text becomes part of some token. */
static void measure_tokens(struct tokenizer *t)
{
    uint32_t len_max = 1, shrinks = tok_normalizer_shrinks(t->normalizer);

    if (t->model != TOK_BPE || tok_pretok_drops(t->pretok) || !tok_bpe_keeps_all(&t->bpe) ||
        !measure_added(&t->added, &len_max) || !measure_added(&t->added_normalized, &len_max))
        return;
    if (t->vocab.piece_len_max > len_max)
        len_max = t->vocab.piece_len_max;
    if (__builtin_mul_overflow(len_max, shrinks, &t->token_bytes_max))
        t->token_bytes_max = 0;
}

static enum status load_parts(struct tokenizer *t, const struct json *root, struct buf *why)
{
    const struct json *model = js_get(root, "model"), *added = js_get(root, "added_tokens");
    enum status s = check_model(t, root, why);

    if (s == OK)
        s = tok_vocab_load(&t->vocab, model, t->model == TOK_UNIGRAM, added, why);
    if (s == OK)
        s = tok_normalizer_load(&t->normalizer, js_get(root, "normalizer"), why);
    if (s == OK)
        s = tok_pretok_load(&t->pretok, js_get(root, "pre_tokenizer"), t->model == TOK_BPE, why);
    if (s == OK)
        s = load_model(t, model, why);
    if (s == OK)
        s = tok_added_load(&t->added, &t->added_normalized, &t->vocab, t->normalizer, added, why);
    if (s == OK)
        s = tok_decoder_load(t, js_get(root, "decoder"), why);
    if (s == OK)
        s = tok_processor_load(t, js_get(root, "post_processor"), why);
    if (s == OK)
        measure_tokens(t);
    return s;
}

static enum status load_file(struct tokenizer *t, const char *dir, struct buf *why)
{
    struct json *root = NULL;
    struct buf path;

    buf_init(&path, 65536);
    enum status s = buf_printf(&path, "%s/tokenizer.json", dir);
    if (s == OK)
        s = js_parse_file(&root, buf_str(&path), TOK_FILE_BYTES_MAX, why);
    buf_fini(&path);
    if (s == OK)
        s = load_parts(t, root, why);
    js_unref(root);
    return s;
}

static struct tokenizer *new_tokenizer(void)
{
    struct tokenizer *t = calloc(1, sizeof *t);

    if (t)
        t->bos_id = t->eos_id = TOKEN_NONE;
    return t;
}

enum status tok_load_text(struct tokenizer **out, const char *text, size_t len, struct buf *why)
{
    struct tokenizer *t = new_tokenizer();
    struct json *root = NULL;

    *out = NULL;
    if (!t)
        return ERR_NOMEM;
    enum status s = js_parse(&root, text, len, why);
    if (s == OK)
        s = load_parts(t, root, why);
    js_unref(root);
    if (s == OK)
        *out = t;
    else
        tokenizer_destroy(t);
    return s;
}

static enum status load_dir(struct tokenizer *t, const char *dir, struct buf *why)
{
    enum status s = load_file(t, dir, why);

    return s == OK ? tok_config_load(t, dir, why) : s;
}

static enum status load_gguf(struct tokenizer *t, const char *path, struct buf *why)
{
    enum status s = tok_gguf_load(t, path, why);

    if (s == OK)
        measure_tokens(t);
    return s;
}

static bool is_regular_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

enum status tokenizer_load(struct tokenizer **out, const char *path, struct buf *why)
{
    struct tokenizer *t = new_tokenizer();

    *out = NULL;
    if (!t)
        return buf_why(why, ERR_NOMEM, "out of memory");
    enum status s = is_regular_file(path) ? load_gguf(t, path, why) : load_dir(t, path, why);
    if (s == OK)
        *out = t;
    else
        tokenizer_destroy(t);
    if (s == ERR_NOMEM)
        buf_why(why, s, "out of memory while loading the tokenizer of %s", path);
    return s;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    tok_trie_fini(&t->added);
    tok_trie_fini(&t->added_normalized);
    tok_vec_fini(&t->before);
    tok_vec_fini(&t->after);
    tok_pair_fini(&t->pair);
    tok_bpe_fini(&t->bpe);
    tok_unigram_fini(&t->unigram);
    tok_wordpiece_fini(&t->wordpiece);
    tok_pretok_destroy(t->pretok);
    tok_normalizer_destroy(t->normalizer);
    tok_vocab_fini(&t->vocab);
    free(t->bos_text);
    free(t->eos_text);
    free(t->chat_template);
    free(t);
}

/* ---- encode ---- */

struct encoder {
    const struct tokenizer *t;
    struct tok_scratch scratch;
    struct tok_pieces pieces;
    struct buf normal; /* the section after normalization */
    size_t n_ids_max;
    unsigned flags;
    const char *text;               /* the whole text */
    const struct ranges *untrusted; /* set over the whole text; may be NULL */
    struct ranges normal_untrusted; /* the set over the section after normalization */
};

static enum status encode_piece(struct encoder *e, const char *piece, size_t len)
{
    switch (e->t->model) {
    case TOK_BPE: return tok_bpe_piece(&e->t->bpe, &e->scratch, piece, len);
    case TOK_UNIGRAM: return tok_unigram_piece(&e->t->unigram, &e->scratch, piece, len);
    case TOK_WORDPIECE: return tok_wordpiece_piece(&e->t->wordpiece, &e->scratch, piece, len);
    }
    return ERR_INTERNAL;
}

static enum status encode_pieces(struct encoder *e, const char *text, size_t len, bool at_start)
{
    bool no_prefix = at_start && (e->flags & TOKENIZE_CONTINUES);
    enum status s = tok_pretok_run(e->t->pretok, &e->pieces, text, len, at_start, no_prefix);

    for (size_t i = 0; i < e->pieces.spans.n && s == OK; i += 2) {
        const uint32_t *span = e->pieces.spans.v + i;
        s = encode_piece(e, e->pieces.text + span[0], span[1] - span[0]);
        if (s == OK && e->scratch.out.n > e->n_ids_max)
            s = ERR_TOO_LARGE;
    }
    return s;
}

/* Call `section` for each part between added tokens, and append the tokens' own ids. */
static enum status cut_at_added(struct encoder *e, const struct tok_trie *trie, const char *text,
                                size_t len, bool at_start, const struct tok_trust *trust,
                                enum status (*section)(struct encoder *e, const char *text,
                                                       size_t len, bool at_start))
{
    struct tok_added_match m;
    size_t done = 0;

    for (;;) {
        enum status s = tok_trie_find(trie, text, len, done, trust, &m);
        if (s == ERR_NOT_FOUND)
            break;
        if (s == OK && m.start > done)
            s = section(e, text + done, m.start - done, at_start && done == 0);
        if (s == OK)
            s = tok_push(&e->scratch.out, m.id);
        if (s != OK)
            return s;
        done = m.end;
    }
    return done < len ? section(e, text + done, len - done, at_start && done == 0) : OK;
}

static enum status encode_section(struct encoder *e, const char *text, size_t len, bool at_start)
{
    bool no_prefix = at_start && (e->flags & TOKENIZE_CONTINUES);
    size_t base = (size_t)(text - e->text);
    struct tok_trust trust = {e->flags & TOKENIZE_PARSE_SPECIAL, e->untrusted, base};

    if (e->t->normalizer) {
        bool maps = e->untrusted && e->t->added_normalized.has_special;
        buf_reset(&e->normal);
        enum status s = buf_append(&e->normal, text, len);
        if (s == OK && maps)
            s = ranges_cut(&e->normal_untrusted, e->untrusted, base, base + len);
        if (s == OK)
            s = tok_normalize(e->t->normalizer, &e->normal, no_prefix,
                              maps ? &e->normal_untrusted : NULL);
        if (s != OK)
            return s;
        text = buf_str(&e->normal);
        len = e->normal.len;
        trust.untrusted = maps ? &e->normal_untrusted : NULL;
        trust.base = 0;
    }
    return cut_at_added(e, &e->t->added_normalized, text, len, at_start, &trust, encode_pieces);
}

static enum status push_all(struct tok_vec *out, const struct tok_vec *ids)
{
    enum status s = OK;

    for (size_t i = 0; i < ids->n && s == OK; i++)
        s = tok_push(out, ids->v[i]);
    return s;
}

static enum status encode_all(struct encoder *e, const char *text, size_t len, struct buf *ids)
{
    const struct tokenizer *t = e->t;
    bool add = e->flags & TOKENIZE_ADD_SPECIAL;
    struct tok_trust trust = {e->flags & TOKENIZE_PARSE_SPECIAL, e->untrusted, 0};
    enum status s = add ? push_all(&e->scratch.out, &t->before) : OK;

    e->text = text;
    if (s == OK)
        s = cut_at_added(e, &t->added, text, len, true, &trust, encode_section);
    if (s == OK && add)
        s = push_all(&e->scratch.out, &t->after);
    if (s == OK)
        s = buf_append(ids, e->scratch.out.v, e->scratch.out.n * sizeof(uint32_t));
    return s;
}

static enum status encode_repaired(struct encoder *e, const char *text, size_t len, struct buf *ids)
{
    struct ranges all = {0};
    struct buf repaired;

    if (utf8_is_valid(text, len))
        return encode_all(e, text, len, ids);
    buf_init(&repaired, (size_t)TOK_TEXT_BYTES_MAX * 3);
    enum status s = utf8_repair(&repaired, text, len);
    if (s == OK && e->untrusted && e->untrusted->n > 0) { /* the set's offsets are not valid in the
                                                             repaired text: trust none of it */
        s = ranges_add(&all, 0, repaired.len);
        e->untrusted = &all;
    }
    if (s == OK)
        s = encode_all(e, buf_str(&repaired), repaired.len, ids);
    buf_fini(&repaired);
    ranges_fini(&all);
    return s;
}

enum status tok_encode_counted(const struct tokenizer *t, const char *text, size_t len,
                               unsigned flags, const struct ranges *untrusted, struct buf *ids,
                               uint64_t *n_steps_out)
{
    bool mixed = untrusted && untrusted->n > 0;
    struct encoder e = {.t = t, .flags = flags, .untrusted = mixed ? untrusted : NULL};

    if (len > TOK_TEXT_BYTES_MAX)
        return ERR_TOO_LARGE;
    e.scratch.plain = mixed ? t->vocab.tokens : NULL;
    e.n_ids_max = (ids->max - ids->len) / sizeof(uint32_t);
    *n_steps_out = 0;
    /* Refuse a text that cannot fit by its length: encoding it would take time and memory. */
    if (t->token_bytes_max > 0 && len / t->token_bytes_max > e.n_ids_max)
        return ERR_TOO_LARGE;
    tok_pieces_init(&e.pieces);
    buf_init(&e.normal, (size_t)TOK_TEXT_BYTES_MAX * 4);
    enum status s = encode_repaired(&e, text, len, ids);
    *n_steps_out = e.scratch.n_steps + e.scratch.queue.n_steps;
    buf_fini(&e.normal);
    ranges_fini(&e.normal_untrusted);
    tok_pieces_fini(&e.pieces);
    tok_scratch_fini(&e.scratch);
    return s;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                             unsigned flags, struct buf *ids)
{
    return tokenizer_encode_mixed(t, text, len, flags, NULL, ids);
}

enum status tokenizer_encode_mixed(const struct tokenizer *t, const char *text, size_t len,
                                   unsigned flags, const struct ranges *untrusted, struct buf *ids)
{
    uint64_t n_steps;

    return tok_encode_counted(t, text, len, flags, untrusted, ids, &n_steps);
}

/* ---- queries ---- */

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->vocab.n_tokens;
}

const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out)
{
    bool known = id < t->vocab.n_tokens && t->vocab.tokens[id].piece;

    *len_out = known ? t->vocab.tokens[id].bytes_len : 0;
    return known ? t->vocab.tokens[id].bytes : "";
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *len_out)
{
    bool known = id < t->vocab.n_tokens && t->vocab.tokens[id].piece;

    *len_out = known ? t->vocab.tokens[id].piece_len : 0;
    return known ? t->vocab.tokens[id].piece : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab.n_tokens && (t->vocab.tokens[id].flags & TOK_SPECIAL);
}

const char *tokenizer_first_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out)
{
    const char *bytes = tokenizer_bytes(t, id, len_out);

    if (id < t->vocab.n_tokens && t->vocab.tokens[id].first) {
        bytes = t->vocab.tokens[id].first;
        *len_out = t->vocab.tokens[id].first_len;
    }
    if (t->strips_first_space && *len_out > 0 && bytes[0] == ' ') {
        bytes++;
        (*len_out)--;
    }
    return bytes;
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len)
{
    return tok_vocab_find(&t->vocab, piece, len);
}

uint32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos_id;
}

uint32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos_id;
}

const char *tokenizer_bos_text(const struct tokenizer *t)
{
    return t->bos_text;
}

const char *tokenizer_eos_text(const struct tokenizer *t)
{
    return t->eos_text;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    switch (t->model) {
    case TOK_UNIGRAM: return "Unigram";
    case TOK_WORDPIECE: return "WordPiece";
    case TOK_BPE: break;
    }
    return t->bpe.byte_level ? "byte-level BPE" : "SentencePiece-style BPE";
}
