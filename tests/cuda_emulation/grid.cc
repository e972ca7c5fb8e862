/* grid.cc - runs a grid: one block after another, the threads of a block as fibers.
 *
 * A thread runs until it waits (barrier, warp collective) or yields (atomics). The next thread is
 * chosen by one of four rules, drawn for each block: any thread; a fixed order of warps, so that
 * the first one runs as far ahead as possible; one warp for as long as it can run; lanes in order,
 * as a GPU mostly does. Threads never run at the same time, so the emulation finds a missing order,
 * but not a torn write.
 *
 * A collective is complete when all lanes of its mask that have not returned wait at it with the
 * same mask (CUDA C++ Programming Guide, "Warp Shuffle Functions"). A barrier is complete when all
 * threads that have not returned wait at the same source line. A bulk copy (async.cc) is done when
 * no thread can run without it, or earlier, as drawn. */
#include "internal.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#define WARP_LANES 32
#define THREADS_MAX 1024
#define WARPS_MAX (THREADS_MAX / WARP_LANES)
#define SHARED_BYTES_MAX ((size_t)228 << 10)

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static const char *const wait_names[WAIT_KINDS] = {
    "__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count", "__syncwarp",
    "__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync", "__shfl_down_sync", "__ballot_sync",
    "__all_sync", "__any_sync", "__match_any_sync", "__reduce_sync", "mma_bf16", "mma_f16",
    "ldmatrix_x4", "ldmatrix_x4 (transposed)", "wgmma_bf16", "wgmma_wait", "barrier_wait"};

enum thread_state { RUNNABLE, WAITS_BLOCK, WAITS_WARP, WAITS_OTHERS, RETURNED };

struct copy {
    void *to;
    const void *from; /* NULL: zeros */
    uint64_t group;
};

struct thread {
    fiber *stack;
    uint3 index;
    unsigned number; /* index in its block */
    thread_state state;
    emulation_wait kind; /* kind of the collective at which it waits or that it has just left */
    emulation_place place;
    unsigned mask;
    uint64_t value; /* the deposited value */
    uint64_t *all;  /* [32] receives the values of all lanes; may be NULL */
    unsigned source;
    emulation_operands operands;
    uint64_t result; /* of the collective */
    std::vector<copy> copies;
    uint64_t group; /* of copies, not yet committed */
    bool has_waited; /* for the kernels in front, in one that was launched early */
    const std::function<bool()> *ready; /* while it waits for others */
};

struct warp {
    unsigned runnable, waiting, alive; /* lanes */
};

enum order { ANY_THREAD, WARPS_IN_ORDER, ONE_WARP, LANES_IN_ORDER, ORDERS };

static struct {
    const char *name;
    const void *kernel;
    const std::function<void()> *body;
    unsigned n_threads, n_warps;
    thread threads[THREADS_MAX];
    warp warps[WARPS_MAX];
    unsigned runnable_warps;
    unsigned n_alive, n_at_barrier;
    int barrier_sum;
    order how;
    unsigned warp_order[WARPS_MAX], favourite;
    bool early_copies;
    thread *running;
    char *shared, *shared_area;
    size_t shared_bytes;
    bool active;
    bool early; /* launched before the kernels in front have ended */
    uint64_t n_kernels, n_blocks;
} grid;

bool grid_is_running(void)
{
    return grid.active;
}

uint64_t emulation_kernels_run(void)
{
    return grid.n_kernels;
}

uint64_t emulation_blocks_run(void)
{
    return grid.n_blocks;
}

void emulation_die(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "CUDA emulation: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (grid.active) {
        fprintf(stderr, "\n  in %s, block (%u,%u,%u)", grid.name, blockIdx.x, blockIdx.y,
                blockIdx.z);
        if (grid.running)
            fprintf(stderr, ", thread (%u,%u,%u)", grid.running->index.x, grid.running->index.y,
                    grid.running->index.z);
    }
    fprintf(stderr, "\n");
    fflush(stderr);
    abort();
}

static thread *self(const char *what)
{
    if (!grid.active)
        emulation_die("%s outside a kernel", what);
    return grid.running;
}

static warp *warp_of(const thread *t)
{
    return &grid.warps[t->number / WARP_LANES];
}

