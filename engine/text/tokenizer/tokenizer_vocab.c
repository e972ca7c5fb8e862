/* tokenizer_vocab.c - ids, their pieces, and the table from piece to id. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define STRING_BYTES_MAX ((size_t)1 << 30)

enum status tok_vec_reserve(struct tok_vec *x, size_t n)
{
    if (n <= x->cap)
        return OK;
    size_t cap = x->cap ? x->cap * 2 : 64;
    if (cap < n)
        cap = n;
    uint32_t *v = realloc(x->v, cap * sizeof *v);
    if (!v)
        return ERR_NOMEM;
    x->v = v;
    x->cap = cap;
    return OK;
}

void tok_vec_fini(struct tok_vec *x)
{
    free(x->v);
    *x = (struct tok_vec){0};
}

static uint32_t hash_name(const char *s, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len, w;

    for (; len >= 8; s += 8, len -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, s, len);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 32);
}

/* The slot of this name, or the free slot where it belongs. */
static struct tok_name_slot *name_slot(const struct tok_vocab *v, const char *s, size_t len,
                                       uint32_t hash)
{
    for (uint32_t i = hash & v->name_mask;; i = (i + 1) & v->name_mask) {
        struct tok_name_slot *slot = &v->names[i];
        if (slot->id == TOKEN_NONE)
            return slot;
        const struct tok_token *t = &v->tokens[slot->id];
        if (slot->hash == hash && t->piece_len == len && memcmp(t->piece, s, len) == 0)
            return slot;
    }
}

uint32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len)
{
    if (!v->names || len > v->piece_len_max)
        return TOKEN_NONE;
    return name_slot(v, s, len, hash_name(s, len))->id;
}

static enum status read_id(const struct json *value, const char *where, const char *name,
                           uint32_t *id, struct buf *why)
{
    if (!js_is(value, JS_INT))
        return buf_why(why, ERR_INVALID,
                       "tokenizer.json: %s: id of \"%.80s\": expected an "
                       "integer, got %s",
                       where, name, js_type_name(js_typeof(value)));
    if (js_int(value) < 0 || js_int(value) >= TOK_N_VOCAB_MAX)
        return buf_why(why, ERR_INVALID,
                       "tokenizer.json: %s: id %lld of \"%.80s\" is outside of "
                       "[0, %u)",
                       where, (long long)js_int(value), name, TOK_N_VOCAB_MAX);
    *id = (uint32_t)js_int(value);
    return OK;
}

