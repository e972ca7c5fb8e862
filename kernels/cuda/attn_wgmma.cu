/* attn_wgmma.cu - attention of sequences with many rows on Hopper's own matrix instructions, for
 * compute capability 9.0 alone (sm_90a), KV in bf16, heads of 64 and 128 dimensions.
 *
 * A block takes 128 queries of one KV head, 64 per warpgroup, and walks over the tiles that any of
 * them sees. A third warpgroup brings K and V (attn_operands.cuh). The tree of merges is that of
 * attn_tile.cuh: each tile of 64 keys has its own maximum, sum and o, which are joined by
 * selection, so that a row's bits depend on its own keys alone. They are not those of
 * attn_prefill.cu: these instructions add in an order of their own, and keys are in another order.
 *
 *   S [64 queries, 64 keys]  = Q, from shared memory, times K
 *   O [64 queries, d]        = P, from registers, times V
 *
 * While the products of a tile's values run, those of the next tile's keys wait behind them, and
 * run while o is joined. The other warpgroup's products run during this one's exponentials. */
#include "base/check.h"
#include "kernels/cuda/attn_operands.cuh"
#include "kernels/cuda/rounded.cuh"

/* Of the 504 registers that a thread of each warpgroup may have together. */
#define CONSUMER_REGISTERS 200
#define PRODUCER_REGISTERS 104

/* --- a tile --- */

/* This lane's two queries of a tile: maxima, sums, and p as A fragments of the second product. */
struct weights {
    float m[2];
    float l[2];
    uint32_t p[ATTN_TILE / 4]; /* four for each 16 keys */
};

/* Start S = Q K. */
template <int DIM>
static __device__ __forceinline__ void start_scores(float (&s)[32], uint32_t q, uint32_t k)
{
    pin_registers(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t at = i / 4 * OPERAND_BYTES + i % 4 * 32;

        wgmma_bf16_shared(s, operand_at(q + at), operand_at(k + at), i > 0);
    }
    wgmma_commit();
}

/* Start o = P V. */
template <int DIM>
static __device__ __forceinline__ void start_values(float (&o)[DIM / 2], struct weights &t,
                                                    uint32_t v)
{
    pin_registers(o);
    pin_registers(t.p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ATTN_TILE / 16; i++)
        wgmma_bf16(o, t.p + 4 * i, operand_at(v + 32 * i), i > 0);
    wgmma_commit();
}

/* Replace scores by -inf where the query does not see the key. s[4j + 2r + e]: query r, key 8j + 2c
 * + e. */
static __device__ __forceinline__ void hide_keys(float (&s)[32], const struct attn_range range[2])
{
    bool whole = range[0].lo + range[1].lo == 0 && range[0].hi + range[1].hi == 2 * ATTN_TILE;

    if (__all_sync(FULL_WARP, whole))
        return;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        uint32_t token = 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2;
        const struct attn_range &r = range[i % 4 / 2];

        if (token < r.lo || token >= r.hi)
            s[i] = -INFINITY;
    }
}

/* Maxima, sums and p of a tile, whose products are in s. A product is multiplied within the
 * exponent's own sum. */
static __device__ __forceinline__ void weigh_keys(struct weights &t, float (&s)[32],
                                                  const struct attn_range range[2],
                                                  struct attn_scale scale)
{
    if (scale.cap > 0) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = attn_score(s[i], scale);
        scale.mul = 1;
    }
    hide_keys(s, range);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = -INFINITY, l = 0;

#pragma unroll
        for (int i = 0; i < 16; i++)
            m = fmaxf(m, s[i / 2 * 4 + 2 * r + i % 2]);
        m = attn_quad_max(m) * scale.mul;
        float from = m == -INFINITY ? 0 : m; /* then every p is 2^-inf = 0, or NaN if a score is
                                                NaN */
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &x = s[i / 2 * 4 + 2 * r + i % 2];

            x = fast_exp2(fmaf(x, scale.mul, -from));
            l += x;
        }
        t.m[r] = m;
        t.l[r] = attn_quad_sum(l);
    }
#pragma unroll
    for (int i = 0; i < ATTN_TILE / 4; i++)
        t.p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* This lane's state of two queries within a segment: m, l, and o[4j + 2r + e], which is dimension
 * 8j + 2c + e of query r. */
template <int DIM>
struct state {
    float m[2];
    float l[2];
    float o[DIM / 2];
};

