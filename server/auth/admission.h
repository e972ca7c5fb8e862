/* admission.h - may this key do this now: its limits, and the words and headers about them.
 *
 * A POST is a request and pays when its header has come; a prompt pays its tokens when it is known
 * how many they are, an answer when it ends. What was refused for its tokens has been a request.
 * Answers carry OpenAI's x-ratelimit-* headers for the limits that the key has.
 *
 * Owns    nothing; the buckets are the account's.
 * Thread  any.
 * Errors  answered: 429 with Retry-After; 413 for a prompt that no full bucket could pay for.
 * Units   tokens. */
#ifndef TARN_SERVER_AUTH_ADMISSION_H
#define TARN_SERVER_AUTH_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

struct account;
struct http_exchange;

/* False: the refusal was answered. */
bool admission_request(struct account *a, struct http_exchange *x);
bool admission_prompt(struct account *a, struct http_exchange *x, uint64_t n_tokens);
/* The answer is over; charges what it generated. */
void admission_generated(struct account *a, uint64_t n_tokens);

#endif
