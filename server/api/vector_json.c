#include "server/api/vector_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FLOAT_DIGITS 9 /* enough to tell any two floats apart */
#define NUMBER_BYTES 24
#define GROUP_FLOATS 192 /* 768 bytes, a multiple of 3: no padding between groups */
#define GROUP_BYTES (GROUP_FLOATS * 4)

bool vector_cut(float *v, uint32_t n_all, uint32_t n)
{
    double squares = 0;

    if (n == n_all)
        return true;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)v[i] * (double)v[i];
    if (!(squares > 0))
        return false;
    for (uint32_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] / sqrt(squares));
    return true;
}

void vector_write(struct writer *w, const float *v, uint32_t n)
{
    char number[NUMBER_BYTES];

    for (uint32_t i = 0; i < n; i++) {
        int len = snprintf(number, sizeof number, "%c%.*g", i > 0 ? ',' : '[', FLOAT_DIGITS,
                           (double)v[i]);
        write_bytes(w, number, (size_t)len);
    }
    write_puts(w, n > 0 ? "]" : "[]");
}

/* Encode bytes [n]; out has room for 4 characters for each 3 bytes. */
static size_t encode(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = 0;

    for (size_t i = 0; i < n; i += 3) {
        uint32_t b = i + 1 < n ? bytes[i + 1] : 0, c = i + 2 < n ? bytes[i + 2] : 0;
        uint32_t group = (uint32_t)bytes[i] << 16 | b << 8 | c;

        out[len++] = digits[group >> 18];
        out[len++] = digits[group >> 12 & 63];
        out[len++] = i + 1 < n ? digits[group >> 6 & 63] : '=';
        out[len++] = i + 2 < n ? digits[group & 63] : '=';
    }
    return len;
}

void vector_write_base64(struct writer *w, const float *v, uint32_t n)
{
    uint8_t bytes[GROUP_BYTES];
    char text[GROUP_BYTES / 3 * 4];

    write_puts(w, "\"");
    for (uint32_t at = 0; at < n; at += GROUP_FLOATS) {
        uint32_t n_floats = n - at < GROUP_FLOATS ? n - at : GROUP_FLOATS;
        for (uint32_t i = 0; i < n_floats; i++) {
            uint32_t bits;
            memcpy(&bits, &v[at + i], sizeof bits);
            for (unsigned k = 0; k < 4; k++)
                bytes[4 * i + k] = (uint8_t)(bits >> 8 * k);
        }
        write_bytes(w, text, encode(bytes, (size_t)4 * n_floats, text));
    }
    write_puts(w, "\"");
}
