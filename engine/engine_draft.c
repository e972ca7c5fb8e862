/* engine_draft.c - the draft model of an engine: opening and closing. draft.c uses it. */
#include <stdlib.h>

#include "base/log.h"
#include "engine/engine_internal.h"

enum status engine_read_draft(struct engine *e, struct device_config *d, struct buf *why)
{
    const struct engine_config *c = &e->config;
    struct draft_model_config m = {.dir = c->draft_model_dir,
                                   .opening = {.load_format = c->load_format,
                                               .dtype = c->dtype,
                                               .quantization = c->quantization,
                                               .quantization_group = c->quantization_group,
                                               .seed = c->seed},
                                   .n_slots = e->n_slots,
                                   .n_seqs_max = c->max_num_seqs,
                                   .n_rows_max = d->max_rows,
                                   .max_model_len =
                                       c->max_model_len ? c->max_model_len : e->model.max_pos,
                                   .kv_bytes = c->draft_kv_bytes};

    if (!c->draft_model_dir)
        return c->draft_kv_bytes == 0
                   ? OK
                   : buf_why(why, ERR_INVALID, "{draft_kv_bytes} needs {draft_model} as well");
    if (c->speculative_tokens == 0)
        return buf_why(why, ERR_INVALID,
                       "{draft_model} has no use with {speculative_tokens} 0; leave one out");
    enum status s = draft_model_read(&e->draft_model, &m, why);
    if (s == OK)
        draft_model_fit(e->draft_model, d);
    return s;
}

enum status engine_open_draft(struct engine *e, struct buf *why)
{
    if (!e->draft_model)
        return OK;
    if (draft_tokens_max(e) == 0)
        return buf_why(why, ERR_INVALID, "on a GPU {draft_model} needs {batch_invariant} as well");
    e->draft_seqs = calloc(e->config.max_num_seqs, sizeof *e->draft_seqs);
    if (!e->draft_seqs)
        return buf_why(why, ERR_NOMEM, "out of memory for the sequence table");
    uint64_t graph_bytes = draft_model_record(e->draft_model, &e->graph_cost);
    e->info.graph_bytes += graph_bytes;
    enum status s =
        draft_model_open(e->draft_model, e->device, e->tokenizer, e->model.n_vocab, why);
    if (s != OK)
        return s;
    e->info.draft_weight_bytes = draft_model_weight_bytes(e->draft_model);
    e->info.draft_kv_bytes = draft_model_kv_bytes(e->draft_model);
    proposing_init(&e->proposing, (double)e->info.draft_weight_bytes / (double)e->weights.n_bytes);
    log_event(LOG_INFO, "a draft model guesses",
              "model=\"%s\" weight_bytes=%llu kv_bytes=%llu graph_bytes=%llu",
              e->config.draft_model_dir, (unsigned long long)e->info.draft_weight_bytes,
              (unsigned long long)e->info.draft_kv_bytes, (unsigned long long)graph_bytes);
    return OK;
}

void engine_close_draft(struct engine *e)
{
    draft_model_close(e->draft_model);
    free(e->draft_seqs);
}
