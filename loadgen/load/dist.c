#include "loadgen/load/dist.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/flags.h"

/* Split "x:y" (or "x") into numbers. Returns their count, or -1 for a text that is no number. */
static int read_numbers(const char *text, double v[2])
{
    char one[64];
    int n = 0;

    while (n < 2) {
        size_t len = strcspn(text, ":");
        if (len == 0 || len >= sizeof one)
            return -1;
        memcpy(one, text, len);
        one[len] = '\0';
        if (flag_parse_number(one, &v[n++]) != OK)
            return -1;
        if (text[len] == '\0')
            return n;
        text += len + 1;
    }
    return -1;
}

static enum status check(const struct dist *d, const char *text, struct buf *why)
{
    if (d->kind == DIST_LOGNORMAL) {
        if (d->a < 1 || d->a > DIST_MAX || d->b < 0 || d->b > 100)
            return buf_why(why, ERR_INVALID,
                           "\"%s\": the mean must be in [1, %u], the CV in "
                           "[0, 100]",
                           text, DIST_MAX);
        return OK;
    }
    if (d->a != floor(d->a) || d->b != floor(d->b) || d->a < 1 || d->b > DIST_MAX)
        return buf_why(why, ERR_INVALID, "\"%s\": lengths are whole numbers in [1, %u]", text,
                       DIST_MAX);
    if (d->a > d->b)
        return buf_why(why, ERR_INVALID, "\"%s\": the first length is above the second", text);
    return OK;
}

enum status dist_parse(struct dist *d, const char *text, struct buf *why)
{
    static const struct {
        const char *prefix;
        enum dist_kind kind;
        int n_numbers;
    } forms[] = {
        {"constant:", DIST_CONSTANT, 1},
        {"uniform:", DIST_UNIFORM, 2},
        {"lognormal:", DIST_LOGNORMAL, 2},
        {"", DIST_CONSTANT, 1},
    };

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t n = strlen(forms[i].prefix);
        double v[2] = {0, 0};
        if (strncmp(text, forms[i].prefix, n) != 0)
            continue;
        if (read_numbers(text + n, v) != forms[i].n_numbers)
            break;
        *d = (struct dist){forms[i].kind, v[0], forms[i].n_numbers == 2 ? v[1] : v[0]};
        return check(d, text, why);
    }
    return buf_why(why, ERR_INVALID,
                   "\"%s\": expected N, constant:N, uniform:A:B or "
                   "lognormal:MEAN:CV",
                   text);
}

uint32_t dist_draw(const struct dist *d, struct draw *draw)
{
    double x = d->a;

    if (d->kind == DIST_UNIFORM)
        x = d->a + (double)draw_below(draw, (uint64_t)(d->b - d->a) + 1);
    else if (d->kind == DIST_LOGNORMAL)
        x = draw_lognormal(draw, d->a, d->b);
    x = round(x);
    return x < 1 ? 1 : x > DIST_MAX ? DIST_MAX : (uint32_t)x;
}

double dist_mean(const struct dist *d)
{
    return d->kind == DIST_UNIFORM ? (d->a + d->b) / 2 : d->a;
}

static double scale(double x, double factor)
{
    x = round(x * factor);
    return x < 1 ? 1 : x > DIST_MAX ? DIST_MAX : x;
}

struct dist dist_scaled(const struct dist *d, double factor)
{
    struct dist s = *d;

    if (factor == 1)
        return s;
    if (d->kind == DIST_LOGNORMAL)
        s.a = d->a * factor < 1 ? 1 : d->a * factor;
    else {
        s.a = scale(d->a, factor);
        s.b = scale(d->b, factor);
    }
    return s;
}
