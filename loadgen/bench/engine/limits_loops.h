/* limits_loops.h - the loops in registers behind limits.h, each also with a chain that tells the
 * clock.
 *
 * A loop has as many independent accumulators as registers allow: 24 or 12 cover the latency of two
 * instructions per cycle (4 to 6 cycles each), four tiles that of AMX (4 x 16 cycles against 52).
 *
 * The clock of a core depends on its load (wide vectors lower the clock), so the clock must be
 * measured under the same load. A turn of a paced loop has the same instructions and, among them, a
 * chain of dependent integer multiplications and additions, whose cycles are known (three and one).
 * If the chain takes a little longer than the instructions, the turn lasts exactly as many cycles
 * as the chain. There are three paced loops, for two, one and half an instruction per cycle. The
 * fastest loop that the chain still limits shows how many instructions a core executes per cycle.
 *
 * Owns    nothing.
 * Thread  any; begin() and end() on the thread that runs the loop.
 * Errors  none: a loop whose supported() is false must not run.
 * Units   operations (a multiply-add is two), cycles. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_LIMITS_LOOPS_H
#define TARN_LOADGEN_BENCH_ENGINE_LIMITS_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "loadgen/bench/engine/limits.h"

#define LIMITS_N_PACES 3

struct limit_loop {
    enum limit_kind kind;
    uint32_t ops_per_turn; /* operations of one turn, paced or not */
    bool (*supported)(void);
    void (*begin)(void); /* may be NULL; so may end */
    void (*run)(uint64_t n_turns);
    void (*end)(void);
    struct {
        void (*run)(uint64_t n_turns);
        uint32_t chain_cycles; /* of one turn */
        uint32_t turn_cycles;  /* cycles of an unpaced turn if this pace is the right one */
    } paces[LIMITS_N_PACES];   /* fastest first */
};

const struct limit_loop *limits_loops(uint32_t *n_out);

#endif
