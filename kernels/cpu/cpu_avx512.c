/* cpu_avx512.c - the CPU kernels compiled for AVX-512 with VNNI. kernels/CMakeLists.txt sets the
 * flags. */
#define CPU_NAME "cpu-avx512"
#define CPU_OPS cpu_ops_avx512
#define ATTN_GROUPS_NAME attn_groups_avx512
#define GEMM_INT_NAME gemm_int_avx512
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/ops_body.h"
