/* compare.h - the same requests to two servers, interleaved, and the ratios of their latencies.
 *
 * Requests are cut into blocks. A block goes to one server; when all of it is answered, the same
 * block goes to the other. The order alternates (AB BA AB ...): a drift of the machine hits both
 * servers alike, and two servers on one machine never compute at the same time. A closed loop with
 * one request at a time sends pairs. For servers that do not share a machine, each request can go
 * to both servers at its time; the server that is asked first alternates.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  those of runs and reports, with words.
 * Units   ratios are B / A: above 1, B takes longer. */
#ifndef TARN_LOADGEN_LOAD_COMPARE_H
#define TARN_LOADGEN_LOAD_COMPARE_H

#include "base/http.h"
#include "loadgen/load/options.h"
#include "loadgen/load/run.h"

/* Compare the two servers. `set_current` gets each run that begins, and NULL at its end: the run
 * that Ctrl-C interrupts. *failed: one of the servers answered nothing. */
NODISCARD enum status compare_run(const struct options *o, struct http_loop *loop,
                                  void (*set_current)(struct run *run), bool *failed,
                                  struct buf *why);

#endif