static unsigned lane_of(const thread *t)
{
    return t->number % WARP_LANES;
}

static void make_runnable(thread *t)
{
    t->state = RUNNABLE;
    warp_of(t)->runnable |= 1u << lane_of(t);
    grid.runnable_warps |= 1u << t->number / WARP_LANES;
}

static void leave_runnable(thread *t, thread_state state)
{
    warp *w = warp_of(t);

    t->state = state;
    w->runnable &= ~(1u << lane_of(t));
    if (!w->runnable)
        grid.runnable_warps &= ~(1u << t->number / WARP_LANES);
}

static unsigned random_bit(unsigned bits)
{
    unsigned turn = random_to(32);
    unsigned turned = bits >> turn | bits << (32 - turn) % 32;

    return ((unsigned)__builtin_ctz(turned) + turn) % 32;
}

static void report_waiting(void)
{
    unsigned shown = 0;

    for (unsigned i = 0; i < grid.n_threads; i++) {
        const thread *t = &grid.threads[i], *before = i ? t - 1 : nullptr;
        if (before && before->state == t->state &&
            (t->state == RETURNED || (before->kind == t->kind && before->mask == t->mask &&
                                      before->place.line == t->place.line)))
            continue; /* as the one before */
        if (++shown > 24) {
            fprintf(stderr, "  ...\n");
            break;
        }
        fprintf(stderr, "  thread (%u,%u,%u) and on: ", t->index.x, t->index.y, t->index.z);
        if (t->state == RETURNED)
            fprintf(stderr, "returned\n");
        else if (t->state == RUNNABLE)
            fprintf(stderr, "runs\n");
        else
            fprintf(stderr, "waits at %s%s, %s:%d\n", wait_names[t->kind],
                    t->state == WAITS_WARP ? " of its warp" : "", t->place.file, t->place.line);
    }
}

[[noreturn]] static void deadlock(const char *why)
{
    fprintf(stderr, "CUDA emulation: deadlock in %s: %s\n", grid.name, why);
    report_waiting();
    grid.running = nullptr;
    emulation_die("deadlock: %s", why);
}

/* Choose the thread that runs next. */
static thread *draw(void)
{
    if (grid.early_copies && async_is_under_way() && random_to(8) == 0)
        async_progress();
    while (!grid.runnable_warps)
        if (!async_progress())
            deadlock("every thread that has not returned waits for others");
    unsigned w;
    switch (grid.how) {
    case WARPS_IN_ORDER:
        for (w = 0; !(grid.runnable_warps >> grid.warp_order[w] & 1); w++)
            ;
        w = grid.warp_order[w];
        break;
    case ONE_WARP:
        if (!(grid.runnable_warps >> grid.favourite & 1))
            grid.favourite = random_bit(grid.runnable_warps);
        w = grid.favourite;
        break;
    default:
        w = random_bit(grid.runnable_warps);
    }
    unsigned lanes = grid.warps[w].runnable;
    unsigned lane = grid.how == LANES_IN_ORDER ? (unsigned)__builtin_ctz(lanes) : random_bit(lanes);
    return &grid.threads[w * WARP_LANES + lane];
}

static void resume(thread *from, thread *to)
{
    if (from == to)
        return;
    grid.running = to;
    threadIdx = to->index;
    fiber_switch(from ? from->stack : fiber_main(), to->stack);
}

static void wait_until_runnable(thread *me)
{
    while (me->state != RUNNABLE)
        resume(me, draw());
}

unsigned grid_thread(const char *what)
{
    return self(what)->number;
}

unsigned grid_n_threads(void)
{
    return grid.n_threads;
}

char *grid_shared(size_t *n_bytes)
{
    *n_bytes = grid.shared_bytes;
    return grid.shared;
}

void grid_wait(emulation_wait kind, emulation_place place, const std::function<bool()> &ready)
{
    thread *me = self(wait_names[kind]);

    me->kind = kind;
    me->place = place;
    me->mask = ~0u;
    while (!ready()) {
        me->ready = &ready;
        leave_runnable(me, WAITS_OTHERS);
        wait_until_runnable(me);
    }
}

