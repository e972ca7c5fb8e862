#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void buf_init(struct buf *b, size_t max_bytes)
{
    *b = (struct buf){.max = max_bytes};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

enum status buf_reserve(struct buf *b, size_t more)
{
    if (more > b->max || b->len > b->max - more)
        return ERR_TOO_LARGE;

    size_t need = b->len + more + 1; /* one for the NUL */
    if (need <= b->cap)
        return OK;

    size_t cap = b->cap ? b->cap * 2 : 64;
    if (cap < need)
        cap = need;
    if (cap > b->max + 1)
        cap = b->max + 1;
    char *data = realloc(b->data, cap);
    if (!data)
        return ERR_NOMEM;
    b->data = data;
    b->cap = cap;
    b->data[b->len] = '\0';
    return OK;
}

enum status buf_append(struct buf *b, const void *bytes, size_t n)
{
    enum status s = buf_reserve(b, n);
    if (s != OK)
        return s;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
    return OK;
}

enum status buf_puts(struct buf *b, const char *text)
{
    return buf_append(b, text, strlen(text));
}

enum status buf_putc(struct buf *b, char c)
{
    return buf_append(b, &c, 1);
}

enum status buf_u32(struct buf *b, uint32_t v)
{
    return buf_append(b, &v, sizeof v);
}

enum status buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        return ERR_INTERNAL;

    enum status s = buf_reserve(b, (size_t)n);
    if (s != OK)
        return s;
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
    return OK;
}

enum status buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    enum status s = buf_vprintf(b, fmt, ap);
    va_end(ap);
    return s;
}

void buf_consume(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

enum status buf_why(struct buf *why, enum status s, const char *fmt, ...)
{
    char text[BUF_WHY_MAX];

    if (!why)
        return s;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return s;
    size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (len > why->max)
        len = why->max;
    buf_reset(why);
    /* Out of memory: no message; the status still tells what happened. */
    if (buf_append(why, text, len) != OK)
        buf_reset(why);
    return s;
}
