#include "loadgen/load/outcome.h"

#include <stdlib.h>
#include <string.h>

void outcome_init(struct outcome *o, const struct load_request *r)
{
    memset(o, 0, sizeof *o);
    o->index = r->index;
    o->session = r->session;
    o->turn = r->turn;
    o->is_last = r->follows && !r->leads;
    o->tenant = r->tenant;
    o->priority = r->priority;
    o->slo = r->slo;
    o->slow_reader = r->slow_reader;
    o->verify = r->verify;
    o->n_prompt_asked = r->n_prompt_tokens;
    o->n_output_asked = r->n_output_tokens;
    o->usage.prompt_tokens = o->usage.completion_tokens = o->usage.total_tokens = -1;
    o->usage.cached_tokens = o->usage.reasoning_tokens = -1;
    o->usage.cache_write_tokens = o->usage.held_tokens = -1;
    for (int t = 0; t < TARN_N_TIERS; t++)
        o->usage.cached_by_tier[t] = -1;
}

void outcome_fini(struct outcome *o)
{
    free(o->message);
    free(o->token_ns);
    free(o->text);
    tarn_body_fini(&o->body);
    memset(o, 0, sizeof *o);
}

enum status outcome_token(struct outcome *o, uint64_t time_ns)
{
    if (o->n_tokens == o->cap_tokens) {
        uint32_t cap = o->cap_tokens ? 2 * o->cap_tokens : 32;
        uint64_t *times = realloc(o->token_ns, cap * sizeof *times);
        if (!times)
            return ERR_NOMEM;
        o->token_ns = times;
        o->cap_tokens = cap;
    }
    o->token_ns[o->n_tokens++] = time_ns;
    return OK;
}

uint64_t outcome_output_tokens(const struct outcome *o)
{
    return o->usage.completion_tokens >= 0 ? (uint64_t)o->usage.completion_tokens : o->n_tokens;
}

uint64_t outcome_prompt_tokens(const struct outcome *o)
{
    return o->usage.prompt_tokens >= 0 ? (uint64_t)o->usage.prompt_tokens : o->n_prompt_asked;
}

const char *outcome_end_name(enum outcome_end e)
{
    static const char *const names[] = {"ok", "failed", "disconnected", "unfinished"};

    return names[e];
}

enum status outcome_list_push(struct outcome_list *l, const struct outcome *o)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct outcome *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return ERR_NOMEM;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = *o;
    return OK;
}

void outcome_list_fini(struct outcome_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        outcome_fini(&l->v[i]);
    free(l->v);
    memset(l, 0, sizeof *l);
}

static int compare(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;

    return x->index < y->index ? -1 : x->index > y->index;
}

void outcome_list_sort(struct outcome_list *l)
{
    if (l->n > 1)
        qsort(l->v, l->n, sizeof *l->v, compare);
}