template <int DIM>
static __device__ __forceinline__ void state_clear(state<DIM> &s)
{
    s.m[0] = s.m[1] = -INFINITY;
    s.l[0] = s.l[1] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        s.o[i] = 0;
}

/* Merge a tile into the segment's state. A query with an empty range keeps its state. */
template <int DIM>
static __device__ __forceinline__ void join_tile(state<DIM> &state, const struct weights &t,
                                                 const float (&o)[DIM / 2],
                                                 const struct attn_range range[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        struct attn_weights w = attn_weigh(state.m[r], t.m[r]);

        if (!attn_sees(range[r]))
            continue;
        state.m[r] = w.m;
        state.l[r] = attn_join(state.l[r], t.l[r], w);
#pragma unroll
        for (int i = 0; i < DIM / 4; i++) {
            int at = i / 2 * 4 + 2 * r + i % 2;

            state.o[at] = attn_join(state.o[at], o[at], w);
        }
    }
}

/* --- segments, groups, rows --- */

/* The group's state lies in shared memory while tiles are computed, where registers are scarce. */
template <int DIM>
static __device__ __forceinline__ struct total total_load(const struct memory &m)
{
    float4 s = reinterpret_cast<float4 *>(m.at + layout<DIM>::SUMS)[threadIdx.x];

    return {{s.x, s.y}, {s.z, s.w},
            reinterpret_cast<float4 *>(m.at + layout<DIM>::TOTALS) + threadIdx.x};
}

template <int DIM>
static __device__ __forceinline__ void total_store(const struct memory &m, const struct total &t)
{
    reinterpret_cast<float4 *>(m.at + layout<DIM>::SUMS)[threadIdx.x] =
        make_float4(t.m[0], t.m[1], t.l[0], t.l[1]);
}

template <int DIM>
static __device__ __forceinline__ void total_clear(const struct memory &m)
{
    struct total t = total_load<DIM>(m);

    t.m[0] = t.m[1] = -INFINITY;
    t.l[0] = t.l[1] = -1;
    total_store<DIM>(m, t);
#pragma unroll
    for (int i = 0; i < layout<DIM>::N_TOTAL; i++)
        t.o[CONSUMERS * i] = make_float4(0, 0, 0, 0);
}

/* Merge a finished segment into the group's state. */
template <int DIM>
static __device__ __forceinline__ void join_segment(const struct memory &m, const state<DIM> &part,
                                                    const uint32_t row_pos[2], uint32_t window,
                                                    const struct attn_segment &seg)
{
    struct total total = total_load<DIM>(m);
    struct attn_weights w[2];
    bool sees[2];

#pragma unroll
    for (int r = 0; r < 2; r++) {
        w[r] = attn_weigh(total.m[r], part.m[r]);
        sees[r] = attn_sees(attn_visible(window, row_pos[r], seg.pos0, seg.n_tokens));
        if (sees[r]) {
            total.m[r] = w[r].m;
            total.l[r] = attn_join(total.l[r] < 0 ? 0 : total.l[r], part.l[r], w[r]);
        }
    }
    total_store<DIM>(m, total);
#pragma unroll
    for (int i = 0; i < layout<DIM>::N_TOTAL; i++) {
        float4 o = total.o[CONSUMERS * i];

        if (sees[0]) {
            o.x = attn_join(o.x, part.o[4 * i], w[0]);
            o.y = attn_join(o.y, part.o[4 * i + 1], w[0]);
        }
        if (sees[1]) {
            o.z = attn_join(o.z, part.o[4 * i + 2], w[1]);
            o.w = attn_join(o.w, part.o[4 * i + 3], w[1]);
        }
        total.o[CONSUMERS * i] = o;
    }
}

/* This lane's two dimensions of query r among the eight dimensions i. */
static __device__ __forceinline__ float2 get_two(const struct total &t, int i, int r)
{
    float4 o = t.o[CONSUMERS * i];

    return r == 0 ? make_float2(o.x, o.y) : make_float2(o.z, o.w);
}

/* Join the group's state of query r to the row's, whose o is in `out` and whose (m, l) is ml. The
 * row's first group is taken as it is. `last`: divide by l, and write to `rounded` unless that is
 * NULL. Returns the row's (m, l). */
