#include "server/kv_disk.h"

#include <inttypes.h>

void kv_disk_dropped(const struct cache_disk_stats *d, struct kv_disk_dropped out[KV_DISK_N_WHYS])
{
    const struct kv_disk_dropped all[KV_DISK_N_WHYS] = {
        {"torn", d->n_torn},         {"foreign", d->n_foreign},   {"impossible", d->n_impossible},
        {"misnamed", d->n_misnamed}, {"orphaned", d->n_orphaned}, {"doubled", d->n_doubled},
    };

    for (int i = 0; i < KV_DISK_N_WHYS; i++)
        out[i] = all[i];
}

static void print_dropped(FILE *f, const struct cache_disk_stats *d)
{
    struct kv_disk_dropped dropped[KV_DISK_N_WHYS];
    bool any = false;

    kv_disk_dropped(d, dropped);
    for (int i = 0; i < KV_DISK_N_WHYS; i++) {
        if (dropped[i].n == 0)
            continue;
        fprintf(f, "%s%u %s", any ? ", " : "  records that cannot be used: ", dropped[i].n,
                dropped[i].why);
        any = true;
    }
    if (any)
        fputc('\n', f);
}

void kv_disk_print(FILE *f, const char *path, const struct cache_stats *c)
{
    const struct cache_disk_stats *d = &c->disk;
    uint64_t n_blocks = c->tier[CACHE_DISK].n_blocks;

    if (!d->is_on)
        return;
    fprintf(f,
            "Disk KV cache size: %" PRIu64 " tokens (%.1f MB) in %s: %u blocks found in %.2f s "
            "(%s, %s)\n",
            n_blocks * KV_BLOCK_TOKENS, (double)(n_blocks * d->extent_bytes) * 1e-6, path,
            d->n_found, d->index_s, d->io, d->is_direct ? "O_DIRECT" : "page cache");
    print_dropped(f, d);
}
