/* admission.h - applies the rate limits of a key to a request, and writes the answer's headers and
 * errors about them.
 *
 * Each POST and PUT takes one request from the account's bucket when its header was read. A prompt
 * takes its tokens once it was tokenized; generated tokens are charged when the answer ends. A
 * request that is refused for its tokens still counts as a request. Answers carry OpenAI's
 * x-ratelimit-* headers for the limits that the key has.
 *
 * Owns    nothing; the buckets belong to the account.
 * Thread  any.
 * Errors  sent to the client: 429 with Retry-After; 413 for a prompt larger than a full bucket.
 * Units   tokens. */
#ifndef TARN_SERVER_AUTH_ADMISSION_H
#define TARN_SERVER_AUTH_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

struct account;
struct http_exchange;

/* Take one request, or the tokens of a prompt. False: the limit is reached, and the exchange has
 * its error answer. */
bool admission_request(struct account *a, struct http_exchange *x);
bool admission_prompt(struct account *a, struct http_exchange *x, uint64_t n_tokens);
/* Charge the generated tokens of an answer that ended. */
void admission_generated(struct account *a, uint64_t n_tokens);

#endif
