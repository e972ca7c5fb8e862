/* hex.h - hexadecimal digits.
 *
 * Owns    nothing.
 * Thread  any; no state.
 * Errors  -1: no digit.
 * Units   none. */
#ifndef TARN_BASE_HEX_H
#define TARN_BASE_HEX_H

/* The value of a digit, 0 to 15; -1: the character is none. */
static inline int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
        return (c | 32) - 'a' + 10;
    return -1;
}

#endif
