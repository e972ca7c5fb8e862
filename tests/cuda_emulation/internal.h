/* internal.h - the interfaces between the emulation's parts: fibers, grids, memory, the runtime.
 *
 * Owns    nothing.
 * Thread  the runtime's lock is held while kernels run; fibers never leave their OS thread.
 * Errors  emulation_die().
 * Units   bytes. */
#ifndef TARN_TESTS_CUDA_EMULATION_INTERNAL_H
#define TARN_TESTS_CUDA_EMULATION_INTERNAL_H

#include "cuda_runtime.h"
#include "emulation.h"

#include <functional>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATION_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define EMULATION_ASAN 0
#endif

/* fiber.cc: execution contexts with a stack each, switched explicitly. */
struct fiber;
typedef void fiber_entry(void *arg);
struct fiber *fiber_create(void);
/* The next fiber_switch() to it calls entry(arg), which must never return. */
void fiber_prepare(struct fiber *f, fiber_entry *entry, void *arg);
void fiber_switch(struct fiber *from, struct fiber *to);
/* The fiber of the OS thread's own stack. */
struct fiber *fiber_main(void);

/* random.cc */
uint64_t random_u64(void);
static inline uint32_t random_to(uint32_t n) /* a number below n */
{
    return (uint32_t)(((random_u64() >> 32) * n) >> 32);
}
void random_fill(void *p, size_t n_bytes); /* not checked by sanitizers */

/* grid.cc: run a grid, block by block. */
void grid_run(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
              bool early, const std::function<void()> &body);
bool grid_is_running(void);
/* The running thread's number in its block, and the number of threads. `what` names the caller. */
unsigned grid_thread(const char *what);
unsigned grid_n_threads(void);
/* The block's dynamic shared memory. */
char *grid_shared(size_t *n_bytes);
/* Let other threads run until ready() is true; grid_wake() asks it again. */
void grid_wait(emulation_wait kind, emulation_place place, const std::function<bool()> &ready);
void grid_wake(void);

/* async.cc: work that threads start and do not wait for at once. */
void async_end_thread(unsigned number);
void async_end_block(void);
bool async_is_under_way(void);
/* Complete one piece of work, drawn at random; false: there is none. */
bool async_progress(void);

/* shared.cc: the static shared arrays of the kernel's file. */
void shared_fill(const void *kernel);
bool shared_holds(const void *kernel, const void *p, size_t n_bytes);

/* trace.cc: what a kernel and a product of cuBLASLt did, for TARN_EMULATION_TRACE. */
void trace_kernel(const char *name, dim3 blocks, dim3 block);
void trace_product(uint64_t n_outputs, uint64_t n_rows, uint64_t k);

/* memory.cc. A device is a number from 0 on; memory of the host is PINNED. */
#define DEVICES_MAX 8
#define PINNED_MEMORY (-1)
struct allocation {
    char *base;
    size_t n_bytes;
    int device; /* or PINNED_MEMORY */
    void *mapping;
    size_t map_bytes;
    int fd;           /* of the file behind memory that other processes may map; -1: none */
    bool is_borrowed; /* the memory of another process */
    bool is_open;     /* can be accessed */
    uint32_t n_opens; /* of these, by handle */
    uint64_t file;    /* number of that file */
};
void *memory_alloc(size_t n_bytes, int device); /* NULL: out of memory */
bool memory_free(void *p, bool on_device);      /* false: not an allocation of this kind */
/* The allocation that holds all of [p, p + n_bytes), or NULL. */
const struct allocation *memory_find(const void *p, size_t n_bytes);
/* Let other processes map the memory that begins at p, and write a handle. */
cudaError_t memory_export(void *p, cudaIpcMemHandle_t *handle);
cudaError_t memory_import(void **out, const cudaIpcMemHandle_t *handle);
bool memory_return(void *p); /* false: not memory of another process */
void memory_info(int device, size_t *n_free, size_t *n_total);
/* The driver takes so many bytes of a device (false: there are fewer), or gives them back. */
bool memory_take(int device, size_t n_bytes);
void memory_give(int device, size_t n_bytes);
void memory_set(void *p, int byte, size_t n_bytes);
/* Between memory_open() and memory_close() devices work. The memory of the one that memory_use()
 * named last can be accessed, and that of no other. */
void memory_open(void);
void memory_use(int device);
void memory_close(void);

/* streams.cc: enqueue work for cublas.cc and nccl.cc, which begins when ready() says so. */
void stream_enqueue(cudaStream_t s, std::function<void()> run);
void stream_enqueue_when(cudaStream_t s, std::function<bool()> ready, std::function<void()> run);
/* The device of a stream; -1: there is no such stream. */
int stream_device(cudaStream_t s);
/* runtime.cc: count a call; the number of devices; the calling thread's device. */
cudaError_t call_enter(const char *name);
int device_count(void);
bool copies_may_be_held(void); /* TARN_EMULATION_HOLD: a copy waits, or is enqueued */
int device_current(void);
/* Work that runs now takes so much longer, as events see it. */
void stream_takes(double seconds);
unsigned long env_number(const char *name, unsigned long otherwise);

#endif
