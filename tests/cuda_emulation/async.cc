/* async.cc - work that a block's threads start and do not wait for at once: barriers that count
 * bytes, bulk copies, and matrix products of a warpgroup.
 *
 * PTX ISA, "mbarrier", "cp.async.bulk" and "Asynchronous Warpgroup Level Matrix Instructions". What
 * these pages leave undefined is made visible:
 *
 * - From its start to its end a bulk copy's destination holds 0xff, which is NaN; the copy ends at
 *   a random time.
 * - A product is computed when all warps of its group have started it, then or as late as at the
 *   wait. Meanwhile its accumulators hold NaN. Where they, its registers of A, or the bytes that
 *   its descriptors name were written before it is computed, the process ends.
 * - After a commit or a wait, a product without a fence ends the process.
 *
 * Not seen: a missing proxy fence between ordinary stores and a product or copy that reads them. */
#include "internal.h"

#include <deque>
#include <map>
#include <vector>

#include "kernels/cuda/ptx_sm90.cuh"

#define GROUP_THREADS 128
#define ROWS_A 64
#define COLS_MAX 128
#define DEPTH 16
#define SUMS_MAX (COLS_MAX / 2)    /* of a thread */
#define SHARED_FIRST (1024 + 16)   /* address of dynamic shared memory: aligned to 16, no more */
#define POISON 0x7fdeadbeu         /* NaN, and unlikely to be a result */

struct phase_barrier {
    uint32_t count, missing; /* arrivals of a phase; and those that it still needs */
    int64_t n_bytes;         /* expected and not yet there */
    uint64_t phase;          /* phases completed */
};

struct bulk_work {
    char *to;
    const void *from;
    uint32_t n_bytes;
    uint64_t *barrier;
};

/* An operand in shared memory: [element of K][row of A, or column of B]. */
typedef uint16_t operand[DEPTH][COLS_MAX];

struct matrix_product {
    emulation_product what;
    emulation_place place;
    unsigned n_started; /* threads */
    operand a, b;       /* as they were when it was started; a only if it is in shared memory */
    struct {
        const uint32_t *at; /* of A */
        uint32_t a[4];
        float *d;
    } thread[GROUP_THREADS];
};

/* Accumulators of one thread that a product under way writes. */
struct sums_of_thread {
    float value[SUMS_MAX];
    unsigned n;
    uint64_t last; /* the last of these products */
};

struct thread_async {
    uint64_t n_started;              /* products */
    std::vector<uint64_t> committed; /* n_started at each commit */
    std::map<float *, sums_of_thread> sums;
    bool has_fence;
};

struct warpgroup {
    std::deque<matrix_product> products;
    uint64_t first; /* number of products[0]; those before are computed */
};

/* Of the block; empty in one that uses none of this. */
static std::map<const void *, phase_barrier> barriers;
static std::vector<bulk_work> bulks;
static std::vector<thread_async> threads;
static std::vector<warpgroup> groups;

void async_end_thread(unsigned number)
{
    if (!threads.empty() && !threads[number].sums.empty())
        emulation_die("a thread ends while a product of its warpgroup is under way");
}

void async_end_block(void)
{
    if (!bulks.empty())
        emulation_die("a block ends while a bulk copy is under way");
    barriers.clear();
    threads.clear();
    groups.clear();
}

bool async_is_under_way(void)
{
    return !bulks.empty();
}

static thread_async *thread_of(const char *what)
{
    unsigned number = grid_thread(what);

    if (threads.empty()) {
        threads.resize(grid_n_threads());
        groups.resize((grid_n_threads() + GROUP_THREADS - 1) / GROUP_THREADS);
    }
    return &threads[number];
}

uint32_t emulation_shared_address(const void *shared)
{
    size_t n_bytes;
    const char *first = grid_shared(&n_bytes), *at = static_cast<const char *>(shared);

    grid_thread("shared_address");
    if (at < first || at > first + n_bytes)
        emulation_die("shared_address: %p is not in dynamic shared memory", shared);
    return SHARED_FIRST + (uint32_t)(at - first);
}

/* --- barriers and copies --- */

static phase_barrier *find_barrier(uint64_t *object, const char *what)
{
    grid_thread(what);
    auto at = barriers.find(object);
    if (at == barriers.end())
        emulation_die("%s: %p is no barrier that was initialised", what,
                      static_cast<void *>(object));
    return &at->second;
}

