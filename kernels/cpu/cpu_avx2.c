/* cpu_avx2.c - the CPU kernels compiled for AVX2. kernels/CMakeLists.txt sets the flags. */
#define CPU_NAME "cpu-avx2"
#define CPU_OPS cpu_ops_avx2
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/ops_body.h"
