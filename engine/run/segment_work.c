#include "engine/run/segment_work.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NONE UINT32_MAX

/* A segment of the batch: its sequence, and its place in the group. */
struct link {
    uint32_t seq;
    uint32_t next; /* member of the group; NONE */
    uint32_t last; /* of the group, if the segment is its first member */
    uint32_t n;    /* members; 0: the segment is not the first one */
};

/* A slot of the hash table, whose key is a segment's first block. */
struct slot {
    uint32_t step; /* that filled the slot; else the slot is free */
    uint32_t head; /* first member of the group that takes further ones */
};

struct segment_work {
    uint32_t n_max, n_links;
    uint32_t step;
    struct attn_work *list; /* [n_max] */
    struct link *links;     /* [n_links] */
    struct slot *slots;     /* [2 * n_links], a power of two */
};

enum status segment_work_create(struct segment_work **out, uint32_t n_segments_max)
{
    struct segment_work *w = calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return ERR_NOMEM;
    w->n_max = n_segments_max;
    for (w->n_links = 1; w->n_links < n_segments_max && w->n_links < SEGMENT_WORK_MAX;)
        w->n_links *= 2;
    w->list = calloc(w->n_max, sizeof *w->list);
    w->links = calloc(w->n_links, sizeof *w->links);
    w->slots = calloc(2 * (size_t)w->n_links, sizeof *w->slots);
    if (!w->list || !w->links || !w->slots) {
        segment_work_destroy(w);
        return ERR_NOMEM;
    }
    *out = w;
    return OK;
}

void segment_work_destroy(struct segment_work *w)
{
    if (!w)
        return;
    free(w->list);
    free(w->links);
    free(w->slots);
    free(w);
}

static uint32_t n_blocks_of(const struct attn_segment *s)
{
    return (s->n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

static bool is_same(const struct batch *b, uint32_t i, uint32_t k)
{
    const struct attn_segment *x = &b->segments[i], *y = &b->segments[k];

    return x->pos0 == y->pos0 && x->n_tokens == y->n_tokens &&
           memcmp(b->blocks + x->block0, b->blocks + y->block0,
                  n_blocks_of(x) * sizeof *b->blocks) == 0;
}

static void append(struct segment_work *w, uint32_t head, uint32_t segment)
{
    w->links[w->links[head].last].next = segment;
    w->links[head].last = segment;
    w->links[head].n++;
    w->links[segment].n = 0;
}

/* Put a segment that its sequence sees whole into a group with the same one of other sequences; at
 * most half of the slots are filled. */
static void join_group(struct segment_work *w, const struct batch *b, uint32_t segment,
                       uint32_t n_together)
{
    uint32_t mask = 2 * w->n_links - 1;

    for (uint32_t at = b->blocks[b->segments[segment].block0] * 0x9e3779b1u;; at++) {
        struct slot *slot = &w->slots[at & mask];

        if (slot->step != w->step) {
            *slot = (struct slot){w->step, segment};
            return;
        }
        if (!is_same(b, slot->head, segment))
            continue;
        if (w->links[slot->head].n < n_together)
            append(w, slot->head, segment);
        else
            slot->head = segment; /* the next group */
        return;
    }
}

static void next_step(struct segment_work *w)
{
    if (++w->step == 0) { /* the count began again: no slot may have a step of its first round */
        memset(w->slots, 0, 2 * (size_t)w->n_links * sizeof *w->slots);
        w->step = 1;
    }
}

/* Find the groups of the batch's segments. */
static void find_groups(struct segment_work *w, const struct batch *b, uint32_t n_together)
{
    next_step(w);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct attn_seq *q = &b->seqs[i];

        for (uint32_t k = q->seg0; q->n_rows == 1 && k < q->seg0 + q->n_segs; k++) {
            const struct attn_segment *s = &b->segments[k];

            w->links[k] = (struct link){.seq = i, .next = NONE, .last = k, .n = 1};
            if (s->n_tokens > 0 && s->pos0 + s->n_tokens <= q->pos0)
                join_group(w, b, k, n_together);
        }
    }
}

/* List the members of the group that begins with `head`; returns how many entries there are now. */
static uint32_t list_group(struct segment_work *w, uint32_t head, uint32_t n)
{
    uint32_t n_members = w->links[head].n;

    for (uint32_t k = head; k != NONE; k = w->links[k].next, n_members = 0)
        w->list[n++] = (struct attn_work){k, w->links[k].seq, n_members};
    return n;
}

const struct attn_work *segment_work_list(struct segment_work *w, const struct batch *b,
                                          uint32_t n_together, uint32_t n)
{
    bool has_groups = b->n_segments <= w->n_links && n_together > 1;
    uint32_t used = 0;

    ASSERT(n_together >= 1 && n_together <= ATTN_WORK_MAX);
    ASSERT(b->n_segments <= n && n <= w->n_max);
    if (has_groups)
        find_groups(w, b, n_together);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct attn_seq *q = &b->seqs[i];

        for (uint32_t k = q->seg0; q->n_rows == 1 && k < q->seg0 + q->n_segs; k++)
            if (!has_groups)
                w->list[used++] = (struct attn_work){k, i, 1};
            else if (w->links[k].n > 0)
                used = list_group(w, k, used);
    }
    memset(w->list + used, 0, (n - used) * sizeof *w->list);
    return w->list;
}
