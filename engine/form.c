#include "engine/form.h"

#include <stdlib.h>

#include "engine/run/vocab_mask.h"

enum status form_open(struct form *f, struct grammar *grammar, const struct stop_model *model,
                      bool continues)
{
    *f = (struct form){.model = model};
    if (!grammar)
        return OK;
    f->mask = malloc(vocab_mask_n_words(model->n_vocab) * sizeof *f->mask);
    enum status s = f->mask ? grammar_run_init(&f->run, grammar, continues) : ERR_NOMEM;
    if (s != OK)
        form_close(f);
    return s;
}

void form_close(struct form *f)
{
    grammar_run_fini(&f->run);
    free(f->mask);
    *f = (struct form){0};
}

const uint32_t *form_mask(struct form *f, const uint32_t *also)
{
    uint32_t n_words, any = 0;

    if (!f->run.grammar)
        return also;
    f->status = grammar_run_mask(&f->run, f->model->eos_ids, f->model->n_eos_ids, f->mask);
    if (f->status != OK)
        return also;
    n_words = vocab_mask_n_words(f->model->n_vocab);
    for (uint32_t i = 0; also && i < n_words; i++)
        any |= f->mask[i] & also[i];
    for (uint32_t i = 0; any && i < n_words; i++)
        f->mask[i] &= also[i];
    return f->mask;
}

enum status form_feed(struct form *f, uint32_t id)
{
    if (!f->run.grammar || f->status != OK)
        return f->status;
    return grammar_run_feed(&f->run, f->model->eos_ids, f->model->n_eos_ids, id);
}

const char *form_error(enum status s)
{
    switch (s) {
    case ERR_TOO_LARGE: return "the answer can be read in too many ways of the required form";
    case ERR_UNSUPPORTED: return "no token of the model goes on with the required form";
    case ERR_INVALID: return "the model gave no token that goes on with the required form";
    default: return "out of memory for the required form";
    }
}
