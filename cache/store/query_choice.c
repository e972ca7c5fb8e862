#include "cache/store/query_choice.h"

#include <math.h>

void query_expected_times(const struct query_costs *c, struct query_times *out)
{
    double n_chunks = ceil((double)c->n_prompt_rows / c->n_rows_max), row_s, t;

    *out = (struct query_times){INFINITY, INFINITY};
    if (c->bytes_per_s <= 0)
        return;
    row_s = c->row_bytes / c->bytes_per_s;
    t = c->query_s > 0 ? c->query_s : c->latency_s + row_s;
    out->pull_s = c->latency_s + c->n_bytes / c->bytes_per_s + c->evict_s;
    out->query_s =
        c->n_layers * ((n_chunks + c->n_output_rows) * t + (c->n_prompt_rows - n_chunks) * row_s) +
        c->lost_s;
}

bool query_is_best(const struct query_costs *c)
{
    struct query_times times;

    query_expected_times(c, &times);
    return times.query_s < times.pull_s && times.query_s < c->compute_s;
}
