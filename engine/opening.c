#include "engine/opening.h"

#include "base/flags.h"
#include "engine/model/family.h"
#include "engine/settings.h"

enum status opening_choose(const char *setting, const char *names, const char *name, uint32_t *out,
                           struct buf *why)
{
    if (!flag_is_choice(names, name))
        return buf_why(why, ERR_INVALID, "%s %s is unknown (one of %s)", setting, name, names);
    *out = flag_choice_at(names, name);
    return OK;
}

enum status opening_dtype(const char *setting, const char *name, enum dtype if_auto,
                          enum dtype *out, struct buf *why)
{
    const enum dtype dtypes[] = {if_auto, DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    uint32_t at = 0;
    enum status s = opening_choose(setting, DTYPE_NAMES, name, &at, why);

    *out = dtypes[at];
    return s;
}

enum status opening_kv_dtype(const char *setting, const char *name, enum dtype if_auto,
                             const struct device *device, enum dtype *out, struct buf *why)
{
    const enum dtype dtypes[] = {if_auto, DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I8, DTYPE_F8};
    const struct ops *ops = device ? device_ops(device) : NULL;
    uint32_t at = 0;
    enum status s = opening_choose(setting, KV_DTYPE_NAMES, name, &at, why);

    *out = dtypes[at];
    if (s == OK && ops && (ops->kv_dtypes >> *out & 1) == 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s %s is not supported by the kernels of this device (%s); choose f32, "
                       "bf16 or f16",
                       setting, name, ops->name);
    return s;
}

enum status opening_check_generates(const struct model_config *m, struct buf *why)
{
    if (!m->family->is_encoder)
        return OK;
    return buf_why(why, ERR_UNSUPPORTED,
                   "a model of the family %s is an encoder, which generates no text: it is for "
                   "%s, not for {model}",
                   m->family->name, m->n_labels > 0 ? "{rerank_model}" : "{embedding_model}");
}

enum status opening_weights(struct weights_config *w, const struct opening *o,
                            const struct model_config *m, const char *dir, struct buf *why)
{
    enum dtype stored = m->stored_dtype;
    uint32_t format = 0; /* auto, dummy */
    enum status s =
        opening_choose("{load_format}", LOAD_FORMAT_NAMES, o->load_format, &format, why);

    *w = (struct weights_config){.dir = dir, .model = m, .seed = o->seed, .dummy = format == 1};
    if (s == OK && !w->dummy)
        s = weights_stored_dtype(m, dir, &stored, why);
    if (s == OK)
        s = opening_dtype("{dtype}", o->dtype, stored, &w->dtype, why);
    if (s == OK)
        s = quantization_parse(&w->quantization, o->quantization, o->quantization_group, why);
    return s;
}

void opening_fit_device(struct device_config *d, const struct weights_config *w)
{
    const struct model_config *m = w->model;
    struct model_work work;

    m->family->count_work(m, NULL, &work);
    d->max_k = work.k_max;
    d->max_heads = m->n_heads;
    d->max_head_dim = m->head_dim;
    /* Weights that stay quantized as stored count as floats: some of them may be. */
    d->weights = w->quantization.group ? w->quantization.dtype : w->dtype;
    d->weights_group = w->quantization.group;
    d->kv = w->dtype;
}
