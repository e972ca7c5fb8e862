/* tokenizer_bpe.c - byte pair encoding: the merge table, and the merging of one piece.
 *
 * The rule: of all neighbouring pairs in the table, join the pair of lowest rank, the leftmost
 * among equals, until no pair is left. Three methods with the same result, by length:
 *
 *   any piece     is first cut where no merge can ever join the two symbols (TOK_JOIN_BITS). Old
 *                 SentencePiece-style files make a whole text one piece; this cuts it back into
 *                 words
 *   short runs    scan an array of ranks for the lowest: quadratic, but without a heap
 *   long runs     a linked list and a queue of (rank, position): O(n log n), and O(n) for the worst
 *                 texts known, one character repeated a million times */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define SHORT_RUN 32
#define NO_RANK UINT32_MAX
#define QUEUE_END UINT32_MAX
#define QUEUE_N_OPEN 1024

/* ---- the table ---- */

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static uint64_t mix(uint64_t pair)
{
    return (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
}

static struct tok_merge_slot *merge_slot(const struct tok_bpe *b, uint64_t pair)
{
    for (uint32_t i = (uint32_t)(mix(pair) >> b->merge_shift);; i = (i + 1) & b->merge_mask) {
        struct tok_merge_slot *slot = &b->merges[i];
        if (slot->rank == NO_RANK || slot->pair == pair)
            return slot;
    }
}

static uint32_t join_bit(uint32_t left, uint32_t right)
{
    return (uint32_t)(mix(pair_key(left, right)) >> (64 - TOK_JOIN_BITS));
}

static bool may_join(const struct tok_bpe *b, uint32_t left, uint32_t right)
{
    uint32_t bit = join_bit(left, right);

    return b->joins[bit / 64] >> (bit % 64) & 1;
}

static enum status make_tables(struct tok_bpe *b, size_t n_merges)
{
    unsigned log2 = 4;

    while (((size_t)1 << log2) < n_merges * 2)
        log2++;
    size_t n_slots = (size_t)1 << log2;
    b->merge_shift = 64 - log2;
    b->merge_mask = (uint32_t)(n_slots - 1);
    b->merges = malloc(n_slots * sizeof *b->merges);
    b->joins = calloc((1u << TOK_JOIN_BITS) / 64, sizeof *b->joins);
    if (!b->merges || !b->joins)
        return ERR_NOMEM;
    for (size_t i = 0; i < n_slots; i++)
        b->merges[i] = (struct tok_merge_slot){.rank = NO_RANK};
    return OK;
}

/* ---- loading ---- */

/* The symbols with which a piece may begin (or end) before any merge: its first (last) character,
 * and the piece itself if it is a byte token, since those enter merging whole. */
struct edge {
    uint32_t ids[2];
};

static struct edge first_edge(const struct tok_bpe *b, uint32_t id)
{
    const struct tok_token *t = &b->vocab->tokens[id];
    size_t n = t->piece_len ? utf8_size(t->piece[0]) : 0;

    return (struct edge){{tok_vocab_find(b->vocab, t->piece, n), id}};
}

static struct edge last_edge(const struct tok_bpe *b, uint32_t id)
{
    const struct tok_token *t = &b->vocab->tokens[id];
    size_t at = t->piece_len ? t->piece_len - 1u : 0;

    while (at > 0 && ((unsigned char)t->piece[at] & 0xc0) == 0x80)
        at--;
    return (struct edge){{tok_vocab_find(b->vocab, t->piece + at, t->piece_len - at), id}};
}

static bool is_whole_symbol(const struct tok_bpe *b, uint32_t id)
{
    return id == b->unk_id || (b->vocab->tokens[id].flags & TOK_BYTE);
}

static void mark_join(struct tok_bpe *b, uint32_t left, uint32_t right)
{
    struct edge l = last_edge(b, left), r = first_edge(b, right);
    int n_l = is_whole_symbol(b, left) ? 2 : 1, n_r = is_whole_symbol(b, right) ? 2 : 1;

    for (int i = 0; i < n_l; i++) {
        for (int j = 0; j < n_r; j++) {
            uint32_t bit = join_bit(l.ids[i], r.ids[j]);
            b->joins[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
    }
}

struct merge_text {
    const char *left, *right;
    size_t left_len, right_len;
};

static enum status read_merge(const struct json *entry, size_t i, struct merge_text *m,
                              struct buf *why)
{
    if (js_is(entry, JS_STRING)) {
        size_t len;
        const char *s = js_string(entry, &len);
        const char *space = memchr(s, ' ', len);
        if (space && !memchr(space + 1, ' ', (size_t)(s + len - space - 1))) {
            *m = (struct merge_text){s, space + 1, (size_t)(space - s),
                                     (size_t)(s + len - space - 1)};
            return OK;
        }
    } else if (js_len(entry) == 2 && js_is(js_at(entry, 0), JS_STRING) &&
               js_is(js_at(entry, 1), JS_STRING)) {
        m->left = js_string(js_at(entry, 0), &m->left_len);
        m->right = js_string(js_at(entry, 1), &m->right_len);
        return OK;
    }
    return buf_why(why, ERR_INVALID,
                   "tokenizer.json: model.merges[%zu]: expected \"a b\" or "
                   "[\"a\", \"b\"]",
                   i);
}

void tok_bpe_put(struct tok_bpe *b, uint32_t rank, uint32_t left, uint32_t right, uint32_t joined)
{
    *merge_slot(b, pair_key(left, right)) =
        (struct tok_merge_slot){.pair = pair_key(left, right), .rank = rank, .new_id = joined};
    mark_join(b, left, right);
}

static enum status add_merge(struct tok_bpe *b, size_t i, const struct merge_text *m,
                             struct buf *name, struct buf *why)
{
    buf_reset(name);
    enum status s = buf_append(name, m->left, m->left_len);
    if (s == OK)
        s = buf_append(name, m->right, m->right_len);
    if (s != OK)
        return s;
    uint32_t left = tok_vocab_find(b->vocab, m->left, m->left_len);
    uint32_t right = tok_vocab_find(b->vocab, m->right, m->right_len);
    uint32_t joined = tok_vocab_find(b->vocab, buf_str(name), name->len);
    if (left == TOKEN_NONE || right == TOKEN_NONE || joined == TOKEN_NONE)
        return buf_why(why, ERR_INVALID,
                       "tokenizer.json: model.merges[%zu]: \"%.80s\" is not "
                       "in the vocabulary",
                       i,
                       left == TOKEN_NONE    ? m->left
                       : right == TOKEN_NONE ? m->right
                                             : buf_str(name));
    tok_bpe_put(b, (uint32_t)i, left, right, joined);
    return OK;
}

static enum status load_merges(struct tok_bpe *b, const struct json *merges, struct buf *why)
{
    struct merge_text m;
    struct buf name;

    if (!js_is(merges, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "tokenizer.json: model.merges: expected an array");
    if (js_len(merges) > TOK_N_VOCAB_MAX * 2)
        return buf_why(why, ERR_INVALID, "tokenizer.json: model.merges: too many merges");
    enum status s = tok_bpe_init(b, b->vocab, b->byte_level, js_len(merges));
    buf_init(&name, TOK_FILE_BYTES_MAX);
    for (size_t i = 0; i < js_len(merges) && s == OK; i++) {
        s = read_merge(js_at(merges, i), i, &m, why);
        if (s == OK)
            s = add_merge(b, i, &m, &name, why);
    }
    buf_fini(&name);
    return s;
}

static enum status refuse_set(const struct json *model, const char *key, struct buf *why)
{
    const struct json *v = js_get_set(model, key);

    if (!v || (js_is(v, JS_STRING) && js_string(v, NULL)[0] == '\0') ||
        ((js_is(v, JS_REAL) || js_is(v, JS_INT)) && js_number(v) == 0))
        return OK;
    return buf_why(why, ERR_UNSUPPORTED, "tokenizer.json: model.%s is not supported", key);
}

static enum status load_unk(struct tok_bpe *b, const struct json *model, struct buf *why)
{
    const char *unk = NULL;
    size_t len = 0;
    enum status s = js_get_str(model, "unk_token", &unk, &len, why);

    b->unk_id = TOKEN_NONE;
    if (s != OK || !unk)
        return s;
    b->unk_id = tok_vocab_find(b->vocab, unk, len);
    if (b->unk_id == TOKEN_NONE)
        return buf_why(why, ERR_INVALID,
                       "tokenizer.json: model.unk_token: \"%.80s\" is not in "
                       "the vocabulary",
                       unk);
    return OK;
}

static void fill_byte_tables(struct tok_bpe *b)
{
    char name[4];

    for (uint32_t c = 0; c < 512; c++)
        b->letter_ids[c] = tok_vocab_find(b->vocab, name, utf8_put(name, c));
    for (unsigned byte = 0; byte < 256; byte++)
        b->byte_ids[byte] = b->letter_ids[tok_byte_letter((unsigned char)byte)];
    tok_vocab_byte_tokens(b->vocab, b->fallback_ids);
}

enum status tok_bpe_init(struct tok_bpe *b, const struct tok_vocab *v, bool byte_level,
                         size_t n_merges)
{
    b->vocab = v;
    b->byte_level = byte_level;
    fill_byte_tables(b);
    return make_tables(b, n_merges);
}

enum status tok_bpe_load(struct tok_bpe *b, const struct tok_vocab *v, bool byte_level,
                         const struct json *model, struct buf *why)
{
    static const char *const unknown[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    enum status s = OK;

    b->vocab = v;
    b->byte_level = byte_level;
    for (size_t i = 0; i < ARRAY_SIZE(unknown) && s == OK; i++)
        s = refuse_set(model, unknown[i], why);
    if (s == OK)
        s = js_get_bool(model, "fuse_unk", &b->fuse_unk, why);
    if (s == OK)
        s = js_get_bool(model, "byte_fallback", &b->byte_fallback, why);
    if (s == OK)
        s = js_get_bool(model, "ignore_merges", &b->ignore_merges, why);
    if (s == OK)
        s = load_unk(b, model, why);
    return s == OK ? load_merges(b, js_get(model, "merges"), why) : s;
}

void tok_bpe_fini(struct tok_bpe *b)
{
    free(b->merges);
    free(b->joins);
    *b = (struct tok_bpe){0};
}

/* ---- pieces to symbols ---- */

bool tok_bpe_keeps_all(const struct tok_bpe *b)
{
    const uint32_t *ids = b->byte_level ? b->byte_ids : b->fallback_ids;

    if (!b->byte_level && !b->byte_fallback)
        return false;
    for (int byte = 0; byte < 256; byte++)
        if (ids[byte] == TOKEN_NONE)
            return false;
    return true;
}

/* An unknown character becomes <0xXX> tokens if all of them exist, else one unk, which fuse_unk
 * joins with the previous one. As in Hugging Face, an unk is emitted only before the next known
 * character, even after byte tokens. */
static enum status push_unknown(const struct tok_bpe *b, struct tok_scratch *s, const char *c,
                                size_t n, bool *unk_waits)
{
    bool all = b->byte_fallback;
    enum status st = OK;

    for (size_t i = 0; i < n && all; i++)
        all = b->fallback_ids[(unsigned char)c[i]] != TOKEN_NONE;
    if (all) {
        for (size_t i = 0; i < n && st == OK; i++)
            st = tok_push(&s->symbols, b->fallback_ids[(unsigned char)c[i]]);
        return st;
    }
    if (b->unk_id == TOKEN_NONE)
        return OK;
    if (*unk_waits && !b->fuse_unk)
        st = tok_push(&s->symbols, b->unk_id);
    *unk_waits = true;
    return st;
}

static enum status push_known(const struct tok_bpe *b, struct tok_scratch *s, uint32_t id,
                              bool *unk_waits)
{
    enum status st = *unk_waits ? tok_push(&s->symbols, b->unk_id) : OK;

    *unk_waits = false;
    return st == OK ? tok_push(&s->symbols, id) : st;
}

static enum status symbols_of_bytes(const struct tok_bpe *b, struct tok_scratch *s,
                                    const char *piece, size_t len)
{
    bool unk_waits = false;
    enum status st = tok_vec_reserve(&s->symbols, len);

    for (size_t i = 0; i < len && st == OK; i++) {
        uint32_t id = b->byte_ids[(unsigned char)piece[i]];
        char letter[4];
        if (id != TOKEN_NONE)
            st = push_known(b, s, id, &unk_waits);
        else
            st = push_unknown(b, s, letter,
                              utf8_put(letter, tok_byte_letter((unsigned char)piece[i])),
                              &unk_waits);
    }
    return st == OK && unk_waits ? tok_push(&s->symbols, b->unk_id) : st;
}

static enum status symbols_of_chars(const struct tok_bpe *b, struct tok_scratch *s,
                                    const char *piece, size_t len)
{
    bool unk_waits = false;
    enum status st = OK;

    for (const char *p = piece, *end = piece + len; p < end && st == OK;) {
        const char *start = p;
        uint32_t c = utf8_next(&p);
        size_t n = (size_t)(p - start);
        uint32_t id = c < 512 ? b->letter_ids[c] : tok_vocab_find(b->vocab, start, n);
        if (id != TOKEN_NONE)
            st = push_known(b, s, id, &unk_waits);
        else
            st = push_unknown(b, s, start, n, &unk_waits);
    }
    return st == OK && unk_waits ? tok_push(&s->symbols, b->unk_id) : st;
}

/* ---- merging short runs ---- */

static enum status merge_short(const struct tok_bpe *b, struct tok_scratch *s,
                               const uint32_t *symbols, size_t n)
{
    uint32_t ids[SHORT_RUN];
    const struct tok_merge_slot *pairs[SHORT_RUN]; /* [i]: pair of ids[i] and ids[i + 1] */

    memcpy(ids, symbols, n * sizeof *ids);
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = merge_slot(b, pair_key(ids[i], ids[i + 1]));
    s->n_steps += n;
    for (;;) {
        uint32_t best = NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (pairs[i]->rank < best) {
                best = pairs[i]->rank;
                at = i;
            }
        }
        if (best == NO_RANK)
            break;
        ids[at] = pairs[at]->new_id;
        n--;
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            pairs[i - 1] = pairs[i];
        }
        if (at + 1 < n)
            pairs[at] = merge_slot(b, pair_key(ids[at], ids[at + 1]));
        if (at > 0)
            pairs[at - 1] = merge_slot(b, pair_key(ids[at - 1], ids[at]));
        s->n_steps += 3;
    }
    enum status st = tok_vec_reserve(&s->out, s->out.n + n);
    if (st != OK)
        return st;
    memcpy(s->out.v + s->out.n, ids, n * sizeof *ids);
    s->out.n += n;
    return OK;
}

/* ---- merging long runs ---- */

/* A doubly linked list as four arrays of n in one vector. A symbol's position is where it began. */
struct run {
    uint32_t *id;   /* [n] symbol */
    uint32_t *prev; /* [n]; n: none */
    uint32_t *next; /* [n]; n: none */
    uint32_t *rank; /* [n] rank of the pair (this, next); NO_RANK: none, or joined into its left
                       neighbour */
    uint32_t n;
};

/* The queue returns (rank, position) in ascending order. Positions of one rank mostly arrive in
 * ascending order, so they are kept in lists, and the heap contains only the first item of each
 * list. A small table finds the list of a rank; newer ranks replace older ones in it. A position
 * that cannot be appended to a list starts a new one. */
static enum status new_item(struct tok_queue *q, uint32_t pos, uint32_t *out)
{
    if (q->free != QUEUE_END) {
        *out = q->free;
        q->free = q->items[q->free].next;
    } else {
        if (q->n_items == q->cap_items) {
            uint32_t cap = q->cap_items ? q->cap_items * 2 : 1024;
            struct tok_queue_item *items = realloc(q->items, cap * sizeof *items);
            if (!items)
                return ERR_NOMEM;
            q->items = items;
            q->cap_items = cap;
        }
        *out = q->n_items++;
    }
    q->items[*out] = (struct tok_queue_item){.pos = pos, .next = QUEUE_END};
    return OK;
}

static enum status new_list(struct tok_queue *q, uint64_t key, uint32_t item)
{
    if (q->n_lists == q->cap_lists) {
        size_t cap = q->cap_lists ? q->cap_lists * 2 : 1024;
        struct tok_queue_list *lists = realloc(q->lists, cap * sizeof *lists);
        if (!lists)
            return ERR_NOMEM;
        q->lists = lists;
        q->cap_lists = cap;
    }
    size_t i = q->n_lists++;
    while (i > 0 && q->lists[(i - 1) / 2].key > key) {
        q->lists[i] = q->lists[(i - 1) / 2];
        i = (i - 1) / 2;
        q->n_steps++;
    }
    q->lists[i] = (struct tok_queue_list){.key = key, .first = item};
    return OK;
}

static enum status queue_push(struct tok_queue *q, uint32_t rank, uint32_t pos)
{
    struct tok_queue_open *open = &q->open[rank % QUEUE_N_OPEN];
    uint32_t item;
    enum status st = new_item(q, pos, &item);

    q->n_steps++;
    if (st != OK)
        return st;
    if (open->rank == rank && q->items[open->last].pos < pos) {
        q->items[open->last].next = item;
        open->last = item;
        return OK;
    }
    *open = (struct tok_queue_open){.rank = rank, .last = item};
    return new_list(q, (uint64_t)rank << 32 | pos, item);
}

/* Move this list from the top of the heap down to its place. */
static void sink(struct tok_queue *q, struct tok_queue_list list)
{
    size_t i = 0, child;

    while ((child = 2 * i + 1) < q->n_lists) {
        if (child + 1 < q->n_lists && q->lists[child + 1].key < q->lists[child].key)
            child++;
        if (q->lists[child].key >= list.key)
            break;
        q->lists[i] = q->lists[child];
        i = child;
        q->n_steps++;
    }
    q->lists[i] = list;
}

static uint64_t queue_pop(struct tok_queue *q)
{
    struct tok_queue_list top = q->lists[0];
    uint32_t rank = (uint32_t)(top.key >> 32), item = top.first, next = q->items[item].next;

    q->n_steps++;
    q->items[item].next = q->free;
    q->free = item;
    if (next != QUEUE_END) {
        sink(q, (struct tok_queue_list){.key = (uint64_t)rank << 32 | q->items[next].pos,
                                        .first = next});
        return top.key;
    }
    struct tok_queue_open *open = &q->open[rank % QUEUE_N_OPEN];
    if (open->rank == rank && open->last == item)
        open->rank = NO_RANK;
    if (--q->n_lists > 0)
        sink(q, q->lists[q->n_lists]);
    return top.key;
}

static enum status queue_start(struct tok_queue *q)
{
    if (!q->open) {
        q->open = malloc(QUEUE_N_OPEN * sizeof *q->open);
        if (!q->open)
            return ERR_NOMEM;
        for (size_t i = 0; i < QUEUE_N_OPEN; i++)
            q->open[i].rank = NO_RANK;
    }
    ASSERT(q->n_lists == 0); /* and so no list is open: the previous call emptied the queue */
    q->n_items = 0;
    q->free = QUEUE_END;
    return OK;
}

static void queue_fini(struct tok_queue *q)
{
    free(q->items);
    free(q->lists);
    free(q->open);
}

/* Look up the pair (pos, next) again, after one of the two has changed. */
static enum status refresh_pair(const struct tok_bpe *b, struct tok_scratch *s, struct run *r,
                                uint32_t pos)
{
    r->rank[pos] = NO_RANK;
    if (r->next[pos] == r->n)
        return OK;
    r->rank[pos] = merge_slot(b, pair_key(r->id[pos], r->id[r->next[pos]]))->rank;
    s->n_steps++;
    return r->rank[pos] == NO_RANK ? OK : queue_push(&s->queue, r->rank[pos], pos);
}

static enum status join_at(const struct tok_bpe *b, struct tok_scratch *s, struct run *r,
                           uint32_t pos)
{
    uint32_t right = r->next[pos], after = r->next[right];

    r->id[pos] = merge_slot(b, pair_key(r->id[pos], r->id[right]))->new_id;
    r->rank[right] = NO_RANK;
    r->next[pos] = after;
    if (after != r->n)
        r->prev[after] = pos;
    enum status st = r->prev[pos] == r->n ? OK : refresh_pair(b, s, r, r->prev[pos]);
    return st == OK ? refresh_pair(b, s, r, pos) : st;
}

static enum status merge_long(const struct tok_bpe *b, struct tok_scratch *s,
                              const uint32_t *symbols, size_t n)
{
    enum status st = tok_vec_reserve(&s->node, 4 * n);

    if (st == OK)
        st = queue_start(&s->queue);
    if (st != OK)
        return st;
    struct run r = {s->node.v, s->node.v + n, s->node.v + 2 * n, s->node.v + 3 * n, (uint32_t)n};
    memcpy(r.id, symbols, n * sizeof *symbols);
    for (uint32_t i = 0; i < r.n; i++) {
        r.prev[i] = i == 0 ? r.n : i - 1;
        r.next[i] = i + 1;
    }
    for (uint32_t i = 0; i < r.n && st == OK; i++)
        st = refresh_pair(b, s, &r, i);
    while (s->queue.n_lists > 0 && st == OK) {
        uint64_t top = queue_pop(&s->queue);
        uint32_t pos = (uint32_t)top;
        if (r.rank[pos] == top >> 32) /* otherwise the pair has changed since it was queued */
            st = join_at(b, s, &r, pos);
    }
    for (uint32_t i = 0; i < r.n && st == OK; i = r.next[i])
        st = tok_push(&s->out, r.id[i]);
    return st;
}

/* ---- one piece ---- */

void tok_scratch_fini(struct tok_scratch *s)
{
    tok_vec_fini(&s->out);
    tok_vec_fini(&s->symbols);
    tok_vec_fini(&s->node);
    buf_fini(&s->name);
    queue_fini(&s->queue);
    free(s->best);
    *s = (struct tok_scratch){0};
}

static enum status merge_symbols(const struct tok_bpe *b, struct tok_scratch *s)
{
    const uint32_t *v = s->symbols.v;
    size_t n = s->symbols.n, start = 0;
    enum status st = OK;

    if (n == 0) /* only unknown characters without a token */
        return OK;
    if (n <= SHORT_RUN)
        return merge_short(b, s, v, n);
    for (size_t i = 1; i <= n && st == OK; i++) {
        if (i < n && may_join(b, v[i - 1], v[i]))
            continue;
        if (i - start <= SHORT_RUN)
            st = merge_short(b, s, v + start, i - start);
        else
            st = merge_long(b, s, v + start, i - start);
        start = i;
    }
    return st;
}

/* ignore_merges (Llama 3): a piece that is itself a token becomes that token. */
static enum status find_whole(const struct tok_bpe *b, struct tok_scratch *s, const char *piece,
                              size_t len, uint32_t *id)
{
    enum status st = OK;

    *id = TOKEN_NONE;
    if (len > b->vocab->piece_len_max)
        return OK;
    if (!b->byte_level) {
        *id = tok_vocab_find(b->vocab, piece, len);
        return OK;
    }
    s->name.max = TOK_FILE_BYTES_MAX;
    buf_reset(&s->name);
    st = buf_reserve(&s->name, 2 * len);
    for (size_t i = 0; i < len && st == OK; i++)
        s->name.len +=
            utf8_put(s->name.data + s->name.len, tok_byte_letter((unsigned char)piece[i]));
    if (st == OK)
        *id = tok_vocab_find(b->vocab, s->name.data, s->name.len);
    return st;
}

enum status tok_bpe_piece(const struct tok_bpe *b, struct tok_scratch *s, const char *piece,
                          size_t len)
{
    uint32_t whole;

    if (b->ignore_merges) {
        enum status st = find_whole(b, s, piece, len, &whole);
        if (st != OK)
            return st;
        if (whole != TOKEN_NONE && tok_may_take(s, whole))
            return tok_push(&s->out, whole);
    }
    s->symbols.n = 0;
    s->n_steps += len;
    enum status st =
        b->byte_level ? symbols_of_bytes(b, s, piece, len) : symbols_of_chars(b, s, piece, len);
    return st == OK ? merge_symbols(b, s) : st;
}
