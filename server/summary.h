/* summary.h - the periodic log line about throughput, in the format of vLLM's log for its parsers.
 *
 *     Engine 000: Avg prompt throughput: 8.0 tokens/s, Avg generation throughput: 3.1 tokens/s,
 *     Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 50.0%
 *
 * (one line; the word "GPU" is written on a CPU too, as in vLLM). "Preemptions: N, " precedes the
 * cache usage if there were any. As in vLLM, the line is written every ten seconds while tokens are
 * computed, and once more with zeros after the engine became idle. With --log-format json the
 * figures are members of a JSON object.
 *
 * Owns    the figures of the last line.
 * Thread  main.
 * Errors  none.
 * Units   tokens per second, percent, nanoseconds (clock_now_ns()). */
#ifndef TARN_SERVER_SUMMARY_H
#define TARN_SERVER_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_stats;
struct server;

#define SUMMARY_WORDS_BYTES 512

/* Counters at the time of the last line; begins as zeros except t_ns. */
struct summary {
    uint64_t t_ns;
    uint64_t n_steps, n_prompt_tokens, n_generation_tokens, n_preemptions;
    uint64_t n_query_tokens, n_hit_tokens;
    bool was_busy;
    double hit_perc; /* of the last interval with a lookup */
};

struct summary_figures {
    double prompt_per_s, generation_per_s;
    uint32_t n_running, n_waiting;
    uint64_t n_preemptions;
    double kv_usage_perc, hit_perc;
    bool has_host, has_disk;
    double host_full_perc, disk_full_perc;
};

/* Compute the figures of the interval that ends at now_ns and begin the next one. False: no line is
 * due, the engine was idle in this interval and in the one before. */
bool summary_next(struct summary *s, const struct engine_stats *now, uint64_t now_ns,
                  struct summary_figures *out);
void summary_words(const struct summary_figures *f, char out[SUMMARY_WORDS_BYTES]);

/* Write the line if one is due, and return freed memory to the kernel: glibc would keep the gaps
 * that prompts and answers leave in its heap. */
void summary_log(struct summary *s, const struct server *srv, uint64_t now_ns);

#endif
