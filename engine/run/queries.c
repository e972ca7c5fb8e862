#include "engine/run/queries.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Rows of one sequence in the wave under way. */
struct piece {
    struct batch_query *query;
    uint32_t row, n_rows; /* of the sequence */
    float *tiles;         /* [n_local][n_rows] */
};

struct queries {
    struct queries_config c;
    size_t tile_floats;        /* of one row and segment, all heads */
    uint32_t n_tiles_max;      /* rows x segments */
    float *tiles;              /* [n_tiles_max][tile_floats] */
    const float **parts;       /* [n_tiles_max + POOL_QUERY_SEGMENTS_MAX] */
    struct piece *pieces;      /* [n_seqs_max] */
    struct attn_seq *seqs;     /* [2 n_seqs_max] local segments before and behind the remote ones */
    struct attn_seq *ordinary; /* [n_ordinary] sequences that do not query */
    uint32_t *n_done;          /* [n_seqs_max] rows of each query that are done in this layer */
    uint32_t n_ordinary;
    struct batch *batch; /* of the step */
};

enum status queries_create(struct queries **out, const struct queries_config *config)
{
    struct queries *q;

    *out = NULL;
    if (!device_is_host(config->device) || !config->ops->attention_tiles)
        return ERR_UNSUPPORTED;
    if (!(q = calloc(1, sizeof *q)))
        return ERR_NOMEM;
    q->c = *config;
    q->tile_floats = (size_t)config->n_heads * (config->head_dim + 2);
    q->n_tiles_max = (uint32_t)(QUERIES_TILE_BYTES / (q->tile_floats * sizeof(float)));
    q->tiles = device_alloc(config->device, QUERIES_TILE_BYTES);
    q->parts = calloc(q->n_tiles_max + POOL_QUERY_SEGMENTS_MAX, sizeof *q->parts);
    q->pieces = calloc(config->n_seqs_max, sizeof *q->pieces);
    q->seqs = calloc(2 * (size_t)config->n_seqs_max, sizeof *q->seqs);
    q->ordinary = calloc(config->n_seqs_max, sizeof *q->ordinary);
    q->n_done = calloc(config->n_seqs_max, sizeof *q->n_done);
    if (!q->tiles || !q->parts || !q->pieces || !q->seqs || !q->ordinary || !q->n_done) {
        queries_destroy(q);
        return ERR_NOMEM;
    }
    *out = q;
    return OK;
}

void queries_destroy(struct queries *q)
{
    if (!q)
        return;
    device_free(q->c.device, q->tiles);
    free(q->parts);
    free(q->pieces);
    free(q->seqs);
    free(q->ordinary);
    free(q->n_done);
    free(q);
}

void queries_begin(struct queries *q, struct batch *b)
{
    uint32_t next = 0;

    ASSERT(b->n_seqs <= q->c.n_seqs_max);
    q->batch = b;
    q->n_ordinary = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (next < b->n_queries && b->queries[next].seq == i)
            next++;
        else
            q->ordinary[q->n_ordinary++] = b->seqs[i];
    ASSERT(next == b->n_queries);
}

static uint32_t n_local(const struct queries *q, const struct batch_query *x)
{
    return q->batch->seqs[x->seq].n_segs - x->n_remote;
}

/* Rows of the sequence's next piece, beside n_tiles of the wave's other pieces. 0: none fits into
 * this wave. A sequence of which no row ever fits has failed. */
static uint32_t piece_rows(const struct queries *q, struct batch_query *x, uint32_t n_left,
                           uint32_t n_tiles)
{
    uint32_t most = x->n_remote <= POOL_QUERY_SEGMENTS_MAX ? q->c.calls->rows_max(x->kv) : 0;
    uint32_t per_row = n_local(q, x);

    if (most == 0 || per_row > q->n_tiles_max) {
        x->failed = true;
        return 0;
    }
    if (n_left > most)
        n_left = most;
    if (per_row > 0 && n_left > (q->n_tiles_max - n_tiles) / per_row)
        n_left = (q->n_tiles_max - n_tiles) / per_row;
    return n_left;
}

/* Choose the pieces of a wave and send their queries. Returns the number of pieces. */
static uint32_t send_wave(struct queries *q, const struct attention_params *p)
{
    uint32_t n = 0, n_tiles = 0;

    for (uint32_t i = 0; i < q->batch->n_queries; i++) {
        struct batch_query *x = &q->batch->queries[i];
        const struct attn_seq *seq = &q->batch->seqs[x->seq];
        uint32_t row = q->n_done[i], rows;

        if (x->failed || row == seq->n_rows)
            continue;
        rows = piece_rows(q, x, seq->n_rows - row, n_tiles);
        if (rows == 0)
            continue;
        if (q->c.calls->query(x->kv, p->layer, p->q + (seq->row0 + row) * p->q_stride, p->q_stride,
                              rows) != OK) {
            x->failed = true;
            continue;
        }
        q->pieces[n++] = (struct piece){
            .query = x, .row = row, .n_rows = rows, .tiles = q->tiles + n_tiles * q->tile_floats};
        q->n_done[i] += rows;
        n_tiles += n_local(q, x) * rows;
    }
    return n;
}

