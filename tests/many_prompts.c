#include "tests/many_prompts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"

void many_prompts_make(struct many_prompt *out, uint32_t p)
{
    uint32_t family = rng_u32(1, p) % 12, n = 0;

    *out = (struct many_prompt){.n_ends = 0};
    for (uint32_t i = 0; i < 50 + family; i++)
        out->ids[n++] = rng_u32(100, i) % MANY_PROMPTS_VOCAB;
    for (uint32_t d = 0; d < 2; d++) {
        uint32_t doc = rng_u32(2 + (p % 3 == 0 ? d : 1 - d), family) % 9;
        out->ends[out->n_ends++] = n;
        for (uint32_t i = 0; i < 60 + doc * 9; i++)
            out->ids[n++] = rng_u32(200 + doc, i) % MANY_PROMPTS_VOCAB;
    }
    out->ends[out->n_ends++] = n;
    out->n_ends = p % 4 ? out->n_ends : 0; /* the same ids as one span have other keys */
    for (uint32_t i = 0; i < 5 + rng_u32(4, p) % 80; i++)
        out->ids[n++] = rng_u32(300 + p / 2, i) % MANY_PROMPTS_VOCAB;
    out->n_ids = n;
    ASSERT(n <= MANY_PROMPTS_IDS_MAX);
}

struct request *many_prompts_submit(struct engine_test *t, const struct many_prompt *prompt,
                                    uint32_t p, uint32_t n_out)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    if (p % 2) {
        sp.temperature = 0.8f;
        sp.seed = p;
    }
    return engine_test_submit(t, prompt->ids, prompt->n_ids, prompt->ends, prompt->n_ends, &sp,
                              &st);
}

struct answer_digest many_prompts_digest(struct request *r, uint32_t n_out)
{
    struct hash_state h;
    struct answer_digest d;

    engine_test_wait(r);
    if (request_finish(r) != FINISH_LENGTH || request_n_out(r) != n_out) {
        fprintf(stderr, "many_prompts: a request ended with \"%s\" (%s) after %u of %u tokens\n",
                finish_reason_name(request_finish(r)), r->error_words ? r->error_words : "no words",
                request_n_out(r), n_out);
        abort();
    }
    hash_begin(&h, sizeof d.bytes, NULL, 0);
    hash_add(&h, r->out, n_out * sizeof *r->out);
    hash_add(&h, r->out_top, n_out * SAMPLING_N_LOGPROBS_MAX * sizeof *r->out_top);
    hash_end(&h, d.bytes, sizeof d.bytes);
    request_unref(r);
    return d;
}
