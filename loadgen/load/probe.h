/* probe.h - what a run must know of the server before it starts: its model, how it counts tokens.
 *
 * Owns    nothing.
 * Thread  one; waits for the answers.
 * Errors  ERR_UNAVAILABLE, ERR_INVALID with words.
 * Units   tokens, words. */
#ifndef TARN_LOADGEN_LOAD_PROBE_H
#define TARN_LOADGEN_LOAD_PROBE_H

#include "base/buf.h"
#include "loadgen/load/prompt.h"

/* The first of /v1/models, into model[size]. */
NODISCARD enum status probe_model(const struct tarn_client *client, char *model, size_t size,
                                  struct buf *why);
/* Waits until the server answers /v1/models, at most so long. */
NODISCARD enum status probe_ready(const struct tarn_client *client, double timeout_s,
                                  struct buf *why);

enum calibration { CALIBRATION_NONE, CALIBRATION_TOKENIZE, CALIBRATION_REQUESTS };

/* Sets tokens_per_word and overhead_tokens: by /tokenize, else by two requests of one token whose
 * usage says how long their prompts were; CALIBRATION_NONE, and the style as it was, when neither
 * works. */
enum calibration probe_calibrate(const struct tarn_client *client, struct prompt_style *style);
const char *calibration_name(enum calibration c);

/* DELETE /cache. False when the server has none that we may use. */
bool probe_reset_cache(const struct tarn_client *client);

#endif
