/* variants_arm.c - the kernel variants of 64-bit ARM. */
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "base/check.h"
#include "kernels/cpu/cpu.h"

extern const struct ops cpu_ops_neonmm;
extern const struct ops cpu_ops_neondot;
extern const struct ops cpu_ops_neon;
extern const struct ops cpu_ops_portable;

/* Every 64-bit ARM processor that Linux runs on with a hardware-float ABI has this one. */
static bool neon_supported(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
}

/* The compiler's flag for dot products includes the atomic instructions of ARMv8.1. */
static bool neondot_supported(void)
{
    unsigned long needed = HWCAP_ASIMDDP | HWCAP_ATOMICS;

    return neon_supported() && (getauxval(AT_HWCAP) & needed) == needed;
}

static bool neonmm_supported(void)
{
    unsigned long needed = HWCAP2_I8MM | HWCAP2_BF16;

    return neondot_supported() && (getauxval(AT_HWCAP2) & needed) == needed;
}

static bool always(void)
{
    return true;
}

static const struct cpu_variant variants[] = {
    {"neonmm", &cpu_ops_neonmm, neonmm_supported},
    {"neondot", &cpu_ops_neondot, neondot_supported},
    {"neon", &cpu_ops_neon, neon_supported},
    {"portable", &cpu_ops_portable, always},
};

const struct cpu_variant *cpu_variants(uint32_t *n_out)
{
    *n_out = ARRAY_SIZE(variants);
    return variants;
}
