/* cpu_neondot.c - the CPU kernels compiled for NEON with dot products of bytes;
 * kernels/CMakeLists.txt sets the flags. */
#define CPU_NAME "cpu-neondot"
#define CPU_OPS cpu_ops_neondot
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/ops_body.h"
