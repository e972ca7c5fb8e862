/* sample.cu - one row of logits to one token, by the rules of engine/run/sampler.h.
 *
 * Grid (R): a block does one row, all of it; rows share nothing, so neither do their bits.
 *
 * No sort. Every cut of the filters is a prefix of the row in descending order (logit, then id):
 * the top_k best, those with at least min_p of the best one's mass, the shortest run with top_p of
 * the mass. So is what a draw passes over. One search finds the end of a prefix by its count or its
 * mass: a histogram over 1024 equal ranges of the logits below the maximum says in which range it
 * ends, and the few elements of that range are gathered into shared memory and compared with each
 * other. Where more than LIST are in one range it is cut into 1024 again, by key, until few or only
 * equals are left. (Radix selection: Alabi et al., "Fast k-selection algorithms for graphics
 * processing units", 2012. That sampling needs no sort: FlashInfer.) The shortest of the three
 * prefixes is what is kept, and its mass is all that the draw needs to know of it.
 *
 * The histogram's ranges are linear in the logit and not in its bits: logits share few exponents,
 * so that bins of bits would be one counter for all threads.
 *
 * Without filters the draw goes in id order, over sums of 1024 chunks.
 *
 * The row is read once for the maximum, once more for masses where it is drawn, and once for each
 * search; once for the log-sum-exp, once for the best n; again for the maximum where biases,
 * penalties or a mask changed it. Reads after the first come from L2 as far as the rows in flight
 * (4 V bytes per resident block) fit. */
#include "base/check.h"
#include "base/rng.h"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/sample.cuh"

#define THREADS SAMPLE_THREADS
#define BINS THREADS /* one per thread */
#define LIST THREADS

struct bins {
    uint32_t count[BINS];
    uint32_t mass_low[BINS];  /* 64-bit sums in halves, because shared memory adds 32 bits
                                 natively */
    uint32_t mass_high[BINS];
};

struct list {
    uint32_t key[LIST];
    uint32_t id[LIST];
    uint64_t mass[LIST];
};

struct workspace {
    uint64_t reduced[SAMPLE_WARPS];
    struct amount scanned[SAMPLE_WARPS];
    struct bins coarse;       /* of the whole row; kept for all searches */
    union {
        struct bins fine;
        struct list list;
    };
    struct amount before;     /* amount before the chosen bin */
    uint32_t chosen;
    uint32_t n_chosen;
    uint32_t n_listed;
    uint32_t found_id;
    uint64_t found_mass;
};

/* --- survey --- */

struct survey {
    uint64_t best;    /* ranked(); 0 when all are NaN */
    uint32_t low;     /* key of the smallest number above -inf */
    bool has_nan;
};

static __device__ struct survey survey_row(const float *x, uint32_t n, struct workspace *w)
{
    uint64_t best = 0, low = UINT32_MAX, nan = 0;

    each(x, n, [&](uint32_t id, float v) {
        uint64_t r = ranked(v, id);
        best = r > best ? r : best;
        if (v > -INFINITY && r >> 32 < low)
            low = r >> 32;
        nan |= r == 0;
    });
    struct survey s;
    s.best = block_reduce(best, w->reduced, join_max());
    s.low = (uint32_t)block_reduce(low, w->reduced, join_min());
    s.has_nan = block_reduce(nan, w->reduced, join_max()) != 0;
    return s;
}

static __device__ __forceinline__ float best_logit(const struct survey *s)
{
    return s->best ? logit_of((uint32_t)(s->best >> 32)) : -INFINITY;
}

static __device__ struct row_view view_row(const float *x, uint32_t n, const struct survey *s,
                                           float temperature)
{
    struct row_view r = {};

    r.x = x;
    r.n = n;
    r.max = best_logit(s);
    r.inv_temperature = fminf(1 / temperature, 3e38f); /* finite, because 0 * inf is NaN */
    r.scale = ldexpf(1, mass_shift(n));
    return r;
}

/* --- log-probabilities of the raw logits --- */

static __device__ double log_sum_exp(const float *x, uint32_t n, const struct survey *s,
                                     struct workspace *w)
{
    struct row_view r = view_row(x, n, s, 1);
    uint64_t sum = 0;

