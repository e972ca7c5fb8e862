/* cost_model.h - how long a step takes: T(cached, new, batch) in seconds, from profiled grids.
 *
 * Two grids: prefill T(cached, new) of one sequence, and decode T(cached, batch) of `batch`
 * sequences that run one token each behind `cached` ones. A step of both is the decode and what
 * each chunk takes longer than the floor, a step with one decode behind nothing, which is reading
 * the weights; a step of chunks only is the floor and the same.
 *
 * Bilinear interpolation as RAGCache does it (arXiv 2404.12457, section 5.1; our papers.md 2.3):
 * with a_l <= cached <= a_h and b_l <= new <= b_h the neighbours on the two axes,
 *     t = (cached - a_l) / (a_h - a_l), u = (new - b_l) / (b_h - b_l)
 *     T = (1-t)(1-u) T_ll + t (1-u) T_hl + (1-t) u T_lh + t u T_hh
 *
 * Outside the grid:
 *   new or batch == 0 0: nothing is to be done
 *   below an axis     as at its first point: a step has a floor, which does not shrink with work
 *   above an axis     the line through its last two points goes on, but never below its last
 *                     point; attention grows faster than that, so profile up to the longest
 *                     context that matters
 *
 * Saved as JSON, one file per fingerprint and device:
 *   {"format": 2, "fingerprint": "64 hex digits", "device": "words",
 *    "cached": [a_0, ...], "new": [b_0, ...], "seconds": [[T(a_0, b_0), T(a_0, b_1), ...], ...],
 *    "batch": [1, c_1, ...], "decode": [[T(a_0, 1), T(a_0, c_1), ...], ...]}
 * Format 1 had no decode grid: profile again.
 *
 * Owns    nothing: a struct of plain numbers, 4.3 kB, copied at will.
 * Thread  one at a time.
 * Errors  ERR_INVALID with words about the field; ERR_NOT_FOUND where there is no such file or it
 *         is of another model or device; ERR_IO, ERR_NOMEM.
 * Units   tokens and seconds. */
#ifndef TARN_ENGINE_SCHED_COST_MODEL_H
#define TARN_ENGINE_SCHED_COST_MODEL_H

#include <stdint.h>

#include "base/buf.h"

#define COST_MODEL_N_POINTS_MAX 16
#define COST_MODEL_FINGERPRINT_BYTES 32
#define COST_MODEL_DEVICE_BYTES_MAX 96

/* The axes of an estimate, n points each. */
extern const uint32_t cost_model_default_cached[9]; /* 0, 256, 512, 1k, 2k, ..., 32k */
extern const uint32_t cost_model_default_new[14];   /* 1, 8, 16, 32, ..., 32k */
extern const uint32_t cost_model_default_batch[9];  /* 1, 2, 4, ..., 256 */

struct cost_model {
    uint32_t n_cached, n_new;                                         /* at least 2 each */
    uint32_t cached[COST_MODEL_N_POINTS_MAX];                         /* ascending */
    uint32_t new_tokens[COST_MODEL_N_POINTS_MAX];                     /* ascending, the first > 0 */
    double seconds[COST_MODEL_N_POINTS_MAX][COST_MODEL_N_POINTS_MAX]; /* [cached][new], > 0 */
    uint32_t n_batch;                        /* at least 2; on the axis `cached` too */
    uint32_t batch[COST_MODEL_N_POINTS_MAX]; /* ascending, the first 1 */
    double decode[COST_MODEL_N_POINTS_MAX][COST_MODEL_N_POINTS_MAX]; /* [cached][batch], > 0 */
};

/* Two grids, borrowed: row after row. */
struct cost_points {
    const uint32_t *cached, *new_tokens, *batch;
    uint32_t n_cached, n_new, n_batch;
    const double *seconds; /* [n_cached][n_new] */
    const double *decode;  /* [n_cached][n_batch]; NULL, and n_batch 0: a decode of n sequences
                              is taken to be like a prefill of n tokens */
};

/* ERR_INVALID says what is wrong with the grids. */
NODISCARD enum status cost_model_init(struct cost_model *m, const struct cost_points *points,
                                      struct buf *why);
