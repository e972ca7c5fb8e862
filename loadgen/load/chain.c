#include "loadgen/load/chain.h"

#include <stdlib.h>
#include <string.h>

void chain_free(struct chain *c)
{
    if (!c)
        return;
    for (uint32_t i = c->next; i < c->n; i++)
        load_request_fini(&c->turns[i]);
    for (uint32_t i = 0; i < c->n_answers; i++)
        free((char *)(uintptr_t)c->answers[i].data);
    free(c->turns);
    free(c->answers);
    free(c);
}

/* Take the turn over, also on failure. */
static enum status add(struct chain *c, struct load_request *r)
{
    struct load_request *turns = realloc(c->turns, (c->n + 1u) * sizeof *turns);

    if (!turns) {
        load_request_fini(r);
        return ERR_NOMEM;
    }
    c->turns = turns;
    c->turns[c->n++] = *r;
    return OK;
}

enum status chain_pull(struct chain **out, const struct load_request *first,
                       const struct load_source *source)
{
    bool more = first->leads;
    enum status s = OK;

    *out = more ? calloc(1, sizeof **out) : NULL;
    if (!more)
        return OK;
    if (!*out)
        return ERR_NOMEM;
    while (s == OK && more) {
        struct load_request r;
        s = source->next(source->arg, &r);
        if (s != OK)
            break;
        more = r.leads;
        s = add(*out, &r);
    }
    return s == ERR_NOT_FOUND ? OK : s;
}

enum status chain_keep_answer(struct chain *c, uint32_t turn, struct buf *text)
{
    if (turn >= c->n_answers) {
        struct tarn_text *answers = realloc(c->answers, (turn + 1u) * sizeof *answers);
        if (!answers)
            return ERR_NOMEM;
        memset(answers + c->n_answers, 0, (turn + 1u - c->n_answers) * sizeof *answers);
        c->answers = answers;
        c->n_answers = turn + 1;
    }
    c->answers[turn] = (struct tarn_text){text->data, text->len};
    memset(text, 0, sizeof *text); /* the chain owns the bytes now */
    return OK;
}