void grid_wake(void)
{
    for (unsigned i = 0; i < grid.n_threads; i++) {
        thread *t = &grid.threads[i];
        if (t->state == WAITS_OTHERS && (*t->ready)())
            make_runnable(t);
    }
}

void emulation_yield(void)
{
    if (!grid.active)
        emulation_die("an atomic operation or fence outside a kernel");
    if (random_to(4) == 0)
        resume(grid.running, draw());
}

/* Release the barrier if all threads have arrived. */
static void check_barrier(void)
{
    const thread *first = nullptr;

    if (grid.n_at_barrier == 0 || grid.n_at_barrier < grid.n_alive)
        return;
    for (unsigned i = 0; i < grid.n_threads; i++) {
        const thread *t = &grid.threads[i];
        if (t->state != WAITS_BLOCK)
            continue;
        if (!first)
            first = t;
        if (t->kind != first->kind || t->place.line != first->place.line)
            deadlock("threads of one block wait at different barriers");
    }
    for (unsigned i = 0; i < grid.n_threads; i++) {
        thread *t = &grid.threads[i];
        if (t->state != WAITS_BLOCK)
            continue;
        t->result = (uint64_t)grid.barrier_sum;
        make_runnable(t);
    }
    grid.n_at_barrier = 0;
    grid.barrier_sum = 0;
}

void emulation_wait_for_inputs(void)
{
    self("wait_for_inputs")->has_waited = true;
}

void emulation_reads_input(const char *how)
{
    if (grid.early && !self(how)->has_waited)
        emulation_die("%s before wait_for_inputs(), in a kernel that was launched early", how);
}

int emulation_block_barrier(emulation_wait kind, int predicate, emulation_place place)
{
    thread *me = self(wait_names[kind]);

    emulation_reads_input("a barrier");
    me->kind = kind;
    me->place = place;
    me->mask = ~0u;
    grid.barrier_sum += predicate != 0;
    grid.n_at_barrier++;
    leave_runnable(me, WAITS_BLOCK);
    check_barrier();
    wait_until_runnable(me);
    return (int)me->result;
}

/* Whether all lanes of the mask that have not returned wait at the same collective as `t`. */
static bool collective_complete(const thread *t)
{
    const warp *w = warp_of(t);
    const thread *first = t - lane_of(t);
    unsigned needed = t->mask & w->alive;

    if ((w->waiting & needed) != needed)
        return false;
    for (unsigned bits = needed; bits; bits &= bits - 1) {
        const thread *other = first + __builtin_ctz(bits);
        if (other->kind != t->kind || other->mask != t->mask)
            return false;
    }
    return true;
}

/* Compute the results of a collective at which all lanes of `needed` have arrived. */
static void finish_collective(thread *first, unsigned needed)
{
    warp *w = warp_of(first);
    uint64_t gathered[WARP_LANES] = {};

    for (unsigned bits = needed; bits; bits &= bits - 1) {
        unsigned lane = (unsigned)__builtin_ctz(bits);
        gathered[lane] = first[lane].value;
    }
    for (unsigned bits = needed; bits; bits &= bits - 1) {
        thread *t = first + __builtin_ctz(bits);
        t->result = needed >> t->source & 1 ? gathered[t->source] : random_u64(); /* undefined */
        if (t->all)
            memcpy(t->all, gathered, sizeof gathered);
        t->all = nullptr;
        t->mask = needed; /* the lanes that took part */
        make_runnable(t);
    }
    w->waiting &= ~needed;
}

static thread *meet_warp(emulation_wait kind, unsigned mask, emulation_place place,
                         void (*together)(const emulation_operands all[32]))
{
    thread *me = self(wait_names[kind]);
    warp *w = warp_of(me);
    thread *first = me - lane_of(me);

    me->kind = kind;
    me->place = place;
    me->mask = mask;
    if (!(mask >> lane_of(me) & 1))
        emulation_die("%s at %s:%d: mask %08x does not name the calling lane %u", wait_names[kind],
                      place.file, place.line, mask, lane_of(me));
    leave_runnable(me, WAITS_WARP);
    w->waiting |= 1u << lane_of(me);
    if (!collective_complete(me)) {
        wait_until_runnable(me);
        return me;
    }
    unsigned needed = mask & w->alive;
    if (together) {
        emulation_operands all[WARP_LANES];
        if (needed != ~0u)
            emulation_die("%s at %s:%d: lanes %08x of the warp have returned or never were",
                          wait_names[kind], place.file, place.line, ~needed);
        for (unsigned i = 0; i < WARP_LANES; i++)
            all[i] = first[i].operands;
        together(all);
    }
    finish_collective(first, needed);
    return me; /* runnable again, as the collective may be complete */
}

