/* streams.cc - streams and events.
 *
 * Work stays queued until the host waits for something. Then the device repeatedly chooses a random
 * stream whose next piece of work may run, and runs it, until the work that the host waits for is
 * done. So a copy that the host does not wait for has not happened, and streams that no event
 * orders run in any order. A query runs at most one piece of work, and not always.
 *
 * Between cudaStreamBeginCapture and cudaStreamEndCapture a stream's work becomes the nodes of a
 * graph, one behind the other, with the arguments of their calls. A call of the capturing thread
 * that waits or allocates fails and ends the capture without a graph, as the real runtime's
 * thread-local mode does. Events inside of a capture are not emulated. */
#include "streams.h"

#include <pthread.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <vector>

/* With several devices other threads may still enqueue work. After this time they do not. */
#define DEADLOCK_S 60

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
};

typedef std::vector<std::function<void()>> nodes;

struct CUgraph_st {
    nodes work;
};

struct CUgraphExec_st {
    nodes work;
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
        if (w.ready)
            emulation_die("a captured stream waits for an event");
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

/* Run one piece of work of a random stream, with its device's memory open. */
static outcome run_one(void)
{
    std::vector<CUstream_st *> ready;
    bool waiting = false;

    for (const auto &s : streams) {
        if (s->queue.empty())
            continue;
        waiting = true;
        if (!s->queue.front().ready || s->queue.front().ready())
            ready.push_back(s.get());
    }
    if (ready.empty())
        return waiting ? NONE_READY : NO_WORK;
    prefer_one_device(&ready);
    CUstream_st *s = ready[random_to((uint32_t)ready.size())];
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
    if (device_count() < 2 || enqueued.wait_for(runtime_lock, std::chrono::seconds(DEADLOCK_S)) ==
                                  std::cv_status::timeout)
        emulation_die("deadlock: every stream with work waits for an event");
}

template <typename Done> static void run_until(Done done)
{
    outcome last = RAN;

    if (done())
        return;
    memory_open();
    while (!done() && last != NO_WORK)
        if ((last = run_one()) == NONE_READY)
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

    run_until([s, n] { return s->n_done >= n; });
}

void streams_finish(void)
{
    run_until([] {
        for (const auto &s : streams)
            if (!s->queue.empty())
                return false;
        return true;
    });
}

/* Run a piece of work, or not, because a real device may progress between two calls of the host. */
static void run_perhaps(void)
{
    if (random_to(2))
        return;
    memory_open();
    if (run_one() == NONE_READY && device_count() < 2)
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
    run_perhaps();
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
    push(s, {[e, n] { return e->n_reached >= n; }, nullptr});
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
             }});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER();
    std::shared_ptr<CUevent_st> e = find_event(event);
    if (!e)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    run_perhaps();
    return runtime_failed(e->n_reached >= e->n_recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER();
    std::shared_ptr<CUevent_st> e = find_event(event);
    if (!e)
        return runtime_failed(cudaErrorInvalidResourceHandle);
    uint64_t n = e->n_recorded;
    run_until([e, n] { return e->n_reached >= n; });
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
            launchable.push_back(std::make_shared<CUgraphExec_st>(CUgraphExec_st{g->work}));
            *out = launchable.back().get();
            return cudaSuccess;
        }
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
            launchable.erase(launchable.begin() + (std::ptrdiff_t)i);
            return cudaSuccess;
        }
    return runtime_failed(cudaErrorInvalidValue);
}
