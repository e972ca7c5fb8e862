/* cases.h - the measured cases: one prompt behind a context, or one decode step of a batch.
 *
 * Written as a user writes them:
 *   prefill:PROMPT[@CONTEXT]    PROMPT tokens of one sequence behind CONTEXT tokens in the KV cache
 *   decode:BATCH[:CONTEXT[@SHARED]]
 *                               one token of BATCH sequences, each behind CONTEXT tokens, of which
 *                               all have the first SHARED in common, in whole blocks
 *
 * Owns    nothing; plain data.
 * Thread  any.
 * Errors  ERR_INVALID with words.
 * Units   tokens, sequences. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_CASES_H
#define TARN_LOADGEN_BENCH_ENGINE_CASES_H

#include <stdint.h>

#include "base/buf.h"

#define BENCH_CASES_MAX 64
#define BENCH_BATCH_MAX 4096
#define BENCH_TOKENS_MAX (1u << 20)
#define BENCH_CASE_NAME_BYTES 48

enum bench_phase { BENCH_PREFILL, BENCH_DECODE };

struct bench_case {
    enum bench_phase phase;
    uint32_t prompt;  /* prefill: tokens to compute; decode: 0 */
    uint32_t batch;   /* sequences; prefill: 1 */
    uint32_t context; /* tokens of each sequence in the KV cache before it starts */
    uint32_t shared;  /* of these the first ones, which all sequences have; decode only */
};

NODISCARD enum status case_parse(struct bench_case *c, const char *text, struct buf *why);
/* The usual set, out [BENCH_CASES_MAX]; returns how many. */
uint32_t case_defaults(struct bench_case *out);
/* As case_parse() reads it, out [BENCH_CASE_NAME_BYTES]. */
void case_name(const struct bench_case *c, char *out);

const char *case_phase_name(const struct bench_case *c);
/* Rows (new tokens) of each sequence, and of all of them together. */
uint32_t case_rows_per_seq(const struct bench_case *c);
uint32_t case_tokens(const struct bench_case *c);
/* KV blocks that the case holds at its end. */
uint64_t case_blocks(const struct bench_case *c);

#endif
