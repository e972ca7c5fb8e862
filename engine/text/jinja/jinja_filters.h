/* jinja_filters.h - the filters of jinja2 that chat templates use, by name.
 *
 * Owns    nothing: static tables.
 * Thread  any.
 * Errors  ERR_INVALID with jinja2's message; ERR_UNSUPPORTED for arguments that are not supported.
 * Units   lengths in code points. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_FILTERS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_FILTERS_H

#include "engine/text/jinja/jinja_value.h"

struct jinja_filter {
    const char *name;
    enum status (*apply)(struct jinja_run *r, const struct jinja_value *in,
                         const struct jinja_args *args, struct jinja_value *out);
};

/* NULL: there is no filter of that name. */
const struct jinja_filter *jinja_filter_find(const char *name);

/* The two halves of the table. */
extern const struct jinja_filter jinja_filters_text[];
extern const size_t jinja_n_filters_text;
extern const struct jinja_filter jinja_filters_seq[];
extern const size_t jinja_n_filters_seq;

#endif
