/* lora_flags.h - the adapters (LoRA) of --lora-modules and --lora-dir.
 *
 * Owns    nothing.
 * Thread  lora_flags_load(): main. lora_flags_load_at_run_time(): a thread that may block.
 * Errors  words name the option, or the field of the request. ERR_FORBIDDEN: the server was started
 *         without --lora-dir, or the folder lies outside of it.
 * Units   none. */
#ifndef TARN_SERVER_LORA_FLAGS_H
#define TARN_SERVER_LORA_FLAGS_H

#include <stdbool.h>

#include "base/buf.h"

struct config;
struct engine_config;
struct server;

struct lora_module {
    const char *name, *path;
    const char *base; /* the model's name in lists; NULL: the server's */
};

void lora_flags_apply(struct engine_config *e, const struct config *c);
/* Load the adapters of --lora-modules. */
NODISCARD enum status lora_flags_load(struct server *srv, struct buf *why);
/* Load one from a folder below --lora-dir; `path` may be relative to it. */
NODISCARD enum status lora_flags_load_at_run_time(struct server *srv, const struct lora_module *m,
                                                  bool replace, struct buf *why);

#endif
