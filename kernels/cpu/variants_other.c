/* variants_other.c - the kernel variants of processors without kernels of their own. */
#include "base/check.h"
#include "kernels/cpu/cpu.h"

extern const struct ops cpu_ops_portable;

static bool always(void)
{
    return true;
}

static const struct cpu_variant variants[] = {
    {"portable", &cpu_ops_portable, always},
};

const struct cpu_variant *cpu_variants(uint32_t *n_out)
{
    *n_out = ARRAY_SIZE(variants);
    return variants;
}
