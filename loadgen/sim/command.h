/* command.h - `tarn-loadgen sim`: from options to a simulation and its report.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_INVALID, ERR_NOT_FOUND with words for what the user gave; else as sim.h.
 * Units   none. */
#ifndef TARN_LOADGEN_SIM_COMMAND_H
#define TARN_LOADGEN_SIM_COMMAND_H

#include <stdbool.h>

#include "loadgen/load/options.h"

/* *failed: no request was answered. */
NODISCARD enum status sim_command(const struct options *o, bool *failed, struct buf *why);

#endif
