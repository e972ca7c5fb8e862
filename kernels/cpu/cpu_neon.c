/* cpu_neon.c - the CPU kernels compiled for NEON alone. kernels/CMakeLists.txt sets
 * the flags. */
#define CPU_NAME "cpu-neon"
#define CPU_OPS cpu_ops_neon
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/ops_body.h"
