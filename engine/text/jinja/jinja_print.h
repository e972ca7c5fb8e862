/* jinja_print.h - values as text: Python's str() and repr(), and JSON as Hugging Face's tojson.
 *
 * Owns    nothing; text goes to a jinja_out in the run's arena.
 * Thread  the run's.
 * Errors  ERR_INVALID for what JSON cannot hold; ERR_TOO_LARGE when nested too deep.
 * Units   bytes. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_PRINT_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_PRINT_H

#include "engine/text/jinja/jinja_text.h"

/* repr(float): the shortest digits that read back as the same number. `out` holds 40 bytes. */
void jinja_float_repr(double f, char out[40]);

NODISCARD enum status jinja_put_str(struct jinja_run *r, struct jinja_out *o,
                                    const struct jinja_value *v);
NODISCARD enum status jinja_put_repr(struct jinja_run *r, struct jinja_out *o,
                                     const struct jinja_value *v);
/* str(v); a string is passed through without a copy, and stays Markup. */
NODISCARD enum status jinja_to_str(struct jinja_run *r, const struct jinja_value *v,
                                   struct jinja_value *out);

struct jinja_json_style {
    struct jinja_str item_separator;
    struct jinja_str key_separator;
    struct jinja_str indent;
    bool pretty; /* indent was given: one member a line */
    bool sort_keys;
    bool ascii;
};

NODISCARD enum status jinja_put_json(struct jinja_run *r, struct jinja_out *o,
                                     const struct jinja_value *v,
                                     const struct jinja_json_style *style);

#endif
