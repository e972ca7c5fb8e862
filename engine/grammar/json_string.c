#include "engine/grammar/json_string.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/utf8.h"

/* --- characters --- */

static uint32_t hex_digits(struct exprs *e, uint32_t n)
{
    static const struct code_range hex[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

    return expr_repeat(e, expr_class(e, hex, ARRAY_SIZE(hex), false), n, n);
}

static uint32_t one_of(struct exprs *e, const char *letters)
{
    struct byte_set set = {{0}};

    for (; *letters; letters++)
        byte_set_add(&set, (uint8_t)*letters);
    return expr_byte(e, &set);
}

/* \u and four digits; surrogates in pairs. */
static uint32_t unicode_escape(struct exprs *e)
{
    uint32_t plain =
        expr_alt(e, expr_seq(e, one_of(e, "0123456789abcefABCEF"), hex_digits(e, 3)),
                 expr_seq3(e, one_of(e, "dD"), one_of(e, "01234567"), hex_digits(e, 2)));
    uint32_t high = expr_seq3(e, one_of(e, "dD"), one_of(e, "89abAB"), hex_digits(e, 2));
    uint32_t low = expr_seq3(e, one_of(e, "dD"), one_of(e, "cdefCDEF"), hex_digits(e, 2));

    return expr_seq(e, expr_cstr(e, "\\u"),
                    expr_alt(e, plain, expr_seq3(e, high, expr_cstr(e, "\\u"), low)));
}

uint32_t front_character(struct exprs *e)
{
    static const struct code_range not_plain[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    uint32_t plain = expr_class(e, not_plain, ARRAY_SIZE(not_plain), true);
    uint32_t escape = expr_seq(e, expr_cstr(e, "\\"), one_of(e, "\"\\/bfnrt"));

    return expr_alt(e, plain, expr_alt(e, escape, unicode_escape(e)));
}

/* --- formats --- */

const char *front_format_regex(const char *format)
{
#define DATE                                                                                       \
    "[0-9]{4}-(0[13578]-(0[1-9]|[12][0-9]|3[01])|1[02]-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-" \
    "9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    static const struct {
        const char *format, *regex;
    } known[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
        {"ipv4", BYTE "\\." BYTE "\\." BYTE "\\." BYTE},
        {"ipv6", "([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"},
        {"hostname", LABEL "(\\." LABEL "){0,3}"},
        {"email",
         "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,3}"},
        {"uri", "(https?|ftp)://" LABEL "(\\." LABEL "){0,3}(:[1-9][0-9]{0,3})?"
                "(/[A-Za-z0-9._~-]{0,64}){0,8}(\\?[A-Za-z0-9._~=&-]{0,128})?"},
        {"duration", "P([1-9][0-9]{0,3}W|[1-9][0-9]{0,3}Y([1-9][0-9]?M)?([1-9][0-9]?D)?|"
                     "[1-9][0-9]?M([1-9][0-9]?D)?|[1-9][0-9]{0,3}D|T[1-9][0-9]{0,3}[HMS])"}};
#undef DATE
#undef TIME
#undef BYTE
#undef LABEL

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strcmp(known[i].format, format) == 0)
            return known[i].regex;
    return NULL;
}

/* --- keys --- */

/* Characters of a key up to its end, so that the key is none of the sorted names [n], of which
 * `at` bytes are equal to it so far. */
static uint32_t other_key(struct exprs *e, const char *const *names, size_t n, size_t at)
{
    static const struct code_range not_plain[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    struct code_range *next = malloc((n + ARRAY_SIZE(not_plain)) * sizeof *next);
    uint32_t x = expr_never(e), plain = expr_class(e, not_plain, ARRAY_SIZE(not_plain), true);
    size_t n_next = 0, end;
    bool may_end = true;

    if (!next)
        return expr_fail(e, ERR_NOMEM);
    for (size_t i = 0; i < n; i = end) {
        const char *p = names[i] + at;
        uint32_t code;
        end = i + 1;
        if (*p == 0) {
            may_end = false;
            continue;
        }
        size_t len = utf8_decode(p, strlen(p), &code);
        if (len == 0) { /* no UTF-8 */
            free(next);
            return expr_fail(e, ERR_INVALID);
        }
        while (end < n && strncmp(names[i] + at, names[end] + at, len) == 0)
            end++;
        next[n_next++] = (struct code_range){code, code};
        if (code >= 0x20 && code != '"' && code != '\\')
            x = expr_alt(
                e, x,
                expr_seq(e, expr_text(e, p, len), other_key(e, names + i, end - i, at + len)));
    }
    memcpy(next + n_next, not_plain, sizeof not_plain);
    x = expr_alt(e, x,
                 expr_seq(e, expr_class(e, next, n_next + ARRAY_SIZE(not_plain), true),
                          expr_repeat(e, plain, 0, EXPR_MANY)));
    free(next);
    return may_end ? expr_alt(e, x, expr_empty(e)) : x;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint32_t front_other_key(struct exprs *e, const char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (n > JSON_NAMES_MAX || strlen(names[i]) > JSON_NAME_BYTES_MAX)
            return expr_fail(e, ERR_TOO_LARGE);
    qsort(names, n, sizeof *names, by_text);
    return other_key(e, names, n, 0);
}
