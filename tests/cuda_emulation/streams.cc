/* streams.cc - streams and events.
 *
 * Work stays queued until the host waits for something. Then the device repeatedly chooses a stream
 * whose next piece of work may run, and runs it, until the work that the host waits for is done. So
 * a copy that the host does not wait for has not happened, and streams that no event orders run in
 * any order. A query runs at most one piece of work, and not always.
 *
 * The choice is random, or one of the two extremes that streams and events allow: `late` runs what
 * leads to the work that is waited for, and nothing else; `early` first runs whatever other streams
 * may run. Work that some event should have delayed, or forced, is then delayed or forced by
 * nothing, whatever the seed.
 *
 * Between cudaStreamBeginCapture and cudaStreamEndCapture a stream's work becomes the nodes of a
 * graph, one behind the other, with the arguments of their calls. A call of the capturing thread
 * that waits or allocates fails and ends the capture without a graph, as the real runtime's
 * thread-local mode does. Events inside of a capture are not emulated. */
#include "streams.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <vector>

/* With several devices other threads may still enqueue work. After this time they do not. */
#define DEADLOCK_S 60
/* A copy that is held by a file waits for another process: so often the file is looked for. */
#define HELD_MS 1

struct CUevent_st {
    uint64_t n_recorded = 0; /* calls of cudaEventRecord */
    uint64_t n_reached = 0;  /* records that the device has reached */
    double reached_at = 0;   /* time of the last one, in seconds */
    bool timing = true;
    int device = 0;
};

struct work {
    std::function<bool()> ready; /* whether it may run; empty: always */
    std::function<void()> run;
    std::shared_ptr<CUevent_st> records = nullptr, awaits = nullptr; /* what event it is about */
    uint64_t n = 0;                                                  /* which record of it */
};

typedef std::vector<std::function<void()>> nodes;

struct CUgraph_st {
    nodes work;
};

struct CUgraphExec_st {
    nodes work;
    int device = 0;
    size_t n_bytes = 0; /* of device memory */
};

struct CUstream_st {
    std::unique_ptr<CUgraph_st> capture; /* of the work that is enqueued now; NULL: none */
    std::deque<work> queue;
    uint64_t n_queued = 0, n_done = 0;
    bool blocking = true; /* ordered with the legacy default stream */
    bool destroyed = false;
    bool is_legacy = false;
    int device = 0;
};

/* Each device's legacy default stream, which is never destroyed, comes before its others. */
static std::vector<std::unique_ptr<CUstream_st>> streams;
/* The events that have a handle. Queued work holds references of its own. */
static std::vector<std::shared_ptr<CUevent_st>> events;
static std::vector<std::unique_ptr<CUgraph_st>> graphs;
static std::vector<std::shared_ptr<CUgraphExec_st>> launchable;

/* The one capture of the process, and its thread. */
static CUstream_st *capturing;
static pthread_t capturing_thread;
static bool capture_is_broken;

/* The legacy default stream of the calling thread's device. */
static CUstream_st *legacy(void)
{
    for (const auto &s : streams)
        if (s->is_legacy && s->device == device_current())
            return s.get();
    streams.push_back(std::make_unique<CUstream_st>());
    streams.back()->is_legacy = true;
    streams.back()->device = device_current();
    return streams.back().get();
}

static CUstream_st *find_stream(cudaStream_t s)
{
    CUstream_st *first = legacy();

    if (!s || s == reinterpret_cast<cudaStream_t>(1)) /* cudaStreamLegacy */
        return first;
    for (const auto &other : streams)
        if (other.get() == s && !other->destroyed)
            return s;
    return nullptr;
}

static std::shared_ptr<CUevent_st> find_event(cudaEvent_t e)
{
    for (const auto &other : events)
        if (other.get() == e)
            return other;
    return nullptr;
}

/* Work was enqueued: another thread may wait for it. */
static std::condition_variable_any enqueued;

static void push(CUstream_st *s, work w)
{
    if (s->capture) {
        if (w.ready || w.records)
            emulation_die("an event in a captured stream");
        s->capture->work.push_back(std::move(w.run));
        return;
    }
    if (s->blocking) { /* the legacy stream and others wait for all earlier work of the other */
        std::vector<std::pair<CUstream_st *, uint64_t>> before;
        for (const auto &other : streams)
            if (other.get() != s && other->blocking && other->device == s->device &&
                (s->is_legacy || other->is_legacy) && other->n_done < other->n_queued)
                before.push_back({other.get(), other->n_queued});
        if (!before.empty()) {
            std::function<bool()> inner = w.ready;
            w.ready = [before, inner] {
                for (const auto &b : before)
                    for (const auto &other : streams)
                        if (other.get() == b.first && other->n_done < b.second)
                            return false;
                return !inner || inner();
            };
        }
    }
    s->queue.push_back(std::move(w));
    s->n_queued++;
    enqueued.notify_all();
}

