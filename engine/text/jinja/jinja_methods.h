/* jinja_methods.h - the method tables that jinja_methods.c and jinja_methods_str.c share.
 *
 * Owns    nothing: static tables.
 * Thread  any.
 * Errors  those of the methods.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_METHODS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_METHODS_H

#include "engine/text/jinja/jinja_value.h"

/* A row with call == NULL names a Python method that Tarn does not implement: calling the method
 * gives ERR_UNSUPPORTED. */
struct jinja_method_row {
    const char *name;
    enum status (*call)(struct jinja_run *r, const struct jinja_value *self,
                        const struct jinja_args *args, struct jinja_value *out);
};

/* Methods of str; the last row has no name. */
extern const struct jinja_method_row jinja_str_methods[];

#endif
