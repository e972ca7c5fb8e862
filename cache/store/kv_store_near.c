/* kv_store_near.c - loans from device memory to instances that have mapped it: the checksums of the
 * blocks, which the device computes before the loan is answered.
 *
 * One loan at a time: the sums of 4096 blocks are a matter of milliseconds, and the engine thread
 * only begins and ends them. */
#include <stdlib.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

#define NO_LEASE UINT32_MAX

enum status store_lend_near(struct store *st, struct tier_near *near)
{
    st->remote->sums = calloc(1, sizeof *st->remote->sums);
    if (!st->remote->sums)
        return ERR_NOMEM;
    st->remote->near = near;
    st->memory_bytes += sizeof *st->remote->sums;
    return OK;
}

/* The device has ended all jobs: tier_near_close() waits for those of a loan that was not
 * answered. */
void fini_near(struct store *st)
{
    free(st->remote->sums);
}

void poll_sums(struct store *st)
{
    struct loan_sums *s = st->remote->sums;
    uint32_t crc[TIER_SUMS_MAX];
    enum status status;

    for (uint32_t i = 0; s && i < s->n_jobs;) {
        struct loan_job *j = &s->jobs[i];

        if (!tier_near_end(st->remote->near, j->job, &status, crc)) {
            i++;
            continue;
        }
        s->is_failed |= status != OK;
        for (uint32_t k = 0; k < j->n && status == OK; k++)
            s->crc[j->at[k]] = crc[k];
        *j = s->jobs[--s->n_jobs];
    }
    if (s && s->lease == NO_LEASE && s->n_jobs == 0)
        s->is_used = false;
}

/* Begin to compute the sums of the blocks [n] that lie on the device. */
static void begin_sums(struct store *st, const struct loan *l, uint32_t n)
{
    struct store_remote *r = st->remote;
    struct loan_sums *s = r->sums;
    uint32_t places[TIER_SUMS_MAX], at = 0;

    ASSERT(s->n_jobs == 0 && n <= POOL_PATH_MAX);
    s->is_used = true;
    s->is_failed = false;
    s->lease = l->lease;
    while (at < n && !s->is_failed) {
        struct loan_job *j = &s->jobs[s->n_jobs];

        for (j->n = 0; at < n && j->n < TIER_SUMS_MAX; at++)
            if (!r->blocks[at].memory) {
                j->at[j->n] = at;
                places[j->n++] = r->blocks[at].place;
            }
        if (j->n == 0)
            break;
        if (tier_near_sum(r->near, st->tier[CACHE_DEVICE].t, places, j->n, &j->job) == OK)
            s->n_jobs++;
        else
            s->is_failed = true;
    }
}

static bool has_device_blocks(const struct store_remote *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!r->blocks[i].memory)
            return true;
    return false;
}

bool fill_sums(struct store *st, const struct loan *l, uint32_t *n)
{
    struct loan_sums *s = st->remote->sums;
    uint32_t n_new = *n > l->n_there ? *n - l->n_there : 0;

    if (!has_device_blocks(st->remote, n_new))
        return true;
    ASSERT(s); /* only an ask that is near gets blocks in device memory */
    if (!s->is_used)
        begin_sums(st, l, n_new);
    if (s->lease != l->lease || s->n_jobs > 0)
        return false;
    for (uint32_t i = 0; i < n_new; i++)
        st->remote->blocks[i].crc = s->crc[i];
    *n = s->is_failed ? 0 : *n;
    s->is_used = false;
    return true;
}

bool awaits_sums(const struct store *st, const struct loan *l)
{
    const struct loan_sums *s = st->remote->sums;

    return s && s->is_used && s->lease == l->lease;
}

void drop_sums(struct store *st, const struct loan *l)
{
    if (awaits_sums(st, l))
        st->remote->sums->lease = NO_LEASE;
}