static int chosen_order = -1;

void emulation_order(enum emulation_order order)
{
    LOCK();
    chosen_order = order;
}

static enum emulation_order current_order(void)
{
    if (chosen_order < 0) {
        const char *name = getenv("TARN_EMULATION_ORDER");

        if (!name || strcmp(name, "random") == 0)
            chosen_order = EMULATION_RANDOM;
        else if (strcmp(name, "late") == 0 || strcmp(name, "early") == 0)
            chosen_order = *name == 'l' ? EMULATION_LATE : EMULATION_EARLY;
        else
            emulation_die("TARN_EMULATION_ORDER: %s is none of random, late, early", name);
    }
    return static_cast<enum emulation_order>(chosen_order);
}

static bool is_ready(const CUstream_st *s)
{
    return !s->queue.empty() && (!s->queue.front().ready || s->queue.front().ready());
}

/* The stream whose queue has the n-th record of the event, or a later one. */
static CUstream_st *stream_that_records(const CUevent_st *e, uint64_t n)
{
    for (const auto &s : streams)
        for (const work &w : s->queue)
            if (w.records.get() == e && w.n >= n)
                return s.get();
    return nullptr;
}

/* The stream that has to work first so that `s` goes on; NULL: not known. */
static CUstream_st *needed_for(CUstream_st *s)
{
    for (size_t i = 0; s && i < streams.size(); i++) {
        if (s->queue.empty())
            return nullptr;
        if (is_ready(s))
            return s;
        const work &w = s->queue.front();
        s = w.awaits ? stream_that_records(w.awaits.get(), w.n) : nullptr;
    }
    return nullptr;
}

enum outcome { RAN, NO_WORK, NONE_READY };

/* Giving access to another device's memory takes longer than a small kernel, so a device mostly
 * goes on for a while. */
static void prefer_one_device(std::vector<CUstream_st *> *ready)
{
    static int last;
    std::vector<CUstream_st *> same;

    if (device_count() < 2)
        return;
    for (CUstream_st *s : *ready)
        if (s->device == last)
            same.push_back(s);
    if (!same.empty() && random_to(16) != 0)
        *ready = same;
    else
        last = (*ready)[random_to((uint32_t)ready->size())]->device;
}

/* Choose among the streams that may run, while the host waits for `target`; NULL: for all. */
static CUstream_st *choose(std::vector<CUstream_st *> ready, CUstream_st *target)
{
    CUstream_st *needed = nullptr;

    if (target && current_order() != EMULATION_RANDOM)
        needed = needed_for(target);
    if (needed && current_order() == EMULATION_LATE)
        return needed;
    if (needed && ready.size() > 1)
        for (size_t i = 0; i < ready.size(); i++)
            if (ready[i] == needed) {
                ready.erase(ready.begin() + (std::ptrdiff_t)i);
                break;
            }
    prefer_one_device(&ready);
    return ready[random_to((uint32_t)ready.size())];
}

/* Run one piece of work, with its device's memory open. */
static outcome run_one(CUstream_st *target)
{
    std::vector<CUstream_st *> ready;
    bool waiting = false;

    for (const auto &s : streams) {
        waiting = waiting || !s->queue.empty();
        if (is_ready(s.get()))
            ready.push_back(s.get());
    }
    if (ready.empty())
        return waiting ? NONE_READY : NO_WORK;
    CUstream_st *s = choose(std::move(ready), target);
    work w = std::move(s->queue.front());
    s->queue.pop_front();
    memory_use(s->device);
    if (w.run)
        w.run();
    s->n_done++;
    for (size_t i = streams.size(); i-- > 0;)
        if (streams[i]->destroyed && streams[i]->queue.empty())
            streams.erase(streams.begin() + (std::ptrdiff_t)i);
    return RAN;
}

/* Let other threads enqueue what the streams of several devices wait for. The calls that come here
 * hold the lock once. */
static void wait_for_others(void)
{
    if (copies_may_be_held()) {
        enqueued.wait_for(runtime_lock, std::chrono::milliseconds(HELD_MS));
        return;
    }
    if (device_count() < 2 || enqueued.wait_for(runtime_lock, std::chrono::seconds(DEADLOCK_S)) ==
                                  std::cv_status::timeout)
        emulation_die("deadlock: every stream with work waits for an event");
}