static void end_phase(phase_barrier *b)
{
    if (b->missing > 0 || b->n_bytes != 0)
        return;
    b->missing = b->count;
    b->phase++;
    grid_wake();
}

void emulation_barrier_init(uint64_t *object, uint32_t n_arrivals)
{
    grid_thread("barrier_init");
    if (!emulation_is_shared(object, sizeof *object))
        emulation_die("barrier_init: %p is not in shared memory", static_cast<void *>(object));
    if (n_arrivals == 0 || barriers.count(object))
        emulation_die("barrier_init: %u arrivals, or a barrier that exists", n_arrivals);
    barriers[object] = {n_arrivals, n_arrivals, 0, 0};
    random_fill(object, sizeof *object); /* opaque */
}

void emulation_barrier_arrive(uint64_t *object, uint32_t n_bytes_expected)
{
    phase_barrier *b = find_barrier(object, "barrier_arrive");

    if (b->missing == 0)
        emulation_die("barrier_arrive: more than %u arrivals in a phase", b->count);
    b->n_bytes += n_bytes_expected;
    b->missing--;
    end_phase(b);
    emulation_yield();
}

void emulation_barrier_wait(uint64_t *object, uint32_t parity, emulation_place place)
{
    phase_barrier *b = find_barrier(object, "barrier_wait");

    if (parity > 1)
        emulation_die("barrier_wait: parity %u", parity);
    grid_wait(WAIT_BARRIER_PHASE, place, [b, parity] { return (b->phase & 1) != parity; });
}

void emulation_bulk_copy(void *shared, const void *global, uint32_t n_bytes, uint64_t *object,
                         emulation_place place)
{
    find_barrier(object, "bulk_copy");
    if (reinterpret_cast<uintptr_t>(global) % 16 || reinterpret_cast<uintptr_t>(shared) % 16 ||
        n_bytes % 16 || n_bytes == 0)
        emulation_die("bulk_copy at %s:%d: %p, %p or %u bytes are not aligned to 16", place.file,
                      place.line, shared, global, n_bytes);
    if (!emulation_is_shared(shared, n_bytes) || !memory_find(global, n_bytes))
        emulation_die("bulk_copy at %s:%d: %u bytes at %p or %p are not there", place.file,
                      place.line, n_bytes, shared, global);
    emulation_reads_input("bulk_copy");
    emulation_bytes[EMULATION_COPIED] += n_bytes;
    memset(shared, 0xff, n_bytes);
    bulks.push_back({static_cast<char *>(shared), global, n_bytes, object});
    emulation_yield();
}

bool async_progress(void)
{
    if (bulks.empty())
        return false;
    size_t i = random_to((uint32_t)bulks.size());
    bulk_work done = bulks[i];

    bulks.erase(bulks.begin() + (std::ptrdiff_t)i);
    memcpy(done.to, done.from, done.n_bytes);
    phase_barrier *b = &barriers[done.barrier];
    b->n_bytes -= done.n_bytes;
    end_phase(b);
    return true;
}

/* --- products --- */

float emulation_f16_value(uint16_t h); /* mma.cc */

static float bf16_value(uint32_t h)
{
    return __uint_as_float(h << 16);
}

/* Read an operand as its descriptor says: start, distances in units of 16 bytes, swizzle. Its rows
 * (of A, or of B's transpose) are along K ("K-major"): eight rows of 16 bytes are a core matrix,
 * and with 128-byte swizzle eight core matrices along K interleave in 1024 bytes. */
static void read_operand(uint64_t descriptor, unsigned n_rows, operand to)
{
    size_t n_bytes;
    const char *shared = grid_shared(&n_bytes);
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    uint32_t base = descriptor >> 49 & 7, swizzle = (uint32_t)(descriptor >> 62);
    /* Swizzle 1, 2, 3: of 128, 64, 32 bytes; that many 16-byte units change places. */
    uint32_t units = swizzle == 0 ? 1 : 16u >> swizzle, row_bytes = 16 * units;

    if (base != 0)
        emulation_die("a matrix descriptor with base offset %u: none is emulated", base);
    for (uint32_t n = 0; n < n_rows; n++)
        for (uint32_t k = 0; k < DEPTH; k++) {
            uint32_t at = start + n / 8 * stride + n % 8 * row_bytes + k % 8 * 2;
            at += k / 8 * (swizzle == 0 ? leading : 16);
            at ^= (at >> 7 & (units - 1)) << 4; /* the address decides, not the row */
            if (at < SHARED_FIRST || at + 2 > SHARED_FIRST + n_bytes)
                emulation_die("a matrix descriptor: element [%u][%u] at %u is outside of shared "
                              "memory", k, n, at);
            memcpy(&to[k][n], shared + (at - SHARED_FIRST), 2);
        }
}