    if (!isfinite(r.max))
        return 0;
    if (s->has_nan)
        return NAN;
    each(x, n, [&](uint32_t, float v) { sum += mass_of(&r, probability(&r, v)); });
    sum = block_reduce(sum, w->reduced, join_sum());
    return r.max + log(ldexp((double)sum, -mass_shift(n)));
}

/* The best after `bound` among first, first + step, ... */
static __device__ __forceinline__ uint64_t best_behind(const float *x, uint32_t n, uint32_t first,
                                                       uint32_t step, uint64_t bound)
{
    uint64_t best = 0;

#pragma unroll 4
    for (uint32_t id = first; id < n; id += step) {
        uint64_t r = ranked(x[id], id);
        if (r > best && r < bound)
            best = r;
    }
    return best;
}

/* Each thread keeps the best of its own ids, which are THREADS apart. When that was the best of
 * all, the block searches the next best of that thread. */
static __device__ void best_logprobs(const float *x, uint32_t n, double lse,
                                     struct sample_top *top, uint32_t n_top, struct workspace *w)
{
    uint64_t mine = best_behind(x, n, threadIdx.x, THREADS, UINT64_MAX);

    for (uint32_t i = 0; i < n_top; i++) {
        uint64_t best = block_reduce(mine, w->reduced, join_max());
        uint32_t id = ranked_id(best), owner = id % THREADS;
        if (threadIdx.x == 0)
            top[i] = best ? sample_top{id, (float)(x[id] - lse)} : sample_top{0, -INFINITY};
        if (best == 0)
            continue;
        uint64_t next = best_behind(x, n, owner + threadIdx.x * THREADS, THREADS * THREADS, best);
        next = block_reduce(next, w->reduced, join_max());
        if (threadIdx.x == owner)
            mine = next;
    }
}

/* --- changes to the logits --- */

/* The ids whose raw logit is kept, because the row may choose them: those of the biases, those
 * seen, and one of the masked ids. A row chooses a masked id only where every logit has become
 * -inf, and then the lowest id. */
static __device__ uint32_t edited_id(const struct sample_params *p, const struct sample_row *row,
                                     uint32_t i)
{
    if (i < row->n_bias)
        return p->bias[row->bias0 + i].id;
    i -= row->n_bias;
    if (i < row->n_seen)
        return p->seen[row->seen0 + i].id;
    return row->lowest_masked;
}

/* Biases of one id are added in the given order, by the thread of the first of them. */
static __device__ void add_bias(const struct sample_bias *bias, uint32_t n, float *x)
{
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t id = bias[i].id, j = 0;
        while (bias[j].id != id)
            j++;
        if (j < i)
            continue;
        float v = x[id];
        for (; j < n; j++)
            if (bias[j].id == id)
                v += bias[j].bias;
        x[id] = v;
    }
}

static __device__ void add_penalties(const struct sample_row *row, const struct sample_seen *seen,
                                     float *x)
{
    for (uint32_t i = threadIdx.x; i < row->n_seen; i += THREADS) {
        struct sample_seen s = seen[i];
        float v = x[s.id];
        if (row->repetition_penalty != 1 && (s.count || s.in_prompt))
            v = v > 0 ? v / row->repetition_penalty : v * row->repetition_penalty;
        if (s.count)
            v -= row->frequency_penalty * (float)s.count + row->presence_penalty;
        x[s.id] = v;
    }
}

/* The word at an index, of pairs of the words that allow an id. */
static __device__ uint32_t allowing_word(const uint32_t *pairs, uint32_t n_pairs, uint32_t index)
{
    uint32_t low = 0, high = n_pairs;

    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (pairs[2 * mid] < index)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n_pairs && pairs[2 * low] == index ? pairs[2 * low + 1] : 0;
}

static __device__ void apply_mask(const struct sample_row *row, const uint32_t *mask, uint32_t n,
                                  float *x)
{
    if (row->n_mask && row->mask_form == SAMPLE_MASK_ALLOWS) {
        for (uint32_t id = threadIdx.x; id < n; id += THREADS) /* a warp has one word */
            if (!(allowing_word(mask, row->n_mask / 2, id / 32) >> id % 32 & 1))
                x[id] = -INFINITY;
    } else if (row->mask_form == SAMPLE_MASK_FORBIDS) {
        for (uint32_t i = 2 * threadIdx.x; i < row->n_mask; i += 2 * THREADS)
            for (uint32_t no = ~mask[i + 1]; no; no &= no - 1)
                x[32 * mask[i] + (uint32_t)__ffs((int)no) - 1] = -INFINITY;
    } else if (row->n_mask) {
        for (uint32_t id = threadIdx.x; id < n; id += THREADS)
            if (!(mask[id / 32] >> id % 32 & 1))
                x[id] = -INFINITY;
    }
}

