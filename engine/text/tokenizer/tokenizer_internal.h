/* tokenizer_internal.h - declarations shared by engine/text/tokenizer/tokenizer*.c, not for other
 * modules.
 *
 * The steps from a text to ids:
 *
 *   repair UTF-8 -> cut at added tokens -> normalize each section -> cut at added tokens that are
 *   matched in normalized text -> pre-tokenize (split into pieces) -> the model on each piece ->
 *   ids
 *
 * This is the order of Hugging Face `tokenizers`, so the results agree in its special cases too.
 *
 * Owns    see each struct.
 * Thread  everything built by load is read-only; a struct tok_scratch belongs to one encode call.
 * Errors  as tokenizer.h.
 * Units   offsets are uint32_t bytes: texts have at most TOK_TEXT_BYTES_MAX. */
#ifndef TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "engine/text/ranges.h"
#include "engine/text/tokenizer/tokenizer.h"

/* The largest vocabularies known have 262,144 entries. */
#define TOK_N_VOCAB_MAX (4u << 20)
/* Bytes of one text. The steps hold a few copies of it, each of which may be larger. */
#define TOK_TEXT_BYTES_MAX (256u << 20)
#define TOK_FILE_BYTES_MAX (256u << 20)
#define TOK_N_STEPS_MAX 64

/* ---- a vector of uint32_t ---- */

struct tok_vec {
    uint32_t *v;
    size_t n, cap;
};

NODISCARD enum status tok_vec_reserve(struct tok_vec *x, size_t n);
void tok_vec_fini(struct tok_vec *x);

static inline NODISCARD enum status tok_push(struct tok_vec *x, uint32_t v)
{
    if (x->n == x->cap) {
        enum status s = tok_vec_reserve(x, x->n + 1);
        if (s != OK)
            return s;
    }
    x->v[x->n++] = v;
    return OK;
}

/* ---- patterns (tokenizer_regex.c) ---- */

struct tok_regex;

/* `pattern` is in the Ruby syntax of Oniguruma, or plain text if `literal`. `where` names the field
 * in error messages. */
NODISCARD enum status tok_regex_create(struct tok_regex **out, const char *pattern, size_t len,
                                       bool literal, const char *where, struct buf *why);
/* A {"String": "..."} or {"Regex": "..."} object. */
NODISCARD enum status tok_regex_from_json(struct tok_regex **out, const struct json *pattern,
                                          const char *where, struct buf *why);
void tok_regex_destroy(struct tok_regex *re);

/* A search through one subject, match by match. */
struct tok_find {
    const struct tok_regex *re;
    void *match_data;
    void *jit_stack; /* created when the default stack is too small */
    void *match_ctx;
};

NODISCARD enum status tok_find_init(struct tok_find *f, const struct tok_regex *re);
void tok_find_fini(struct tok_find *f);
/* Find the first match in text[from..len). ERR_NOT_FOUND: no further match. ERR_INVALID: the
 * pattern exceeded its match limit on this text. */
NODISCARD enum status tok_find_next(struct tok_find *f, const char *text, size_t len, size_t from,
                                    size_t *start, size_t *end);

/* ---- normalizers (tokenizer_normalize.c) ---- */

struct tok_normalizer;

/* *out is NULL if the file has no normalizer. */
NODISCARD enum status tok_normalizer_load(struct tok_normalizer **out, const struct json *node,
                                          struct buf *why);
void tok_normalizer_destroy(struct tok_normalizer *n);
/* A bound on how much normalization shortens a text: len <= bound * length of the normal form;
 * 0: unknown, because a step may remove or replace text. `n` may be NULL. */
uint32_t tok_normalizer_shrinks(const struct tok_normalizer *n);
/* Normalize *text in place. no_prefix skips Prepend. `n` may be NULL. `marked` (may be NULL) is a
 * set of bytes of the text; it becomes the set of the bytes made from them. */
NODISCARD enum status tok_normalize(const struct tok_normalizer *n, struct buf *text,
                                    bool no_prefix, struct ranges *marked);