static uint32_t bits_of(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Note the accumulators of a product that a thread starts. */
static void take_sums(thread_async *t, float *d, unsigned n)
{
    const float poison = __uint_as_float(POISON);
    auto at = t->sums.find(d);

    if (at == t->sums.end()) {
        sums_of_thread fresh;
        memcpy(fresh.value, d, n * sizeof *d);
        fresh.n = n;
        at = t->sums.emplace(d, fresh).first;
        for (unsigned i = 0; i < n; i++)
            d[i] = poison;
    }
    if (at->second.n != n)
        emulation_die("accumulators of a product under way are those of another shape");
    at->second.last = t->n_started;
    for (unsigned i = 0; i < n; i++)
        if (bits_of(d[i]) != POISON)
            emulation_die("accumulators were written while a product of theirs is under way");
}

/* End the process if an operand in shared memory is not what it was. */
static void read_again(uint64_t descriptor, unsigned n_rows, const operand before,
                       emulation_place place)
{
    static operand now;

    read_operand(descriptor, n_rows, now);
    for (unsigned k = 0; k < DEPTH; k++)
        if (memcmp(now[k], before[k], n_rows * sizeof now[k][0]) != 0)
            emulation_die("shared memory was written while the product at %s:%d reads it",
                          place.file, place.line);
}

/* The number of an element of A or B. */
static float value_of(const emulation_product &what, uint32_t h)
{
    return what.is_f16 ? emulation_f16_value((uint16_t)h) : bf16_value(h);
}

/* Gather A of a product, from shared memory or from the registers of its threads. */
static void gather_a(const matrix_product *p, float a[ROWS_A][DEPTH])
{
    for (unsigned m = 0; m < ROWS_A && p->what.a_is_shared; m++)
        for (unsigned k = 0; k < DEPTH; k++)
            a[m][k] = value_of(p->what, p->a[k][m]);
    if (p->what.a_is_shared) {
        read_again(p->what.a, ROWS_A, p->a, p->place);
        return;
    }
    for (unsigned i = 0; i < GROUP_THREADS; i++) {
        unsigned g_row = 16 * (i / 32) + i % 32 / 4, c = i % 4;
        if (memcmp(p->thread[i].at, p->thread[i].a, sizeof p->thread[i].a) != 0)
            emulation_die("registers of A were written while the product at %s:%d reads them",
                          p->place.file, p->place.line);
        for (unsigned j = 0; j < 4; j++)
            for (unsigned half = 0; half < 2; half++)
                a[g_row + 8 * (j % 2)][2 * c + 8 * (j / 2) + half] =
                    value_of(p->what, p->thread[i].a[j] >> 16 * half & 0xffff);
    }
}

static void compute(warpgroup *g, unsigned first_thread)
{
    const matrix_product *p = &g->products.front();
    static float a[ROWS_A][DEPTH], b[DEPTH][COLS_MAX], d[ROWS_A][COLS_MAX];
    const unsigned n_cols = p->what.n_cols;

    read_again(p->what.b, n_cols, p->b, p->place);
    gather_a(p, a);
    for (unsigned k = 0; k < DEPTH; k++)
        for (unsigned n = 0; n < n_cols; n++)
            b[k][n] = value_of(p->what, p->b[k][n]);
    for (unsigned i = 0; i < GROUP_THREADS; i++) {
        unsigned g_row = 16 * (i / 32) + i % 32 / 4, c = i % 4;
        const float *value = threads[first_thread + i].sums.at(p->thread[i].d).value;
        for (unsigned j = 0; j < n_cols / 2; j++)
            d[g_row + 8 * (j % 4 / 2)][j / 4 * 8 + 2 * c + j % 2] = p->what.adds ? value[j] : 0;
    }
    for (unsigned m = 0; m < ROWS_A; m++)
        for (unsigned k = 0; k < DEPTH; k++)
            for (unsigned n = 0; n < n_cols; n++)
                d[m][n] += a[m][k] * b[k][n];
    for (unsigned i = 0; i < GROUP_THREADS; i++) {
        unsigned g_row = 16 * (i / 32) + i % 32 / 4, c = i % 4;
        float *value = threads[first_thread + i].sums.at(p->thread[i].d).value;
        for (unsigned j = 0; j < n_cols / 2; j++)
            value[j] = d[g_row + 8 * (j % 4 / 2)][j / 4 * 8 + 2 * c + j % 2];
    }
    g->products.pop_front();
    g->first++;
}

static bool is_same(const emulation_product *x, const emulation_product *y)
{
    return x->a_is_shared == y->a_is_shared && (!x->a_is_shared || x->a == y->a) && x->b == y->b &&
           x->adds == y->adds && x->is_f16 == y->is_f16 && x->n_cols == y->n_cols;
}

/* Add the product that a warpgroup's first warp starts. */
static void add_product(warpgroup *g, const emulation_product *what)
{
    g->products.emplace_back();
    matrix_product *p = &g->products.back();

    p->what = *what;
    p->place = what->place;
    p->n_started = 0;
    read_operand(what->b, what->n_cols, p->b);
    if (what->a_is_shared)
        read_operand(what->a, ROWS_A, p->a);
}

/* All lanes of a warp start a product. */
void emulation_wgmma(const emulation_operands all[32])
{
    (void)thread_of("wgmma_bf16");
    unsigned warp0 = grid_thread("wgmma_bf16") / 32 * 32, in_group = warp0 % GROUP_THREADS;
    unsigned first_thread = warp0 - in_group;
    warpgroup *g = &groups[first_thread / GROUP_THREADS];

    if (first_thread + GROUP_THREADS > grid_n_threads())
        emulation_die("wgmma_bf16: the warp is in no whole warpgroup");
    uint64_t number = threads[warp0].n_started;
    if (number == g->first + g->products.size())
        add_product(g, static_cast<const emulation_product *>(all[0].b));
    matrix_product *p = &g->products[number - g->first];
    for (unsigned lane = 0; lane < 32; lane++) {
        thread_async *t = &threads[warp0 + lane];
        auto *part = &p->thread[in_group + lane];
        if (!is_same(static_cast<const emulation_product *>(all[lane].b), &p->what) ||
            t->n_started != number)
            emulation_die("wgmma_bf16: threads of one warpgroup start different products");
        if (!t->has_fence)
            emulation_die("wgmma_bf16 without wgmma_fence() since the last commit or wait");
        part->at = static_cast<const uint32_t *>(all[lane].a);
        if (part->at)
            memcpy(part->a, part->at, sizeof part->a);
        part->d = static_cast<float *>(all[lane].out);
        take_sums(t, part->d, p->what.n_cols / 2);
        t->n_started++;
    }
    p->n_started += 32;
    while (!g->products.empty() && g->products.front().n_started == GROUP_THREADS &&
           random_to(2))
        compute(g, first_thread);
    grid_wake();
}

void emulation_wgmma_fence(void)
{
    thread_of("wgmma_fence")->has_fence = true;
}

void emulation_wgmma_commit(void)
{
    thread_async *t = thread_of("wgmma_commit");

    t->committed.push_back(t->n_started);
    t->has_fence = false;
}

void emulation_wgmma_wait(unsigned n_young, emulation_place place)
{
    thread_async *t = thread_of("wgmma_wait");
    unsigned number = grid_thread("wgmma_wait") / GROUP_THREADS;
    warpgroup *g = &groups[number];

    t->has_fence = false;
    if (t->committed.size() <= n_young)
        return;
    uint64_t end = t->committed[t->committed.size() - 1 - n_young];
    grid_wait(WAIT_WGMMA_GROUP, place, [g, end] {
        return g->first >= end ||
               (g->first + g->products.size() >= end &&
                g->products[end - 1 - g->first].n_started == GROUP_THREADS);
    });
    while (g->first < end)
        compute(g, number * GROUP_THREADS);
    for (auto at = t->sums.begin(); at != t->sums.end();) {
        if (at->second.last >= end) {
            ++at;
            continue;
        }
        for (unsigned i = 0; i < at->second.n; i++)
            if (bits_of(at->first[i]) != POISON)
                emulation_die("accumulators were written while a product of theirs is under way");
        memcpy(at->first, at->second.value, at->second.n * sizeof *at->first);
        at = t->sums.erase(at);
    }
}
