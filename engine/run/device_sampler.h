/* device_sampler.h - a step's rows of logits to tokens, on a device that has the op `sample`.
 *
 * The rows' parameters and lists (ids seen, biases, banned ids) are laid out in one pinned buffer
 * and go up in one copy; ids and log-probabilities come back in one. Lists of all rows together may
 * be long (8 bytes per distinct id that a penalty looks at), so the buffer is bounded: when the
 * next row does not fit, what is there runs first.
 *
 * Owns    pinned and device memory of about 100 bytes per row, 160 more for the best n, and three
 *         times the lists: at most 16 MiB, or one row's longest lists where those are longer.
 *         Nothing is allocated after create.
 * Thread  engine thread only.
 * Errors  ERR_NOMEM from create; else what the device answers.
 * Units   as sampler.h. */
#ifndef TARN_ENGINE_RUN_DEVICE_SAMPLER_H
#define TARN_ENGINE_RUN_DEVICE_SAMPLER_H

#include "engine/run/sampler.h"
#include "kernels/device.h"

struct device_sampler;

struct device_sampler_config {
    struct device *device;
    uint32_t n_vocab;
    uint32_t n_rows_max;   /* of one step */
    uint32_t n_known_max;  /* tokens of one sequence: bounds its list of ids seen */
    uint32_t n_banned_max; /* of one row */
    size_t list_bytes_max; /* 0: 16 MiB */
};

/* Device memory that device_sampler_create() will take. */
uint64_t device_sampler_device_bytes(const struct device_sampler_config *config);
NODISCARD enum status device_sampler_create(struct device_sampler **out,
                                            const struct device_sampler_config *config);
void device_sampler_destroy(struct device_sampler *ds); /* NULL is fine */

/* One step: begin, add() each row of logits in order, launch, finish, which waits. logits is device
 * memory [rows, V] and is changed; tokens [rows] are there after finish, and so are the rows' tops.
 * A step that failed needs no finish. */
void device_sampler_begin(struct device_sampler *ds, float *logits, struct out_token *tokens);
/* Of the row, logits, scratch and raw are not looked at; its lists are copied. A given token whose
 * logit is -inf or NaN gets the logprob -inf. */
NODISCARD enum status device_sampler_add(struct device_sampler *ds, const struct sampler_row *row,
                                         struct out_top *top);
NODISCARD enum status device_sampler_launch(struct device_sampler *ds);
NODISCARD enum status device_sampler_finish(struct device_sampler *ds);

#endif