uint64_t emulation_exchange(emulation_wait kind, unsigned mask, uint64_t value,
                            unsigned source_lane, emulation_place place)
{
    thread *me = self(wait_names[kind]);

    me->value = value;
    me->source = source_lane % WARP_LANES;
    return meet_warp(kind, mask, place, nullptr)->result;
}

void emulation_gather(emulation_wait kind, unsigned mask, uint64_t value, uint64_t all[32],
                      unsigned *present, emulation_place place)
{
    thread *me = self(wait_names[kind]);

    me->value = value;
    me->source = lane_of(me);
    me->all = all;
    meet_warp(kind, mask, place, nullptr);
    *present = me->mask;
}

void emulation_together(emulation_wait kind, emulation_operands mine,
                        void (*fn)(const emulation_operands all[32]), emulation_place place)
{
    thread *me = self(wait_names[kind]);

    me->operands = mine;
    me->value = 0;
    me->source = lane_of(me);
    meet_warp(kind, ~0u, place, fn);
}

unsigned emulation_lane(void)
{
    return lane_of(self("a warp function"));
}

/* The lanes of the warp that do not wait. CUDA promises only that the caller is among them. */
unsigned emulation_active_mask(void)
{
    thread *me = self("__activemask");

    return 1u << lane_of(me) | (warp_of(me)->runnable & (unsigned)random_u64());
}

void *emulation_dynamic_shared(void)
{
    self("dynamic shared memory");
    return grid.shared;
}

bool emulation_is_shared(const void *p, size_t n_bytes)
{
    const char *at = static_cast<const char *>(p);

    if (at >= grid.shared && at + n_bytes <= grid.shared + grid.shared_bytes)
        return true;
    return shared_holds(grid.kernel, p, n_bytes);
}

static void run_copies(thread *t, uint64_t below_group)
{
    size_t kept = 0;

    for (const copy &c : t->copies) {
        if (c.group >= below_group)
            t->copies[kept++] = c;
        else if (c.from)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    }
    t->copies.resize(kept);
}

void emulation_copy_async(void *shared, const void *global, bool valid, emulation_place place)
{
    thread *me = self("cp_async16");

    if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
        emulation_die("cp_async16 at %s:%d: %p or %p is not aligned to 16", place.file, place.line,
                      shared, global);
    if (!emulation_is_shared(shared, 16))
        emulation_die("cp_async16 at %s:%d: %p is not in shared memory", place.file, place.line,
                      shared);
    me->copies.push_back({shared, valid ? global : nullptr, me->group});
    if (grid.early_copies && random_to(2))
        run_copies(me, me->group + 1);
}

void emulation_copy_commit(void)
{
    self("cp_async_commit")->group++;
}

void emulation_copy_wait(unsigned n_young)
{
    thread *me = self("cp_async_wait");

    if (me->group >= n_young)
        run_copies(me, me->group - n_young);
}

/* A thread returns, which may complete collectives and barriers of the others. */
static void thread_returns(thread *me)
{
    warp *w = warp_of(me);
    thread *first = me - lane_of(me);

    if (grid.early && !me->has_waited)
        emulation_die("a thread ends without wait_for_inputs(), in a kernel that was launched "
                      "early: kernels behind it may begin before those in front have ended");
    async_end_thread(me->number);
    leave_runnable(me, RETURNED);
    w->alive &= ~(1u << lane_of(me));
    grid.n_alive--;
    for (unsigned bits = w->waiting; bits; bits = w->waiting & bits & (bits - 1)) {
        thread *t = first + __builtin_ctz(bits);
        if (!collective_complete(t))
            continue;
        if (t->kind >= WAIT_MMA_BF16)
            deadlock("a lane returned before its warp's matrix instruction");
        finish_collective(first, t->mask & w->alive);
    }
    check_barrier();
}

