/* log.h - one line per event on stderr: key=value text or JSON lines.
 *
 * Values may come from clients. Whatever they contain, a line stays one line, a terminal shows it
 * as text, and a JSON line is valid (log_line.h). Values and lines have a maximum length. Of one
 * event at most LOG_LINES_PER_S lines are written per second; the others are counted, and an event
 * "lines suppressed" reports the count.
 *
 * Owns    process-wide level and format, set once at start; the counts of suppressed lines.
 * Thread  any; a line is written whole.
 * Errors  none. A line that cannot be written is lost. A line is also lost when stderr is a pipe
 *         whose reader has stopped, since no request may wait for that reader; an event "lines
 *         lost" reports the count when writing works again.
 * Units   times in the line are UTC with milliseconds; bytes. */
#ifndef TARN_BASE_LOG_H
#define TARN_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>

#define LOG_LINE_BYTES_MAX 8192  /* of a line as written, escapes included */
#define LOG_VALUE_BYTES_MAX 3072 /* of one value before escapes; longer ones end with "..." */
#define LOG_LINES_PER_S 200      /* per event */

#ifdef __cplusplus
extern "C" {
#endif

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_init(enum log_level least, bool json);
bool log_enabled(enum log_level level);
bool log_is_json(void);

/* Write one line. `event` is a few constant words; `fields` is a printf format of `key=value` pairs
 * separated by one space, or "". A value that may contain spaces is put between double quotes:
 *     log_event(LOG_INFO, "model loaded", "path=\"%s\" params=%llu", path, n);
 * Quotes, newlines and the like inside a value are escaped. In JSON each pair becomes a member: a
 * value from %s is a string (except true and false), other numbers are numbers. */
void log_event(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* log_event() without the limit of lines per second, for lines that each stand for one request. */
void log_event_each(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* Write one line to stdout at any level: a program's announcement that it is ready. */
void log_announce(const char *event, const char *fields, ...) __attribute__((format(printf, 2, 3)));

enum log_value {
    LOG_TEXT,   /* always between quotes */
    LOG_WORD,   /* a string; in text form quoted only where needed */
    LOG_NUMBER, /* a number, true or false: not quoted */
};

/* One field of a line whose set of fields varies. */
struct log_field {
    const char *key, *value;
    enum log_value kind;
};
/* log_event_each() with an array of fields. */
void log_fields(enum log_level level, const char *event, const struct log_field *fields,
                unsigned n);

/* Report the lines suppressed in past seconds; `all`: also those of the current second. Call it
 * regularly, and at the end of the program. */
void log_flush(bool all);

#ifdef __cplusplus
}
#endif
#endif
