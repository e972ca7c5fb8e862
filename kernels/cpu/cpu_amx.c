/* cpu_amx.c - the CPU kernels compiled for AMX, besides AVX-512 with VNNI and BF16.
 * kernels/CMakeLists.txt sets the flags. */
#define CPU_NAME "cpu-amx"
#define CPU_OPS cpu_ops_amx
#define HAVE_AMX 1
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/ops_body.h"
