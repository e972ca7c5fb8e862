/* compare.h - the same requests to two servers, interleaved, and the ratios of what they took.
 *
 * Requests are cut into blocks. A block goes to one server; when all of it is answered, the same
 * block goes to the other; the order alternates (AB BA AB ...), so what drifts on the machine
 * hits both alike, and two servers on one machine never compute at the same time. In a closed
 * loop with one request at a time that is pairs. Or, for servers that do not share a machine, each
 * request goes to both at its time; who is asked first alternates.
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

/* `set_current` is told which run goes on (NULL: none), for Ctrl-C. *failed: one of the servers
 * answered nothing. */
NODISCARD enum status compare_run(const struct options *o, struct http_loop *loop,
                                  void (*set_current)(struct run *run), bool *failed,
                                  struct buf *why);

#endif
