/* log.h - one line per event on stderr: key=value text or JSON lines.
 *
 * Owns    process-wide level and format, set once at start.
 * Thread  any; a line is written whole.
 * Errors  none: a line that cannot be written is lost; one over LOG_LINE_BYTES_MAX is cut.
 * Units   times in the line are UTC with milliseconds. */
#ifndef TARN_BASE_LOG_H
#define TARN_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>

#define LOG_LINE_BYTES_MAX 4096

#ifdef __cplusplus
extern "C" {
#endif

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_init(enum log_level least, bool json);
bool log_enabled(enum log_level level);

/* `event` is a few constant words; fields is a printf format of `key=value` pairs separated by one
 * space, or "". Values that may hold spaces are passed through %s between double quotes:
 *     log_event(LOG_INFO, "model loaded", "path=\"%s\" params=%llu", path, n);
 * In JSON mode each pair becomes a member (quoted values as strings, the rest as they are). */
void log_event(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
