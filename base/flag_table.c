#include "base/flag_table.h"

#include <string.h>

static const struct option_row *find(const struct option_table *t, const char *name, size_t n)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (strlen(t->rows[i].name) == n && memcmp(t->rows[i].name, name, n) == 0)
            return &t->rows[i];
    return NULL;
}

static enum status unknown(const struct option_table *t, const char *given, size_t n,
                           struct buf *why)
{
    struct flag_near best = {0};
    char name[FLAG_NAME_BYTES_MAX];

    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name), given);
    for (size_t i = 0; i < t->n_rows; i++)
        flag_consider(&best, t->rows[i].name, name);
    return buf_why(why, ERR_INVALID, "--%.64s: unknown option, %s%s%s", given,
                   best.word ? "did you mean --" : "", best.word ? best.word : "see --help",
                   best.word ? "?" : "");
}

static enum status set(const struct option_table *t, void *options, const struct option_row *row,
                       const char *text, struct buf *why)
{
    void *at = (char *)options + row->offset;
    char source[FLAG_NAME_BYTES_MAX];

    snprintf(source, sizeof source, "--%s", row->name);
    switch (row->kind) {
    case OPTION_OTHER: return t->other(options, row, text, why);
    case OPTION_SWITCH: *(bool *)at = true; return OK;
    case OPTION_COUNT: return flag_parse(FLAG_COUNT, source, text, row->min, row->max, at, why);
    case OPTION_SIZE: return flag_parse(FLAG_SIZE, source, text, row->min, row->max, at, why);
    case OPTION_CHOICE:
        if (!flag_is_choice(row->value, text))
            return buf_why(why, ERR_INVALID, "%s: \"%.64s\" is not known (one of %s)", source, text,
                           row->value);
        break;
    case OPTION_TEXT: break;
    }
    *(const char **)at = text;
    return OK;
}

enum status option_table_presets(const struct option_table *t, void *options, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];

        if (row->kind == OPTION_SWITCH)
            *(bool *)(void *)((char *)options + row->offset) = false;
        else if (row->kind != OPTION_OTHER)
            s = set(t, options, row, row->preset, why);
    }
    return s;
}

enum status option_table_read(const struct option_table *t, void *options, int argc, char **argv,
                              int *i, struct buf *why)
{
    const char *name = argv[*i] + 2;
    size_t n = strcspn(name, "=");
    const struct option_row *row = find(t, name, n);

    if (!row)
        return unknown(t, name, n, why);
    if (row->kind == OPTION_SWITCH)
        return name[n] ? buf_why(why, ERR_INVALID, "--%s takes no value", row->name)
                       : set(t, options, row, "", why);
    if (name[n])
        return set(t, options, row, name + n + 1, why);
    if (*i + 1 >= argc)
        return buf_why(why, ERR_INVALID, "--%s: a value is missing", row->name);
    return set(t, options, row, argv[++*i], why);
}

void option_table_help(const struct option_table *t, FILE *f)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];

        flag_print(f, &(struct flag_row){row->group, row->name, false, row->value, row->help,
                                         row->preset});
    }
    flag_print(f,
               &(struct flag_row){"Other", "help, --version", false, NULL, "print and exit", ""});
}