/* What a first guess is made of, before anything was measured. */
struct cost_estimate {
    double weight_bytes;       /* read in every step */
    double flops_per_token;    /* of the products: 2 for each weight */
    double flops_per_pair;     /* of attention, a token and a key it sees: 4 n_layers n_heads d */
    double kv_bytes_per_token; /* of all layers, K and V */
    double bytes_per_s, flops_per_s; /* of the device, about */
};
/* The default axes, with
 *   prefill = max(weights read, products) + attention over new (cached + new / 2) pairs
 *   decode  = max(weights read, products of batch) + max(KV read, attention of batch cached pairs)
 * Only ratios of it are to be trusted: cost_model_scale(). */
void cost_model_estimate(struct cost_model *m, const struct cost_estimate *e);
/* A prefill of that shape took `seconds`, and the model is a guess: all of it, decodes too, is
 * scaled so that it says the same. */
void cost_model_scale(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds);
/* More work never takes less time, and what disturbs a measurement only ever adds to it: a point
 * that took longer than one with more work is lowered to that. */
void cost_model_smooth(struct cost_model *m);

/* Seconds to compute n_new tokens behind n_cached cached ones. */
double cost_model_seconds(const struct cost_model *m, uint32_t n_cached, uint32_t n_new);
/* Seconds of a step in which n_seqs sequences decode, behind n_cached tokens each. n_seqs 0: 0. */
double cost_model_decode_seconds(const struct cost_model *m, uint32_t n_cached, uint32_t n_seqs);

/* What runs in one step, zeroed when nothing; cost_step_add() counts a sequence in: one token is a
 * decode, more are a chunk. */
struct cost_step {
    uint32_t n_decodes;
    uint64_t n_decode_cached; /* the sum over them */
    uint32_t n_chunks;
    double chunks_s;                  /* the sum of what they take longer than the floor */
    uint32_t chunk_cached, chunk_new; /* of the last one */
};
void cost_step_add(struct cost_step *step, const struct cost_model *m, uint32_t n_cached,
                   uint32_t n_new);
double cost_model_step_seconds(const struct cost_model *m, const struct cost_step *step);
/* The most tokens, at most n_max, that one more sequence behind n_cached may run so that the step
 * is expected to take no longer than `seconds`. 0: none. */
uint32_t cost_model_fit(const struct cost_model *m, const struct cost_step *step, uint32_t n_cached,
                        uint32_t n_max, double seconds);

/* --- corrections --- */

/* A prefill of that shape took `seconds`. The points around it move, each by its share in the
 * interpolation, so that the next answer for the same shape inside the grid has gone a part
 * (COST_MODEL_RATE) of the way; one observation counts at most for a factor of 4. Neighbours that
 * would take longer for less work then meet half way. */
void cost_model_correct(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds);
/* The same for a step of decodes. */
void cost_model_correct_decode(struct cost_model *m, uint32_t n_cached, uint32_t n_seqs,
                               double seconds);
/* That step took `seconds`: decodes alone and a chunk alone correct what was expected of them. Of
 * several things in one step nobody knows which took longer, so they correct nothing. A step may be
 * delayed by what else the machine does, never hastened: one that took longer than expected counts
 * at most for COST_MODEL_SLOWER_MAX. Returns |expected - seconds| / seconds, of before; 0 for a
 * step that ran nothing or took no time. */
double cost_model_learn(struct cost_model *m, const struct cost_step *step, double seconds);

#define COST_MODEL_RATE 0.1
#define COST_MODEL_SLOWER_MAX 1.5

/* What the numbers are true for. */
struct cost_model_subject {
    uint8_t fingerprint[COST_MODEL_FINGERPRINT_BYTES];
    char device[COST_MODEL_DEVICE_BYTES_MAX]; /* NUL-terminated UTF-8: "cpu 2 threads avx512bf16" */
};

/* Append the JSON of the file. */
NODISCARD enum status cost_model_write(struct buf *out, const struct cost_model *m,
                                       const struct cost_model_subject *subject);
/* ERR_NOT_FOUND: a good file about something else. *m changes only on OK. */
NODISCARD enum status cost_model_read(struct cost_model *m, const char *text, size_t len,
                                      const struct cost_model_subject *subject, struct buf *why);

/* The file in `dir`: cost-<16 hex digits of a hash of the subject>.json. Saving replaces it whole
 * or not at all. */
NODISCARD enum status cost_model_save(const struct cost_model *m, const char *dir,
                                      const struct cost_model_subject *subject, struct buf *why);
NODISCARD enum status cost_model_load(struct cost_model *m, const char *dir,
                                      const struct cost_model_subject *subject, struct buf *why);

#endif
