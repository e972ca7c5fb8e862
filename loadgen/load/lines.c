#include "loadgen/load/lines.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum status lines_open(struct lines *l, const char *path, struct buf *why)
{
    struct stat st;

    *l = (struct lines){0};
    l->f = fopen(path, "r");
    if (!l->f)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path,
                       strerror(errno));
    enum status s = OK;
    if (fstat(fileno(l->f), &st) != 0)
        s = buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = buf_why(why, ERR_INVALID, "%s: is no plain file", path);
    else if ((uint64_t)st.st_size > LINES_FILE_BYTES_MAX)
        s = buf_why(why, ERR_TOO_LARGE, "%s: is larger than 1 GB", path);
    l->path = s == OK ? strdup(path) : NULL;
    if (s == OK && !l->path)
        s = buf_why(why, ERR_NOMEM, "%s: out of memory", path);
    if (s != OK)
        lines_close(l);
    return s;
}

void lines_close(struct lines *l)
{
    if (l->f)
        fclose(l->f);
    free(l->path);
    free(l->text);
    *l = (struct lines){0};
}

enum status lines_why(const struct lines *l, struct buf *why, enum status s, const char *fmt, ...)
{
    char words[BUF_WHY_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    return buf_why(why, s, "%s:%" PRIu64 ": %s", l->path, l->n, words);
}

enum status lines_next(struct lines *l, bool *more, struct buf *why)
{
    *more = false;
    for (;;) {
        errno = 0;
        ssize_t n = getline(&l->text, &l->cap, l->f);
        if (n < 0) {
            if (feof(l->f))
                return OK;
            return lines_why(l, why, errno == ENOMEM ? ERR_NOMEM : ERR_IO, "%s", strerror(errno));
        }
        l->n++;
        l->len = (size_t)n;
        if (memchr(l->text, '\0', l->len))
            return lines_why(l, why, ERR_INVALID, "holds a NUL byte: no text file");
        while (l->len > 0 && isspace((unsigned char)l->text[l->len - 1]))
            l->text[--l->len] = '\0';
        if (l->len > 0)
            break;
    }
    *more = true;
    return OK;
}

enum status lines_json(const struct lines *l, struct json **out, struct buf *why)
{
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = js_parse(out, l->text, l->len, &words);
    if (s == OK && !js_is(*out, JS_OBJECT)) {
        js_unref(*out);
        *out = NULL;
        s = buf_why(&words, ERR_INVALID, "expected a JSON object");
    }
    if (s != OK)
        lines_why(l, why, s, "%s", buf_str(&words));
    buf_fini(&words);
    return s;
}

/* Cut `text` at its commas, in place. */
static uint32_t split(char *text, char *fields[CSV_N_FIELDS_MAX])
{
    uint32_t n = 0;

    while (n < CSV_N_FIELDS_MAX) {
        fields[n++] = text;
        text = strchr(text, ',');
        if (!text)
            return n;
        *text++ = '\0';
    }
    return CSV_N_FIELDS_MAX + 1;
}

enum status csv_open(struct csv *c, const char *path, struct buf *why)
{
    bool more = false;

    memset(c, 0, sizeof *c);
    enum status s = lines_open(&c->lines, path, why);
    if (s == OK)
        s = lines_next(&c->lines, &more, why);
    if (s == OK && !more)
        s = buf_why(why, ERR_INVALID, "%s: is empty", path);
    if (s == OK) {
        c->header = strdup(c->lines.text);
        s = c->header ? OK : ERR_NOMEM;
    }
    if (s == OK) {
        c->n = split(c->header, c->names);
        if (c->n > CSV_N_FIELDS_MAX)
            s = lines_why(&c->lines, why, ERR_INVALID, "more than %d columns", CSV_N_FIELDS_MAX);
    }
    if (s != OK)
        csv_close(c);
    return s;
}

void csv_close(struct csv *c)
{
    lines_close(&c->lines);
    free(c->header);
    memset(c, 0, sizeof *c);
}

enum status csv_next(struct csv *c, bool *more, struct buf *why)
{
    enum status s = lines_next(&c->lines, more, why);

    if (s != OK || !*more)
        return s;
    uint32_t n = split(c->lines.text, c->fields);
    if (n != c->n)
        return lines_why(&c->lines, why, ERR_INVALID, "%s fields than the header names",
                         n > c->n ? "more" : "fewer");
    return OK;
}

int csv_column(const struct csv *c, const char *const *names, size_t n)
{
    for (uint32_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < n; k++)
            if (strcmp(c->names[i], names[k]) == 0)
                return (int)i;
    return -1;
}

enum status csv_u64(const struct csv *c, int column, uint64_t min, uint64_t max, uint64_t *out,
                    struct buf *why)
{
    const char *text = c->fields[column];
    char *end = NULL;

    errno = 0;
    if (isdigit((unsigned char)text[0]))
        *out = strtoull(text, &end, 10);
    if (!end || *end || errno || *out < min || *out > max)
        return lines_why(&c->lines, why, ERR_INVALID,
                         "%s: expected a whole number in [%" PRIu64 ", %" PRIu64 "], got \"%.40s\"",
                         c->names[column], min, max, text);
    return OK;
}
