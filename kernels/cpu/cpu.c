/* cpu.c - scratch memory and the list of variants. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

extern const struct ops cpu_ops_portable;
#if defined(__x86_64__)
extern const struct ops cpu_ops_avx512;
extern const struct ops cpu_ops_avx2;

static bool avx2_supported(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool avx512_supported(void)
{
    return avx2_supported() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

static bool always(void)
{
    return true;
}

static const struct cpu_variant variants[] = {
#if defined(__x86_64__)
    {"avx512", &cpu_ops_avx512, avx512_supported},
    {"avx2", &cpu_ops_avx2, avx2_supported},
#endif
    {"portable", &cpu_ops_portable, always},
};

const struct cpu_variant *cpu_variants(uint32_t *n_out)
{
    *n_out = ARRAY_SIZE(variants);
    return variants;
}

/* Cut `floats` off the front of memory + *at; every part starts on a cache line. With memory NULL
 * it only counts. */
static float *carve(float *memory, size_t *at, size_t floats)
{
    float *part = memory ? memory + *at : NULL;

    *at += (floats + 15) / 16 * 16;
    return part;
}

static void carve_attn(struct cpu_attn_scratch *a, float *memory, size_t *at, size_t dim)
{
    a->q = carve(memory, at, CPU_ATTN_QUERIES_MAX * dim);
    a->score = carve(memory, at, CPU_ATTN_ROWS_MAX * KV_SEGMENT_TOKENS_MAX);
    a->tile = carve(memory, at, CPU_ATTN_ROWS_MAX * dim);
    a->out = carve(memory, at, CPU_ATTN_QUERIES_MAX * dim);
    a->max = carve(memory, at, CPU_ATTN_QUERIES_MAX);
    a->sum = carve(memory, at, CPU_ATTN_QUERIES_MAX);
}

static enum status init_attn(struct cpu *c, uint32_t n_threads)
{
    size_t dim = ((size_t)c->max_head_dim + PANEL_COLS - 1) / PANEL_COLS * PANEL_COLS;
    struct cpu_attn_scratch sizes;
    size_t floats = 0, at = 0;

    carve_attn(&sizes, NULL, &floats, dim);
    floats *= n_threads;
    c->attn = calloc(n_threads, sizeof(*c->attn));
    c->attn_memory = aligned_alloc(64, floats * sizeof(float));
    if (!c->attn || !c->attn_memory)
        return ERR_NOMEM;
    memset(c->attn_memory, 0, floats * sizeof(float));
    for (uint32_t i = 0; i < n_threads; i++)
        carve_attn(&c->attn[i], c->attn_memory, &at, dim);
    return OK;
}

enum status cpu_init(struct cpu *c, const struct device_config *config, uint32_t n_threads)
{
    size_t bytes;

    *c = (struct cpu){.max_k = config->max_k, .max_head_dim = config->max_head_dim};
    c->packed_rows = config->max_rows < CPU_PACK_ROWS_MAX ? config->max_rows : CPU_PACK_ROWS_MAX;
    c->packed_rows = c->packed_rows ? c->packed_rows : 1;
    bytes = (size_t)c->packed_rows * c->max_k * sizeof(float);
    /* Not touched here: a server that never sees a long step never pays for these pages. */
    c->packed = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!c->packed || init_attn(c, n_threads) != OK || pool_create(&c->pool, n_threads) != OK) {
        cpu_fini(c);
        return ERR_NOMEM;
    }
    return OK;
}

void cpu_fini(struct cpu *c)
{
    pool_destroy(c->pool);
    free(c->packed);
    free(c->attn);
    free(c->attn_memory);
    *c = (struct cpu){0};
}
