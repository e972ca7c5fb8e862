/* tokenizer_unigram.c - Unigram: the cut of a piece into tokens with the largest sum of scores
 * (Viterbi).
 *
 * For each place of the text the best cut of the text before it is kept. As in Hugging Face, scores
 * are added in double precision from the left over the whole piece, and among equal cuts to a place
 * the one whose last token is longest wins. A character that is not a token costs the lowest score
 * less 10; neighbouring unknown characters become one token.
 *
 * A file may make a whole text one piece. At a place that no token found so far reaches past, every
 * cut has a boundary: everything before it is decided, written out, and its memory reused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define UNK_PENALTY 10.0
#define NO_WAY UINT32_MAX
/* Write out decided text of at least this length: often enough to stay in the cache. */
#define DECIDED_BYTES_MIN 2048

/* ---- loading ---- */

enum status tok_unigram_init(struct tok_unigram *u, const struct tok_vocab *v)
{
    u->unk_score = INFINITY;
    tok_vocab_byte_tokens(v, u->fallback_ids);
    u->scores = calloc(v->n_tokens, sizeof *u->scores);
    return u->scores ? OK : ERR_NOMEM;
}

enum status tok_unigram_put(struct tok_unigram *u, uint32_t id, const char *piece, size_t len,
                            double score)
{
    u->scores[id] = score;
    if (score - UNK_PENALTY < u->unk_score)
        u->unk_score = score - UNK_PENALTY;
    return tok_prefix_add(&u->pieces, piece, len, id);
}

/* Read the pieces; tok_vocab_load() has checked the array. */
static enum status load_pieces(struct tok_unigram *u, const struct tok_vocab *v,
                               const struct json *vocab, struct buf *why)
{
    enum status s = tok_unigram_init(u, v);

    for (size_t i = 0; i < js_len(vocab) && s == OK; i++) {
        const struct json *entry = js_at(vocab, i);
        size_t len;
        const char *piece = js_string(js_at(entry, 0), &len);
        s = tok_unigram_put(u, (uint32_t)i, piece, len, js_number(js_at(entry, 1)));
    }
    if (s == OK && !u->pieces.slots)
        s = buf_why(why, ERR_INVALID, "tokenizer.json: model.vocab: empty");
    return s;
}

enum status tok_unigram_load(struct tok_unigram *u, const struct tok_vocab *v,
                             const struct json *model, struct buf *why)
{
    const struct json *vocab = js_get(model, "vocab");
    int64_t unk_id = -1;
    enum status s = js_get_i64(model, "unk_id", 0, TOK_N_VOCAB_MAX, &unk_id, why);

    if (s == OK && unk_id >= (int64_t)js_len(vocab))
        s = buf_why(why, ERR_INVALID,
                    "tokenizer.json: model.unk_id: %lld is not in the "
                    "vocabulary",
                    (long long)unk_id);
    if (s == OK)
        s = js_get_bool(model, "byte_fallback", &u->byte_fallback, why);
    if (s != OK)
        return s;
    u->unk_id = unk_id < 0 ? TOKEN_NONE : (uint32_t)unk_id;
    return load_pieces(u, v, vocab, why);
}

void tok_unigram_fini(struct tok_unigram *u)
{
    tok_prefix_fini(&u->pieces);
    free(u->scores);
    *u = (struct tok_unigram){0};
}

/* ---- one piece ---- */

/* A walk over one piece. Places are bytes of the piece, numbered best[place - base]. */
struct walk {
    const struct tok_unigram *u;
    struct tok_scratch *s;
    const char *text;
    size_t len;
    size_t base;               /* everything before this is written out */
    size_t reach;              /* the furthest place that some cut reaches */
    size_t unk_start, unk_end; /* run of unknown characters that may still grow; equal: none */
};

static enum status reserve_best(struct walk *w, size_t n)
{
    struct tok_scratch *s = w->s;

    if (n <= s->best_cap)
        return OK;
    size_t cap = s->best_cap ? s->best_cap * 2 : 2 * DECIDED_BYTES_MIN;
    if (cap < n)
        cap = n;
    struct tok_best *best = realloc(s->best, cap * sizeof *best);
    if (!best)
        return ERR_NOMEM;
    s->best = best;
    s->best_cap = cap;
    return OK;
}

