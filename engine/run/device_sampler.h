/* device_sampler.h - a step's rows of logits to tokens, on a device that has the op `sample`.
 *
 * The rows' parameters and lists (ids seen, biases, masks) are laid out in one pinned buffer and
 * are uploaded in one copy; ids and log-probabilities come back in one copy. The lists of all rows
 * together may be long (8 bytes per distinct id that a penalty changes, V / 8 bytes of a mask), so
 * the buffer is bounded: when the next row does not fit, the rows in the buffer run first.
 *
 * Of a mask only the words that forbid an id are uploaded, or only those that allow one, as pairs
 * of index and word, unless the whole mask is shorter. With a vocabulary of 128 k ids, min_tokens
 * with ten ids costs at most 80 bytes of upload a row, and a grammar's mask of ten ids the same:
 * not 16 KB, which for 256 rows would be 4 MB: 0.17 ms of PCIe at 25 GB/s in each step.
 *
 * Two steps may be under way: the second one is laid out while the device picks the first one's
 * tokens. Each has its turn, 0 or 1, and its own pinned memory; on the device one follows the
 * other.
 *
 * Owns    pinned and device memory of about 100 bytes per row, 160 more for the best n, and twice
 *         the lists on the device and for each turn once: at most 16 MiB, or one row's longest
 *         lists where those are longer.
 *         No memory is allocated after create.
 * Thread  engine thread only.
 * Errors  ERR_NOMEM from create; else errors of the device.
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
    size_t list_bytes_max; /* 0: 16 MiB */
};

/* Device memory that device_sampler_create() will take. */
uint64_t device_sampler_device_bytes(const struct device_sampler_config *config);
NODISCARD enum status device_sampler_create(struct device_sampler **out,
                                            const struct device_sampler_config *config);
void device_sampler_destroy(struct device_sampler *ds); /* NULL is fine */

/* One step: begin, add() each row of logits in order, launch, finish. finish waits for this step's
 * tokens alone. logits is device memory [rows, V] and is changed; tokens [rows] and the rows' tops
 * are valid after finish. The step that had the turn before is finished. A step that failed needs
 * no finish. */
#define DEVICE_SAMPLER_TURNS 2
void device_sampler_begin(struct device_sampler *ds, uint32_t turn, float *logits,
                          struct out_token *tokens);
/* Add a row; its lists are copied, and its logits, scratch and raw are not used. A given token
 * whose logit is -inf or NaN gets the logprob -inf. */
NODISCARD enum status device_sampler_add(struct device_sampler *ds, const struct sampler_row *row,
                                         struct out_top *top);
NODISCARD enum status device_sampler_launch(struct device_sampler *ds);
NODISCARD enum status device_sampler_finish(struct device_sampler *ds, uint32_t turn);

/* Device memory that has the ids of the step that was launched last, row by row, until the next one
 * picks: all of them if it is whole, which means that its lists fit into the buffer at once. */
const uint32_t *device_sampler_ids(const struct device_sampler *ds);
bool device_sampler_is_whole(const struct device_sampler *ds, uint32_t turn);
/* A row of a step that was launched and is not finished: its tops are not written. */
void device_sampler_forget(struct device_sampler *ds, uint32_t turn, uint32_t row);

#endif
