/* tier_host.c - blocks in host memory. */
#include <stdlib.h>

#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

struct tier_host {
    struct tier base;
    struct device *device;
    const struct tier *shared; /* whose memory this is; NULL: its own */
    void *pinned;              /* NULL: shared, or asleep */
};

static void host_close(struct tier *t)
{
    struct tier_host *h = (struct tier_host *)t;

    device_free_pinned(h->device, h->pinned);
    free(h);
}

static enum status host_wake(struct tier *t)
{
    struct tier_host *h = (struct tier_host *)t;

    if (!h->shared && !(h->pinned = device_alloc_pinned(h->device, t->block_bytes * t->n_blocks)))
        return ERR_NOMEM;
    t->memory = h->shared ? tier_memory(h->shared, 0) : h->pinned;
    return OK;
}

static void host_sleep(struct tier *t)
{
    struct tier_host *h = (struct tier_host *)t;

    device_free_pinned(h->device, h->pinned);
    h->pinned = NULL;
    t->memory = NULL;
}

static const struct tier_ops host_ops = {.close = host_close,
                                         .read = tier_copy_out,
                                         .write = tier_copy_in,
                                         .sleep = host_sleep,
                                         .wake = host_wake};

enum status tier_host_open(struct tier **out, struct device *device, const struct tier *shared,
                           uint64_t block_bytes, uint32_t n_blocks)
{
    struct tier_host *h = calloc(1, sizeof *h);
    enum status s;

    *out = NULL;
    if (!h)
        return ERR_NOMEM;
    h->device = device;
    h->shared = shared;
    h->base.is_addressable = true;
    s = tier_init(&h->base, &host_ops, block_bytes, n_blocks);
    if (s == OK)
        s = host_wake(&h->base);
    if (s != OK) {
        tier_close(&h->base);
        return s;
    }
    tier_fill(&h->base, shared ? tier_n_blocks(shared) : 0);
    *out = &h->base;
    return OK;
}
