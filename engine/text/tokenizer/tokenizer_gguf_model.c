/* tokenizer_gguf_model.c - merges, scores and pieces of a GGUF file into the tables of the model.
 *
 * The format has no merges for SentencePiece's BPE (tokenizer.ggml.model "llama"): each pair of
 * tokens that is a token when joined is a merge, and the score of the joined token its rank.
 *
 * Special tokens are never made by a model: text spells them only where tok_trie_find() may match
 * them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_gguf.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

/* A SentencePiece token that merges can make. Cutting a token in two at each of its characters
 * takes time in the square of its length; the longest ones known have 128 bytes. */
#define SCORED_BYTES_MAX 1024
#define N_MERGES_MAX (2 * TOK_N_VOCAB_MAX)

static enum status add_merge(struct gguf_source *f, const char *text, size_t len, uint32_t rank)
{
    const struct tok_vocab *v = &f->t->vocab;
    const char *space = len > 1 ? memchr(text + 1, ' ', len - 1) : NULL;
    size_t n = space ? (size_t)(space - text) : 0;

    if (!space)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "merges[%u]: expected two tokens and a blank",
                       rank);
    buf_reset(&f->piece);
    enum status s = buf_append(&f->piece, text, n);
    if (s == OK)
        s = buf_append(&f->piece, space + 1, len - n - 1);
    if (s != OK)
        return s;
    uint32_t left = tok_vocab_find(v, text, n);
    uint32_t right = tok_vocab_find(v, space + 1, len - n - 1);
    uint32_t joined = tok_vocab_find(v, buf_str(&f->piece), f->piece.len);
    if (left == TOKEN_NONE || right == TOKEN_NONE || joined == TOKEN_NONE)
        return buf_why(f->why, ERR_INVALID,
                       GGUF_KEY "merges[%u]: \"%.*s\" is not made of tokens, or makes none", rank,
                       (int)(len < 80 ? len : 80), text);
    if (!(v->tokens[joined].flags & TOK_SPECIAL))
        tok_bpe_put(&f->t->bpe, rank, left, right, joined);
    return OK;
}

static enum status load_merges(struct gguf_source *f)
{
    struct gguf_array merges = {0};
    enum status s = gguf_get_array(f->g, GGUF_KEY "merges", &merges, f->why);

    if (s != OK)
        return s;
    if (!gguf_has(f->g, GGUF_KEY "merges") || (merges.n > 0 && merges.type != GGUF_STRING))
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "merges: expected an array of strings");
    if (merges.n > N_MERGES_MAX)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "merges: more than %u merges", N_MERGES_MAX);
    f->t->bpe.unk_id = TOKEN_NONE;
    f->t->bpe.ignore_merges = f->pre->ignore_merges;
    s = tok_bpe_init(&f->t->bpe, &f->t->vocab, tok_pretok_is_byte_level(f->t->pretok), merges.n);
    for (uint32_t i = 0; i < merges.n && s == OK; i++) {
        size_t len = 0;
        const char *text = gguf_array_str(f->g, &merges, i, &len);
        s = text ? add_merge(f, text, len, i)
                 : buf_why(f->why, ERR_INVALID, GGUF_KEY "merges[%u]: not a string", i);
    }
    return s;
}

struct scored {
    double score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;

    return x > y ? -1 : x < y;
}

/* Whether the model may make this token of text; then it has a score. */
static bool is_piece(const struct gguf_source *f, uint32_t id)
{
    return f->t->vocab.tokens[id].piece && !tok_gguf_is_special(f, id) &&
           tok_gguf_type(f, id) != TYPE_BYTE;
}

static enum status read_score(struct gguf_source *f, uint32_t id, double *out)
{
    *out = gguf_array_number(&f->scores, id);
    return isfinite(*out)
               ? OK
               : buf_why(f->why, ERR_INVALID, GGUF_KEY "scores[%u]: not a finite number", id);
}

/* Append each pair of tokens that is this token: left, right, joined. */
static enum status cut_in_two(struct gguf_source *f, uint32_t id, struct tok_vec *merges)
{
    const struct tok_vocab *v = &f->t->vocab;
    const struct tok_token *t = &v->tokens[id];
    enum status s = OK;

