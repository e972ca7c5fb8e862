#include "clients/tarnctl/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#define N_COLUMNS_MAX 13

struct table {
    size_t n_columns, n_rows, at; /* at: index of the next cell in the last row */
    char cells[TABLE_N_ROWS_MAX][N_COLUMNS_MAX][TABLE_CELL_BYTES];
};

struct table *table_create(void)
{
    return calloc(1, sizeof(struct table));
}

void table_destroy(struct table *t)
{
    free(t);
}

void table_reset(struct table *t, const char *const *heads, size_t n)
{
    memset(t, 0, sizeof *t);
    (void)table_row(t);
    for (size_t i = 0; i < n; i++)
        table_cell(t, "%s", heads[i]);
}

bool table_row(struct table *t)
{
    if (t->n_rows == TABLE_N_ROWS_MAX)
        return false;
    t->n_rows++;
    t->at = 0;
    return true;
}

/* Whether a terminal prints the character, and neither obeys it nor changes the direction of the
 * text around it. */
static bool is_printed(uint32_t c)
{
    return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && !(c >= 0x200b && c <= 0x200f) &&
           !(c >= 0x2028 && c <= 0x202e) && !(c >= 0x2060 && c <= 0x206f) && c != 0xfeff;
}

void table_clean(char *text)
{
    char *to = text;

    for (size_t n = strlen(text); n > 0;) {
        uint32_t c = 0;
        size_t len = utf8_decode(text, n, &c);

        if (len > 0 && is_printed(c)) {
            memmove(to, text, len);
            to += len;
        } else {
            *to++ = '?';
        }
        len = len ? len : 1;
        text += len;
        n -= len;
    }
    *to = '\0';
}

/* Drop the bytes of a character that was cut at the end of a cell. */
static void drop_half_character(char *text)
{
    size_t n = strlen(text), at = n;
    uint32_t c;

    while (at > 0 && n - at < 3 && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
        at--;
    if (at > 0 && (unsigned char)text[at - 1] >= 0xc0 &&
        utf8_decode(text + at - 1, n - at + 1, &c) == 0)
        text[at - 1] = '\0';
}

void table_cell(struct table *t, const char *format, ...)
{
    va_list ap;

    if (t->at == N_COLUMNS_MAX || t->n_rows == 0)
        return;
    char *text = t->cells[t->n_rows - 1][t->at++];
    va_start(ap, format);
    if (vsnprintf(text, TABLE_CELL_BYTES, format, ap) >= TABLE_CELL_BYTES)
        drop_half_character(text);
    va_end(ap);
    table_clean(text);
    if (t->at > t->n_columns)
        t->n_columns = t->at;
}

void table_count(struct table *t, const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    if (js_is(v, JS_INT))
        table_cell(t, "%lld", (long long)js_int(v));
    else
        table_cell(t, "-");
}

/* Characters of a clean text. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

void table_print(FILE *f, const struct table *t)
{
    int width[N_COLUMNS_MAX] = {0};

    for (size_t r = 0; r < t->n_rows; r++)
        for (size_t c = 0; c < t->n_columns; c++)
            if (width_of(t->cells[r][c]) > width[c])
                width[c] = width_of(t->cells[r][c]);
    for (size_t r = 0; r < t->n_rows; r++) {
        const char *first = t->cells[r][0], *last = t->cells[r][t->n_columns - 1];
        fprintf(f, "%s%*s", first, width[0] - width_of(first), "");
        for (size_t c = 1; c + 1 < t->n_columns; c++)
            fprintf(f, "  %*s%s", width[c] - width_of(t->cells[r][c]), "", t->cells[r][c]);
        fprintf(f, "%s%s\n", last[0] ? "  " : "", last);
    }
}

const char *table_text_of(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_STRING) ? js_string(v, NULL) : "-";
}

long long table_count_of(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_INT) ? (long long)js_int(v) : 0;
}

bool table_is_yes(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_BOOL) && js_bool(v);
}
