/* cost_model.h - how long a prefill takes: T(cached, new) in seconds, from a profiled grid.
 *
 * Bilinear interpolation as RAGCache does it (arXiv 2404.12457, section 5.1; our papers.md 2.3):
 * with a_l <= cached <= a_h and b_l <= new <= b_h the neighbours on the two axes,
 *     t = (cached - a_l) / (a_h - a_l), u = (new - b_l) / (b_h - b_l)
 *     T = (1-t)(1-u) T_ll + t (1-u) T_hl + (1-t) u T_lh + t u T_hh
 *
 * Outside the grid:
 *   new == 0          0: nothing is to be done
 *   below an axis     as at its first point: a step has a floor, which does not shrink with work
 *   above an axis     the line through its last two points goes on, but never below its last
 *                     point; attention grows faster than that, so profile up to the longest
 *                     context that matters
 *
 * Saved as JSON, one file per fingerprint and device:
 *   {"format": 1, "fingerprint": "64 hex digits", "device": "words",
 *    "cached": [a_0, ...], "new": [b_0, ...], "seconds": [[T(a_0, b_0), T(a_0, b_1), ...], ...]}
 *
 * Owns    nothing: a struct of plain numbers, 2.4 kB, copied at will.
 * Thread  one at a time.
 * Errors  ERR_INVALID with words about the field; ERR_NOT_FOUND where there is no such file or it
 *         is of another model or device; ERR_IO, ERR_NOMEM.
 * Units   tokens and seconds. */
#ifndef TARN_ENGINE_COST_MODEL_H
#define TARN_ENGINE_COST_MODEL_H

#include <stdint.h>

#include "base/buf.h"

#define COST_MODEL_N_POINTS_MAX 16
#define COST_MODEL_FINGERPRINT_BYTES 32
#define COST_MODEL_DEVICE_BYTES_MAX 96

/* The axes that the paper's checklist proposes; n points each. */
extern const uint32_t cost_model_default_cached[7]; /* 0, 256, 512, 1k, 2k, 4k, 8k */
extern const uint32_t cost_model_default_new[9];    /* 32, 64, ..., 8k */

struct cost_model {
    uint32_t n_cached, n_new;                            /* at least 2 each */
    uint32_t cached[COST_MODEL_N_POINTS_MAX];            /* ascending */
    uint32_t new_tokens[COST_MODEL_N_POINTS_MAX];        /* ascending, the first > 0 */
    double seconds[COST_MODEL_N_POINTS_MAX][COST_MODEL_N_POINTS_MAX]; /* [cached][new], > 0 */
};

/* seconds [n_cached][n_new], row after row. ERR_INVALID says what is wrong with the grid. */
NODISCARD enum status cost_model_init(struct cost_model *m, const uint32_t *cached,
                                      uint32_t n_cached, const uint32_t *new_tokens,
                                      uint32_t n_new, const double *seconds, struct buf *why);
/* What a first guess is made of, before anything was measured. */
struct cost_estimate {
    double weight_bytes;      /* read in every step */
    double flops_per_token;   /* of the products: 2 for each weight */
    double flops_per_pair;    /* of attention, a token and a key it sees: 4 n_layers n_heads d */
    double bytes_per_s, flops_per_s; /* of the device, about */
};
/* The default axes, with T = max(weights read, products) + attention over
 * new (cached + new / 2) pairs. Only ratios of it are to be trusted: cost_model_scale(). */
void cost_model_estimate(struct cost_model *m, const struct cost_estimate *e);
/* A prefill of that shape took `seconds`, and the model is a guess: all of it is scaled so that it
 * says the same. */
void cost_model_scale(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds);
/* Seconds to compute n_new tokens behind n_cached cached ones. */
double cost_model_seconds(const struct cost_model *m, uint32_t n_cached, uint32_t n_new);
/* A prefill of that shape took `seconds`. The points around it move, each by its share in the
 * interpolation, so that the next answer for the same shape inside the grid has gone a part
 * (COST_MODEL_RATE) of the way; one observation counts at most for a factor of 4. */
void cost_model_correct(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds);

#define COST_MODEL_RATE 0.1

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
