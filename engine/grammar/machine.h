/* machine.h - where a text stands in a grammar, and which bytes may come next.
 *
 * A text may be read in several ways at once; each way is a state and the stack of its calls. All
 * ways together are a configuration. Equal configurations have one number, and steps between them
 * are remembered, so a grammar becomes a deterministic machine as texts visit it. A stack shares
 * its lower part with other stacks (Tomita, "Efficient parsing for natural language", 1985).
 *
 * Owns    configurations and stacks until machine_destroy(); borrows the states.
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE the machine is full, a text can be read in too many ways, or the budget is
 *         used up; ERR_NOMEM.
 * Units   configurations. */
#ifndef TARN_ENGINE_GRAMMAR_MACHINE_H
#define TARN_ENGINE_GRAMMAR_MACHINE_H

#include "engine/grammar/states.h"

#define MACHINE_DEAD 0u  /* no text that goes on from here is in the grammar */
#define MACHINE_FIRST 1u /* the configuration of the empty text */

struct machine;

NODISCARD enum status machine_create(struct machine **out, const struct states *st);
void machine_destroy(struct machine *m); /* NULL is fine */
/* Bound the work until the next call: ERR_TOO_LARGE when it is used up. A new machine has one
 * budget. */
void machine_renew_budget(struct machine *m);
/* The configuration after one more byte. */
NODISCARD enum status machine_step(struct machine *m, uint32_t config, uint8_t byte, uint32_t *out);
/* Whether the text is complete there, and whether a byte may follow. */
bool machine_accepts(const struct machine *m, uint32_t config);
bool machine_goes_on(const struct machine *m, uint32_t config);
/* Number of configurations so far; they are 0 .. n - 1. */
uint32_t machine_n_configs(const struct machine *m);
/* Memory of the machine. */
size_t machine_bytes(const struct machine *m);
/* Whether so much has been visited that new texts should begin with a new machine. */
bool machine_is_large(const struct machine *m);

#endif
