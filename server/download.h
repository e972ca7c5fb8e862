/* download.h - gets the models of the configuration before they are opened (--download).
 *
 * Owns    nothing.
 * Thread  main, before the server serves. A signal ends the process at once (early_end.h), and the
 *         next start continues.
 * Errors  as hub_download.h.
 * Units   none. */
#ifndef TARN_SERVER_DOWNLOAD_H
#define TARN_SERVER_DOWNLOAD_H

#include "base/buf.h"
#include "server/config.h"

/* Download --model, --draft-model, --embedding-model and --rerank-model where they are names
 * org/name that are not in the local cache, or not whole. Does nothing without --download. */
NODISCARD enum status download_models(const struct config *c, struct buf *why);

#endif
