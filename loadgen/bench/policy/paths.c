#include "loadgen/bench/policy/paths.h"

#include <stdlib.h>

#include "base/map.h"

/* splitmix64's last steps (Steele et al. 2014): close keys become far ones. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static bool is_wanted(const struct trace_part *part, enum paths_parts parts)
{
    return part->n_tokens > 0 && (parts == PARTS_ALL || part->role == PART_DOCUMENT);
}

static enum paths_parts choose_parts(const struct trace *t)
{
    for (size_t i = 0; i < t->n_parts; i++)
        if (t->parts[i].role == PART_DOCUMENT)
            return PARTS_DOCUMENTS;
    return PARTS_ALL;
}

/* The node of this part below `parent`; created if missing. */
static uint32_t node_of(struct paths *p, struct map *index, uint32_t parent, uint32_t depth,
                        const struct trace_part *part)
{
    uint64_t key = mix(mix(mix(part->id) + part->n_tokens) + parent);
    uint32_t node;

    if (map_get(index, key, &node))
        return node;
    node = p->n_nodes++;
    p->nodes[node] = (struct path_node){parent, depth, part->n_tokens};
    p->n_tokens_distinct += part->n_tokens;
    map_put(index, key, node);
    return node;
}

static void add_row(struct paths *p, struct map *index, const struct trace *t,
                    const struct trace_row *row)
{
    struct path *path = &p->requests[p->n_requests++];
    uint32_t parent = NO_NODE;
    bool is_known = true;

    *path = (struct path){.first = p->n_steps};
    for (uint32_t i = 0; i < row->n_parts; i++) {
        const struct trace_part *part = &t->parts[row->first_part + i];
        uint32_t n_before = p->n_nodes;

        if (!is_wanted(part, p->parts))
            continue;
        parent = node_of(p, index, parent, path->n_nodes, part);
        is_known &= p->n_nodes == n_before;
        p->steps[p->n_steps++] = (struct path_step){parent, NO_REQUEST};
        path->n_nodes++;
        p->n_tokens += part->n_tokens;
        p->n_tokens_ideal += is_known ? part->n_tokens : 0;
    }
    if (path->n_nodes > p->n_nodes_longest)
        p->n_nodes_longest = path->n_nodes;
}

static enum status find_next_uses(struct paths *p)
{
    uint32_t *next = malloc(sizeof *next * (p->n_nodes + 1));

    if (!next)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < p->n_nodes; i++)
        next[i] = NO_REQUEST;
    for (uint32_t r = p->n_requests; r-- > 0;)
        for (uint32_t i = 0; i < p->requests[r].n_nodes; i++) {
            struct path_step *step = &p->steps[p->requests[r].first + i];

            step->next_use = next[step->node];
            next[step->node] = r;
        }
    free(next);
    return OK;
}

enum status paths_build(struct paths *p, const struct trace *t, enum paths_parts parts,
                        uint64_t from, uint64_t to, struct buf *why)
{
    struct map index = {0};
    enum status s;

    *p = (struct paths){.parts = parts == PARTS_AUTO ? choose_parts(t) : parts};
    if (to > t->n_rows)
        to = t->n_rows;
    if (from >= to || t->n_parts == 0 || t->n_parts >= NO_NODE || t->n_rows >= NO_REQUEST)
        return buf_why(why, ERR_INVALID, "no rows with shared parts, or too many");
    p->nodes = calloc(t->n_parts, sizeof *p->nodes);
    p->steps = calloc(t->n_parts, sizeof *p->steps);
    p->requests = calloc(to - from, sizeof *p->requests);
    s = p->nodes && p->steps && p->requests ? map_init(&index, (uint32_t)t->n_parts) : ERR_NOMEM;
    for (uint64_t i = from; s == OK && i < to; i++)
        add_row(p, &index, t, &t->rows[i]);
    map_fini(&index);
    if (s == OK && p->n_nodes == 0)
        s = buf_why(why, ERR_INVALID, "these rows have no such parts");
    if (s == OK)
        s = find_next_uses(p);
    if (s != OK)
        paths_fini(p);
    return s;
}

void paths_fini(struct paths *p)
{
    free(p->nodes);
    free(p->steps);
    free(p->requests);
    *p = (struct paths){0};
}
