/* machine.h - where a text stands in a grammar, and which bytes may come next.
 *
 * A text may be read in several ways at once; each way is a state and the stack of its calls. All
 * ways together are a configuration. Equal configurations have one number, and steps between them
 * are remembered, so a grammar becomes a deterministic machine as texts visit it. A stack shares
 * its lower part with other stacks (Tomita, "Efficient parsing for natural language", 1985).
 *
 * Work is counted in states, in two ways. The work of a question, such as one mask, is what a new
 * machine would need for it: every step that was taken counts once, whether or not it is remembered
 * from earlier. So the bound MACHINE_WORK_MAX depends on the configuration that the question begins
 * with, and on nothing that other texts did. A slice bounds the states that are really looked at:
 * ERR_BUSY means that the question is to be asked again, and goes on from what is remembered.
 *
 * Owns    configurations and stacks until machine_destroy(); borrows the states.
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE a text can be read in too many ways, or the question needs too much work;
 *         the same with machine_is_full(): a new machine may have room. ERR_BUSY the slice is used
 *         up. ERR_NOMEM.
 * Units   configurations; states of work, some 25 ns each. */
#ifndef TARN_ENGINE_GRAMMAR_MACHINE_H
#define TARN_ENGINE_GRAMMAR_MACHINE_H

#include "engine/grammar/states.h"

#define MACHINE_DEAD 0u  /* no text that goes on from here is in the grammar */
#define MACHINE_FIRST 1u /* the configuration of the empty text */
#define MACHINE_WORK_MAX 1000000u

struct machine;

NODISCARD enum status machine_create(struct machine **out, const struct states *st);
void machine_destroy(struct machine *m); /* NULL is fine */
/* Begin a question. slice UINT32_MAX: without a bound. */
void machine_ask(struct machine *m, uint32_t slice);
/* Count other work of the question into its slice. */
NODISCARD enum status machine_spend(struct machine *m, uint32_t n);
/* The work of the question so far. */
uint32_t machine_work(const struct machine *m);
/* Whether the question failed because there was no room left. */
bool machine_is_full(const struct machine *m);
/* The configuration of another machine of the same states, in this machine. */
NODISCARD enum status machine_import(struct machine *m, const struct machine *other,
                                     uint32_t config, uint32_t *out);
/* The configuration after one more byte. */
NODISCARD enum status machine_step(struct machine *m, uint32_t config, uint8_t byte, uint32_t *out);
/* Whether the text is complete there, and whether a byte may follow. */
bool machine_accepts(const struct machine *m, uint32_t config);
bool machine_goes_on(const struct machine *m, uint32_t config);
/* Whether the text must go on, and with one byte only. */
bool machine_is_forced(const struct machine *m, uint32_t config, uint8_t *byte);
/* Number of configurations so far; they are 0 .. n - 1. */
uint32_t machine_n_configs(const struct machine *m);
/* Memory of the machine. */
size_t machine_bytes(const struct machine *m);
/* Whether so much has been visited that new texts should begin with a new machine. */
bool machine_is_large(const struct machine *m);

#endif