static __device__ void change_logits(const struct sample_params *p, const struct sample_row *row,
                                     uint32_t n_edits, float *x)
{
    if (row->want_logprob)
        for (uint32_t i = threadIdx.x; i < n_edits; i += THREADS)
            p->raw[row->raw0 + i] = x[edited_id(p, row, i)];
    __syncthreads(); /* all was read that the survey and the logprobs want */
    add_bias(p->bias + row->bias0, row->n_bias, x);
    __syncthreads();
    add_penalties(row, p->seen + row->seen0, x);
    __syncthreads();
    apply_mask(row, p->mask + row->mask0, p->n_vocab, x);
    __syncthreads();
}

/* The logit of id before change_logits(). */
static __device__ float raw_logit(const struct sample_params *p, const struct sample_row *row,
                                  uint32_t n_edits, const float *x, uint32_t id,
                                  struct workspace *w)
{
    uint64_t at = UINT64_MAX;

    for (uint32_t i = threadIdx.x; i < n_edits; i += THREADS)
        if (edited_id(p, row, i) == id) {
            at = i;
            break;
        }
    at = block_reduce(at, w->reduced, join_min());
    return at < n_edits ? p->raw[row->raw0 + at] : x[id];
}

/* --- search for the end of a prefix --- */

static __device__ __forceinline__ uint32_t coarse_bin(const struct row_view *r, float x)
{
    float d = (r->max - x) * r->bins_per_unit; /* does not decrease when x decreases */

    return d < BINS - 1 ? (uint32_t)d : BINS - 1;
}

static __device__ __forceinline__ void clear_bins(struct bins *b)
{
    b->count[threadIdx.x] = b->mass_low[threadIdx.x] = b->mass_high[threadIdx.x] = 0;
    __syncthreads();
}

static __device__ __forceinline__ void add_to_bin(struct bins *b, uint32_t i, uint64_t mass)
{
    uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);

    atomicAdd(&b->count[i], 1u);
    if (low) /* each wrap of the lower half is seen by exactly one thread */
        high += atomicAdd(&b->mass_low[i], low) > ~low;
    if (high)
        atomicAdd(&b->mass_high[i], high);
}

/* Call f(id, x, mass) for every element with a mass. Elements without one are last in the order and
 * add nothing: a top_k that reaches them has no effect. */
template <typename F>
static __device__ __forceinline__ void each_candidate(const struct row_view *r, F f)
{
    each(r->x, r->n, [&](uint32_t id, float v) {
        uint64_t mass = mass_of(r, probability(r, v));
        if (mass > 0)
            f(id, v, mass);
    });
}

/* Fill the histogram of the whole row. *floored: the mass of the logits from `floor` on. *likely:
 * the mass of those with a probability of at least min_p times the best one's. */
static __device__ struct amount fill_coarse(const struct row_view *r, struct workspace *w,
                                            float min_p, double floor, uint64_t *floored,
                                            uint64_t *likely)
{
    uint64_t from_floor = 0, from_min_p = 0;
    struct amount total;

    clear_bins(&w->coarse);
    each_candidate(r, [&](uint32_t, float v, uint64_t mass) {
        add_to_bin(&w->coarse, coarse_bin(r, v), mass);
        if (min_p > 0 && v >= floor)
            from_floor += mass;
        if (min_p > 0 && probability(r, v) >= min_p)
            from_min_p += mass;
    });
    *floored = block_reduce(from_floor, w->reduced, join_sum());
    *likely = block_reduce(from_min_p, w->reduced, join_sum());
    struct amount mine = {(uint64_t)w->coarse.mass_high[threadIdx.x] << 32 |
                              w->coarse.mass_low[threadIdx.x],
                          w->coarse.count[threadIdx.x]};
    block_scan(mine, w->scanned, &total);
    return total;
}

