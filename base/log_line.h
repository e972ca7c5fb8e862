/* log_line.h - one line of the log under construction: key=value text or one JSON object.
 *
 * A value may come from a client. Whatever its bytes are, the line stays one line and a terminal
 * shows it as text: quotes, backslashes, control characters (C1 too), line separators, marks that
 * reverse the direction of writing, and bytes that are not UTF-8 are escaped. A line that reaches
 * LOG_LINE_BYTES_MAX ends its last value with "..." and has the field cut=true; further fields are
 * omitted. In JSON such a line is still one valid object.
 *
 * Owns    nothing; plain data.
 * Thread  one at a time.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_BASE_LOG_LINE_H
#define TARN_BASE_LOG_LINE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/log.h"

struct log_line {
    bool json;
    bool cut;
    size_t n;
    char bytes[LOG_LINE_BYTES_MAX];
};

/* Start a line with its time, level and event. */
void log_line_begin(struct log_line *l, bool json, const char *when, const char *level,
                    const char *event);
/* Append one field. */
void log_line_add(struct log_line *l, const char *key, size_t n_key, const char *value, size_t n,
                  enum log_value kind);
/* Append the fields of a printf format (log_event()). Each value is cut to LOG_VALUE_BYTES_MAX. */
void log_line_add_format(struct log_line *l, const char *fields, va_list ap);
/* End the line with a newline; the result is l->bytes[0..l->n). */
void log_line_end(struct log_line *l);

#endif
