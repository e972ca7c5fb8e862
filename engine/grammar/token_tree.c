#include "engine/grammar/token_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static int by_bytes(const void *a, const void *b)
{
    const struct token_bytes *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

    if (order == 0)
        order = (x->len > y->len) - (x->len < y->len);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static bool is_sorted(const struct token_bytes *tokens, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (by_bytes(&tokens[i - 1], &tokens[i]) > 0)
            return false;
    return true;
}

static uint32_t common(const struct token_bytes *a, const struct token_bytes *b)
{
    uint32_t n = 0;

    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Close the open nodes of `path` from depth `to` on. */
static void close_nodes(struct token_tree *t, const uint32_t *path, uint32_t from, uint32_t to)
{
    for (uint32_t d = to; d < from; d++)
        t->nodes[path[d]].n_below = t->n_nodes - path[d];
}

static void fill(struct token_tree *t, const struct token_bytes *tokens, uint32_t n)
{
    uint32_t path[TOKEN_BYTES_MAX], depth = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = i ? common(&tokens[i - 1], &tokens[i]) : 0;
        if (same < depth) {
            close_nodes(t, path, depth, same);
            depth = same;
        }
        for (; depth < tokens[i].len; depth++) {
            path[depth] = t->n_nodes;
            t->nodes[t->n_nodes++] = (struct token_node){.byte = (uint8_t)tokens[i].bytes[depth],
                                                         .depth = (uint16_t)depth,
                                                         .first_id = t->n_ids};
        }
        t->nodes[path[depth - 1]].n_ids++;
        t->ids[t->n_ids++] = tokens[i].id;
        t->depth_max = depth > t->depth_max ? depth : t->depth_max;
    }
    close_nodes(t, path, depth, 0);
}

enum status token_tree_build(struct token_tree *t, struct token_bytes *tokens, uint32_t n)
{
    uint64_t n_nodes = 0;
    uint32_t n_kept = 0;

    *t = (struct token_tree){0};
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i].len > 0 && tokens[i].len <= TOKEN_BYTES_MAX)
            tokens[n_kept++] = tokens[i];
    if (!is_sorted(tokens, n_kept))
        qsort(tokens, n_kept, sizeof *tokens, by_bytes);
    for (uint32_t i = 0; i < n_kept; i++)
        n_nodes += tokens[i].len - (i ? common(&tokens[i - 1], &tokens[i]) : 0);
    if (n_nodes > UINT32_MAX / 2)
        return ERR_TOO_LARGE;
    t->nodes = malloc((n_nodes + 1) * sizeof *t->nodes);
    t->ids = malloc((n_kept + 1) * sizeof *t->ids);
    if (!t->nodes || !t->ids) {
        token_tree_fini(t);
        return ERR_NOMEM;
    }
    fill(t, tokens, n_kept);
    return OK;
}

void token_tree_fini(struct token_tree *t)
{
    free(t->nodes);
    free(t->ids);
    *t = (struct token_tree){0};
}

uint32_t token_tree_longest(const struct token_tree *t, const uint8_t *bytes, uint32_t len,
                            uint32_t *id, bool *is_only)
{
    uint32_t first = 0, end = t->n_nodes, longest = 0, n_ids = 0, depth = 0;

    for (; depth < len; depth++) {
        while (first < end && t->nodes[first].byte != bytes[depth])
            first += t->nodes[first].n_below;
        if (first >= end)
            break;
        const struct token_node *n = &t->nodes[first];
        n_ids += n->n_ids;
        if (n->n_ids > 0) {
            longest = depth + 1;
            *id = t->ids[n->first_id];
        }
        end = first + n->n_below;
        first++;
    }
    *is_only = n_ids == 1 && (depth < len || first >= end);
    return longest;
}

bool loop_set_has(const struct loop_set *s, const char *bytes, uint32_t len)
{
    uint32_t n_chars = 0;

    for (uint32_t i = 0; i < len; n_chars++) {
        uint32_t code;
        size_t n = utf8_decode(bytes + i, len - i, &code);
        if (n == 0 || n_chars == s->chars_max ||
            (n == 1 ? !byte_set_has(&s->ascii, (uint8_t)code) : !s->others))
            return false;
        i += (uint32_t)n;
    }
    return true;
}
