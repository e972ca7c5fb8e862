#include "loadgen/sim/pieces.h"

#include <stdlib.h>

#include "loadgen/load/draw.h"

static uint64_t next_key(uint64_t before, uint64_t name, uint32_t index, uint32_t n_tokens)
{
    return draw_mix(before, draw_mix(name, (uint64_t)index << 32 | n_tokens));
}

static uint64_t add_part(struct pieces *p, uint64_t key, uint64_t name, uint64_t n,
                         uint32_t piece_tokens)
{
    for (uint32_t i = 0; n > 0; i++) {
        uint32_t n_here = n < piece_tokens ? (uint32_t)n : piece_tokens;
        key = next_key(key, name, i, n_here);
        p->v[p->n++] = (struct piece){key, n_here};
        p->n_tokens += n_here;
        n -= n_here;
    }
    return key;
}

enum status pieces_make(struct pieces *out, const struct load_request *r,
                        const struct sim_prompt_config *config, uint32_t piece_tokens)
{
    uint64_t n_tokens = 0, n = 1;
    uint64_t key = draw_mix(config->tenant, UINT64_C(0x7069656365));

    *out = (struct pieces){0};
    for (uint32_t i = 0; i < r->n_parts; i++) {
        uint64_t n_here = sim_part_tokens(&r->parts[i]);
        n_tokens += n_here;
        n += (n_here + piece_tokens - 1) / piece_tokens;
    }
    if (n_tokens > SIM_PROMPT_TOKENS_MAX)
        return ERR_TOO_LARGE;
    out->v = malloc(n * sizeof *out->v);
    if (!out->v)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < r->n_parts; i++)
        key = add_part(out, key, sim_part_name(r, &r->parts[i], config),
                       sim_part_tokens(&r->parts[i]), piece_tokens);
    if (out->n == 0)
        add_part(out, key, 0, 1, piece_tokens);
    return OK;
}

void pieces_fini(struct pieces *p)
{
    free(p->v);
    *p = (struct pieces){0};
}

enum status pieces_extend(struct pieces *p, uint64_t name, uint32_t n_tokens, uint32_t piece_tokens)
{
    uint32_t n_more = (n_tokens + piece_tokens - 1) / piece_tokens;
    struct piece *v = realloc(p->v, (p->n + n_more) * sizeof *v);

    if (!v)
        return ERR_NOMEM;
    p->v = v;
    add_part(p, v[p->n - 1].key, name, n_tokens, piece_tokens);
    return OK;
}

uint64_t pieces_beginning(const struct load_request *r, uint32_t n_tokens)
{
    uint64_t h = draw_mix(r->tenant, UINT64_C(0x626567696E)), n = 0;

    for (uint32_t i = 0; i < r->n_parts && n < n_tokens; i++) {
        h = draw_mix(h, r->parts[i].id);
        n += sim_part_tokens(&r->parts[i]);
    }
    return h;
}
