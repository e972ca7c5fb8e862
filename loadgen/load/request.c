#include "loadgen/load/request.h"

#include <stdlib.h>

void load_request_init(struct load_request *r, uint64_t index)
{
    *r = (struct load_request){.index = index, .disconnect_after = NO_DISCONNECT};
}

void load_request_fini(struct load_request *r)
{
    free(r->parts);
    r->parts = NULL;
    r->n_parts = r->cap_parts = 0;
}

struct part *load_request_add(struct load_request *r, enum part_role role, uint64_t id,
                              uint32_t n_tokens)
{
    if (r->n_parts == r->cap_parts) {
        uint32_t cap = r->cap_parts ? 2 * r->cap_parts : 8;
        struct part *parts = realloc(r->parts, cap * sizeof *parts);
        if (!parts)
            return NULL;
        r->parts = parts;
        r->cap_parts = cap;
    }
    struct part *p = &r->parts[r->n_parts++];
    *p = (struct part){.role = role, .id = id, .n_tokens = n_tokens, .answer_of = NO_TURN};
    r->n_prompt_tokens += n_tokens;
    return p;
}
