/* jinja_print.h - values as text: Python's str() and repr(), and JSON as in Hugging Face's tojson.
 *
 * Owns    nothing; text goes to a jinja_out in the run's arena.
 * Thread  the run's.
 * Errors  ERR_INVALID: JSON cannot represent the value; ERR_TOO_LARGE: nested too deep.
 * Units   bytes. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_PRINT_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_PRINT_H

#include "engine/text/jinja/jinja_text.h"

/* repr(float): the shortest digits that read back as the same number. `out` has 40 bytes. */
void jinja_float_repr(double f, char out[40]);

NODISCARD enum status jinja_put_str(struct jinja_run *r, struct jinja_out *o,
                                    const struct jinja_value *v);
NODISCARD enum status jinja_put_repr(struct jinja_run *r, struct jinja_out *o,
                                     const struct jinja_value *v);
/* str(v). A string is returned without a copy and stays Markup. */
NODISCARD enum status jinja_to_str(struct jinja_run *r, const struct jinja_value *v,
                                   struct jinja_value *out);

struct jinja_json_style {
    struct jinja_str item_separator;
    struct jinja_str key_separator;
    struct jinja_str indent;
    bool pretty; /* indent was given: one member per line */
    bool sort_keys;
    bool ascii;
};

NODISCARD enum status jinja_put_json(struct jinja_run *r, struct jinja_out *o,
                                     const struct jinja_value *v,
                                     const struct jinja_json_style *style);

#endif
