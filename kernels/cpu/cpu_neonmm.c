/* cpu_neonmm.c - the CPU kernels compiled for NEON with matrix products of bytes and of bf16
 * numbers; kernels/CMakeLists.txt sets the flags. */
#define CPU_NAME "cpu-neonmm"
#define CPU_OPS cpu_ops_neonmm
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/ops_body.h"