static void run_thread(void *arg)
{
    thread *me = static_cast<thread *>(arg);

    (*grid.body)();
    thread_returns(me);
    if (grid.n_alive == 0) {
        grid.running = nullptr;
        fiber_switch(me->stack, fiber_main());
    } else {
        resume(me, draw());
    }
    abort(); /* a thread that has returned is never resumed */
}

static void prepare_threads(dim3 block)
{
    unsigned n = 0;

    grid.runnable_warps = 0;
    memset(grid.warps, 0, sizeof grid.warps);
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++, n++) {
                thread *t = &grid.threads[n];
                if (!t->stack)
                    t->stack = fiber_create();
                t->index = {x, y, z};
                t->number = n;
                t->copies.clear();
                t->group = 0;
                t->has_waited = false;
                t->all = nullptr;
                warp_of(t)->alive |= 1u << lane_of(t);
                make_runnable(t);
                fiber_prepare(t->stack, run_thread, t);
            }
    grid.n_threads = grid.n_alive = n;
    grid.n_warps = (n + WARP_LANES - 1) / WARP_LANES;
    grid.n_at_barrier = 0;
    grid.barrier_sum = 0;
}

static void draw_order(void)
{
    grid.how = (order)random_to(ORDERS);
    grid.early_copies = random_to(2);
    for (unsigned i = 0; i < grid.n_warps; i++) {
        unsigned j = random_to(i + 1);
        grid.warp_order[i] = grid.warp_order[j];
        grid.warp_order[j] = i;
    }
    grid.favourite = random_to(grid.n_warps);
}

/* Allocate dynamic shared memory of exactly this length, followed by a red zone or a page that
 * faults. The memory is aligned to exactly 16 bytes. */
static void open_shared(size_t n_bytes)
{
    grid.shared_bytes = n_bytes;
#if EMULATION_ASAN
    if (posix_memalign(reinterpret_cast<void **>(&grid.shared_area), 32, n_bytes + 16) != 0)
        emulation_die("no memory for shared memory");
    grid.shared = grid.shared_area + 16;
    __asan_poison_memory_region(grid.shared_area, 16);
#else
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (SHARED_BYTES_MAX + page - 1) / page * page;
    if (!grid.shared_area) {
        grid.shared_area = static_cast<char *>(mmap(nullptr, room + page, PROT_READ | PROT_WRITE,
                                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (grid.shared_area == MAP_FAILED ||
            mprotect(grid.shared_area + room, page, PROT_NONE) != 0)
            emulation_die("no memory for shared memory");
    }
    grid.shared = grid.shared_area + room - (n_bytes + 15) / 16 * 16;
#endif
}

static void close_shared(void)
{
#if EMULATION_ASAN
    __asan_unpoison_memory_region(grid.shared_area, 16);
    free(grid.shared_area);
#endif
    grid.shared = nullptr;
    grid.shared_bytes = 0;
}

static void run_block(dim3 block)
{
    random_fill(grid.shared, grid.shared_bytes);
    shared_fill(grid.kernel);
    prepare_threads(block);
    draw_order();
    resume(nullptr, draw());
    async_end_block();
}

void grid_run(const char *name, const void *kernel, dim3 blocks, dim3 block, size_t shared_bytes,
              bool early, const std::function<void()> &body)
{
    uint64_t n = (uint64_t)blocks.x * blocks.y * blocks.z;
    /* A step that is prime to n visits every block once, in an order that looks random. */
    uint64_t step = n > 1 ? random_u64() % n | 1 : 1, at = n ? random_u64() % n : 0;

    for (uint64_t a = step, b = n; n > 1;) {
        while (b) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
        a = ++step;
        b = n;
    }
    grid.name = name;
    grid.kernel = kernel;
    grid.body = &body;
    grid.active = true;
    grid.early = early;
    gridDim = blocks;
    blockDim = block;
    open_shared(shared_bytes);
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
        blockIdx = {(unsigned)(at % blocks.x), (unsigned)(at / blocks.x % blocks.y),
                    (unsigned)(at / blocks.x / blocks.y)};
        run_block(block);
    }
    close_shared();
    grid.active = false;
    grid.n_kernels++;
    grid.n_blocks += n;
    trace_kernel(name, blocks, block);
}
