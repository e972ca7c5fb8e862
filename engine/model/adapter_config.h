/* adapter_config.h - adapter_config.json of a LoRA adapter, as the PEFT library writes it.
 *
 * An adapter adds scale * B (A x) to the product of a module with x. The file says the ranks and
 * scales of all modules. Fields that make another addition (DoRA, biases, whole modules) are
 * refused by name. So is a field that this program does not know, unless its value is null, false
 * or empty: a later version of the library may have given it a meaning.
 *
 * Owns    the parsed file: adapter_config_fini().
 * Thread  any.
 * Errors  ERR_NOT_FOUND no such file; ERR_INVALID, ERR_UNSUPPORTED, with words that name the file
 *         and the field.
 * Units   ranks are elements. */
#ifndef TARN_ENGINE_MODEL_ADAPTER_CONFIG_H
#define TARN_ENGINE_MODEL_ADAPTER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct json;

#define ADAPTER_RANK_MAX 1024

struct adapter_config {
    uint32_t rank; /* r */
    double alpha;  /* lora_alpha */
    bool is_rank_stabilized;
    struct json *file;
    const struct json *ranks, *alphas; /* rank_pattern, alpha_pattern; may be NULL */
};

/* Read DIR/adapter_config.json. */
NODISCARD enum status adapter_config_read(struct adapter_config *c, const char *dir,
                                          struct buf *why);
void adapter_config_fini(struct adapter_config *c); /* a zeroed struct is fine */

/* The rank and the scale of B A of a module such as "model.layers.0.self_attn.q_proj". A pattern
 * applies to the module of that name, and to each whose last parts are the pattern. */
uint32_t adapter_config_rank(const struct adapter_config *c, const char *module);
double adapter_config_scale(const struct adapter_config *c, const char *module);

#endif
