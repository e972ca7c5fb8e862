/* trace.cc - a file with one line for each piece of work that the emulated device did, in order.
 *
 * TARN_EMULATION_TRACE names it. Fields are separated by tabs:
 *
 *   kernel   NAME x y z threads weight once copied
 *   product  cublasLtMatmul n_outputs n_rows k
 *
 * NAME is the kernel as the launch names it; x, y, z are its blocks. The last three fields are the
 * bytes that its threads read by load_weight16() and cp_async_weight16(), by load_once16(), and by
 * cp_async16(). */
#include "internal.h"

uint64_t emulation_bytes[EMULATION_READS];
static uint64_t bytes_once; /* of all kernels */

uint64_t emulation_bytes_once(void)
{
    return bytes_once;
}

static FILE *file(void)
{
    static bool opened;
    static FILE *f;
    const char *path = opened ? nullptr : getenv("TARN_EMULATION_TRACE");

    opened = true;
    if (path && *path) {
        f = fopen(path, "w");
        if (!f)
            emulation_die("TARN_EMULATION_TRACE: %s cannot be written", path);
        setvbuf(f, nullptr, _IOLBF, 4096); /* whole lines, also of a process that is killed */
    }
    return f;
}

void trace_kernel(const char *name, dim3 blocks, dim3 block)
{
    if (FILE *f = file())
        fprintf(f, "kernel\t%s\t%u\t%u\t%u\t%u\t%llu\t%llu\t%llu\n", name, blocks.x, blocks.y,
                blocks.z, block.x * block.y * block.z,
                (unsigned long long)emulation_bytes[EMULATION_WEIGHT],
                (unsigned long long)emulation_bytes[EMULATION_ONCE],
                (unsigned long long)emulation_bytes[EMULATION_COPIED]);
    bytes_once += emulation_bytes[EMULATION_ONCE];
    memset(emulation_bytes, 0, sizeof emulation_bytes);
}

void trace_product(uint64_t n_outputs, uint64_t n_rows, uint64_t k)
{
    if (FILE *f = file())
        fprintf(f, "product\tcublasLtMatmul\t%llu\t%llu\t%llu\n", (unsigned long long)n_outputs,
                (unsigned long long)n_rows, (unsigned long long)k);
}
