#include "loadgen/load/dist.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/flags.h"

/* Split "x:y" (or "x") into numbers. Return their count, or -1 for a text that is no number. */
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

static enum status check(const struct dist_form *f, const char *text, struct buf *why)
{
    if (f->kind == DIST_LOGNORMAL) {
        if (f->a < 1 || f->a > DIST_MAX || f->b < 0 || f->b > 100)
            return buf_why(why, ERR_INVALID,
                           "\"%s\": the mean must be in [1, %u], the CV in "
                           "[0, 100]",
                           text, DIST_MAX);
        return OK;
    }
    if (f->a != floor(f->a) || f->b != floor(f->b) || f->a < 1 || f->b > DIST_MAX)
        return buf_why(why, ERR_INVALID, "\"%s\": lengths are whole numbers in [1, %u]", text,
                       DIST_MAX);
    if (f->a > f->b)
        return buf_why(why, ERR_INVALID, "\"%s\": the first length is above the second", text);
    return OK;
}

static enum status parse_form(struct dist_form *f, const char *text, struct buf *why)
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
        *f = (struct dist_form){forms[i].kind, v[0], forms[i].n_numbers == 2 ? v[1] : v[0]};
        return check(f, text, why);
    }
    return buf_why(why, ERR_INVALID,
                   "\"%s\": expected N, constant:N, uniform:A:B, lognormal:MEAN:CV, a mixture "
                   "P%%X+Q%%Y or a change X/N/Y of two of them",
                   text);
}

/* Cut `text` at the first `at`. Returns what is behind, or NULL where there is none. */
static char *cut_at(char *text, char at)
{
    char *behind = strchr(text, at);

    if (behind)
        *behind++ = '\0';
    return behind;
}

static enum status parse_mixture(struct dist *d, char *text, char *other, struct buf *why)
{
    char *first = cut_at(text, '%'), *second = cut_at(other, '%');
    double p, q;

    if (!first || !second || flag_parse_number(text, &p) != OK ||
        flag_parse_number(other, &q) != OK || !(p > 0) || !(q > 0) || fabs(p + q - 100) > 1e-6)
        return buf_why(why, ERR_INVALID, "expected a mixture P%%X+Q%%Y whose shares add up to 100");
    d->second_share = q / 100;
    enum status s = parse_form(&d->form[0], first, why);
    return s == OK ? parse_form(&d->form[1], second, why) : s;
}

static enum status parse_change(struct dist *d, char *text, char *behind, struct buf *why)
{
    char *second = cut_at(behind, '/');
    double n;

    if (!second || flag_parse_number(behind, &n) != OK || n != floor(n) || n < 1 || n > 1e15)
        return buf_why(why, ERR_INVALID, "expected a change X/N/Y behind N requests, 1 or more");
    d->second_from = (uint64_t)n;
    enum status s = parse_form(&d->form[0], text, why);
    return s == OK ? parse_form(&d->form[1], second, why) : s;
}

enum status dist_parse(struct dist *d, const char *text, struct buf *why)
{
    char copy[256], *behind;

    *d = (struct dist){0};
    if (strlen(text) >= sizeof copy)
        return buf_why(why, ERR_INVALID, "longer than %zu bytes", sizeof copy - 1);
    memcpy(copy, text, strlen(text) + 1);
    behind = cut_at(copy, '/');
    if (behind)
        return parse_change(d, copy, behind, why);
    behind = cut_at(copy, '+');
    return behind ? parse_mixture(d, copy, behind, why) : parse_form(&d->form[0], copy, why);
}

uint32_t dist_draw(const struct dist *d, uint64_t index, struct draw *draw)
{
    bool is_second = d->second_from > 0 ? index >= d->second_from
                                        : d->second_share > 0 && draw_unit(draw) < d->second_share;
    const struct dist_form *f = &d->form[is_second];
    double x = f->a;

    if (f->kind == DIST_UNIFORM)
        x = f->a + (double)draw_below(draw, (uint64_t)(f->b - f->a) + 1);
    else if (f->kind == DIST_LOGNORMAL)
        x = draw_lognormal(draw, f->a, f->b);
    x = round(x);
    return x < 1 ? 1 : x > DIST_MAX ? DIST_MAX : (uint32_t)x;
}

static double mean_of(const struct dist_form *f)
{
    return f->kind == DIST_UNIFORM ? (f->a + f->b) / 2 : f->a;
}

double dist_mean(const struct dist *d)
{
    return (1 - d->second_share) * mean_of(&d->form[0]) + d->second_share * mean_of(&d->form[1]);
}
