/* log.h - one line per event on stderr: key=value text or JSON lines.
 *
 * Values may come from clients: whatever is in them, a line stays one line, a terminal shows it as
 * text and a JSON line is valid (log_line.h). No value and no line is longer than its bound, and
 * an event that happens more than LOG_LINES_PER_S times within a second is written so often and
 * then counted: "lines suppressed" says how many were left out.
 *
 * Owns    process-wide level and format, set once at start; the counts of suppressed lines.
 * Thread  any; a line is written whole.
 * Errors  none: a line that cannot be written is lost. So is one for a pipe whose reader has
 *         stopped, as no request may wait for that; "lines lost" says how many when it goes on.
 * Units   times in the line are UTC with milliseconds; bytes. */
#ifndef TARN_BASE_LOG_H
#define TARN_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>

#define LOG_LINE_BYTES_MAX 8192  /* of a line as it is written, escapes included */
#define LOG_VALUE_BYTES_MAX 3072 /* of one value, before escapes; a longer one ends with "..." */
#define LOG_LINES_PER_S 200      /* of one event */

#ifdef __cplusplus
extern "C" {
#endif

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_init(enum log_level least, bool json);
bool log_enabled(enum log_level level);
bool log_is_json(void);

/* `event` is a few constant words; fields is a printf format of `key=value` pairs separated by one
 * space, or "". A value that may hold spaces stands between double quotes:
 *     log_event(LOG_INFO, "model loaded", "path=\"%s\" params=%llu", path, n);
 * Quotes, newlines and the like inside of a value are escaped. In JSON each pair becomes a member:
 * what came through %s is a string (but for true and false), other numbers are numbers. */
void log_event(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* As log_event(), without the limit of lines per second: for lines that each stand for one
 * request. */
void log_event_each(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* Write one line to stdout whatever the level is: what a program says when it is ready. */
void log_announce(const char *event, const char *fields, ...) __attribute__((format(printf, 2, 3)));

enum log_value {
    LOG_TEXT,   /* always between quotes */
    LOG_WORD,   /* a string; in text form it has quotes only where it needs them */
    LOG_NUMBER, /* a number, true or false: no quotes */
};

/* One field of a line whose fields are not the same each time. */
struct log_field {
    const char *key, *value;
    enum log_value kind;
};
/* As log_event_each(). */
void log_fields(enum log_level level, const char *event, const struct log_field *fields,
                unsigned n);

/* Report what was suppressed in seconds that are over; `all`: also in this one. To be called now
 * and then, and at the end of the program. */
void log_flush(bool all);

#ifdef __cplusplus
}
#endif
#endif