/* ---- properties of characters as in Hugging Face's tables (tokenizer_chars.c) ---- */

/* Each tok_map_* maps one character: it writes at most TOK_MAP_N_MAX characters to out and returns
 * their number. Their UTF-8 is at most twice as long. */
#define TOK_MAP_N_MAX 3

/* BertNormalizer's clean_text: removes control characters, makes white space a blank. */
unsigned tok_map_clean(uint32_t c, uint32_t *out);
/* handle_chinese_chars: puts a blank on both sides of a CJK ideograph. */
unsigned tok_map_chinese(uint32_t c, uint32_t *out);
/* strip_accents after NFD removes nonspacing marks; StripAccents removes all combining marks. */
unsigned tok_map_no_accent(uint32_t c, uint32_t *out);
unsigned tok_map_no_mark(uint32_t c, uint32_t *out);
/* Nmt: SentencePiece's clean-up of white space and control characters. */
unsigned tok_map_nmt(uint32_t c, uint32_t *out);
unsigned tok_map_lowercase(uint32_t c, uint32_t *out);
/* The text for pattern matching: *out is `text`, or a copy in *own in which characters too new for
 * PCRE2 are replaced by older ones of the same size and category. */
NODISCARD enum status tok_pattern_subject(const char *text, size_t len, struct buf *own,
                                          const char **out);
/* End of the extended grapheme cluster at s; s < end. */
const char *tok_grapheme_end(const char *s, const char *end);

/* ---- SentencePiece's compiled character map (tokenizer_charsmap.c) ---- */

struct tok_charsmap;

/* `base64` is the value of "precompiled_charsmap". */
NODISCARD enum status tok_charsmap_create(struct tok_charsmap **out, const char *base64, size_t len,
                                          struct buf *why);
void tok_charsmap_destroy(struct tok_charsmap *m);
/* Rewrite *text in place. Each rewritten piece is reported to *map. */
NODISCARD enum status tok_charsmap_run(const struct tok_charsmap *m, struct buf *text,
                                       struct range_map *map);

/* ---- pre-tokenizers (tokenizer_pretok.c) ---- */

struct tok_pretok;

/* bytes_to_model: the model can start from bytes (BPE), so the last step need not write byte-level
 * letters. */
NODISCARD enum status tok_pretok_load(struct tok_pretok **out, const struct json *node,
                                      bool bytes_to_model, struct buf *why);
void tok_pretok_destroy(struct tok_pretok *p);
/* Whether the last step would write byte-level letters but is skipped: the pieces are then plain
 * bytes, and BPE starts from bytes. */
bool tok_pretok_is_byte_level(const struct tok_pretok *p);
/* Whether any step, also the skipped one, writes byte-level letters. */
bool tok_pretok_has_byte_level(const struct tok_pretok *p);
/* Whether a step may drop a part of the text. `p` may be NULL. */
bool tok_pretok_drops(const struct tok_pretok *p);

/* A section during pre-tokenization: a text and its pieces. */
struct tok_pieces {
    const char *text;    /* borrowed, or one of own[] */
    const char *subject; /* the text for patterns, see tok_pattern_subject() */
    size_t len;
    struct buf own[2], own_subject;
    struct tok_vec spans; /* start, end, start, end, ... */
    struct tok_vec spare;
};

void tok_pieces_init(struct tok_pieces *p);
void tok_pieces_fini(struct tok_pieces *p);
/* Cut a section into pieces. at_start: it begins at position 0 of the text. no_prefix: its first
 * piece gets no leading space. `pt` may be NULL: one piece. */
NODISCARD enum status tok_pretok_run(const struct tok_pretok *pt, struct tok_pieces *p,
                                     const char *text, size_t len, bool at_start, bool no_prefix);

enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER };

/* Read prepend_scheme of a Metaspace node, or the older add_prefix_space. */
NODISCARD enum status tok_metaspace_prepend(const struct json *node, enum tok_prepend *out,
                                            struct buf *why);