/* target: the stream of the work that is waited for; NULL: of any. */
template <typename Done> static void run_until(CUstream_st *target, Done done)
{
    outcome last = RAN;

    if (done())
        return;
    memory_open();
    while (!done() && last != NO_WORK)
        if ((last = run_one(target)) == NONE_READY)
            wait_for_others();
    memory_close();
}

void stream_enqueue_when(cudaStream_t handle, std::function<bool()> ready,
                         std::function<void()> run)
{
    CUstream_st *s = find_stream(handle);

    if (!s)
        emulation_die("work for a stream that does not exist");
    push(s, {std::move(ready), std::move(run)});
}

void stream_enqueue(cudaStream_t handle, std::function<void()> run)
{
    stream_enqueue_when(handle, nullptr, std::move(run));
}

int stream_device(cudaStream_t handle)
{
    CUstream_st *s = find_stream(handle);

    return s ? s->device : -1;
}

void stream_finish(cudaStream_t handle)
{
    CUstream_st *s = find_stream(handle);
    uint64_t n = s->n_queued;

    run_until(s, [s, n] { return s->n_done >= n; });
}

void streams_finish(void)
{
    run_until(nullptr, [] {
        for (const auto &s : streams)
            if (!s->queue.empty())
                return false;
        return true;
    });
}

/* Run a piece of work, or not, because a real device may progress between two calls of the host,
 * which asks for `target`. */
