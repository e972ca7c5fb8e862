/* buf.h - growable bytes with a maximum set at init.
 *
 * Owns    its bytes, freed by buf_fini().
 * Thread  one at a time.
 * Errors  ERR_TOO_LARGE when the maximum would be exceeded, ERR_NOMEM when malloc() fails; the
 *         buffer is then unchanged. buf_why() never fails: it cuts the text instead.
 * Units   bytes. data is NULL before the first append, then always NUL-terminated (the NUL is not
 *         counted in len). */
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

/* The usual maximum of a buffer for one error message. */
#define BUF_WHY_MAX 1024

void buf_init(struct buf *b, size_t max_bytes);
void buf_fini(struct buf *b);  /* a zeroed struct is fine */
void buf_reset(struct buf *b); /* len = 0; the memory is kept */

/* data, or "" before the first append. */
const char *buf_str(const struct buf *b);

NODISCARD enum status buf_reserve(struct buf *b, size_t more_bytes);
NODISCARD enum status buf_append(struct buf *b, const void *bytes, size_t n);
NODISCARD enum status buf_puts(struct buf *b, const char *text);
NODISCARD enum status buf_putc(struct buf *b, char c);
NODISCARD enum status buf_u32(struct buf *b, uint32_t v); /* 4 bytes in host order, for arrays of
                                                             ids */
NODISCARD enum status buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
NODISCARD enum status buf_vprintf(struct buf *b, const char *fmt, va_list ap);
/* Drop the first n bytes. */
void buf_consume(struct buf *b, size_t n);

/* Replace the content by an error message, cut at the maximum. It never fails, and `why` may be
 * NULL. Returns `s`, so that a caller can write: return buf_why(why, ERR_INVALID, ...). */
enum status buf_why(struct buf *why, enum status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
