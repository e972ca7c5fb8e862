/* token_tree.h - the tokens of a vocabulary as a tree of their bytes.
 *
 * Nodes lie in the order of a walk that visits a node before its children, so a walk over those
 * tokens that a grammar allows steps to the next node, or over a whole subtree. Tokens without
 * bytes, and special tokens, are in no tree.
 *
 * A grammar is often inside a text where nearly every character may come, such as a JSON string:
 * then a loop set says which tokens consist of such characters alone, and only the others need to
 * be walked. Where only so many more characters may come, the loop set is of tokens that have no
 * more than that.
 *
 * Owns    nodes, ids and masks until the tree is destroyed.
 * Thread  read-only after it was built: any thread.
 * Errors  ERR_NOMEM.
 * Units   bytes, ids. */
#ifndef TARN_ENGINE_GRAMMAR_TOKEN_TREE_H
#define TARN_ENGINE_GRAMMAR_TOKEN_TREE_H

#include "engine/grammar/expr.h"

struct token_node {
    uint32_t n_below; /* nodes of the subtree, this one included */
    uint32_t first_id, n_ids;
    uint16_t depth; /* of its byte: 0 for the first byte of a token */
    uint8_t byte;
};

struct token_tree {
    struct token_node *nodes; /* [n_nodes] */
    uint32_t *ids;            /* [n_ids] */
    uint32_t n_nodes, n_ids;
    uint32_t depth_max; /* bytes of the longest token */
};

/* A token that is to be in a tree. */
struct token_bytes {
    const char *bytes;
    uint32_t len; /* at most TOKEN_BYTES_MAX; longer tokens are left out */
    uint32_t id;
};
#define TOKEN_BYTES_MAX 512u

/* Build a tree of tokens [n], which are sorted by their bytes meanwhile. */
NODISCARD enum status token_tree_build(struct token_tree *t, struct token_bytes *tokens,
                                       uint32_t n);
void token_tree_fini(struct token_tree *t);

/* The longest token that the bytes begin with: *id, and its length; 0: there is none. *is_only: no
 * other token goes on with these bytes, if nothing else than they may come. */
uint32_t token_tree_longest(const struct token_tree *t, const uint8_t *bytes, uint32_t len,
                            uint32_t *id, bool *is_only);

/* Characters that may come in any order. */
struct loop_set {
    struct byte_set ascii;
    bool others;        /* every character that is not ASCII, in UTF-8 */
    uint32_t chars_max; /* in a row */
};

/* Whether the bytes are at most chars_max characters of the set alone, and none is cut. */
bool loop_set_has(const struct loop_set *s, const char *bytes, uint32_t len);

#endif