static void run_perhaps(CUstream_st *target)
{
    if (random_to(2) || (!target && current_order() == EMULATION_LATE))
        return;
    memory_open();
    if (run_one(target) == NONE_READY && device_count() < 2 && !copies_may_be_held())
        emulation_die("deadlock: every stream with work waits for an event");
    memory_close();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    ENTER();
    legacy();
    streams.push_back(std::make_unique<CUstream_st>());
    streams.back()->blocking = !(flags & cudaStreamNonBlocking);
    streams.back()->device = device_current();
    *out = streams.back().get();
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    ENTER();
    CUstream_st *s = handle ? find_stream(handle) : nullptr;
    if (!s)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    s->destroyed = true; /* its work is still done */
    for (size_t i = streams.size(); i-- > 0;)
        if (streams[i]->destroyed && streams[i]->queue.empty())
            streams.erase(streams.begin() + (std::ptrdiff_t)i);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER();
    if (!find_stream(s))
        return runtime_failed(cudaErrorInvalidResourceHandle);
    stream_finish(s);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    ENTER();
    CUstream_st *s = find_stream(handle);
    if (!s)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    run_perhaps(s);
    return runtime_failed(s->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    streams_finish();
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    ENTER();
    streams_finish();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    ENTER();
    CUstream_st *s = find_stream(handle);
    std::shared_ptr<CUevent_st> e = find_event(event);
    (void)flags;
    if (!s || !e)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    uint64_t n = e->n_recorded; /* later records do not count; 0: no wait */
    push(s, {[e, n] { return e->n_reached >= n; }, nullptr, nullptr, e, n});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    ENTER();
    events.push_back(std::make_shared<CUevent_st>());
    events.back()->timing = !(flags & cudaEventDisableTiming);
    events.back()->device = device_current();
    *out = events.back().get();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    ENTER();
    for (size_t i = 0; i < events.size(); i++)
        if (events[i].get() == e) {
            events.erase(events.begin() + (std::ptrdiff_t)i);
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidResourceHandle);
}

static double taken; /* seconds, beyond the clock's */

void stream_takes(double seconds)
{
    taken += seconds;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    ENTER();
    CUstream_st *s = find_stream(handle);
    std::shared_ptr<CUevent_st> e = find_event(event);
    if (!s || !e || s->device != e->device)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    uint64_t n = ++e->n_recorded;
    push(s, {nullptr, [e, n] {
                 struct timespec now;
                 clock_gettime(CLOCK_MONOTONIC, &now);
                 e->reached_at = taken + (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
                 if (n > e->n_reached)
                     e->n_reached = n;
             }, e, nullptr, n});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER();
    std::shared_ptr<CUevent_st> e = find_event(event);
    if (!e)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    run_perhaps(stream_that_records(e.get(), e->n_recorded));
    return runtime_failed(e->n_reached >= e->n_recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER();
    std::shared_ptr<CUevent_st> e = find_event(event);
    if (!e)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    uint64_t n = e->n_recorded;
    run_until(stream_that_records(e.get(), n), [e, n] { return e->n_reached >= n; });
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    std::shared_ptr<CUevent_st> a = find_event(from), b = find_event(to);
    if (!a || !b || !a->timing || !b->timing || !a->n_recorded || !b->n_recorded)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    if (a->n_reached < a->n_recorded || b->n_reached < b->n_recorded)
        return runtime_failed(cudaErrorNotReady);
    *ms = (float)(1e3 * (b->reached_at - a->reached_at));
    return cudaSuccess;
}

/* --- graphs --- */

bool stream_capture_forbids(const char *call)
{
    static const char *const forbidden[] = {
        "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle",
        "cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaFreeHost", "cudaMemcpy", "cudaMemset",
        "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaEventQuery",
        "cudaStreamQuery", "cudaEventRecord", "cudaStreamBeginCapture", "cudaGraphLaunch"};

    if (!capturing || !pthread_equal(capturing_thread, pthread_self()))
        return false;
    for (const char *name : forbidden)
        if (strcmp(name, call) == 0) {
            capture_is_broken = true;
            return true;
        }
    return false;
}

static size_t node_bytes = 2048; /* of device memory that a kernel of an executable graph takes */
static bool keeps_bytes;         /* those of destroyed graphs are used for the next ones only */
static size_t n_kept[DEVICES_MAX];

void emulation_graph_memory(uint64_t bytes_of_kernel, int keeps)
{
    LOCK();
    node_bytes = bytes_of_kernel;
    keeps_bytes = keeps;
    for (int d = 0; d < DEVICES_MAX; d++) {
        memory_give(d, n_kept[d]);
        n_kept[d] = 0;
    }
}

static bool take_graph_memory(CUgraphExec_st *g)
{
    size_t reused = std::min(g->n_bytes, n_kept[g->device]);

    if (!memory_take(g->device, g->n_bytes - reused))
        return false;
    n_kept[g->device] -= reused;
    return true;
}

static void give_graph_memory(const CUgraphExec_st *g)
{
    if (keeps_bytes)
        n_kept[g->device] += g->n_bytes;
    else
        memory_give(g->device, g->n_bytes);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    ENTER();
    CUstream_st *s = find_stream(handle);
    if (!s || mode != cudaStreamCaptureModeThreadLocal)
        return runtime_failed(cudaErrorInvalidValue);
    if (s->is_legacy || capturing)
        return runtime_failed(cudaErrorStreamCaptureUnsupported);
    s->capture = std::make_unique<CUgraph_st>();
    capturing = s;
    capturing_thread = pthread_self();
    capture_is_broken = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    LOCK();
    cudaError_t entered = call_enter(__func__);
    CUstream_st *s = find_stream(handle);
    *out = nullptr;
    if (!s || s != capturing)
        return runtime_failed(cudaErrorInvalidValue);
    std::unique_ptr<CUgraph_st> made = std::move(s->capture); /* ended, whatever the result */
    capturing = nullptr;
    if (entered != cudaSuccess)
        return entered;
    if (capture_is_broken)
        return runtime_failed(cudaErrorStreamCaptureInvalidated);
    graphs.push_back(std::move(made));
    *out = graphs.back().get();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    ENTER();
    (void)flags;
    for (const auto &g : graphs)
        if (g.get() == graph) {
            auto made = std::make_shared<CUgraphExec_st>();
            made->work = g->work;
            made->device = device_current();
            made->n_bytes = g->work.size() * node_bytes;
            if (!take_graph_memory(made.get()))
                return runtime_failed(cudaErrorMemoryAllocation);
            launchable.push_back(std::move(made));
            *out = launchable.back().get();
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidValue);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t handle)
{
    ENTER();
    for (const auto &g : launchable)
        if (g.get() == graph && find_stream(handle))
            return cudaSuccess;
    return runtime_failed(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle)
{
    ENTER();
    CUstream_st *s = find_stream(handle);
    for (const auto &g : launchable)
        if (g.get() == graph && s) {
            for (const std::function<void()> &node : g->work)
                push(s, {nullptr, node});
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER();
    for (size_t i = 0; i < graphs.size(); i++)
        if (graphs[i].get() == graph) {
            graphs.erase(graphs.begin() + (std::ptrdiff_t)i);
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    ENTER();
    for (size_t i = 0; i < launchable.size(); i++)
        if (launchable[i].get() == graph) {
            give_graph_memory(graph);
            launchable.erase(launchable.begin() + (std::ptrdiff_t)i);
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidValue);
}
