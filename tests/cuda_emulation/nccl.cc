/* nccl.cc - collectives of the emulated devices.
 *
 * A collective has two pieces of work on each device's stream. The first gives the device's part
 * away; the second begins when all devices have given theirs, and receives them. So a device that
 * is never given the collective leaves the others waiting, which the streams report as a deadlock,
 * and after ncclCommAbort() nobody waits. Where the stream's queue is full (emulation_queue()), the
 * call itself waits, as the real one does. */
#include "nccl.h"
#include "streams.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace
{

struct collective_op {
    std::vector<std::string> parts; /* by rank */
    size_t n_bytes = 0;
    int n_given = 0, n_received = 0;
};

struct comm_group {
    int n = 0;
    bool aborted = false;
    std::map<uint64_t, collective_op> ops; /* by number; those that are under way */
};

} // namespace

struct ncclComm {
    std::shared_ptr<comm_group> group;
    int rank, device;
    uint64_t n_ops;
};

#define ENTER_NCCL()                                                                               \
    LOCK();                                                                                        \
    if (call_enter(__func__) != cudaSuccess)                                                       \
    return ncclUnhandledCudaError

const char *ncclGetErrorString(ncclResult_t e)
{
    switch (e) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    }
    return "unknown result code";
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    ENTER_NCCL();
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (devices[i] < 0 || devices[i] >= device_count() ||
                (i != j && devices[i] == devices[j]))
                return ncclInvalidUsage;
    auto group = std::make_shared<comm_group>();
    group->n = n;
    for (int i = 0; i < n; i++)
        comms[i] = new ncclComm{group, i, devices[i], 0};
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    LOCK();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    LOCK();
    comm->group->aborted = true;
    streams_changed();
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return ncclSuccess;
}

static void check_memory(const void *p, size_t n_bytes, int device)
{
    const allocation *a = memory_find(p, n_bytes);

    if (!a || a->device != device)
        emulation_die("ncclAllGather: %zu bytes do not lie on device %d as a whole", n_bytes,
                      device);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t s)
{
    ENTER_NCCL();
    std::shared_ptr<comm_group> g = comm->group;
    size_t n_bytes = n * sizeof(float);
    uint64_t number = comm->n_ops;
    int rank = comm->rank;
    if (type != ncclFloat || stream_device(s) != comm->device)
        return ncclInvalidUsage;
    check_memory(send, n_bytes, comm->device);
    check_memory(receive, n_bytes * (size_t)g->n, comm->device);
    collective_op &op = g->ops[number];
    op.parts.resize((size_t)g->n);
    if (op.n_bytes && op.n_bytes != n_bytes)
        emulation_die("ncclAllGather: rank %d gives %zu bytes, others %zu", rank, n_bytes,
                      op.n_bytes);
    op.n_bytes = n_bytes;
    comm->n_ops++;
    stream_enqueue(s, [g, number, rank, send, n_bytes] {
        collective_op &mine = g->ops[number];

        mine.parts[(size_t)rank].assign(static_cast<const char *>(send), n_bytes);
        mine.n_given++;
    });
    stream_enqueue_when(
        s, [g, number] { return g->aborted || g->ops[number].n_given == g->n; },
        [g, number, receive, n_bytes] {
            collective_op &all = g->ops[number];
            char *to = static_cast<char *>(receive);

            for (const std::string &part : all.parts) {
                memcpy(to, part.data(), part.size()); /* after an abort some have nothing */
                to += n_bytes;
            }
            if (++all.n_received == g->n)
                g->ops.erase(number);
        });
    return ncclSuccess;
}
