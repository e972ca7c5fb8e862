/* capacity.c - measures the capacity of the instances: a closed loop that is always full. */
#include <stdlib.h>

#include "loadgen/sim/sim.h"

/* Share of the first ends that is left out: requests that began together end together. */
#define START_SHARE 0.2

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The times at which requests ended, ascending; the last of them that had a full house: when the
 * last request was sent. */
static size_t list_ends(const struct outcome_list *l, uint64_t *ends, uint64_t *last_sent_ns,
                        uint64_t *n_first)
{
    size_t n = 0;

    *last_sent_ns = *n_first = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct outcome *o = &l->v[i];
        if (o->end != OUTCOME_OK)
            continue;
        ends[n++] = o->end_ns;
        *last_sent_ns = o->sent_ns > *last_sent_ns ? o->sent_ns : *last_sent_ns;
        *n_first += o->turn == 0;
    }
    qsort(ends, n, sizeof *ends, compare_times);
    return n;
}

static enum status measure(const struct outcome_list *l, struct sim_capacity *out)
{
    uint64_t *ends = malloc((l->n + 1) * sizeof *ends), last_sent_ns, n_first;

    if (!ends)
        return ERR_NOMEM;
    size_t n = list_ends(l, ends, &last_sent_ns, &n_first);
    size_t first = (size_t)(START_SHARE * (double)n), last = n;
    while (last > first + 1 && ends[last - 1] > last_sent_ns)
        last--;
    double s = n > 0 ? (double)(ends[last - 1] - ends[first]) / 1e9 : 0;
    if (s > 0 && last > first + 1)
        out->requests_per_s = (double)(last - 1 - first) / s;
    out->conversations_per_s = n > 0 ? out->requests_per_s * (double)n_first / (double)n : 0;
    free(ends);
    return OK;
}

enum status sim_capacity(const struct sim_config *config, struct sim_capacity *out, struct buf *why)
{
    struct outcome_list outcomes = {0};
    struct sim_result result = {0};
    enum status s = sim_run(config, &outcomes, &result, why);

    *out = (struct sim_capacity){.n_simulated = outcomes.n};
    if (s == OK)
        s = measure(&outcomes, out) == OK ? OK : buf_why(why, ERR_NOMEM, "out of memory");
    if (s == OK && !(out->requests_per_s > 0))
        s = buf_why(why, ERR_INVALID,
                    "--load: the capacity cannot be measured: too few requests "
                    "were answered (are they too long for --kv-device-bytes, or the data too few "
                    "for --max-num-seqs?); give a --rate instead");
    outcome_list_fini(&outcomes);
    return s;
}