    if (t->piece_len > SCORED_BYTES_MAX)
        return t->flags & TOK_ADDED
                   ? OK /* text has the whole token or not: merges never make it */
                   : buf_why(f->why, ERR_UNSUPPORTED,
                             GGUF_KEY
                             "tokens[%u]: a token of more than %d bytes that other tokens make",
                             id, SCORED_BYTES_MAX);
    for (size_t at = utf8_size(t->piece[0]); at < t->piece_len && s == OK;
         at += utf8_size(t->piece[at])) {
        uint32_t left = tok_vocab_find(v, t->piece, at);
        uint32_t right = tok_vocab_find(v, t->piece + at, t->piece_len - at);
        if (left == TOKEN_NONE || right == TOKEN_NONE)
            continue;
        s = tok_push(merges, left);
        if (s == OK)
            s = tok_push(merges, right);
        if (s == OK)
            s = tok_push(merges, id);
    }
    if (s == OK && merges->n / 3 > N_MERGES_MAX)
        s = buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens: more than %u merges", N_MERGES_MAX);
    return s;
}

/* SentencePiece joins the neighbours whose joined token has the highest score, the leftmost of
 * equal ones: the rank of a merge is the place of that score among all scores. */
static enum status make_merges(struct gguf_source *f, struct scored *pieces, uint32_t *ranks,
                               struct tok_vec *merges)
{
    uint32_t n = 0;
    enum status s = OK;

    for (uint32_t id = 0; id < f->tokens.n && s == OK; id++) {
        if (!is_piece(f, id))
            continue;
        pieces[n].id = id;
        s = read_score(f, id, &pieces[n++].score);
        if (s == OK)
            s = cut_in_two(f, id, merges);
    }
    if (s != OK)
        return s;
    qsort(pieces, n, sizeof *pieces, by_score);
    for (uint32_t i = 0, rank = 0; i < n; i++) {
        rank += i > 0 && pieces[i].score < pieces[i - 1].score;
        ranks[pieces[i].id] = rank;
    }
    s = tok_bpe_init(&f->t->bpe, &f->t->vocab, false, merges->n / 3);
    for (size_t i = 0; i < merges->n && s == OK; i += 3) {
        const uint32_t *m = merges->v + i;
        tok_bpe_put(&f->t->bpe, ranks[m[2]], m[0], m[1], m[2]);
    }
    return s;
}

static enum status load_scored(struct gguf_source *f)
{
    struct tok_vec merges = {0};
    struct scored *pieces = malloc(f->tokens.n * sizeof *pieces);
    uint32_t *ranks = calloc(f->tokens.n, sizeof *ranks);

    f->t->bpe.unk_id = f->unk;
    f->t->bpe.fuse_unk = f->t->bpe.byte_fallback = true;
    enum status s = pieces && ranks ? make_merges(f, pieces, ranks, &merges) : ERR_NOMEM;
    free(pieces);
    free(ranks);
    tok_vec_fini(&merges);
    return s;
}

static enum status load_unigram(struct gguf_source *f)
{
    struct tok_unigram *u = &f->t->unigram;
    enum status s = tok_unigram_init(u, &f->t->vocab);

    u->unk_id = f->unk;
    for (uint32_t id = 0; id < f->tokens.n && s == OK; id++) {
        const struct tok_token *t = &f->t->vocab.tokens[id];
        double score = 0;
        if (!is_piece(f, id))
            continue;
        if (tok_gguf_type(f, id) != TYPE_USER) /* else text has the token wherever it can */
            s = read_score(f, id, &score);
        if (s == OK)
            s = tok_unigram_put(u, id, t->piece, t->piece_len, score);
    }
    if (s == OK && !u->pieces.slots)
        s = buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens: no normal token");
    return s;
}

static enum status load_wordpiece(struct gguf_source *f)
{
    struct tok_wordpiece *w = &f->t->wordpiece;
    enum status s = OK;

    w->unk_id = f->unk;
    w->n_chars_max = TOK_WORD_CHARS_MAX;
    for (uint32_t id = 0; id < f->tokens.n && s == OK; id++) {
        const struct tok_token *t = &f->t->vocab.tokens[id];
        if (is_piece(f, id))
            s = tok_prefix_add(&w->pieces, t->piece, t->piece_len, id);
    }
    if (s == OK && !w->pieces.slots)
        s = buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens: no normal token");
    if (s == OK)
        tok_wordpiece_set_inside(w, "##", 2);
    return s;
}

enum status tok_gguf_model_load(struct gguf_source *f)
{
    static const enum tok_model models[] = {TOK_BPE, TOK_BPE, TOK_WORDPIECE, TOK_UNIGRAM};

    f->t->model = models[f->kind];
    switch (f->kind) {
    case TOKENS_GPT2: return load_merges(f);
    case TOKENS_LLAMA: return load_scored(f);
    case TOKENS_BERT: return load_wordpiece(f);
    case TOKENS_T5: return load_unigram(f);
    }
    return ERR_INTERNAL;
}
