/* jinja_functions.h - the global functions: range, namespace, dict, and Hugging Face's
 * raise_exception and strftime_now.
 *
 * Owns    nothing: a static table.
 * Thread  any.
 * Errors  raise_exception() gives ERR_INVALID with the template's message.
 * Units   strftime_now() formats the run's now_s as UTC. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_FUNCTIONS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_FUNCTIONS_H

#include "engine/text/jinja/jinja_value.h"

/* NULL: there is no function of that name. */
const struct jinja_function *jinja_function_find(const char *name);

#endif
