/* variants_x86.c - the kernel variants of x86-64. */
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "kernels/cpu/cpu.h"

extern const struct ops cpu_ops_amx;
extern const struct ops cpu_ops_avx512bf16;
extern const struct ops cpu_ops_avx512;
extern const struct ops cpu_ops_avx2;
extern const struct ops cpu_ops_portable;

static bool avx2_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool avx512_supported(void)
{
    return avx2_supported() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

static bool avx512bf16_supported(void)
{
    return avx512_supported() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vbmi");
}

/* Ask Linux for the tiles' 8 KB of state, which a process gets only on request. Threads inherit the
 * permission, so this comes before the pool is created. */
static bool amx_supported(void)
{
#ifdef AMX_EMULATED /* amx.h */
    return avx512bf16_supported();
#else
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;

    if (!avx512bf16_supported() || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if ((d & AMX_BF16) == 0 || (d & AMX_TILE) == 0 || (d & AMX_INT8) == 0)
        return false;
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#endif
}

static bool always(void)
{
    return true;
}

static const struct cpu_variant variants[] = {
    {"amx", &cpu_ops_amx, amx_supported},
    {"avx512bf16", &cpu_ops_avx512bf16, avx512bf16_supported},
    {"avx512", &cpu_ops_avx512, avx512_supported},
    {"avx2", &cpu_ops_avx2, avx2_supported},
    {"portable", &cpu_ops_portable, always},
};

const struct cpu_variant *cpu_variants(uint32_t *n_out)
{
    *n_out = ARRAY_SIZE(variants);
    return variants;
}