/* A search for the first prefix whose count (or mass) reaches target. */
struct search {
    uint64_t target;
    bool counts;
};

static __device__ __forceinline__ bool ends_within(const struct search *s, struct amount before,
                                                   struct amount with)
{
    return s->counts ? before.count < s->target && s->target <= with.count
                     : before.mass < s->target && s->target <= with.mass;
}

/* Find the bin in which the prefix ends; w->before is the amount before that bin. */
static __device__ void choose_bin(const struct bins *b, const struct search *s,
                                  struct amount before, struct workspace *w)
{
    uint32_t i = threadIdx.x;
    struct amount mine = {(uint64_t)b->mass_high[i] << 32 | b->mass_low[i], b->count[i]}, total;
    struct amount with = add(before, block_scan(mine, w->scanned, &total));
    struct amount without = {with.mass - mine.mass, with.count - mine.count};

    if (ends_within(s, without, with)) {
        w->chosen = i;
        w->n_chosen = b->count[i];
        w->before = without;
    }
    __syncthreads();
}

/* The elements among which a prefix ends: those of one coarse bin between two keys. */
struct range {
    uint32_t bin;
    uint32_t low, high;   /* keys, both included */
    uint32_t n;
    struct amount before;
};

template <typename F>
static __device__ __forceinline__ void each_in_range(const struct row_view *r,
                                                     const struct range *g, F f)
{
    each(r->x, r->n, [&](uint32_t id, float v) {
        uint32_t key = key_of(v);
        if (key < g->low || key > g->high || coarse_bin(r, v) != g->bin)
            return;
        uint64_t mass = mass_of(r, probability(r, v));
        if (mass > 0)
            f(id, key, mass);
    });
}

/* Shrink the range to the keys that occur, before it is cut into bins of keys. */
static __device__ void shrink(const struct row_view *r, struct range *g, struct workspace *w)
{
    uint64_t low = UINT32_MAX, high = 0;

    each_in_range(r, g, [&](uint32_t, uint32_t key, uint64_t) {
        low = key < low ? key : low;
        high = key > high ? key : high;
    });
    g->low = (uint32_t)block_reduce(low, w->reduced, join_min());
    g->high = (uint32_t)block_reduce(high, w->reduced, join_max());
}

/* Cut the range into BINS equal ranges of keys and keep the one in which the prefix ends. */
static __device__ void cut(const struct row_view *r, const struct search *s, struct range *g,
                           struct workspace *w)
{
    uint32_t span = g->high - g->low, shift = 0, high = g->high;

    while (span >> shift >= BINS)
        shift++;
    clear_bins(&w->fine);
    each_in_range(r, g, [&](uint32_t, uint32_t key, uint64_t mass) {
        add_to_bin(&w->fine, (high - key) >> shift, mass);
    });
    __syncthreads();
    choose_bin(&w->fine, s, g->before, w);
    g->high = high - (w->chosen << shift);
    if (g->high - g->low >= 1u << shift)
        g->low = g->high - ((1u << shift) - 1);
    g->n = w->n_chosen;
    g->before = w->before;
}

struct found {
    uint32_t id;     /* last element of the prefix */
    uint64_t mass;   /* of the prefix */
};

/* Compare the range's elements with each other: a thread per element sums the elements before
 * it. */
static __device__ struct found search_list(const struct row_view *r, const struct search *s,
                                           const struct range *g, struct workspace *w)
{
    struct list *l = &w->list;

    __syncthreads(); /* the fine bins, which share the memory, are no longer used */
    if (threadIdx.x == 0)
        w->n_listed = 0;
    __syncthreads();
    each_in_range(r, g, [&](uint32_t id, uint32_t key, uint64_t mass) {
        uint32_t i = atomicAdd(&w->n_listed, 1u);
        l->key[i] = key;
        l->id[i] = id;
        l->mass[i] = mass;
    });
    __syncthreads();
    if (threadIdx.x < g->n) {
        uint32_t key = l->key[threadIdx.x], id = l->id[threadIdx.x];
        struct amount before = g->before;
        for (uint32_t i = 0; i < g->n; i++)
            if (l->key[i] > key || (l->key[i] == key && l->id[i] < id))
                before = add(before, {l->mass[i], 1});
        struct amount with = add(before, {l->mass[threadIdx.x], 1});
        if (ends_within(s, before, with)) {
            w->found_id = id;
            w->found_mass = with.mass;
        }
    }
    __syncthreads();
    return {w->found_id, w->found_mass};
}

