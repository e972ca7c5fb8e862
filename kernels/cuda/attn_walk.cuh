/* attn_walk.cuh - what the kernels of attn_prefill.cu and attn_wgmma.cu share: which queries a
 * block has, its walk over the tiles of keys, and the names of a lane's queries.
 *
 * A block takes QUERIES queries of one sequence and KV head, and walks over the tiles that any of
 * them sees, in ascending order. With job.n_groups it walks one group of segments, blockIdx.z.
 *
 * Owns    nothing.
 * Thread  device code; all lanes of a warp call find_place() together.
 * Errors  none.
 * Units   queries, tokens, positions. */
#ifndef TARN_KERNELS_CUDA_ATTN_WALK_CUH
#define TARN_KERNELS_CUDA_ATTN_WALK_CUH

#include "kernels/cuda/attn_launch.cuh"
#include "kernels/cuda/attn_tile.cuh"

/* Where a block's queries are, and what its walk covers. In shared memory, because registers are
 * scarce. */
struct place {
    uint32_t seq;
    uint32_t block0;    /* its first query */
    uint32_t first_pos; /* of its rows */
    uint32_t last_pos;
    uint32_t end;       /* of the segments, numbered over the batch */
};

/* The walk over the tiles of a sequence that some row of a block sees. The struct has indices only,
 * and each step reads the segment again. */
struct walk {
    uint32_t index; /* segment, numbered over the batch */
    uint32_t token0;
};

static __device__ __forceinline__ bool walk_ended(const struct walk &w, const struct place &place)
{
    return w.index >= place.end;
}

/* Stop at this tile or at the next one that is seen. */
static __device__ __forceinline__ void walk_settle(struct walk *w, const struct attention_params &p,
                                                   const struct place &place)
{
    uint32_t first_key = attn_first_key(p.window, place.first_pos);

    while (!walk_ended(*w, place)) {
        const struct attn_segment seg = p.segments[w->index];

        if (w->token0 >= seg.n_tokens) {
            w->token0 = 0;
            w->index++;
        } else if (seg.pos0 + w->token0 > place.last_pos) {
            w->index = place.end;
        } else if (seg.pos0 + attn_min(w->token0 + ATTN_TILE, seg.n_tokens) > first_key) {
            return;
        } else {
            w->token0 += ATTN_TILE;
        }
    }
}

/* Start the walk of QUERIES queries from block0 on: over one group if groups are split. Sets the
 * rest of the place. */
template <int QUERIES>
static __device__ __forceinline__ struct walk walk_start(const struct attn_job &job,
                                                         const struct attn_seq &seq,
                                                         struct place *place)
{
    const struct attention_params &p = job.p;
    uint32_t last = attn_min(place->block0 + QUERIES, seq.n_rows * job.n_shared) - 1;
    struct walk w = {seq.seg0, 0};

    place->first_pos = seq.pos0 + place->block0 / job.n_shared;
    place->last_pos = seq.pos0 + last / job.n_shared;
    place->end = seq.seg0 + seq.n_segs;
    w.index += attn_first_segment(p.segments + seq.seg0, seq.n_segs,
                                  attn_first_key(p.window, place->first_pos));
    if (job.n_groups > 0) {
        uint32_t first = seq.seg0 + blockIdx.z * ATTN_GROUP_SEGMENTS;

        w.index = w.index > first ? w.index : first;
        place->end = attn_min(place->end, first + ATTN_GROUP_SEGMENTS);
    }
    walk_settle(&w, p, *place);
    return w;
}

static __device__ __forceinline__ bool in_other_group(const struct attention_params &p,
                                                      const struct place &place, uint32_t a,
                                                      uint32_t b)
{
    uint32_t seg0 = p.seqs[place.seq].seg0;

    return (a - seg0) / ATTN_GROUP_SEGMENTS != (b - seg0) / ATTN_GROUP_SEGMENTS;
}

/* Where the blocks of sequence i begin among those of all, with QUERIES queries each: they are at
 * most 1 more than the difference to the next one. */
