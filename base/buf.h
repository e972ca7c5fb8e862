/* buf.h - growable bytes with a maximum given at birth.
 *
 * Owns    its bytes, freed by buf_fini().
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE when the maximum would be passed, ERR_NOMEM when malloc fails; the
 *         buffer then stays as it was. The buf_why() family never fails: it cuts instead.
 * Units   bytes. data is always NUL-terminated (the NUL is not counted in len) once anything
 *         was appended; before that it is NULL. */
#ifndef TARN_BASE_BUF_H
#define TARN_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct buf {
    char *data;
    size_t len;
    size_t cap;
    size_t max;
};

/* The usual maximum of a buffer that collects the words of one error. */
#define BUF_WHY_MAX 1024

void buf_init(struct buf *b, size_t max_bytes);
void buf_fini(struct buf *b);  /* also fine on a zeroed struct */
void buf_reset(struct buf *b); /* len = 0, memory kept */

/* data, or "" when nothing was appended yet. */
const char *buf_str(const struct buf *b);

NODISCARD enum status buf_reserve(struct buf *b, size_t more_bytes);
NODISCARD enum status buf_append(struct buf *b, const void *bytes, size_t n);
NODISCARD enum status buf_puts(struct buf *b, const char *text);
NODISCARD enum status buf_putc(struct buf *b, char c);
NODISCARD enum status buf_u32(struct buf *b, uint32_t v); /* 4 bytes, host order: a vector of ids */
NODISCARD enum status buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
NODISCARD enum status buf_vprintf(struct buf *b, const char *fmt, va_list ap);
/* Drop the first n bytes. */
void buf_consume(struct buf *b, size_t n);

/* Words for a human about an error: replaces the content, cuts at the maximum, never fails.
 * `why` may be NULL. Returns `s`, so that a caller can write: return buf_why(why, ERR_INVALID,
 * ...). */
enum status buf_why(struct buf *why, enum status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