/* --- in id order --- */

/* Sum weights over BINS chunks of consecutive ids. *mine: the sum of this thread's chunk. Return
 * the sum of this chunk and all before it. */
template <typename F>
static __device__ struct amount sum_chunks(const struct row_view *r, struct workspace *w,
                                           struct amount *mine, struct amount *total, F weight)
{
    uint32_t len = ceil_div(r->n, BINS);
    uint64_t *sums = w->list.mass;

    __syncthreads(); /* the other contents of this memory are no longer used */
    for (uint32_t c = threadIdx.x / WARP; c < BINS; c += SAMPLE_WARPS) {
        uint32_t begin = c * len, end = begin + len < r->n ? begin + len : r->n;
        uint64_t sum = 0;
#pragma unroll 4
        for (uint32_t id = begin + threadIdx.x % WARP; id < end; id += WARP)
            sum += weight(r->x[id]);
        sum = warp_reduce(sum, join_sum());
        if (threadIdx.x % WARP == 0)
            sums[c] = sum;
    }
    __syncthreads();
    *mine = {sums[threadIdx.x], 0};
    return block_scan(*mine, w->scanned, total);
}

/* The id at which the sum of weights in id order reaches target; `with` and `mine` are from
 * sum_chunks(). */
template <typename F>
static __device__ uint32_t pick_from_chunks(const struct row_view *r, struct workspace *w,
                                            struct amount mine, struct amount with,
                                            uint64_t target, F weight)
{
    uint32_t len = ceil_div(r->n, BINS);

    if (with.mass - mine.mass < target && target <= with.mass) {
        w->chosen = threadIdx.x;
        w->before.mass = with.mass - mine.mass;
    }
    __syncthreads();
    uint32_t begin = w->chosen * len;
    uint64_t before = w->before.mass;
    for (uint32_t i = 0; i < len; i += THREADS) {
        uint32_t id = begin + i + threadIdx.x;
        bool in = i + threadIdx.x < len && id < r->n;
        struct amount own = {in ? weight(r->x[id]) : 0, 0}, total;
        uint64_t sum = before + block_scan(own, w->scanned, &total).mass;
        if (sum - own.mass < target && target <= sum)
            w->found_id = id;
        before += total.mass;
    }
    __syncthreads();
    return w->found_id;
}

/* More equal elements than the list has room for: find the last one by arithmetic on their
 * count. */
static __device__ struct found search_equals(const struct row_view *r, const struct search *s,
                                             const struct range *g, struct workspace *w)
{
    uint64_t mass = mass_of(r, probability(r, logit_of(g->low))), nth;
    struct amount mine, total;
    uint32_t key = g->low;
    auto is_one = [key](float x) -> uint64_t { return key_of(x) == key; };

    if (s->counts)
        nth = s->target - g->before.count;
    else
        nth = (s->target - g->before.mass + mass - 1) / mass;
    struct amount with = sum_chunks(r, w, &mine, &total, is_one);
    return {pick_from_chunks(r, w, mine, with, nth, is_one), g->before.mass + nth * mass};
}

static __device__ struct found find(const struct row_view *r, bool counts, uint64_t target,
                                    struct workspace *w)
{
    struct search s = {target, counts};
    struct range g = {0, 0, UINT32_MAX, 0, {0, 0}};

    choose_bin(&w->coarse, &s, g.before, w);
    g.bin = w->chosen;
    g.n = w->n_chosen;
    g.before = w->before;
    while (g.n > LIST) {
        shrink(r, &g, w);
        if (g.low == g.high)
            return search_equals(r, &s, &g, w);
        cut(r, &s, &g, w);
    }
    return search_list(r, &s, &g, w);
}

/* --- the draw --- */

/* The smallest sum above u * total with u = draw / 2^24, as on the CPU. */
static __device__ __forceinline__ uint64_t above(uint32_t draw, uint64_t total)
{
    return draw * (total >> 24) + (draw * (total & 0xffffffu) >> 24) + 1;
}