template <int QUERIES>
static __device__ __forceinline__ uint32_t first_block_of(const struct attn_seq &seq, uint32_t i,
                                                      uint32_t n_shared)
{
    return (uint32_t)((uint64_t)seq.row0 * n_shared / QUERIES) + i;
}

/* Set the place of this block; false: there are no queries, or another kernel takes them. `wide`:
 * whether this is the kernel of attn_is_wide(). The last queries of a sequence see the most keys,
 * so they start first. */
template <int QUERIES>
static __device__ __forceinline__ bool find_place(struct place *place,
                                                      const struct attn_job &job, bool wide)
{
    const struct attention_params &p = job.p;
    uint32_t n_shared = job.n_shared;

    place->seq = attn_find_seq(
        p.seqs, p.n_seqs, blockIdx.x,
        [=](const struct attn_seq &s, uint32_t k) {
            return first_block_of<QUERIES>(s, k, n_shared);
        });
    const struct attn_seq seq = p.seqs[place->seq];
    uint32_t i = blockIdx.x - first_block_of<QUERIES>(seq, place->seq, n_shared);
    uint32_t n_blocks = ceil_div(seq.n_rows * n_shared, QUERIES);

    if (i >= n_blocks || attn_is_split(seq, job.n_partial_segs) ||
        attn_is_wide(seq, job) != wide)
        return false;
    place->block0 = (n_blocks - 1 - i) * QUERIES;
    return true;
}

/* --- queries and their states --- */

/* The query in row r (0: g, 1: g + 8) of this lane's fragments. PARTS warps have the same ones. */
template <int PARTS>
static __device__ __forceinline__ uint32_t lane_query(uint32_t block0, int r)
{
    return block0 + threadIdx.x / (PARTS * WARP) * ATTN_QUERIES + threadIdx.x % WARP / 4 + 8 * r;
}

/* A query's row and head; false: there is no such query. */
template <int PARTS>
static __device__ __forceinline__ bool find_query(const struct attn_job &job, struct place place,
                                                  int r, size_t *row, uint32_t *head)
{
    const struct attn_seq seq = job.p.seqs[place.seq];
    uint32_t query = lane_query<PARTS>(place.block0, r);

    *row = seq.row0 + query / job.n_shared;
    *head = blockIdx.y * job.n_shared + query % job.n_shared;
    return query < seq.n_rows * job.n_shared;
}

/* The state of a group; o is the thread's part of shared memory. */
struct total {
    float m[2];
    float l[2]; /* below 0: the query has seen no key of it */
    float4 *o;
};

/* (m, l) of query r, l below 0: none. Selected, since an index that is not constant would put them
 * on the stack. */
static __device__ __forceinline__ float2 total_ml(const struct total &t, int r)
{
    return r == 0 ? make_float2(t.m[0], t.l[0]) : make_float2(t.m[1], t.l[1]);
}

/* (m, l) of a row of which no group was joined yet: l of others is not below 0. */
static __device__ __forceinline__ float2 no_row()
{
    return make_float2(-INFINITY, -1);
}

/* How a group's state is joined to its row: added by weights, taken as it is (the row's first
 * group), or not seen, so that the row stays. */
struct group_join {
    struct attn_weights w;
    bool joins, stays;
    float factor; /* of the result: the row's last group is divided by l */
};

/* Join (m, l) of a group to that of its row. */
static __device__ __forceinline__ struct group_join join_ml(float2 *row, float2 group, bool last)
{
    bool sees = !(group.y < 0), has_row = !(row->y < 0);
    struct group_join j = {attn_weigh(row->x, group.x), has_row && sees, has_row && !sees, 1};

    if (j.joins)
        *row = make_float2(j.w.m, attn_join(row->y, group.y, j.w));
    else if (!j.stays)
        *row = make_float2(group.x, sees ? group.y : 0);
    if (last)
        j.factor = attn_inverse(row->y);
    return j;
}

template <enum dtype TYPE>
static __device__ __forceinline__ bool has_special(uint32_t pair) /* inf or NaN */
{
    const uint32_t exponent = TYPE == DTYPE_F16 ? 0x7c00u : 0x7f80u;

    return (pair & exponent) == exponent || (pair & exponent << 16) == exponent << 16;
}

#endif