/* The byte-level letter of a byte, and the reverse (-1: c is not such a letter). */
uint32_t tok_byte_letter(unsigned char byte);
int tok_letter_byte(uint32_t c);

/* ---- vocabulary and merges (tokenizer_vocab.c) ---- */

enum tok_token_flags {
    TOK_ADDED = 1,
    TOK_SPECIAL = 2,
    TOK_BYTE = 4, /* <0x41> */
};

struct tok_token {
    const char *piece; /* NULL: the id is unused */
    const char *bytes; /* text in output */
    const char *first; /* text as the first token of an output; NULL: no difference */
    uint32_t piece_len;
    uint32_t bytes_len;
    uint32_t first_len;
    uint32_t flags;
};

/* Open addressing, linear probing; id TOKEN_NONE: free slot. */
struct tok_name_slot {
    uint32_t hash;
    uint32_t id;
};

struct tok_merge_slot {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* UINT32_MAX: free slot */
    uint32_t new_id;
};

struct tok_vocab {
    struct arena strings;
    struct tok_token *tokens; /* [n_tokens] */
    uint32_t n_tokens;        /* largest id + 1 */
    struct tok_name_slot *names;
    uint32_t name_mask;
    uint32_t piece_len_max;
    const char *from; /* what messages name as the source */
};

/* Make room for ids below n_tokens (at least 1) and for n_names names, and enter them one by one.
 * `from` is a literal. A name that is there with the same id is fine; a name with two ids, and an
 * id with two names, are ERR_INVALID. */
NODISCARD enum status tok_vocab_init(struct tok_vocab *v, const char *from, uint32_t n_tokens,
                                     size_t n_names);
NODISCARD enum status tok_vocab_put(struct tok_vocab *v, const char *s, size_t len, uint32_t id,
                                    struct buf *why);

/* scored: the vocabulary is Unigram's list of pieces with scores. */
NODISCARD enum status tok_vocab_load(struct tok_vocab *v, const struct json *model, bool scored,
                                     const struct json *added, struct buf *why);
void tok_vocab_fini(struct tok_vocab *v);
uint32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len);

/* ---- trie of all pieces of a vocabulary (tokenizer_prefix.c) ---- */

/* A trie whose edges are in one hash table. Node 0 is the root; each edge leads to a node of its
 * own. */
struct tok_prefix_slot {
    uint64_t key; /* (node << 8 | byte) + 1; 0: free slot */
    uint32_t child;
    uint32_t id; /* of the piece that ends here; TOKEN_NONE: none */
};

struct tok_prefix {
    struct tok_prefix_slot *slots;
    uint32_t mask;
    unsigned shift; /* 64 - log2(slots) */
    uint32_t n_nodes;
};

/* If a piece is added twice, the last id counts. An empty piece is never found. */
NODISCARD enum status tok_prefix_add(struct tok_prefix *p, const char *s, size_t len, uint32_t id);
void tok_prefix_fini(struct tok_prefix *p);
/* TOKEN_NONE: absent. */
uint32_t tok_prefix_find(const struct tok_prefix *p, const char *s, size_t len);

/* The edge from a node by a byte; NULL: none. */
static inline const struct tok_prefix_slot *tok_prefix_step(const struct tok_prefix *p,
                                                            uint32_t node, char byte)
{
    uint64_t key = ((uint64_t)node << 8 | (unsigned char)byte) + 1;

    for (uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> p->shift);; i = (i + 1) & p->mask) {
        if (p->slots[i].key == key)
            return &p->slots[i];
        if (p->slots[i].key == 0)
            return NULL;
    }
}

/* ---- BPE (tokenizer_bpe.c) ---- */

/* A bit set over pairs of initial symbols (hashed to TOK_JOIN_BITS): whether some merge may ever
 * join them. Where the bit is 0, a piece can be cut without changing the result; long pieces are
 * cut there first. */
