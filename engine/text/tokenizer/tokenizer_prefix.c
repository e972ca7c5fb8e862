/* tokenizer_prefix.c - all pieces of a vocabulary in one trie, for Unigram and WordPiece.
 *
 * Both models ask at every place of a text which pieces begin there. The edges are in one open hash
 * table, so a step is one lookup, and building takes one pass over the vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#define LOG2_SLOTS_FIRST 10

static uint32_t n_slots(const struct tok_prefix *p)
{
    return p->slots ? p->mask + 1 : 0;
}

/* The slot of this key, or the free slot where it belongs. */
static struct tok_prefix_slot *slot_of(const struct tok_prefix *p, uint64_t key)
{
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> p->shift);

    while (p->slots[i].key != 0 && p->slots[i].key != key)
        i = (i + 1) & p->mask;
    return &p->slots[i];
}

static enum status grow(struct tok_prefix *p)
{
    struct tok_prefix bigger = {.n_nodes = p->n_nodes};
    unsigned log2 = p->slots ? 64 - p->shift + 1 : LOG2_SLOTS_FIRST;

    if (log2 > 31)
        return ERR_TOO_LARGE;
    bigger.slots = calloc((size_t)1 << log2, sizeof *bigger.slots);
    if (!bigger.slots)
        return ERR_NOMEM;
    bigger.shift = 64 - log2;
    bigger.mask = (1u << log2) - 1;
    for (uint32_t i = 0; i < n_slots(p); i++)
        if (p->slots[i].key)
            *slot_of(&bigger, p->slots[i].key) = p->slots[i];
    free(p->slots);
    *p = bigger;
    return OK;
}

/* Find or add an edge. Every node but the root is the end of one edge, so n_nodes counts edges. */
static enum status add_edge(struct tok_prefix *p, uint32_t node, char byte,
                            struct tok_prefix_slot **out)
{
    uint64_t key = ((uint64_t)node << 8 | (unsigned char)byte) + 1;

    if (p->n_nodes >= n_slots(p) / 2) {
        enum status s = grow(p);
        if (s != OK)
            return s;
    }
    *out = slot_of(p, key);
    if ((*out)->key == 0)
        **out = (struct tok_prefix_slot){.key = key, .child = ++p->n_nodes, .id = TOKEN_NONE};
    return OK;
}

enum status tok_prefix_add(struct tok_prefix *p, const char *s, size_t len, uint32_t id)
{
    struct tok_prefix_slot *slot = NULL;
    uint32_t node = 0;

    for (size_t i = 0; i < len; i++) {
        enum status st = add_edge(p, node, s[i], &slot);
        if (st != OK)
            return st;
        node = slot->child;
    }
    if (slot)
        slot->id = id;
    return OK;
}

void tok_prefix_fini(struct tok_prefix *p)
{
    free(p->slots);
    *p = (struct tok_prefix){0};
}

uint32_t tok_prefix_find(const struct tok_prefix *p, const char *s, size_t len)
{
    const struct tok_prefix_slot *slot = NULL;
    uint32_t node = 0;

    for (size_t i = 0; i < len && p->slots; i++) {
        slot = tok_prefix_step(p, node, s[i]);
        if (!slot)
            return TOKEN_NONE;
        node = slot->child;
    }
    return slot ? slot->id : TOKEN_NONE;
}
