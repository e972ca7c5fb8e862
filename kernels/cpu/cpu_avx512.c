/* cpu_avx512.c - the CPU kernels compiled for AVX512 (kernels/CMakeLists.txt gives the flags). */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/ops_body.h"