#define TOK_JOIN_BITS 18

struct tok_bpe {
    const struct tok_vocab *vocab;
    struct tok_merge_slot *merges;
    uint64_t *joins;
    unsigned merge_shift; /* 64 - log2(slots) */
    uint32_t merge_mask;
    uint32_t unk_id;            /* TOKEN_NONE: unknown characters are dropped */
    uint32_t letter_ids[512];   /* ids of one-letter tokens with code points below 512 */
    uint32_t byte_ids[256];     /* ids of the tokens of bytes in byte-level text */
    uint32_t fallback_ids[256]; /* ids of <0xXX> */
    bool fuse_unk, byte_fallback, ignore_merges, byte_level;
};

/* Unigram: the best cut of the text up to some place. */
struct tok_best {
    double score;
    uint32_t from; /* start of its last token; UINT32_MAX: no cut reaches this place */
    uint32_t id;   /* of its last token */
};

/* BPE: a queue of joins in ascending order of (rank, position); see tokenizer_bpe.c. */
struct tok_queue {
    struct tok_queue_item {
        uint32_t pos, next;
    } * items;
    struct tok_queue_list {
        uint64_t key; /* rank << 32 | position of the first item */
        uint32_t first;
    } * lists; /* a heap by key */
    struct tok_queue_open {
        uint32_t rank, last;
    } * open; /* lists that can still grow, at rank % size */
    uint32_t n_items, cap_items, free;
    size_t n_lists, cap_lists;
    uint64_t n_steps;
};

struct tok_scratch {
    struct tok_vec out;     /* ids */
    struct tok_vec symbols; /* of one piece, before merging; Unigram: ids and ends, in reverse */
    struct tok_vec node;    /* linked list of a long run */
    struct buf name;
    struct tok_queue queue; /* joins of a long run */
    struct tok_best *best;  /* [best_cap] */
    size_t best_cap;
    uint64_t n_steps;              /* table lookups; a test checks that the work, with
                                      queue.n_steps, is linear */
    const struct tok_token *plain; /* the vocabulary's tokens, if spellings of special tokens may be
                                      plain text: then no piece may become a special token. NULL:
                                      any piece may */
};

/* Whether the model may use this token for a piece that it found in the vocabulary. */
static inline bool tok_may_take(const struct tok_scratch *s, uint32_t id)
{
    return !s->plain || !(s->plain[id].flags & TOK_SPECIAL);
}

NODISCARD enum status tok_bpe_load(struct tok_bpe *b, const struct tok_vocab *v, bool byte_level,
                                   const struct json *model, struct buf *why);
/* Make room for n_merges merges of a filled vocabulary, and enter them one by one: the pair
 * (left, right) becomes `joined`. Pairs may share a rank: the leftmost of them is joined first. The
 * caller sets unk_id before the first merge, and the other options at any time. */
NODISCARD enum status tok_bpe_init(struct tok_bpe *b, const struct tok_vocab *v, bool byte_level,
                                   size_t n_merges);
void tok_bpe_put(struct tok_bpe *b, uint32_t rank, uint32_t left, uint32_t right, uint32_t joined);
void tok_bpe_fini(struct tok_bpe *b);
/* Whether each byte of a piece becomes part of some token: no character is dropped, and unknown
 * ones are not joined into one token. */
bool tok_bpe_keeps_all(const struct tok_bpe *b);
void tok_scratch_fini(struct tok_scratch *s);
/* Append the ids of one piece to s->out. */
NODISCARD enum status tok_bpe_piece(const struct tok_bpe *b, struct tok_scratch *s,
                                    const char *piece, size_t len);

/* Ids of the byte tokens <0x00> to <0xFF>, which are marked TOK_BYTE; TOKEN_NONE: absent. */
void tok_vocab_byte_tokens(const struct tok_vocab *v, uint32_t ids[256]);

/* ---- Unigram (tokenizer_unigram.c) ---- */

