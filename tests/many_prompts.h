/* many_prompts.h - hundreds of prompts that share beginnings as those of RAG do, and a digest of
 * what an engine answers to one: for tests of "the same tokens".
 *
 * Owns    nothing.
 * Thread  the test's main thread.
 * Errors  everything that fails ends the test with a message.
 * Units   tokens. */
#ifndef TARN_TESTS_MANY_PROMPTS_H
#define TARN_TESTS_MANY_PROMPTS_H

#include "tests/engine_test.h"

#define MANY_PROMPTS_IDS_MAX 420
#define MANY_PROMPTS_VOCAB 300 /* of engine_test_open()'s model */

struct many_prompt {
    uint32_t ids[MANY_PROMPTS_IDS_MAX], n_ids;
    uint32_t ends[3], n_ends;
};

/* Number p. Families share a preamble and documents; in some the order of the documents differs. */
void many_prompts_make(struct many_prompt *out, uint32_t p);

/* Greedy when p is even, sampled with the seed p when it is odd. */
struct request *many_prompts_submit(struct engine_test *t, const struct many_prompt *prompt,
                                    uint32_t p, uint32_t n_out);

/* Of n_out tokens and their logprobs, so that other bits are seen though the tokens agree. */
struct answer_digest {
    uint8_t bytes[16];
};
/* Waits for the request and gives it back. It has ended after n_out tokens, or the test ends. */
struct answer_digest many_prompts_digest(struct request *r, uint32_t n_out);

#endif
