/* profile.h - where the time of a step goes: the device's launchers, each with a clock around it.
 *
 * Launchers have no argument for the profile, so there is one profile per process. The clock costs
 * some 50 ns per launch, a hundredth of a percent of a step. A device whose launchers only enqueue
 * would need events instead; every device of this build computes before it returns.
 *
 * Owns    its table and sums, static.
 * Thread  the one that runs the forward pass.
 * Errors  none; a launcher's status is passed on.
 * Units   seconds, operations, bytes. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_PROFILE_H
#define TARN_LOADGEN_BENCH_ENGINE_PROFILE_H

#include "engine/model/weights.h"
#include "kernels/ops.h"

enum profile_op {
    PROFILE_EMBED,
    PROFILE_NORM,
    PROFILE_QKV,
    PROFILE_ROPE,
    PROFILE_ATTENTION,
    PROFILE_O,
    PROFILE_GATE_UP,
    PROFILE_SILU,
    PROFILE_DOWN,
    PROFILE_GATHER,
    PROFILE_OUTPUT,
    PROFILE_OP_COUNT
};

struct profile {
    struct {
        double seconds;
        uint64_t n_calls;
        uint64_t ops;   /* products and attention, counted as in counts.h; else 0 */
        uint64_t bytes; /* their weights, or K and V of the context; else 0 */
    } op[PROFILE_OP_COUNT];
};

/* Launchers around those of `real`, for forward_config; products are told apart by their weights,
 * which are borrowed. */
const struct ops *profile_ops(const struct ops *real, const struct weights *w, uint32_t n_layers);
void profile_reset(void);
void profile_read(struct profile *out);
const char *profile_op_name(enum profile_op op);

#endif
