/* opening.h - from the names that options have to the type of a model's weights and its device.
 *
 * For everything that opens a model: engine_open() and embedder_open().
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID: words name the setting in braces, as in "{dtype}"; else as weights.h.
 * Units   none. */
#ifndef TARN_ENGINE_OPENING_H
#define TARN_ENGINE_OPENING_H

#include "engine/model/weights.h"

/* Read a choice: the place of `name` among `names` (settings.h). setting: the option, in braces. */
NODISCARD enum status opening_choose(const char *setting, const char *names, const char *name,
                                     uint32_t *out, struct buf *why);
/* Read one of DTYPE_NAMES; "auto" is if_auto. */
NODISCARD enum status opening_dtype(const char *setting, const char *name, enum dtype if_auto,
                                    enum dtype *out, struct buf *why);

/* Read one of KV_DTYPE_NAMES; ERR_UNSUPPORTED if the device's attention does not take the type.
 * Without a device (NULL) any type is taken. */
NODISCARD enum status opening_kv_dtype(const char *setting, const char *name, enum dtype if_auto,
                                       const struct device *device, enum dtype *out,
                                       struct buf *why);
/* Refuse a model that makes no tokens. */
NODISCARD enum status opening_check_generates(const struct model_config *m, struct buf *why);

struct opening {
    const char *load_format, *dtype, *quantization; /* as engine_config */
    uint32_t quantization_group;
    uint64_t seed; /* of dummy weights */
};
/* Fill *w but for its device, which depends on the chosen type. The model and dir are borrowed. */
NODISCARD enum status opening_weights(struct weights_config *w, const struct opening *o,
                                      const struct model_config *m, const char *dir,
                                      struct buf *why);
/* Set the fields of *d that the model and the type of its weights decide. */
void opening_fit_device(struct device_config *d, const struct weights_config *w);

#endif