struct tok_unigram {
    struct tok_prefix pieces;
    double *scores; /* [n_tokens] */
    double unk_score;
    uint32_t unk_id; /* TOKEN_NONE: a text with an unknown character is refused */
    uint32_t fallback_ids[256];
    bool byte_fallback;
};

NODISCARD enum status tok_unigram_load(struct tok_unigram *u, const struct tok_vocab *v,
                                       const struct json *model, struct buf *why);
/* Begin without pieces, and add them one by one; id < v->n_tokens. The caller sets unk_id. */
NODISCARD enum status tok_unigram_init(struct tok_unigram *u, const struct tok_vocab *v);
NODISCARD enum status tok_unigram_put(struct tok_unigram *u, uint32_t id, const char *piece,
                                      size_t len, double score);
void tok_unigram_fini(struct tok_unigram *u);
/* Append the ids of one piece to s->out. */
NODISCARD enum status tok_unigram_piece(const struct tok_unigram *u, struct tok_scratch *s,
                                        const char *piece, size_t len);

/* ---- WordPiece (tokenizer_wordpiece.c) ---- */

struct tok_wordpiece {
    struct tok_prefix pieces;
    uint32_t inside; /* node behind "##", from which pieces inside a word continue */
    bool has_inside;
    uint32_t unk_id;    /* TOKEN_NONE: a text with an unknown word is refused */
    size_t n_chars_max; /* longer words are unknown */
};

#define TOK_WORD_CHARS_MAX 100 /* default of n_chars_max */

/* Set the prefix of pieces inside a word; `pieces` is filled. */
void tok_wordpiece_set_inside(struct tok_wordpiece *w, const char *prefix, size_t len);
NODISCARD enum status tok_wordpiece_load(struct tok_wordpiece *w, const struct json *model,
                                         struct buf *why);
void tok_wordpiece_fini(struct tok_wordpiece *w);
/* Append the ids of one piece to s->out. */
NODISCARD enum status tok_wordpiece_piece(const struct tok_wordpiece *w, struct tok_scratch *s,
                                          const char *piece, size_t len);

/* ---- added tokens in text (tokenizer_added.c) ---- */

struct tok_added {
    const char *content; /* as matched; some are normalized */
    uint32_t len;
    uint32_t core, core_end; /* content without the blanks at its ends, if any of it is left */
    uint32_t id;
    bool special, lstrip, rstrip, single_word;
};

struct tok_trie_node {
    uint32_t child, sibling; /* 0: none */
    uint32_t token;          /* index + 1 into tokens, 0: none */
    unsigned char byte;
};

struct tok_trie {
    struct tok_added *tokens;
    uint32_t n_tokens;
    struct tok_trie_node *nodes;
    uint32_t n_nodes, cap_nodes;
    uint32_t roots[256]; /* first byte -> node, 0: none */
    bool has_special;
    struct tok_regex *word; /* \w, if a token matches whole words only */
};

struct tok_added_match {
    size_t start, end; /* with the space stripped by lstrip and rstrip */
    uint32_t id;
};

/* Where special tokens are recognized: nowhere, or wherever no byte of their core is in the set
 * `untrusted` (may be NULL). `base`: the text's first byte in the set's numbering. */
struct tok_trust {
    bool with_special;
    const struct ranges *untrusted;
    size_t base;
};

NODISCARD enum status tok_trie_add(struct tok_trie *t, const struct tok_added *token);
void tok_trie_fini(struct tok_trie *t);
/* Find the leftmost longest added token at or after `floor`, the end of the previous one.
 * ERR_NOT_FOUND: there is none. */
NODISCARD enum status tok_trie_find(const struct tok_trie *t, const char *text, size_t len,
                                    size_t floor, const struct tok_trust *trust,
                                    struct tok_added_match *m);
/* Fill both tries from the file's added_tokens. */
NODISCARD enum status tok_added_load(struct tok_trie *plain, struct tok_trie *normalized,
                                     struct tok_vocab *v, const struct tok_normalizer *n,
                                     const struct json *added, struct buf *why);