template <int DIM>
static __device__ __forceinline__ float2 join_group(const struct total &t, int r, float *out,
                                                    uint16_t *rounded, enum dtype weights,
                                                    float2 ml, bool last)
{
    float2 group = total_ml(t, r);

    if (group.y < 0 && !last)
        return ml;
    const struct group_join j = join_ml(&ml, group, last);

#pragma unroll 1
    for (int i = 0; i < DIM / 8; i++) {
        uint32_t at = 8 * i + 2 * (threadIdx.x % 4);
        float2 *to = reinterpret_cast<float2 *>(out + at), x = get_two(t, i, r);

        if (j.stays)
            x = *to;
        else if (j.joins)
            x = make_float2(attn_join(to->x, x.x, j.w), attn_join(to->y, x.y, j.w));
        x = make_float2(x.x * j.factor, x.y * j.factor);
        if (last && rounded)
            *reinterpret_cast<uint32_t *>(rounded + at) = round_pair(weights, x.x, x.y);
        else
            *to = x;
    }
    return ml;
}

/* (m, l) of the thread's two rows. */
template <int DIM>
static __device__ __forceinline__ float2 *rows_of(const struct memory &m)
{
    return reinterpret_cast<float2 *>(m.at + layout<DIM>::ROWS) + 2 * threadIdx.x;
}

/* A group ends; `last`: the row does too. */
template <int DIM>
static __device__ __forceinline__ void end_group(const struct memory &m, const struct attn_job &job,
                                                 bool last)
{
    const struct attention_params &p = job.p;
    const struct place &place = m.x->place;
    const struct total t = total_load<DIM>(m);
    float2 *rows = rows_of<DIM>(m);

#pragma unroll 1
    for (int r = 0; r < 2; r++) {
        uint32_t head;
        size_t row;

        if (!find_query<1>(job, place, r, &row, &head))
            continue;
        uint16_t *rounded = p.rounded.data ? p.rounded.data + row * p.rounded.stride : NULL;

        rows[r] = join_group<DIM>(t, r, p.out + (row * p.n_heads + head) * DIM,
                                  rounded ? rounded + head * DIM : NULL, p.rounded.weights,
                                  rows[r], last);
        if (last && rounded && head == p.n_heads - 1)
            for (uint32_t i = p.n_heads * DIM + threadIdx.x % 4; i < p.rounded.stride; i += 4)
                rounded[i] = 0;
        if (last && p.lse && threadIdx.x % 4 == 0)
            p.lse[row * p.n_heads + head] = attn_lse(rows[r].x, rows[r].y);
    }
}

/* Write the group's states as partial results: slot row * n_groups + group. */
template <int DIM>
static __device__ __forceinline__ void write_partials(const struct memory &m,
                                                      const struct attn_job &job)
{
    const struct place &place = m.x->place;
    const struct total t = total_load<DIM>(m);

#pragma unroll 1
    for (int r = 0; r < 2; r++) {
        uint32_t head;
        size_t row;

        if (!find_query<1>(job, place, r, &row, &head) || total_ml(t, r).y < 0)
            continue;
        size_t slot = row * job.n_groups + blockIdx.z;
        float *to = job.partials + (slot * job.p.n_heads + head) * DIM + 2 * (threadIdx.x % 4);

#pragma unroll 1
        for (int i = 0; i < DIM / 8; i++)
            *reinterpret_cast<float2 *>(to + 8 * i) = get_two(t, i, r);
        if (threadIdx.x % 4 == 0)
            *attn_partial_ml(job, slot, head) = total_ml(t, r);
    }
}

/* --- the warpgroups that compute --- */

/* All consumers wait for each other; parity: 0 and 1 in turns. */
static __device__ __forceinline__ void consumers_meet(const struct memory &m, uint32_t parity)
{
    barrier_arrive(&m.x->turn);
    barrier_wait(&m.x->turn, parity);
}

/* Bring V of a tile again, with zeros outside the range, behind the products that read the old. */
template <int DIM>
static __device__ __forceinline__ void select_values(unsigned char *to,
                                                     const struct attention_params &p,
                                                     const struct walk &w, struct attn_range range)
{
    const struct tile tile = {tile_of(p, w).blocks, range.hi};

    for (uint32_t n = threadIdx.x; n < 8 * (DIM / 4); n += CONSUMERS) {
        uint32_t u = n % 8, g = n / 8;
        four v;

        load_unit<DIM>(v, source_of(p), tile, u, g);
        store_unit(to, u, g, v, range);
    }
    fence_stores_for_products();
}

