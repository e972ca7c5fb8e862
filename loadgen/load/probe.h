/* probe.h - asks a server before a run: is it ready, which model, how many tokens has a word.
 *
 * Owns    nothing.
 * Thread  one; waits for the answers.
 * Errors  ERR_UNAVAILABLE, ERR_INVALID with words.
 * Units   tokens, words. */
#ifndef TARN_LOADGEN_LOAD_PROBE_H
#define TARN_LOADGEN_LOAD_PROBE_H

#include "base/buf.h"
#include "loadgen/load/prompt.h"

/* Read the first model of /v1/models into model[size]. */
NODISCARD enum status probe_model(const struct tarn_client *client, char *model, size_t size,
                                  struct buf *why);
/* Wait until the server answers /v1/models, for timeout_s at most. */
NODISCARD enum status probe_ready(const struct tarn_client *client, double timeout_s,
                                  struct buf *why);

enum calibration { CALIBRATION_NONE, CALIBRATION_TOKENIZE, CALIBRATION_REQUESTS };

/* Set tokens_per_word and overhead_tokens: by /tokenize, else by two requests for one token whose
 * usage has the length of their prompts. CALIBRATION_NONE: neither works, and the style stays. */
enum calibration probe_calibrate(const struct tarn_client *client, struct prompt_style *style);
const char *calibration_name(enum calibration c);

/* Send DELETE /cache. False: the server has no such route, or refuses the key. */
bool probe_reset_cache(const struct tarn_client *client);

#endif
