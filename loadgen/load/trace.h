/* trace.h - recorded workloads: arrival, lengths and shared parts of each request.
 *
 * Formats:
 *   mooncake      JSON lines {timestamp (ms), input_length, output_length, hash_ids}; an id
 *                 names a block of 512 tokens, equal leading ids are an equal prefix
 *   timed_trace   the same fields as `vllm bench serve --dataset-name timed_trace` reads them
 *                 (vLLM 0.23, pull request 39795): timestamps are seconds unless a multiplier
 *                 says otherwise, a block has 16 tokens unless told. Alibaba's Qwen traces are
 *                 such files as they are. vLLM ends a prompt where hash_ids end; here the rest of
 *                 input_length is text of the row's own, and hash_ids may be absent
 *   ragpulse      a directory: 0_trace.jsonl and the lengths of its parts
 *   csv           a header and whole numbers: Azure's (TIMESTAMP, ContextTokens,
 *                 GeneratedTokens), and the lengths-* files (with start_offset_ns, or without
 *                 any time)
 *
 * Rows are sorted by time, which starts at 0. Parts of a row stand in prompt order.
 *
 * Owns    all rows and parts: trace_fini().
 * Thread  read-only after load.
 * Errors  ERR_NOT_FOUND, ERR_INVALID with file:line, ERR_TOO_LARGE, ERR_NOMEM.
 * Units   seconds, tokens. */
#ifndef TARN_LOADGEN_LOAD_TRACE_H
#define TARN_LOADGEN_LOAD_TRACE_H

#include <stdbool.h>

#include "base/buf.h"
#include "loadgen/load/request.h"

enum trace_format { TRACE_AUTO, TRACE_MOONCAKE, TRACE_TIMED, TRACE_RAGPULSE, TRACE_CSV };

/* In what order a RAGPulse row's parts stand: as recorded, or with what differs in nearly every
 * request (the third part of the system prompt) behind the passages. */
enum trace_order { TRACE_ORDER_GIVEN, TRACE_ORDER_REUSE };

struct trace_part {
    uint64_t id;
    uint32_t n_tokens;
    enum part_role role;
};

struct trace_row {
    double at_s;
    uint64_t session; /* 0: none said */
    uint64_t line;    /* of the file: keeps rows of one time in order */
    uint64_t first_part;
    uint32_t n_parts; /* 0: nothing is shared */
    uint32_t input_len, output_len;
};

struct trace {
    struct trace_row *rows; /* [n_rows] */
    size_t n_rows, cap_rows;
    struct trace_part *parts; /* [n_parts] */
    size_t n_parts, cap_parts;
    bool has_times;
};

struct trace_options {
    enum trace_format format;
    enum trace_order order;
    /* Of mooncake and timed_trace: */
    uint32_t block_tokens; /* 0: 512, of timed_trace 16 */
    double time_unit_s;    /* what 1 in a timestamp is; 0: 0.001, of timed_trace 1 */
};

NODISCARD enum status trace_load(struct trace *t, const char *path,
                                 const struct trace_options *options, struct buf *why);
void trace_fini(struct trace *t); /* also fine on a zeroed struct */

#endif
