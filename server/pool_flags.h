/* pool_flags.h - the engine's options of the pool of instances from those of tarn-server, and text
 * about the pool for the start and the end.
 *
 * Owns    the texts that the engine's options point at: constant until the process ends.
 * Thread  main.
 * Errors  none.
 * Units   as engine.h. */
#ifndef TARN_SERVER_POOL_FLAGS_H
#define TARN_SERVER_POOL_FLAGS_H

#include <stdio.h>

#include "base/buf.h"
#include "cache/cache.h"
#include "engine/engine.h"
#include "server/config.h"

/* Read --pool-secret into *c. Nothing happens without --pool. Errors: pool_secret_read(). */
NODISCARD enum status pool_flags_read_secret(struct config *c, struct buf *why);
/* Set the fields about the pool. Nothing happens without --pool. */
void pool_flags_apply(struct engine_config *e, const struct config *c);

/* Print one line about the pool; nothing without --pool. */
void pool_print(FILE *f, const struct config *c, const struct pool_stats *s);
/* Log what has been handed over to other instances. */
void pool_log_left(const struct pool_stats *s, bool is_all, double seconds);

#endif