static enum status added_entry(const struct json *entry, const char **content, size_t *len,
                               uint32_t *id, struct buf *why)
{
    const struct json *text = js_get(entry, "content");

    if (!js_is(entry, JS_OBJECT) || !js_is(text, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "tokenizer.json: added_tokens: expected objects with a "
                       "string \"content\"");
    *content = js_string(text, len);
    return read_id(js_get(entry, "id"), "added_tokens", *content, id, why);
}

/* Check a Unigram vocabulary, [["piece", score], ...]; a piece's id is its index. */
static enum status check_scored(const struct json *vocab, struct buf *why)
{
    for (size_t i = 0; i < js_len(vocab) && js_is(vocab, JS_ARRAY); i++) {
        const struct json *piece = js_at(js_at(vocab, i), 0), *score = js_at(js_at(vocab, i), 1);
        if (!js_is(piece, JS_STRING) || (!js_is(score, JS_REAL) && !js_is(score, JS_INT)))
            return buf_why(why, ERR_INVALID,
                           "tokenizer.json: model.vocab[%zu]: expected "
                           "[string, number]",
                           i);
    }
    if (js_is(vocab, JS_ARRAY) && js_len(vocab) > TOK_N_VOCAB_MAX)
        return buf_why(why, ERR_INVALID, "tokenizer.json: model.vocab: more than %u pieces",
                       TOK_N_VOCAB_MAX);
    return OK;
}

/* Set *n_out to the largest id of the file + 1. */
static enum status count_ids(uint32_t *n_out, const struct json *vocab, const struct json *added,
                             struct buf *why)
{
    uint32_t id = 0, n = js_is(vocab, JS_ARRAY) ? (uint32_t)js_len(vocab) : 0;
    const char *content;
    size_t len;
    enum status s = check_scored(vocab, why);

    for (void *it = js_first(vocab); it && s == OK; it = js_next(vocab, it)) {
        s = read_id(js_it_value(it), "model.vocab", js_it_key(it), &id, why);
        n = id >= n ? id + 1 : n;
    }
    for (size_t i = 0; i < js_len(added) && s == OK; i++) {
        s = added_entry(js_at(added, i), &content, &len, &id, why);
        n = id >= n ? id + 1 : n;
    }
    if (s == OK && n == 0)
        s = buf_why(why, ERR_INVALID, "tokenizer.json: model.vocab: empty");
    *n_out = n;
    return s;
}

enum status tok_vocab_init(struct tok_vocab *v, const char *from, uint32_t n_tokens, size_t n_names)
{
    size_t n_slots = 16;

    arena_init(&v->strings, STRING_BYTES_MAX);
    v->from = from;
    v->n_tokens = n_tokens;
    while (n_slots < n_names * 2)
        n_slots *= 2;
    v->tokens = calloc(v->n_tokens, sizeof *v->tokens);
    v->names = malloc(n_slots * sizeof *v->names);
    if (!v->tokens || !v->names)
        return ERR_NOMEM;
    for (size_t i = 0; i < n_slots; i++)
        v->names[i] = (struct tok_name_slot){.id = TOKEN_NONE};
    v->name_mask = (uint32_t)(n_slots - 1);
    return OK;
}

/* Make s the piece of token `id`, found through `slot`, the slot of s. */
static enum status set_piece(struct tok_vocab *v, struct tok_name_slot *slot, uint32_t hash,
                             const char *s, size_t len, uint32_t id)
{
    struct tok_token *t = &v->tokens[id];

    if (len > UINT32_MAX)
        return ERR_TOO_LARGE;
    t->piece = arena_dup(&v->strings, s, len);
    if (!t->piece)
        return ERR_NOMEM;
    t->piece_len = (uint32_t)len;
    *slot = (struct tok_name_slot){.hash = hash, .id = id};
    if (len > v->piece_len_max)
        v->piece_len_max = (uint32_t)len;
    return OK;
}

enum status tok_vocab_put(struct tok_vocab *v, const char *s, size_t len, uint32_t id,
                          struct buf *why)
{
    uint32_t hash = hash_name(s, len);
    struct tok_name_slot *slot = name_slot(v, s, len, hash);
    const struct tok_token *t = &v->tokens[id];

    if (slot->id == id)
        return OK;
    if (slot->id != TOKEN_NONE)
        return buf_why(why, ERR_INVALID, "%s: \"%.*s\" has two ids, %u and %u", v->from,
                       (int)(len < 80 ? len : 80), s, slot->id, id);
    if (t->piece)
        return buf_why(why, ERR_INVALID, "%s: id %u is both \"%.80s\" and \"%.*s\"", v->from, id,
                       t->piece, (int)(len < 80 ? len : 80), s);
    return set_piece(v, slot, hash, s, len, id);
}

/* Enter a piece of a Unigram model. Unlike other models it may have a piece twice; a lookup then
 * finds the last id. */
static enum status put_scored(struct tok_vocab *v, const struct json *entry, uint32_t id)
{
    size_t len;
    const char *piece = js_string(js_at(entry, 0), &len);
    uint32_t hash = hash_name(piece, len);

    return set_piece(v, name_slot(v, piece, len, hash), hash, piece, len, id);
}

static enum status mark_added(struct tok_vocab *v, const struct json *entry, struct buf *why)
{
    const char *content;
    size_t len;
    uint32_t id;
    bool special = false;
    enum status s = added_entry(entry, &content, &len, &id, why);

    if (s == OK && len == 0)
        return OK; /* Hugging Face skips these, too */
    if (s == OK && len > UINT16_MAX)
        s = buf_why(why, ERR_INVALID,
                    "tokenizer.json: added_tokens: a content of %zu bytes is too long", len);
    if (s == OK)
        s = tok_vocab_put(v, content, len, id, why);
    if (s == OK)
        s = js_get_bool(entry, "special", &special, why);
    if (s == OK)
        v->tokens[id].flags |= TOK_ADDED | (special ? TOK_SPECIAL : 0u);
    return s;
}

static enum status fill(struct tok_vocab *v, const struct json *vocab, const struct json *added,
                        struct buf *why)
{
    enum status s = OK;

    for (void *it = js_first(vocab); it && s == OK; it = js_next(vocab, it)) {
        const char *name = js_it_key(it);
        s = tok_vocab_put(v, name, strlen(name), (uint32_t)js_int(js_it_value(it)), why);
    }
    for (size_t i = 0; js_is(vocab, JS_ARRAY) && i < js_len(vocab) && s == OK; i++)
        s = put_scored(v, js_at(vocab, i), (uint32_t)i);
    for (size_t i = 0; i < js_len(added) && s == OK; i++)
        s = mark_added(v, js_at(added, i), why);
    return s;
}

enum status tok_vocab_load(struct tok_vocab *v, const struct json *model, bool scored,
                           const struct json *added, struct buf *why)
{
    const struct json *vocab = js_get(model, "vocab");
    uint32_t n_tokens = 0;

    if (!js_is(vocab, scored ? JS_ARRAY : JS_OBJECT))
        return buf_why(why, ERR_INVALID, "tokenizer.json: model.vocab: expected %s, got %s",
                       js_type_name(scored ? JS_ARRAY : JS_OBJECT), js_type_name(js_typeof(vocab)));
    if (!js_is(added, JS_NULL) && !js_is(added, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "tokenizer.json: added_tokens: expected an array");
    enum status s = count_ids(&n_tokens, vocab, added, why);
    if (s == OK)
        s = tok_vocab_init(v, "tokenizer.json", n_tokens, js_len(vocab) + js_len(added));
    return s == OK ? fill(v, vocab, added, why) : s;
}

void tok_vocab_byte_tokens(const struct tok_vocab *v, uint32_t ids[256])
{
    static const char hex[] = "0123456789ABCDEF";

    for (unsigned byte = 0; byte < 256; byte++) {
        char name[6] = {'<', '0', 'x', hex[byte >> 4], hex[byte & 15], '>'};
        ids[byte] = tok_vocab_find(v, name, sizeof name);
        if (ids[byte] != TOKEN_NONE)
            v->tokens[ids[byte]].flags |= TOK_BYTE;
    }
}

void tok_vocab_fini(struct tok_vocab *v)
{
    free(v->tokens);
    free(v->names);
    arena_fini(&v->strings);
    *v = (struct tok_vocab){0};
}
