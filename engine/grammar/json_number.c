/* json_number.c - JSON numbers between bounds, as expressions over their digits. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/grammar/json_number.h"

#define FRACTION_DIGITS 15u
#define DIGITS_MAX 20

static uint32_t digit(struct exprs *e, char first, char last)
{
    struct byte_set set = {{0}};

    for (char c = first; c <= last; c++)
        byte_set_add(&set, (uint8_t)c);
    return expr_byte(e, &set);
}

static uint32_t digits(struct exprs *e, uint32_t min, uint32_t max)
{
    return expr_repeat(e, digit(e, '0', '9'), min, max);
}

/* Numbers of n digits from the digits `low` to the digits `high`. */
static uint32_t between(struct exprs *e, const char *low, const char *high, uint32_t n)
{
    char nines[DIGITS_MAX + 1], zeros[DIGITS_MAX + 1];

    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    if (n == 0)
        return expr_empty(e);
    if (memcmp(low, zeros, n) == 0 && memcmp(high, nines, n) == 0)
        return digits(e, n, n);
    if (*low == *high)
        return expr_seq(e, digit(e, *low, *low), between(e, low + 1, high + 1, n - 1));
    /* The first digit of low, those between, the first digit of high. */
    uint32_t x = expr_seq(e, digit(e, *low, *low), between(e, low + 1, nines, n - 1));
    if (*low + 1 <= *high - 1)
        x = expr_alt(
            e, x,
            expr_seq(e, digit(e, (char)(*low + 1), (char)(*high - 1)), digits(e, n - 1, n - 1)));
    return expr_alt(e, x, expr_seq(e, digit(e, *high, *high), between(e, zeros, high + 1, n - 1)));
}

/* Whole numbers from low to high, without a sign and without leading zeros. */
static uint32_t natural(struct exprs *e, uint64_t low, uint64_t high)
{
    uint32_t x = expr_never(e);
    uint64_t power = 10;

    for (uint32_t n = 1; low <= high && n < DIGITS_MAX; n++, power *= 10) {
        char from[DIGITS_MAX + 2], to[DIGITS_MAX + 2];
        uint64_t end = high < power - 1 ? high : power - 1;
        if (low <= end) {
            snprintf(from, sizeof from, "%" PRIu64, low);
            snprintf(to, sizeof to, "%" PRIu64, end);
            x = expr_alt(e, x, between(e, from, to, n));
            low = end + 1;
        }
    }
    return x;
}

static uint32_t minus(struct exprs *e, uint32_t x)
{
    return expr_seq(e, expr_cstr(e, "-"), x);
}

uint32_t front_integer(struct exprs *e, int64_t low, int64_t high)
{
    uint32_t x = expr_never(e);

    if (high >= 0)
        x = natural(e, low > 0 ? (uint64_t)low : 0, (uint64_t)high);
    if (low < 0 && low <= high)
        x = expr_alt(e, x, minus(e, natural(e, high < 0 ? (uint64_t)-high : 1, (uint64_t)-low)));
    return x;
}

/* "." and digits that are not all zeros. */
static uint32_t some_fraction(struct exprs *e)
{
    uint32_t zeros = expr_repeat(e, digit(e, '0', '0'), 0, FRACTION_DIGITS);

    return expr_seq(e, expr_seq(e, expr_cstr(e, "."), zeros),
                    expr_seq(e, digit(e, '1', '9'), digits(e, 0, FRACTION_DIGITS)));
}

static uint32_t optional(struct exprs *e, uint32_t x)
{
    return expr_repeat(e, x, 0, 1);
}

/* Numbers without a sign from low to high, where the bounds themselves may be left out. */
static uint32_t positive(struct exprs *e, uint64_t low, bool with_low, uint64_t high,
                         bool with_high)
{
    uint32_t any = optional(e, expr_seq(e, expr_cstr(e, "."), digits(e, 1, FRACTION_DIGITS)));
    uint32_t zeros = optional(
        e, expr_seq(e, expr_cstr(e, "."), expr_repeat(e, digit(e, '0', '0'), 1, FRACTION_DIGITS)));
    uint32_t x = expr_never(e);

    if (low < high) {
        x = expr_seq(e, natural(e, low, low), with_low ? any : some_fraction(e));
        if (low + 1 < high)
            x = expr_alt(e, x, expr_seq(e, natural(e, low + 1, high - 1), any));
    }
    if (with_high && (low < high || with_low))
        x = expr_alt(e, x, expr_seq(e, natural(e, high, high), zeros));
    return x;
}

uint32_t front_number_between(struct exprs *e, const struct json_bounds *b)
{
    uint32_t x = expr_never(e);

    if (b->high >= 0) {
        bool from_zero = b->low < 0;
        x = positive(e, from_zero ? 0 : (uint64_t)b->low, from_zero || b->with_low,
                     (uint64_t)b->high, b->with_high);
    }
    if (b->low < 0) {
        bool to_zero = b->high >= 0;
        x = expr_alt(e, x,
                     minus(e, positive(e, to_zero ? 0 : (uint64_t)-b->high,
                                       to_zero ? b->high > 0 || b->with_high : b->with_high,
                                       (uint64_t)-b->low, b->with_low)));
    }
    return x;
}

uint32_t front_number(struct exprs *e)
{
    uint32_t whole = expr_alt(e, expr_cstr(e, "0"),
                              expr_seq(e, digit(e, '1', '9'), digits(e, 0, FRACTION_DIGITS)));
    uint32_t fraction = expr_seq(e, expr_cstr(e, "."), digits(e, 1, FRACTION_DIGITS));
    uint32_t sign = optional(e, expr_alt(e, expr_cstr(e, "+"), expr_cstr(e, "-")));
    uint32_t letter = expr_alt(e, expr_cstr(e, "e"), expr_cstr(e, "E"));
    uint32_t exponent = expr_seq(e, expr_seq(e, letter, sign), digits(e, 1, 2));

    return expr_seq(e, expr_seq(e, optional(e, expr_cstr(e, "-")), whole),
                    expr_seq(e, optional(e, fraction), optional(e, exponent)));
}