static __device__ uint32_t draw_unfiltered(const struct row_view *r, uint32_t draw,
                                           struct workspace *w)
{
    struct row_view v = *r;
    struct amount mine, total;
    auto mass = [v](float x) { return mass_of(&v, probability(&v, x)); };
    struct amount with = sum_chunks(r, w, &mine, &total, mass);

    return pick_from_chunks(r, w, mine, with, above(draw, total.mass), mass);
}

static __device__ uint32_t draw_filtered(const struct sample_row *row, struct row_view *r,
                                         const struct survey *s, uint32_t draw,
                                         struct workspace *w)
{
    float range = r->max - logit_of(s->low), no_mass = 32 * row->temperature;
    uint64_t floored, likely;

    if (no_mass < range)
        range = no_mass;
    r->bins_per_unit = range > 0 ? BINS / range : 0;
    /* As on the CPU, where top_k collects slightly more than min_p leaves. */
    double floor = row->min_p > 0 ? r->max + log((double)row->min_p) * row->temperature - 1e-3 : 0;
    struct amount total = fill_coarse(r, w, row->min_p, floor, &floored, &likely);
    uint64_t kept = total.mass, whole = total.mass; /* `whole` is the base of top_p */

    if (row->top_k > 0 && row->top_k < total.count)
        kept = whole = find(r, true, row->top_k, w).mass;
    if (row->min_p > 0) {
        kept = likely < kept ? likely : kept;
        if (row->top_k > 0 && floored < whole)
            whole = floored;
    }
    if (row->top_p < 1) {
        uint64_t least = (uint64_t)ceil((double)row->top_p * (double)whole);
        if (least < kept) {
            uint64_t nucleus = find(r, false, least > 0 ? least : 1, w).mass;
            kept = nucleus < kept ? nucleus : kept;
        }
    }
    return find(r, false, above(draw, kept), w).id;
}

static __device__ uint32_t pick(const struct sample_row *row, const float *x, uint32_t n,
                                const struct survey *s, struct workspace *w)
{
    if (row->temperature <= 0 || row->top_k == 1 || !isfinite(best_logit(s)))
        return ranked_id(s->best);
    struct row_view r = view_row(x, n, s, row->temperature);
    uint32_t draw = rng_u32(row->seed, row->n) >> 8; /* rng_uniform() * 2^24 */
    if (row->top_k == 0 && row->top_p >= 1 && row->min_p <= 0)
        return draw_unfiltered(&r, draw, w);
    return draw_filtered(row, &r, s, draw, w);
}

static __global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(struct sample_params p)
{
    __shared__ struct workspace w;
    const struct sample_row row = p.rows[blockIdx.x];
    float *x = p.logits + (size_t)blockIdx.x * p.n_vocab;
    uint32_t n_edits = row.n_bias + row.n_seen + (row.n_mask > 0);
    struct survey s = survey_row(x, p.n_vocab, &w);
    double lse = 0;

    if (row.want_logprob || row.n_logprobs)
        lse = log_sum_exp(x, p.n_vocab, &s, &w);
    if (row.n_logprobs)
        best_logprobs(x, p.n_vocab, lse, p.top + (size_t)blockIdx.x * p.n_top, row.n_logprobs, &w);
    if (n_edits) {
        change_logits(&p, &row, n_edits, x);
        s = survey_row(x, p.n_vocab, &w);
    }
    uint32_t id = pick(&row, x, p.n_vocab, &s, &w);
    float logprob = 0;
    if (row.want_logprob)
        logprob = (float)(raw_logit(&p, &row, n_edits, x, id, &w) - lse);
    if (threadIdx.x == 0) {
        p.ids[blockIdx.x] = id;
        p.logprobs[blockIdx.x] = logprob;
    }
}

enum status cuda_sample(struct device *d, struct stream *s, const struct sample_params *p)
{
    struct cuda_context *c = cuda_context_of(d);

    if (p->n_rows == 0)
        return OK;
    ASSERT(p->n_vocab > 0 && p->n_vocab <= INT32_MAX);
    LAUNCH(sample_kernel, p->n_rows, THREADS, 0, cuda_stream_of(c, s), *p);
    return cuda_launched(c, "sample");
}