/* Add segments [first, first + n) of a piece's sequence to the call. */
static void add_local(struct queries *q, struct attention_params *p, const struct piece *piece,
                      uint32_t first, uint32_t n)
{
    struct attn_seq seq = q->batch->seqs[piece->query->seq];

    if (n == 0)
        return;
    seq.row0 += piece->row;
    seq.pos0 += piece->row;
    seq.n_rows = piece->n_rows;
    seq.seg0 += first;
    seq.n_segs = n;
    q->seqs[p->n_seqs++] = seq;
    p->n_rows += seq.n_rows;
}

/* Compute the tiles of the local segments of all pieces. */
static enum status local_tiles(struct queries *q, const struct attention_params *all, uint32_t n)
{
    struct attention_params p = *all;

    p.n_seqs = p.n_rows = 0;
    p.seqs = q->seqs;
    p.out = q->tiles;
    for (uint32_t i = 0; i < n; i++) {
        const struct batch_query *x = q->pieces[i].query;
        uint32_t end = x->remote0 + x->n_remote;

        add_local(q, &p, &q->pieces[i], 0, x->remote0);
        add_local(q, &p, &q->pieces[i], end, q->batch->seqs[x->seq].n_segs - end);
    }
    return p.n_seqs > 0 ? q->c.ops->attention_tiles(q->c.device, NULL, &p) : OK;
}

static enum status merge(struct queries *q, const struct attention_params *p,
                         const struct piece *piece, const float **remote)
{
    const struct batch_query *x = piece->query;
    const struct attn_seq *seq = &q->batch->seqs[x->seq];
    size_t step = piece->n_rows * q->tile_floats;
    const float *local = piece->tiles;
    struct merge_tiles_params m = {.n_rows = piece->n_rows,
                                   .n_heads = q->c.n_heads,
                                   .head_dim = q->c.head_dim,
                                   .kv_dtype = p->pool.layout.dtype,
                                   .n_parts = seq->n_segs,
                                   .parts = q->parts,
                                   .out = p->out + (size_t)(seq->row0 + piece->row) * q->c.n_heads *
                                                       q->c.head_dim};

    for (uint32_t i = 0; i < seq->n_segs; i++) {
        bool is_remote = i - x->remote0 < x->n_remote;

        q->parts[i] = is_remote ? *remote++ : local;
        local += is_remote ? 0 : step;
    }
    return q->c.ops->merge_tiles(q->c.device, NULL, &m);
}

static enum status finish_wave(struct queries *q, const struct attention_params *p, uint32_t n)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++) {
        const struct piece *piece = &q->pieces[i];
        const float *remote[POOL_QUERY_SEGMENTS_MAX];

        if (q->c.calls->answer(piece->query->kv, remote) == OK)
            s = merge(q, p, piece, remote);
        else
            piece->query->failed = true;
    }
    return s;
}

static void clear_failed(const struct queries *q, const struct attention_params *p)
{
    size_t width = (size_t)q->c.n_heads * q->c.head_dim;

    for (uint32_t i = 0; i < q->batch->n_queries; i++) {
        const struct attn_seq *seq = &q->batch->seqs[q->batch->queries[i].seq];

        if (q->batch->queries[i].failed)
            memset(p->out + seq->row0 * width, 0, seq->n_rows * width * sizeof *p->out);
    }
}

static enum status ordinary_attention(const struct queries *q, const struct attention_params *all)
{
    struct attention_params p = *all;

    p.seqs = q->ordinary;
    p.n_seqs = q->n_ordinary;
    return p.n_seqs > 0 ? q->c.ops->attention(q->c.device, NULL, &p) : OK;
}

enum status queries_attention(void *arg, const struct attention_params *p)
{
    struct queries *q = arg;
    enum status s;
    uint32_t n;

    memset(q->n_done, 0, q->batch->n_queries * sizeof *q->n_done);
    n = send_wave(q, p);
    s = ordinary_attention(q, p);
    while (s == OK && n > 0) {
        s = local_tiles(q, p, n);
        if (s == OK)
            s = finish_wave(q, p, n);
        if (s == OK)
            n = send_wave(q, p);
    }
    clear_failed(q, p);
    return s;
}
