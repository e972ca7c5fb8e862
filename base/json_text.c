#include "base/json_text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 512 /* limit of base/json.c */
#define INT64_DIGITS 19

/* Index of a string's closing quote, or len. `at` is behind the opening quote. */
static size_t end_of_string(const char *text, size_t len, size_t at)
{
    while (at < len && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < len ? at : len;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '+' || c == '.' || c == '_';
}

/* --- integers --- */

/* Whether word[0..n) is an integer outside of int64_t. JSON has no leading zeros, so the number of
 * digits decides, and for 19 digits their comparison. */
static bool is_wide(const char *word, size_t n)
{
    bool negative = n > 0 && word[0] == '-';
    const char *digits = word + negative;
    size_t n_digits = n - negative;

    if (n_digits < INT64_DIGITS)
        return false;
    for (size_t i = 0; i < n_digits; i++)
        if (!isdigit((unsigned char)digits[i]))
            return false;
    return n_digits > INT64_DIGITS ||
           memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", INT64_DIGITS) >
               0;
}

enum status json_text_widen(const char *text, size_t len, struct buf *out, bool *any)
{
    enum status s = OK;
    size_t copied = 0, i = 0;

    *any = false;
    while (s == OK && i < len) {
        if (text[i] == '"') {
            i = end_of_string(text, len, i + 1) + 1;
            continue;
        }
        size_t start = i;
        while (i < len && is_word(text[i]))
            i++;
        if (is_wide(text + start, i - start)) {
            *any = true;
            s = buf_append(out, text + copied, i - copied);
            if (s == OK)
                s = buf_puts(out, "e0");
            copied = i;
        }
        i += i == start;
    }
    return s == OK ? buf_append(out, text + copied, len - copied) : s;
}

/* --- names of values --- */

struct level {
    bool is_object;
    bool wants_key;
    size_t index;
    const char *key; /* [n_key]; NULL: none read yet */
    size_t n_key;
};

/* Collect the arrays and objects that are open at byte `at`. Returns their number. */
static size_t find_levels(const char *text, size_t at, struct level levels[DEPTH_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < at; i++) {
        struct level *top = n > 0 ? &levels[n - 1] : NULL;
        if (text[i] == '"') {
            size_t end = end_of_string(text, at, i + 1);
            if (top && top->wants_key) {
                top->key = text + i + 1;
                top->n_key = end - i - 1;
                top->wants_key = false;
            }
            i = end;
        } else if (text[i] == '{' || text[i] == '[') {
            if (n == DEPTH_MAX)
                return n;
            levels[n++] = (struct level){.is_object = text[i] == '{', .wants_key = text[i] == '{'};
        } else if (text[i] == '}' || text[i] == ']') {
            n -= n > 0;
        } else if (text[i] == ',' && top) {
            top->index++;
            top->wants_key = top->is_object;
        }
    }
    return n;
}

void json_text_path(const char *text, size_t at, char *out, size_t n_out)
{
    struct level levels[DEPTH_MAX];
    size_t n_levels = find_levels(text, at, levels), n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n_levels && n + 1 < n_out; i++) {
        const struct level *l = &levels[i];
        if (!l->is_object) {
            n += (size_t)snprintf(out + n, n_out - n, "[%zu]", l->index);
            continue;
        }
        if (n > 0)
            out[n++] = '.';
        for (size_t k = 0; l->key && k < l->n_key && n + 1 < n_out; k++)
            out[n++] =
                isalnum((unsigned char)l->key[k]) || strchr("_-", l->key[k]) ? l->key[k] : '?';
        out[n < n_out ? n : n_out - 1] = '\0';
    }
}

void json_text_word(const char *text, size_t len, size_t at, char *out, size_t n_out)
{
    size_t start = at < len ? at : len, end = start;

    while (start > 0 && is_word(text[start - 1]))
        start--;
    while (end < len && is_word(text[end]))
        end++;
    snprintf(out, n_out, "%.*s", (int)(end - start < n_out ? end - start : n_out - 1),
             text + start);
}