/* Merge a tile with inf or NaN, which must not reach a query that does not see their key, since 0 *
 * inf is NaN: a turn for each row of the block, with the values that it sees. */
template <int DIM>
static __device__ __forceinline__ void join_special(state<DIM> &part, struct weights &t,
                                                    float (&o)[DIM / 2],
                                                 const struct attention_params &p,
                                                 const struct memory &m, const struct walk &w,
                                                 uint32_t i, const uint32_t row_pos[2])
{
    const struct attn_segment seg = p.segments[w.index];
    const struct place &place = m.x->place;
    unsigned char *v = m.values<DIM>(i);

    for (uint32_t pos = place.first_pos; pos <= place.last_pos; pos++) {
        struct attn_range range[2];

        consumers_meet(m, 0);
        select_values<DIM>(v, p, w, attn_visible_tile(p.window, pos, seg, w.token0));
        consumers_meet(m, 1);
        start_values<DIM>(o, t, shared_address(v));
        for (int r = 0; r < 2; r++) {
            range[r] = attn_visible_tile(p.window, row_pos[r], seg, w.token0);
            if (row_pos[r] != pos)
                range[r].hi = range[r].lo; /* only the rows at pos take part in this turn */
        }
        wgmma_wait<0>();
        pin_registers(o);
        join_tile<DIM>(part, t, o, range);
    }
}

static __device__ __forceinline__ bool is_special(const struct memory &m, uint32_t i)
{
    const uint32_t *x = m.x->special[i % STAGES];

    return x[0] || x[1] || x[2] || x[3];
}

/* Walk over all tiles with this lane's two queries. */
template <int DIM>
static __device__ __forceinline__ void use_tiles(const struct attn_job &job,
                                                 const struct memory &m,
                                                 const uint32_t row_pos[2])
{
    const struct attention_params &p = job.p;
    const struct place &place = m.x->place;
    struct walk w = m.x->begin;
    uint32_t q = shared_address(m.at) + threadIdx.x / GROUP_THREADS * layout<DIM>::Q;
    float s[32], o[DIM / 2];
    struct weights t;
    state<DIM> part;

    state_clear(part);
    barrier_wait(&m.x->full[0], 0);
    start_scores<DIM>(s, q, shared_address(m.keys<DIM>(0)));
    for (uint32_t i = 0; !walk_ended(w, place); i++) {
        const struct walk next = walk_next(w, p, place);
        const struct attn_segment seg = p.segments[w.index];
        bool has_next = !walk_ended(next, place), special = is_special(m, i);
        const struct attn_range range[2] = {
            attn_visible_tile(p.window, row_pos[0], seg, w.token0),
            attn_visible_tile(p.window, row_pos[1], seg, w.token0)};

        wgmma_wait<0>();
        pin_registers(s);
        weigh_keys(t, s, range, attn_scale_of(p));
        if (special)
            join_special<DIM>(part, t, o, p, m, w, i, row_pos);
        start_values<DIM>(o, t, shared_address(m.values<DIM>(i)));
        if (has_next)
            barrier_wait(&m.x->full[(i + 1) % STAGES], (i + 1) / STAGES % 2);
        /* Behind the last tile once more, for the sake of products without a branch. */
        start_scores<DIM>(s, q, shared_address(m.keys<DIM>(has_next ? i + 1 : i)));
        wgmma_wait<1>();
        pin_registers(o);
        pin_registers(t.p);
        if (!special)
            join_tile<DIM>(part, t, o, range);
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            barrier_arrive(&m.x->empty[i % STAGES]);
        if (next.index != w.index) {
            join_segment<DIM>(m, part, row_pos, p.window, seg);
            if (has_next && in_other_group(p, place, w.index, next.index)) {
                end_group<DIM>(m, job, false);
                total_clear<DIM>(m);
            }
            state_clear(part);
        }
        w = next;
    }
    wgmma_wait<0>();
    pin_registers(s);
}

/* --- the kernel --- */

