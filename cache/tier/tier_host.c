/* tier_host.c - blocks in host memory. */
#include <stdlib.h>

#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

struct tier_host {
    struct tier base;
    struct device *device;
    void *pinned; /* NULL: the memory is the device tier's */
};

static void host_close(struct tier *t)
{
    struct tier_host *h = (struct tier_host *)t;

    device_free_pinned(h->device, h->pinned);
    free(h);
}

static const struct tier_ops host_ops = {
    .close = host_close, .read = tier_copy_out, .write = tier_copy_in};

enum status tier_host_open(struct tier **out, struct device *device, const struct tier *shared,
                           uint64_t block_bytes, uint32_t n_blocks)
{
    struct tier_host *h = calloc(1, sizeof *h);
    enum status s;

    *out = NULL;
    if (!h)
        return ERR_NOMEM;
    h->device = device;
    s = tier_init(&h->base, &host_ops, block_bytes, n_blocks);
    if (s == OK && !shared && !(h->pinned = device_alloc_pinned(device, block_bytes * n_blocks)))
        s = ERR_NOMEM;
    if (s != OK) {
        tier_close(&h->base);
        return s;
    }
    h->base.memory = shared ? tier_memory(shared, 0) : h->pinned;
    tier_fill(&h->base, shared ? tier_n_blocks(shared) : 0);
    *out = &h->base;
    return OK;
}
