/* cpu_portable.c - the CPU kernels compiled for any machine. kernels/CMakeLists.txt sets the
 * flags. */
#define CPU_NAME "cpu-portable"
#define CPU_OPS cpu_ops_portable
#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/ops_body.h"
