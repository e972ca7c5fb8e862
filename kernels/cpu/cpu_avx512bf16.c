/* cpu_avx512bf16.c - the CPU kernels compiled for AVX-512 with VNNI, BF16 and VBMI.
 * kernels/CMakeLists.txt sets the flags. */
#define CPU_NAME "cpu-avx512bf16"
#define CPU_OPS cpu_ops_avx512bf16
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/ops_body.h"
