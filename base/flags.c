#include "base/flags.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* --- the nearest name --- */

/* The number of insertions, deletions and changes of one letter that turn a into b. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[FLAG_NAME_BYTES_MAX + 1];
    size_t n_a = strlen(a), n_b = strlen(b);

    if (n_a > FLAG_NAME_BYTES_MAX || n_b > FLAG_NAME_BYTES_MAX)
        return UINT32_MAX;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned least = row[j] < row[j - 1] ? row[j] : row[j - 1];
            row[j] = least + 1 < change ? least + 1 : change;
        }
    }
    return row[n_b];
}

bool flag_consider(struct flag_near *best, const char *word, const char *given)
{
    unsigned d = distance(word, given);

    /* With half of its letters wrong, the word is not meant. */
    if ((best->word && d >= best->distance) || d > strlen(given) / 2)
        return false;
    *best = (struct flag_near){word, d};
    return true;
}

const char *flag_nearest(const char *given, const char *const *words, size_t n)
{
    struct flag_near best = {0};

    for (size_t i = 0; i < n; i++)
        flag_consider(&best, words[i], given);
    return best.word;
}

/* --- values --- */

static enum status parse_count(const char *text, uint64_t *out)
{
    char *end;

    if (!isdigit((unsigned char)text[0]))
        return ERR_INVALID;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? OK : ERR_INVALID;
}

enum status flag_parse_size(const char *text, uint64_t *out)
{
    static const char suffixes[] = "KMGT";
    char digits[32];
    size_t n = strlen(text);
    unsigned shift = 0;
    uint64_t value;

    if (n == 0 || n >= sizeof digits)
        return ERR_INVALID;
    const char *at = strchr(suffixes, toupper((unsigned char)text[n - 1]));
    if (at) {
        shift = 10 * (unsigned)(at - suffixes + 1);
        n--;
    }
    memcpy(digits, text, n);
    digits[n] = '\0';
    if (parse_count(digits, &value) != OK || value > UINT64_MAX >> shift)
        return ERR_INVALID;
    *out = value << shift;
    return OK;
}

enum status flag_parse_number(const char *text, double *out)
{
    char *end;

    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text))
        return ERR_INVALID;
    errno = 0;
    *out = strtod(text, &end);
    return errno == 0 && *end == '\0' && isfinite(*out) ? OK : ERR_INVALID;
}

enum status flag_parse(enum flag_number kind, const char *source, const char *text, uint64_t min,
                       uint64_t max, uint64_t *out, struct buf *why)
{
    bool is_size = kind == FLAG_SIZE;
    uint64_t value;

    if ((is_size ? flag_parse_size(text, &value) : parse_count(text, &value)) != OK)
        return buf_why(why, ERR_INVALID, "%s: expected a %s, got \"%s\"", source,
                       is_size ? "size such as 512M or 2G" : "whole number", text);
    if (value < min || value > max)
        return buf_why(why, ERR_INVALID, "%s: %s is outside of [%llu, %llu]", source, text,
                       (unsigned long long)min, (unsigned long long)max);
    *out = value;
    return OK;
}

/* The place of `text` among `words`; UINT32_MAX when it is none of them. */
static uint32_t find_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    uint32_t at = 0;

    for (const char *p = words; *p; at++) {
        size_t one = strcspn(p, "|");
        if (one == n && memcmp(p, text, n) == 0)
            return at;
        p += one + (p[one] == '|');
    }
    return UINT32_MAX;
}

bool flag_is_choice(const char *words, const char *text)
{
    return find_word(words, text) != UINT32_MAX;
}

uint32_t flag_choice_at(const char *words, const char *text)
{
    uint32_t at = find_word(words, text);

    ASSERT(at != UINT32_MAX);
    return at;
}

bool flag_list_next(const char **list, const char **item, size_t *len)
{
    if (!*list)
        return false;
    const char *start = *list, *end = start + strcspn(start, ",");

    *list = *end ? end + 1 : NULL;
    while (start < end && isspace((unsigned char)*start))
        start++;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    *item = start;
    *len = (size_t)(end - start);
    return true;
}

enum status flag_set_text(char **at, const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return ERR_NOMEM;
    free(*at);
    *at = copy;
    return OK;
}
