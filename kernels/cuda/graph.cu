/* graph.cu - graphs of kernels: the work of the compute stream between begin and end is recorded
 * instead of done, and launched as a whole.
 *
 * The capture is that of the calling thread: other threads may allocate pinned memory meanwhile. A
 * graph is uploaded at its end, so that all memory that it takes is allocated then, and none by its
 * first launch. */
#include "kernels/cuda/context.cuh"

enum status cuda_graph_begin(void *state)
{
    struct cuda_context *c = cuda_context_from(state);

    if (c->failed)
        return ERR_INTERNAL;
    return cuda_check(c, cudaStreamBeginCapture(c->streams[DEVICE_COMPUTE],
                                                cudaStreamCaptureModeThreadLocal),
                      "cudaStreamBeginCapture");
}

enum status cuda_graph_end(void *state, struct device_graph **out)
{
    struct cuda_context *c = cuda_context_from(state);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;

    *out = NULL;
    enum status s = cuda_check(c, cudaStreamEndCapture(c->streams[DEVICE_COMPUTE], &graph),
                               "cudaStreamEndCapture");
    if (s == OK)
        s = cuda_check(c, cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
    if (s == OK)
        s = cuda_check(c, cudaGraphUpload(made, c->streams[DEVICE_COMPUTE]), "cudaGraphUpload");
    if (graph) {
        enum status freed = cuda_check(c, cudaGraphDestroy(graph), "cudaGraphDestroy");

        s = s == OK ? freed : s;
    }
    if (s == OK)
        *out = reinterpret_cast<struct device_graph *>(made);
    else if (made)
        (void)cudaGraphExecDestroy(made); /* the error was logged */
    return s;
}

enum status cuda_graph_launch(void *state, const struct device_graph *g)
{
    struct cuda_context *c = cuda_context_from(state);
    cudaGraphExec_t graph =
        reinterpret_cast<cudaGraphExec_t>(const_cast<struct device_graph *>(g));

    if (c->failed)
        return ERR_INTERNAL;
    return cuda_check(c, cudaGraphLaunch(graph, c->streams[DEVICE_COMPUTE]), "cudaGraphLaunch");
}

void cuda_graph_destroy(void *state, struct device_graph *g)
{
    struct cuda_context *c = cuda_context_from(state);
    enum status s = cuda_check(
        c, cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(g)), "cudaGraphExecDestroy");

    (void)s; /* logged; nobody can do anything about it */
}
