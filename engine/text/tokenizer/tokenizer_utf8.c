#include "engine/text/tokenizer/tokenizer_utf8.h"

#include <string.h>

/* The second byte excludes overlong forms, surrogates and values above U+10FFFF: each first byte
 * allows one range for it (Unicode 15, table 3-7). Later bytes are 80..BF. */
static size_t lead_info(unsigned char b, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (b < 0x80)
        return 1;
    if (b < 0xc2 || b > 0xf4)
        return 0;
    if (b < 0xe0)
        return 2;
    if (b == 0xe0)
        *low = 0xa0;
    else if (b == 0xed)
        *high = 0x9f;
    else if (b == 0xf0)
        *low = 0x90;
    else if (b == 0xf4)
        *high = 0x8f;
    return b < 0xf0 ? 3 : 4;
}

enum utf8_kind utf8_classify(const char *s, size_t n, size_t *size_out)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char low, high;
    size_t want = lead_info(p[0], &low, &high);

    *size_out = 1;
    if (want == 0)
        return UTF8_BAD;
    for (size_t i = 1; i < want; i++) {
        *size_out = i;
        if (i >= n)
            return UTF8_PARTIAL;
        if (p[i] < low || p[i] > high)
            return UTF8_BAD;
        low = 0x80;
        high = 0xbf;
    }
    *size_out = want;
    return UTF8_VALID;
}

/* Bytes of ASCII at the start of s, eight at a time, because most text is ASCII. */
static size_t ascii_run(const char *s, size_t n)
{
    size_t i = 0;
    uint64_t w;

    while (i + 8 <= n) {
        memcpy(&w, s + i, 8);
        if (w & 0x8080808080808080u)
            break;
        i += 8;
    }
    while (i < n && !((unsigned char)s[i] & 0x80))
        i++;
    return i;
}

/* Bytes of valid UTF-8 at the start of s. */
static size_t valid_run(const char *s, size_t n)
{
    size_t i = 0, size;

    while (i < n) {
        i += ascii_run(s + i, n - i);
        if (i == n || utf8_classify(s + i, n - i, &size) != UTF8_VALID)
            break;
        i += size;
    }
    return i;
}

bool utf8_is_valid(const char *s, size_t n)
{
    return valid_run(s, n) == n;
}

enum status utf8_repair(struct buf *out, const char *s, size_t n)
{
    size_t i = 0, size;

    for (;;) {
        size_t good = valid_run(s + i, n - i);
        enum status st = buf_append(out, s + i, good);
        i += good;
        if (st != OK || i == n)
            return st;
        utf8_classify(s + i, n - i, &size);
        st = buf_puts(out, UTF8_REPLACEMENT);
        if (st != OK)
            return st;
        i += size;
    }
}

size_t utf8_put(char *s, uint32_t c)
{
    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        s[0] = (char)(0xc0 | c >> 6);
        s[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        s[0] = (char)(0xe0 | c >> 12);
        s[1] = (char)(0x80 | (c >> 6 & 0x3f));
        s[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    s[0] = (char)(0xf0 | c >> 18);
    s[1] = (char)(0x80 | (c >> 12 & 0x3f));
    s[2] = (char)(0x80 | (c >> 6 & 0x3f));
    s[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

bool utf8_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
