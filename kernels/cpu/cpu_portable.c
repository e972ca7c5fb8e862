/* cpu_portable.c - the CPU kernels compiled for any machine. */
#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/ops_body.h"