/* Round the block's queries to Q's operands; zeros behind the last one. */
template <int DIM>
static __device__ __forceinline__ void bring_queries(unsigned char *to, const struct attn_job &job,
                                                     const struct attn_seq &seq, uint32_t block0)
{
    const struct attention_params &p = job.p;
    uint32_t n_queries = seq.n_rows * job.n_shared;

    for (uint32_t n = threadIdx.x; n < BLOCK_QUERIES * (DIM / 8); n += THREADS) {
        uint32_t i = n / (DIM / 8), u = n % (DIM / 8), query = block0 + i;
        size_t row = seq.row0 + query / job.n_shared;
        uint32_t head = blockIdx.y * job.n_shared + query % job.n_shared;
        const float *x = p.q + row * p.q_stride + (size_t)head * DIM + 8 * u;
        uint4 unit = make_uint4(0, 0, 0, 0);

        if (query < n_queries)
            unit = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                              pack_bf16(x[6], x[7]));
        *reinterpret_cast<uint4 *>(to + i / GROUP_QUERIES * layout<DIM>::Q +
                                   u / 8 * OPERAND_BYTES +
                                   operand_unit(i % GROUP_QUERIES, u % 8)) = unit;
    }
    fence_stores_for_products();
}

static __device__ __forceinline__ void exchange_begin(struct exchange *x, const struct place &place,
                                                      const struct walk &begin)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&x->full[i], PRODUCERS);
        barrier_init(&x->empty[i], CONSUMERS / WARP);
    }
    barrier_init(&x->turn, CONSUMERS);
    barrier_inits_done();
    x->place = place;
    x->begin = begin;
}

/* Compute what a lane's two queries see. */
template <int DIM>
static __device__ __forceinline__ void compute(const struct attn_job &job, const struct memory &m)
{
    const struct place &place = m.x->place;
    const struct attn_seq seq = job.p.seqs[place.seq];
    uint32_t n_queries = seq.n_rows * job.n_shared, row_pos[2];

    /* Lanes behind the last query compute zeros at its position. */
    for (int r = 0; r < 2; r++)
        row_pos[r] = seq.pos0 + attn_min(lane_query<1>(place.block0, r), n_queries - 1) / job.n_shared;
    total_clear<DIM>(m);
    rows_of<DIM>(m)[0] = rows_of<DIM>(m)[1] = no_row();
    if (!walk_ended(m.x->begin, place))
        use_tiles<DIM>(job, m, row_pos);
    if (job.n_groups > 0)
        write_partials<DIM>(m, job);
    else
        end_group<DIM>(m, job, true);
}

/* Grid (n_blocks, G, groups or 1), three warpgroups: 128 queries of one sequence and KV head. */
template <int DIM>
static __global__ void __launch_bounds__(THREADS, 1) attn_wgmma_kernel(struct attn_job job)
{
    DYNAMIC_SHARED(unsigned char, shared);
    __shared__ struct exchange x;
    struct memory m = {shared + (0u - shared_address(shared)) % OPERAND_ALIGNMENT, &x};
    struct place place;

    if (!find_place<BLOCK_QUERIES>(&place, job, true))
        return;
    const struct attn_seq seq = job.p.seqs[place.seq];
    const struct walk begin = walk_start<BLOCK_QUERIES>(job, seq, &place);

    if (job.n_groups > 0 && walk_ended(begin, place))
        return;
    if (threadIdx.x == 0)
        exchange_begin(&x, place, begin);
    bring_queries<DIM>(m.at, job, seq, place.block0);
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        bring_tiles<DIM>(job.p, m);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        compute<DIM>(job, m);
    }
}

template <int DIM>
static void launch(cudaStream_t s, const struct attn_job *job, uint32_t n_blocks)
{
    dim3 grid(n_blocks, job->p.pool.n_kv_heads, job->n_groups ? job->n_groups : 1);

    LAUNCH_SM90A(attn_wgmma_kernel<DIM>, grid, THREADS, layout<DIM>::BYTES, s, *job);
}

cudaError_t attn_wgmma_prepare(uint32_t head_dim)
{
    return head_dim == 128 ? allow_shared(attn_wgmma_kernel<128>, layout<128>::BYTES)
                           : allow_shared(attn_wgmma_kernel<64>, layout<64>::BYTES);
}

enum status attn_wgmma(struct cuda_context *c, cudaStream_t s, const struct attn_job *job)
{
    const struct attention_params *p = &job->p;
    uint64_t n_blocks = (uint64_t)p->n_rows * job->n_shared / BLOCK_QUERIES + p->n_seqs;

    ASSERT(n_blocks <= INT32_MAX);
    if (p->pool.head_dim == 128)
        launch<128>(s, job, (uint32_t)n_blocks);
    else
        launch<64>(s, job, (uint32_t)n_blocks);
    return cuda_launched(c, "attn_wgmma");
}
