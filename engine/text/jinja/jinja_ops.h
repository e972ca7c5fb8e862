/* jinja_ops.h - Python's operators and subscripts on template values.
 *
 * Owns    nothing.
 * Thread  the run's.
 * Errors  ERR_INVALID with Python's message for wrong types; ERR_UNSUPPORTED: an integer exceeds 64
 *         bits.
 * Units   indices count code points. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_OPS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_OPS_H

#include "engine/text/jinja/jinja_value.h"

/* op: TOK_ADD, TOK_SUB, TOK_MUL, TOK_DIV, TOK_FLOORDIV, TOK_MOD or TOK_POW. */
NODISCARD enum status jinja_binary(struct jinja_run *r, int op, const struct jinja_value *a,
                                   const struct jinja_value *b, struct jinja_value *out);
NODISCARD enum status jinja_negate(struct jinja_run *r, const struct jinja_value *a,
                                   struct jinja_value *out);
/* op: TOK_EQ ... TOK_GE, TOK_IN, TOK_NOTIN. */
NODISCARD enum status jinja_relate(struct jinja_run *r, int op, const struct jinja_value *a,
                                   const struct jinja_value *b, bool *out);
NODISCARD enum status jinja_contains(struct jinja_run *r, const struct jinja_value *needle,
                                     const struct jinja_value *hay, bool *out);

/* a.name: attribute (method) first, then item. An absent one is Undefined, not an error; an
 * attribute of Undefined is an error. */
NODISCARD enum status jinja_getattr(struct jinja_run *r, const struct jinja_value *obj,
                                    const char *name, struct jinja_value *out);
/* a[key]: item first, then attribute. */
NODISCARD enum status jinja_getitem(struct jinja_run *r, const struct jinja_value *obj,
                                    const struct jinja_value *key, struct jinja_value *out);
/* a[start:stop:step]; each may be None. */
NODISCARD enum status jinja_slice(struct jinja_run *r, const struct jinja_value *obj,
                                  const struct jinja_value bounds[3], struct jinja_value *out);

/* Follow a path such as "a.b.0" by jinja_getitem(), as map(attribute=...) does. An integer is an
 * index. */
NODISCARD enum status jinja_get_path(struct jinja_run *r, const struct jinja_value *obj,
                                     const struct jinja_value *path, struct jinja_value *out);

/* "..." % values, and "...".format(). */
NODISCARD enum status jinja_percent(struct jinja_run *r, const struct jinja_value *format,
                                    const struct jinja_value *values, struct jinja_value *out);
NODISCARD enum status jinja_format(struct jinja_run *r, const struct jinja_value *format,
                                   const struct jinja_args *args, struct jinja_value *out);

/* Whether Python's type has a method of that name. *unsafe: the method changes its object, so
 * Hugging Face's sandbox refuses it. */
bool jinja_has_method(const struct jinja_value *self, const char *name, bool *unsafe);
NODISCARD enum status jinja_call_method(struct jinja_run *r, const struct jinja_method *method,
                                        const struct jinja_args *args, struct jinja_value *out);

#endif
