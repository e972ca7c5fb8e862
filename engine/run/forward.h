/* forward.h - the layer loop: one batch through the model, on one device.
 *
 * The embedding, then the layers of the model's family (engine/model/family.h), then the final norm
 * and the output layer for the rows that want logits. Without the output layer the result is the
 * hidden states, see forward_config.hidden.
 *
 * Where several devices compute one model, each has a forward pass of its own, with its share of
 * the heads, of the feed-forward part and of the output layer. The first one hands each batch to
 * the others (engine/run/ranks.h), and gathers the logits.
 *
 * Owns    its activations, sized once for n_rows_max and n_out_max; borrows model, weights, device.
 * Thread  engine thread only; forward_launch*(): the rank's thread.
 * Errors  forward_create(): ERR_NOMEM; ERR_UNSUPPORTED for a group of several devices without a
 *         collective, and for an encoder. forward_run(): errors of the device.
 *         A query to another instance that fails is no error: batch.queries says so.
 * Units   rows, elements. */
#ifndef TARN_ENGINE_RUN_FORWARD_H
#define TARN_ENGINE_RUN_FORWARD_H

#include "engine/run/batch.h"
#include "engine/run/queries.h"
#include "engine/run/step_graphs.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

struct forward;
struct ranks;

/* In each layer of a family that several devices can share: behind attention and behind the
 * feed-forward part. */
#define FORWARD_SUMS_PER_LAYER 2

struct forward_config {
    struct device_group group;
    const struct model_config *model; /* this device's share of it: model_share() */
    const struct weights *weights;
    uint32_t n_rows_max;
    uint32_t n_out_max;
    uint32_t n_pos; /* positions that rotary tables are made for */
    uint32_t n_seqs_max;
    uint32_t n_blocks_max; /* as in batch_create() */
    uint64_t graph_bytes;  /* memory to record decode steps in; 0: none is recorded, as in a group
                              of several devices */
    struct ranks *ranks; /* the other devices of the group; NULL: none, or they are run by others */
    uint32_t adapter_rank; /* the largest of adapters; 0: no batch has any */
    bool device_logits;    /* leave them on the device: it samples */
    bool hidden;           /* for embeddings: the hidden states behind the final norm take the
                              place of the logits everywhere, [n, D] instead of [n, V] */
    const struct ops *ops; /* NULL: the device's own; else launchers around them (profiles) */
    const struct query_calls *queries; /* NULL: no sequence sends queries */
};

/* Kernels of a decode step, at most: what step_graphs_reserve() wants to know. */
uint32_t forward_kernels_max(const struct model_config *m);
/* Device memory that forward_create() will take, without recorded steps. */
uint64_t forward_device_bytes(const struct forward_config *config);
NODISCARD enum status forward_create(struct forward **out, const struct forward_config *config);
void forward_destroy(struct forward *f); /* NULL is fine */

/* Decode steps that were recorded and replayed until now. */
struct step_graphs_stats forward_graphs(const struct forward *f);

/* Weights or KV pool are about to be freed: forget the recorded steps, which name their memory. */
void forward_forget(struct forward *f);

/* Rows of later batches may be of ids that only the device knows (batch.from): picked is device
 * memory, which holds them when the batch runs. For a GPU, before the first batch. */
void forward_follow(struct forward *f, const uint32_t *picked);

/* Run the batch; pool [group.n]: of each device. *logits is host memory [batch->n_out, V] (device
 * memory with device_logits), valid until the next run; the caller may change it. */
NODISCARD enum status forward_run(struct forward *f, struct batch *batch,
                                  const struct kv_pool *pool, float **logits);
/* Enqueue the batch on this device alone, as its part of what the group's first device runs: wait
 * for nothing, and leave nothing to read. After an error the device took part in all collectives
 * nevertheless. */
NODISCARD enum status forward_launch(struct forward *f, struct batch *batch,
                                     const struct kv_pool *pools);
/* The same for forward_logits(). */
NODISCARD enum status forward_launch_logits(struct forward *f, const uint32_t *rows, uint32_t n);
/* Time the products of all devices of the group, or end that: device_tune(). */
void forward_tune(struct forward *f, bool on);
/* Compute the logits of rows [n] of the batch that ran last; n is at most n_out_max. *logits [n, V]
 * is in the memory of forward_run()'s logits, and overwrites those. */
NODISCARD enum status forward_logits(struct forward *f, const uint32_t *rows, uint32_t n,
                                     float **logits);

#endif
