/* cpu.c - the scratch memory of a CPU device. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Take `floats` from memory + *at; each part starts on a cache line. With memory NULL only
 * count. */
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
    a->p = (unsigned char *)carve(memory, at, CPU_ATTN_ROWS_MAX * KV_SEGMENT_TOKENS_MAX / 2);
    a->v = (unsigned char *)carve(memory, at, KV_BLOCK_TOKENS * dim / 2);
    a->tile = carve(memory, at, CPU_ATTN_ROWS_MAX * dim);
    a->out = carve(memory, at, CPU_ATTN_QUERIES_MAX * dim);
    a->max = carve(memory, at, CPU_ATTN_QUERIES_MAX);
    a->sum = carve(memory, at, CPU_ATTN_QUERIES_MAX);
}

/* Put each thread's part of scratch memory on its node. */
static void place_parts(struct cpu *c, void *memory, size_t n_bytes, uint32_t n_threads)
{
    for (uint32_t i = 0; c->numa.n_nodes > 1 && i < n_threads; i++)
        (void)numa_place(&c->numa, (char *)memory + n_bytes / n_threads * i, n_bytes / n_threads,
                         numa_node_of(&c->numa, i, n_threads)); /* slower without it */
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
    c->attn_tile_floats = (size_t)n_threads * CPU_ATTN_TILE_FLOATS;
    /* Not written here: few servers need these pages. */
    c->attn_tiles = aligned_alloc(64, c->attn_tile_floats * sizeof(float));
    if (!c->attn || !c->attn_memory || !c->attn_tiles)
        return ERR_NOMEM;
    memset(c->attn_memory, 0, floats * sizeof(float));
    for (uint32_t i = 0; i < n_threads; i++)
        carve_attn(&c->attn[i], c->attn_memory, &at, dim);
    place_parts(c, c->attn_memory, floats * sizeof(float), n_threads);
    return OK;
}

static enum status init_tiles(struct cpu *c, uint32_t n_threads)
{
    size_t w_floats = ((size_t)c->max_k + 127) / 128 * 128 * PANEL_COLS / sizeof(float);
    size_t c_floats = (size_t)CPU_TILE_ROWS * PANEL_COLS;

    c->tile_scratch = calloc(n_threads, sizeof(*c->tile_scratch));
    c->tile_memory = aligned_alloc(64, n_threads * (w_floats + c_floats) * sizeof(float));
    c->ranges = aligned_alloc(64, n_threads * sizeof(*c->ranges));
    if (!c->tile_scratch || !c->tile_memory || !c->ranges)
        return ERR_NOMEM;
    memset(c->ranges, 0, n_threads * sizeof(*c->ranges));
    place_parts(c, c->tile_memory, n_threads * (w_floats + c_floats) * sizeof(float), n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        float *memory = c->tile_memory + i * (w_floats + c_floats);

        c->tile_scratch[i] =
            (struct cpu_tile_scratch){.c = memory, .w = (unsigned char *)(memory + c_floats)};
    }
    return OK;
}

/* A row takes at most 4 bytes per element of K, plus its share of a slot's head and ends. */
static size_t packed_bytes(const struct cpu *c)
{
    size_t row = (size_t)c->max_k * sizeof(float) + CPU_PACK_ROW_EXTRA;

    return row * (c->packed_rows + 32); /* slots of unequal groups all have the size of the
                                           largest */
}

enum status cpu_init(struct cpu *c, const struct device_config *config, uint32_t n_threads)
{
    *c = (struct cpu){.max_k = config->max_k, .max_head_dim = config->max_head_dim};
    c->packed_rows = config->max_rows < CPU_PACK_ROWS_MAX ? config->max_rows : CPU_PACK_ROWS_MAX;
    c->packed_rows = c->packed_rows ? c->packed_rows : 1;
    c->packed_bytes = (packed_bytes(c) + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    /* Not written here: a server that never runs a long step never gets these pages. Huge ones: a
     * block of activations that is read from the second-level cache loses 13 % of its speed to
     * small pages (PERFORMANCE.md). */
    c->packed = aligned_alloc(HUGE_PAGE_BYTES, c->packed_bytes);
    if (c->packed)
        (void)madvise(c->packed, c->packed_bytes, MADV_HUGEPAGE); /* best effort */
    if (config->numa)
        numa_read(&c->numa, strcmp(config->numa, "auto") == 0 ? NUMA_DIR : config->numa);
    if (!c->packed || init_attn(c, n_threads) != OK || init_tiles(c, n_threads) != OK ||
        pool_create(&c->pool, n_threads, &c->numa) != OK) {
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
    free(c->attn_tiles);
    free(c->tile_scratch);
    free(c->tile_memory);
    free(c->ranges);
    *c = (struct cpu){0};
}
