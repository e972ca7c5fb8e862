/* many_prompts.h - hundreds of prompts that share prefixes as RAG prompts do, and a digest of an
 * engine's answer to one, for tests of promise P1 (the same tokens).
 *
 * Owns    nothing.
 * Thread  the test's main thread.
 * Errors  any failure ends the test with a message.
 * Units   tokens. */
#ifndef TARN_TESTS_MANY_PROMPTS_H
#define TARN_TESTS_MANY_PROMPTS_H

#include "tests/engine_test.h"

#define MANY_PROMPTS_IDS_MAX 420
#define MANY_PROMPTS_VOCAB 300 /* the vocabulary of engine_test_open()'s model */

struct many_prompt {
    uint32_t ids[MANY_PROMPTS_IDS_MAX], n_ids;
    uint32_t ends[3], n_ends;
};

/* Make prompt number p. Prompts of a family share a preamble and documents, but not always the
 * order of the documents. */
void many_prompts_make(struct many_prompt *out, uint32_t p);

/* Submit a prompt: greedy if p is even, sampled with the seed p if p is odd. */
struct request *many_prompts_submit(struct engine_test *t, const struct many_prompt *prompt,
                                    uint32_t p, uint32_t n_out);

/* A hash of all tokens and their logprobs, which shows other bits even if the tokens are equal. */
struct answer_digest {
    uint8_t bytes[16];
};
/* Wait for the request, which must end after n_out tokens, and drop the caller's reference. */
struct answer_digest many_prompts_digest(struct request *r, uint32_t n_out);

#endif
