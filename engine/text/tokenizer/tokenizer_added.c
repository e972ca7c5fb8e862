/* tokenizer_added.c - added tokens in text: a trie, leftmost longest match.
 *
 * Hugging Face has two sets: tokens with "normalized": false are matched in the raw text, the
 * others after normalization, in their own normalized form. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

/* ---- building ---- */

static enum status add_node(struct tok_trie *t, unsigned char byte, uint32_t sibling, uint32_t *out)
{
    if (t->n_nodes == t->cap_nodes) {
        uint32_t cap = t->cap_nodes ? t->cap_nodes * 2 : 256;
        struct tok_trie_node *nodes = realloc(t->nodes, cap * sizeof *nodes);
        if (!nodes)
            return ERR_NOMEM;
        t->nodes = nodes;
        t->cap_nodes = cap;
    }
    if (t->n_nodes == 0)
        t->n_nodes = 1; /* node 0 means "none" */
    *out = t->n_nodes;
    t->nodes[t->n_nodes++] = (struct tok_trie_node){.byte = byte, .sibling = sibling};
    return OK;
}

static uint32_t find_child(const struct tok_trie *t, uint32_t node, unsigned char byte)
{
    uint32_t child = t->nodes[node].child;

    while (child && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

static enum status add_path(struct tok_trie *t, const char *content, size_t len, uint32_t *leaf)
{
    unsigned char first = (unsigned char)content[0];
    uint32_t node = t->roots[first];
    enum status s = OK;

    if (!node) {
        s = add_node(t, first, 0, &node);
        t->roots[first] = s == OK ? node : 0;
    }
    for (size_t i = 1; i < len && s == OK; i++) {
        uint32_t child = find_child(t, node, (unsigned char)content[i]);
        if (!child) {
            s = add_node(t, (unsigned char)content[i], t->nodes[node].child, &child);
            if (s == OK)
                t->nodes[node].child = child;
        }
        node = child;
    }
    *leaf = node;
    return s;
}

enum status tok_trie_add(struct tok_trie *t, const struct tok_added *token)
{
    uint32_t leaf;

    if (token->len == 0)
        return OK; /* nothing is left after normalization: it cannot be matched */
    enum status s = add_path(t, token->content, token->len, &leaf);
    if (s != OK || t->nodes[leaf].token)
        return s; /* of two tokens with the same form the first is matched */
    struct tok_added *tokens = realloc(t->tokens, (t->n_tokens + 1) * sizeof *tokens);
    if (!tokens)
        return ERR_NOMEM;
    t->tokens = tokens;
    t->tokens[t->n_tokens++] = *token;
    t->nodes[leaf].token = t->n_tokens;
    t->has_special |= token->special;
    if (token->single_word && !t->word)
        s = tok_regex_create(&t->word, "[\\w\\x{200c}\\x{200d}]", strlen("[\\w\\x{200c}\\x{200d}]"),
                             false, "added_tokens", NULL);
    return s;
}

void tok_trie_fini(struct tok_trie *t)
{
    free(t->tokens);
    free(t->nodes);
    tok_regex_destroy(t->word);
    *t = (struct tok_trie){0};
}

static enum status read_flags(struct tok_added *a, bool *normalized, const struct json *entry,
                              struct buf *why)
{
    const struct {
        const char *key;
        bool *value;
    } flags[] = {{"special", &a->special},
                 {"lstrip", &a->lstrip},
                 {"rstrip", &a->rstrip},
                 {"single_word", &a->single_word},
                 {"normalized", normalized}};
    enum status s = OK;

    *normalized = true;
    for (size_t i = 0; i < ARRAY_SIZE(flags) && s == OK; i++) {
        if (strcmp(flags[i].key, "normalized") == 0 && a->special)
            *normalized = false; /* Hugging Face's default for special tokens */
        s = js_get_bool(entry, flags[i].key, flags[i].value, why);
    }
    return s;
}

/* Bytes of the blank at p, a space or U+2581 (a normalized space); 0: not a blank. */
static uint32_t blank_bytes(const char *p, uint32_t left)
{
    if (left >= 1 && *p == ' ')
        return 1;
    return left >= 3 && memcmp(p, "\xe2\x96\x81", 3) == 0 ? 3 : 0;
}

/* Find the content without the blanks at its ends. A normalized form often begins with a blank
 * added by the normalizer (Llama 2: U+2581 before "</s>"). In a text the bytes before the token
 * supply that blank, so whether they are trusted must not matter. */
static void find_core(struct tok_added *a)
{
    uint32_t begin = 0, end = a->len, n;

    while ((n = blank_bytes(a->content + begin, end - begin)) > 0)
        begin += n;
    for (bool more = true; more;) {
        more = end >= begin + 3 && blank_bytes(a->content + end - 3, 3) == 3;
        end -= more ? 3 : 0;
        for (; end > begin && a->content[end - 1] == ' '; more = true)
            end--;
    }
    a->core = begin < end ? begin : 0;
    a->core_end = begin < end ? end : a->len;
}

static enum status add_entry(struct tok_trie *plain, struct tok_trie *normalized,
                             struct tok_vocab *v, const struct tok_normalizer *n,
                             const struct json *entry, struct buf *why)
{
    struct tok_added a = {0};
    struct buf content;
    bool is_normalized;
    size_t len;
    const char *raw = js_string(js_get(entry, "content"), &len);
    enum status s = read_flags(&a, &is_normalized, entry, why);

    if (s != OK || len == 0)
        return s;
    a.id = tok_vocab_find(v, raw, len);
    buf_init(&content, (size_t)UINT16_MAX * 16);
    s = buf_append(&content, raw, len);
    if (s == OK && is_normalized)
        s = tok_normalize(n, &content, false, NULL);
    if (s == OK) {
        a.len = (uint32_t)content.len;
        a.content = arena_dup(&v->strings, buf_str(&content), content.len);
        if (a.content)
            find_core(&a);
        s = a.content ? tok_trie_add(is_normalized ? normalized : plain, &a) : ERR_NOMEM;
    }
    buf_fini(&content);
    return s;
}

enum status tok_added_load(struct tok_trie *plain, struct tok_trie *normalized, struct tok_vocab *v,
                           const struct tok_normalizer *n, const struct json *added,
                           struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; i < js_len(added) && s == OK; i++)
        s = add_entry(plain, normalized, v, n, js_at(added, i), why);
    return s;
}

/* ---- matching ---- */

/* Whether the token may be recognized at text[at]: special ones only in trusted text. */
static bool is_allowed(const struct tok_added *a, const struct tok_trust *trust, size_t at)
{
    if (!a->special)
        return true;
    at += trust->base;
    return trust->with_special && !ranges_touch(trust->untrusted, at + a->core, at + a->core_end);
}

/* The longest token at text[at]; NULL: none. */
static const struct tok_added *longest_at(const struct tok_trie *t, const char *text, size_t len,
                                          size_t at, const struct tok_trust *trust)
{
    const struct tok_added *found = NULL;
    uint32_t node = t->roots[(unsigned char)text[at]];
    size_t begin = at;

    while (node) {
        const struct tok_added *a =
            t->nodes[node].token ? &t->tokens[t->nodes[node].token - 1] : NULL;
        if (a && is_allowed(a, trust, begin))
            found = a;
        if (++at == len)
            break;
        node = find_child(t, node, (unsigned char)text[at]);
    }
    return found;
}

static size_t char_before(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static enum status is_word_char(const struct tok_trie *t, const char *c, bool *out)
{
    struct tok_find find;
    size_t start, end;
    enum status s = tok_find_init(&find, t->word);

    if (s != OK)
        return s;
    s = tok_find_next(&find, c, utf8_size(*c), 0, &start, &end);
    tok_find_fini(&find);
    *out = s == OK;
    return s == ERR_NOT_FOUND ? OK : s;
}

static enum status is_single_word(const struct tok_trie *t, const char *text, size_t len,
                                  size_t start, size_t end, bool *out)
{
    bool before = false, after = false;
    enum status s = OK;

    if (start > 0)
        s = is_word_char(t, text + char_before(text, start), &before);
    if (s == OK && end < len)
        s = is_word_char(t, text + end, &after);
    *out = !before && !after;
    return s;
}

static void swallow_space(const struct tok_added *a, const char *text, size_t len, size_t floor,
                          struct tok_added_match *m)
{
    while (a->lstrip && m->start > floor) {
        size_t before = char_before(text, m->start);
        const char *c = text + before;
        if (!utf8_is_space(utf8_next(&c)))
            break;
        m->start = before;
    }
    while (a->rstrip && m->end < len) {
        const char *c = text + m->end;
        if (!utf8_is_space(utf8_next(&c)))
            break;
        m->end = (size_t)(c - text);
    }
}

enum status tok_trie_find(const struct tok_trie *t, const char *text, size_t len, size_t floor,
                          const struct tok_trust *trust, struct tok_added_match *m)
{
    for (size_t i = floor; t->n_tokens > 0 && i < len; i++) {
        const struct tok_added *a = longest_at(t, text, len, i, trust);
        bool whole = true;
        if (!a)
            continue;
        if (a->single_word) {
            enum status s = is_single_word(t, text, len, i, i + a->len, &whole);
            if (s != OK)
                return s;
        }
        if (whole) {
            *m = (struct tok_added_match){.start = i, .end = i + a->len, .id = a->id};
            swallow_space(a, text, len, floor, m);
            return OK;
        }
        i += a->len - 1; /* as in Hugging Face, a token that is not a whole word is skipped
                            entirely */
    }
    return ERR_NOT_FOUND;
}
