#include "base/utf8.h"

size_t utf8_decode(const char *text, size_t n, uint32_t *out)
{
    /* Smallest code point of each length; a smaller one is overlong. */
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    size_t len = s[0] < 0x80         ? 1
                 : (s[0] >> 5) == 6  ? 2
                 : (s[0] >> 4) == 14 ? 3
                 : (s[0] >> 3) == 30 ? 4
                                     : 0;

    if (len == 1)
        *out = s[0];
    if (len < 2 || len > n)
        return len == 1 ? 1 : 0;
    uint32_t c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = (c << 6) | (s[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *out = c;
    return len;
}
