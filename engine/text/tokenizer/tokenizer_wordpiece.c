/* tokenizer_wordpiece.c - WordPiece: repeatedly take the longest piece from the left.
 *
 * Pieces inside a word have a prefix ("##ing"). A word with a rest that is not a piece, and a word
 * that is too long, become one unknown token. The trie finds the longest piece in one walk, so a
 * word costs its length times the longest piece, not the square of its length. */
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

static enum status load_pieces(struct tok_wordpiece *w, const struct json *vocab)
{
    enum status s = OK;

    for (void *it = js_first(vocab); it && s == OK; it = js_next(vocab, it)) {
        const char *piece = js_it_key(it);
        s = tok_prefix_add(&w->pieces, piece, strlen(piece), (uint32_t)js_int(js_it_value(it)));
    }
    return s;
}

void tok_wordpiece_set_inside(struct tok_wordpiece *w, const char *prefix, size_t len)
{
    w->inside = 0;
    w->has_inside = true;
    for (size_t i = 0; i < len && w->has_inside; i++) {
        const struct tok_prefix_slot *slot = tok_prefix_step(&w->pieces, w->inside, prefix[i]);
        w->has_inside = slot != NULL;
        w->inside = slot ? slot->child : 0;
    }
}

enum status tok_wordpiece_load(struct tok_wordpiece *w, const struct json *model, struct buf *why)
{
    const char *unk = "[UNK]", *prefix = "##";
    size_t unk_len = strlen(unk), prefix_len = strlen(prefix);
    int64_t n_chars_max = TOK_WORD_CHARS_MAX;
    enum status s = js_get_str(model, "unk_token", &unk, &unk_len, why);

    if (s == OK)
        s = js_get_str(model, "continuing_subword_prefix", &prefix, &prefix_len, why);
    if (s == OK)
        s = js_get_i64(model, "max_input_chars_per_word", 0, INT64_MAX, &n_chars_max, why);
    if (s == OK)
        s = load_pieces(w, js_get(model, "vocab"));
    if (s == OK && !w->pieces.slots)
        s = buf_why(why, ERR_INVALID, "tokenizer.json: model.vocab: empty");
    if (s != OK)
        return s;
    w->n_chars_max = (size_t)n_chars_max;
    w->unk_id = tok_prefix_find(&w->pieces, unk, unk_len);
    tok_wordpiece_set_inside(w, prefix, prefix_len);
    return OK;
}

void tok_wordpiece_fini(struct tok_wordpiece *w)
{
    tok_prefix_fini(&w->pieces);
    *w = (struct tok_wordpiece){0};
}

static bool is_too_long(const struct tok_wordpiece *w, const char *piece, size_t len)
{
    size_t n_chars = 0;

    if (len <= w->n_chars_max)
        return false;
    for (size_t i = 0; i < len; i++)
        n_chars += ((unsigned char)piece[i] & 0xc0) != 0x80;
    return n_chars > w->n_chars_max;
}

/* Bytes of the longest piece at the start of text[0..len), len > 0; 0: none. */
static size_t longest_piece(const struct tok_wordpiece *w, struct tok_scratch *s, uint32_t node,
                            const char *text, size_t len, uint32_t *id)
{
    size_t longest = 0;

    for (size_t i = 0; i < len; i++) {
        const struct tok_prefix_slot *slot = tok_prefix_step(&w->pieces, node, text[i]);
        s->n_steps++;
        if (!slot)
            break;
        node = slot->child;
        if (slot->id != TOKEN_NONE && tok_may_take(s, slot->id)) {
            *id = slot->id;
            longest = i + 1;
        }
    }
    return longest;
}

static enum status write_unknown(const struct tok_wordpiece *w, struct tok_scratch *s)
{
    return w->unk_id == TOKEN_NONE ? ERR_INVALID : tok_push(&s->out, w->unk_id);
}

enum status tok_wordpiece_piece(const struct tok_wordpiece *w, struct tok_scratch *s,
                                const char *piece, size_t len)
{
    size_t n_before = s->out.n, at = 0;

    s->n_steps += len;
    if (is_too_long(w, piece, len))
        return write_unknown(w, s);
    while (at < len) {
        uint32_t id = TOKEN_NONE;
        size_t n = at == 0 || w->has_inside
                       ? longest_piece(w, s, at == 0 ? 0 : w->inside, piece + at, len - at, &id)
                       : 0;
        if (n == 0) {
            s->out.n = n_before;
            return write_unknown(w, s);
        }
        enum status st = tok_push(&s->out, id);
        if (st != OK)
            return st;
        at += n;
    }
    return OK;
}