static enum status offer(struct walk *w, size_t from, size_t end, double score, uint32_t id)
{
    if (end > w->reach) {
        enum status st = reserve_best(w, end - w->base + 1);
        if (st != OK)
            return st;
        while (w->reach < end)
            w->s->best[++w->reach - w->base].from = NO_WAY;
    }
    struct tok_best *best = &w->s->best[end - w->base];
    if (best->from != NO_WAY && !(score > best->score))
        return OK;
    if (id == TOKEN_NONE)
        return ERR_INVALID; /* unknown, and the file has no token for that */
    *best = (struct tok_best){.score = score, .from = (uint32_t)(from - w->base), .id = id};
    return OK;
}

/* Extend the best cut up to `from` by each token that begins there. */
static enum status offer_all(struct walk *w, size_t from)
{
    const struct tok_unigram *u = w->u;
    double so_far = w->s->best[from - w->base].score;
    size_t char_end = from + utf8_size(w->text[from]);
    bool is_known = false;
    uint32_t node = 0;
    enum status st = OK;

    for (size_t end = from; end < w->len && st == OK;) {
        const struct tok_prefix_slot *slot = tok_prefix_step(&u->pieces, node, w->text[end]);
        w->s->n_steps++;
        if (!slot)
            break;
        node = slot->child;
        end++;
        if (slot->id == TOKEN_NONE || !tok_may_take(w->s, slot->id))
            continue;
        is_known |= end == char_end;
        st = offer(w, from, end, u->scores[slot->id] + so_far, slot->id);
    }
    if (st == OK && !is_known)
        st = offer(w, from, char_end, u->unk_score + so_far, u->unk_id);
    return st;
}

/* Write a run of unknown characters. It may be a token after all (with so low a score that it
 * lost); otherwise it becomes byte tokens if there is one for each byte, else one unk. */
static enum status write_unknown(struct walk *w)
{
    const struct tok_unigram *u = w->u;
    const char *run = w->text + w->unk_start;
    size_t len = w->unk_end - w->unk_start;
    bool all = u->byte_fallback;
    enum status st = OK;

    w->unk_start = w->unk_end;
    if (len == 0)
        return OK;
    uint32_t id = tok_prefix_find(&u->pieces, run, len);
    if (id != TOKEN_NONE)
        return tok_push(&w->s->out, id);
    for (size_t i = 0; i < len && all; i++)
        all = u->fallback_ids[(unsigned char)run[i]] != TOKEN_NONE;
    if (!all)
        return tok_push(&w->s->out, u->unk_id);
    for (size_t i = 0; i < len && st == OK; i++)
        st = tok_push(&w->s->out, u->fallback_ids[(unsigned char)run[i]]);
    return st;
}

static enum status write_token(struct walk *w, size_t start, size_t end, uint32_t id)
{
    if (id == w->u->unk_id) {
        if (w->unk_start == w->unk_end)
            w->unk_start = start;
        w->unk_end = end;
        return OK;
    }
    enum status st = write_unknown(w);
    return st == OK ? tok_push(&w->s->out, id) : st;
}

/* Every cut has a boundary at `end`: follow the best cut back to base, write it forwards, continue
 * from `end`. */
static enum status write_out(struct walk *w, size_t end)
{
    struct tok_vec *back = &w->s->symbols;
    size_t start = w->base;
    enum status st = OK;

    back->n = 0;
    for (size_t at = end - w->base; at > 0 && st == OK; at = w->s->best[at].from) {
        ASSERT(w->s->best[at].from < at);
        st = tok_push(back, w->s->best[at].id);
        if (st == OK)
            st = tok_push(back, (uint32_t)at);
    }
    for (size_t i = back->n; i > 0 && st == OK; i -= 2) {
        size_t stop = w->base + back->v[i - 1];
        st = write_token(w, start, stop, back->v[i - 2]);
        start = stop;
    }
    if (st == OK)
        w->s->best[0].score = w->s->best[end - w->base].score;
    w->base = w->reach = end;
    return st;
}

enum status tok_unigram_piece(const struct tok_unigram *u, struct tok_scratch *s, const char *piece,
                              size_t len)
{
    struct walk w = {.u = u, .s = s, .text = piece, .len = len};
    enum status st = reserve_best(&w, 1);

    if (st != OK)
        return st;
    s->best[0].score = 0;
    for (size_t at = 0; at < len && st == OK; at += utf8_size(piece[at])) {
        if (w.reach == at && at - w.base >= DECIDED_BYTES_MIN)
            st = write_out(&w, at);
        if (st == OK)
            st = offer_all(&w, at);
    }
    if (st == OK)
        st = write_out(&w, len);
    return st == OK ? write_unknown(&w) : st;
}