/* ---- the tokenizer (tokenizer.c, tokenizer_load.c) ---- */

/* Tokens that the post-processor puts before, between and behind two texts (tokenizer_pair.c). */
struct tok_pair {
    struct tok_vec ids[3];
    size_t n_first; /* as struct tokenizer_pair, as the next */
    bool has_types;
    uint32_t n_processors; /* that were loaded */
    bool is_known;         /* false: the file has no template that is supported */
};

enum tok_model { TOK_BPE, TOK_UNIGRAM, TOK_WORDPIECE };

struct tokenizer {
    struct tok_vocab vocab;
    enum tok_model model; /* which of the three below is filled */
    struct tok_bpe bpe;
    struct tok_unigram unigram;
    struct tok_wordpiece wordpiece;
    struct tok_normalizer *normalizer;
    struct tok_pretok *pretok;
    struct tok_trie added;            /* matched in the raw text */
    struct tok_trie added_normalized; /* matched after normalization */
    struct tok_vec before, after;     /* ids that the post-processor adds around a text */
    struct tok_pair pair;
    char *bos_text, *eos_text, *chat_template;
    uint32_t bos_id, eos_id;
    uint32_t token_bytes_max; /* most bytes of a text per token; 0: unknown */
    bool strips_first_space;  /* the first token of an output loses one leading space */
};

/* tokenizer_load() from memory, without tokenizer_config.json. */
NODISCARD enum status tok_load_text(struct tokenizer **out, const char *text, size_t len,
                                    struct buf *why);

/* Fill tokens[].bytes and .first as the file's decoder defines them, and strips_first_space. */
NODISCARD enum status tok_decoder_load(struct tokenizer *t, const struct json *node,
                                       struct buf *why);
NODISCARD enum status tok_processor_load(struct tokenizer *t, const struct json *node,
                                         struct buf *why);
/* Fill t->pair from a processor of a type that adds ids; ERR_NOMEM. */
NODISCARD enum status tok_pair_load(struct tokenizer *t, const char *type, const struct json *node);
void tok_pair_fini(struct tok_pair *p);
NODISCARD enum status tok_config_load(struct tokenizer *t, const char *dir, struct buf *why);
/* Replace *out by a copy of s. */
NODISCARD enum status tok_copy_text(char **out, const char *s, size_t len);

/* ---- GGUF (tokenizer_gguf.c, tokenizer_gguf_pre.c) ---- */

/* Fill an empty tokenizer from the metadata of a GGUF file. */
NODISCARD enum status tok_gguf_load(struct tokenizer *t, const char *path, struct buf *why);

/* Normalizer and pre-tokenizer that a name of tokenizer.ggml.pre stands for. */
struct tok_pre {
    const char *normalizer; /* its type; NULL: none */
    const char *steps[8];   /* of the pre-tokenizer, see tokenizer_gguf_pre.c; NULL: the end */
    bool ignore_merges;     /* a piece that is a token as a whole is not merged */
    bool add_bos;           /* where the file does not say */
};

/* ERR_UNSUPPORTED: unknown; the message has the list of known names. */
NODISCARD enum status tok_gguf_pre_find(const struct tok_pre **out, const char *name,
                                        struct buf *why);
/* Append the members "normalizer" and "pre_tokenizer" of a tokenizer.json. */
NODISCARD enum status tok_gguf_pre_write(const struct tok_pre *p, struct buf *json);

/* tokenizer_encode_mixed() that also returns the work it took (n_steps of tok_scratch). */
NODISCARD enum status tok_encode_counted(const struct tokenizer *t, const char *text, size_t len,
                                         unsigned flags, const struct ranges *untrusted,
                                         struct buf *ids, uint64_t *n_steps_out);

/* "type" of a node such as {"type": "NFC"}; ERR_INVALID: it has none. */
NODISCARD enum status tok_node_type(const struct json *node, const char *where, const char **type,
                                    struct buf *why);

#endif
