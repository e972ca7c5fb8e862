/* options_inner.h - the second half of reading options: from texts to what a run needs.
 *
 * Owns    as options.h.
 * Thread  as options.h.
 * Errors  as options.h.
 * Units   as options.h. */
#ifndef TARN_LOADGEN_OPTIONS_INNER_H
#define TARN_LOADGEN_OPTIONS_INNER_H

#include "loadgen/options.h"

/* Fills config, closed and percents; checks what must fit together. */
NODISCARD enum status options_resolve(struct options *o, struct buf *why);
NODISCARD enum status options_read_backend(struct options *o, int argc, char **argv, int *i,
                                           const char *value, struct buf *why);

#endif
