#include "base/option_table.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/flags.h"

#define HELP_INDENT 30
#define HELP_COLUMNS 98
#define FILE_LINE_BYTES_MAX 4096
#define CHOICE_END "|, "
#define SOURCE_BYTES 256
#define LAST_GROUP "Other"

static void *field_of(const struct option_row *row, void *options)
{
    return (char *)options + row->offset;
}

bool option_row_is_text(const struct option_row *row)
{
    return row->type == OPTION_TEXT || row->type == OPTION_FILE || row->type == OPTION_CHOICE;
}

/* --- names --- */

static const struct option_row *find_exact(const struct option_table *t, const char *name)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(t->rows[i].name, name) == 0)
            return &t->rows[i];
    return NULL;
}

static const char *without_alias(const struct option_table *t, const char *name)
{
    for (size_t i = 0; i < t->n_aliases; i++)
        if (strcmp(t->aliases[i][0], name) == 0)
            return t->aliases[i][1];
    return name;
}

const struct option_row *option_table_find(const struct option_table *t, const char *name)
{
    return find_exact(t, without_alias(t, name));
}

/* As option_table_find(), also for the spellings of a switched OPTION_BOOL. */
static const struct option_row *find_flag(const struct option_table *t, const char *name, bool *on)
{
    const struct option_row *row;

    *on = true;
    name = without_alias(t, name);
    if ((row = find_exact(t, name)))
        return row;
    *on = strncmp(name, "no-", 3) != 0;
    if (!*on)
        name += 3;
    if (strncmp(name, "enable-", 7) == 0)
        name += 7;
    row = option_table_find(t, name);
    return row && row->type == OPTION_BOOL ? row : NULL;
}

const char *option_table_nearest(const struct option_table *t, const char *name)
{
    struct flag_near best = {0};

    for (size_t i = 0; i < t->n_rows; i++)
        flag_consider(&best, t->rows[i].name, name);
    for (size_t i = 0; i < t->n_aliases; i++)
        flag_consider(&best, t->aliases[i][0], name);
    flag_consider(&best, "help", name);
    flag_consider(&best, "version", name);
    return best.word;
}

static enum status unknown(const struct option_table *t, const char *source, const char *name,
                           struct buf *why)
{
    const char *near = option_table_nearest(t, name);

    if (near)
        return buf_why(why, ERR_INVALID, "%s: unknown option, did you mean --%s?", source, near);
    return buf_why(why, ERR_INVALID, "%s: unknown option, see --help", source);
}

void option_table_name_options(const struct option_table *t, struct buf *why)
{
    char name[FLAG_NAME_BYTES_MAX];
    enum status s = OK;
    struct buf out;

    buf_init(&out, why->max + FLAG_NAME_BYTES_MAX);
    for (const char *p = buf_str(why); s == OK && *p;) {
        size_t n = *p == '{' ? strspn(p + 1, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
        const struct option_row *row = NULL;

        if (n > 0 && n < sizeof name && p[n + 1] == '}') {
            for (size_t i = 0; i < n; i++)
                name[i] = p[i + 1] == '_' ? '-' : p[i + 1];
            name[n] = '\0';
            row = option_table_find(t, name);
        }
        s = row ? buf_printf(&out, "--%s", row->name) : buf_putc(&out, *p);
        p += row ? n + 2 : 1;
    }
    if (s == OK)
        buf_why(why, OK, "%s", buf_str(&out));
    buf_fini(&out);
}

/* --- values --- */

static const char *choices_of(const struct option_row *row)
{
    return row->choices ? row->choices : row->words();
}

/* The word of `choices` that `text` stands for, copied to word[FLAG_NAME_BYTES_MAX]; false when
 * there is none, then the nearest one is there, or "". */
static bool choose(const char *choices, const char *text, char *word)
{
    struct flag_near best = {0}; /* only its distance is read: `one` is written again */
    char one[FLAG_NAME_BYTES_MAX], best_word[FLAG_NAME_BYTES_MAX] = "";

    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, CHOICE_END);
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        char *equals = strchr(one, '=');
        if (equals)
            *equals++ = '\0';
        if (strcmp(one, text) == 0) {
            snprintf(word, FLAG_NAME_BYTES_MAX, "%s", equals ? equals : one);
            return true;
        }
        if (flag_consider(&best, one, text))
            snprintf(best_word, sizeof best_word, "%s", one);
        p += n + strspn(p + n, CHOICE_END);
    }
    snprintf(word, FLAG_NAME_BYTES_MAX, "%s", best_word);
    return false;
}

/* "auto, f32, bf16": without the other words for the same. */
static void list_choices(const char *choices, char *out, size_t n_out, const char *separator)
{
    size_t used = 0;

    out[0] = '\0';
    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, CHOICE_END);
        if (!memchr(p, '=', n) && used < n_out)
            used += (size_t)snprintf(out + used, n_out - used, "%s%.*s", used ? separator : "",
                                     (int)n, p);
        p += n + strspn(p + n, CHOICE_END);
    }
}

static enum status set_choice(const struct option_row *row, char **at, const char *text,
                              const char *source, struct buf *why)
{
    char word[FLAG_NAME_BYTES_MAX], all[256];

    if (!text[0] && !row->preset[0])
        return flag_set_text(at, "");
    if (choose(choices_of(row), text, word))
        return flag_set_text(at, word);
    list_choices(choices_of(row), all, sizeof all, ", ");
    if (word[0])
        return buf_why(why, ERR_INVALID,
                       "%s: \"%.80s\" is not known, did you mean \"%s\"? (one of %s)", source, text,
                       word, all);
    return buf_why(why, ERR_INVALID, "%s: \"%.80s\" is not known (one of %s)", source, text, all);
}

static enum status set_share(double *at, const char *text, const char *source, struct buf *why)
{
    double v;

    if (flag_parse_number(text, &v) != OK || !(v > 0 && v <= 1))
        return buf_why(why, ERR_INVALID,
                       "%s: expected a number above 0 and at most 1, got \"%.80s\"", source, text);
    *at = v;
    return OK;
}

static enum status set_number(const struct option_row *row, double *at, const char *text,
                              const char *source, struct buf *why)
{
    double v;

    if (flag_parse_number(text, &v) != OK || !(v >= row->low && v <= row->high))
        return buf_why(why, ERR_INVALID, "%s: expected a number from %.10g to %.10g, got \"%.80s\"",
                       source, row->low, row->high, text);
    *at = v;
    return OK;
}

static enum status parse_bool(const char *text, bool *out, const char *source, struct buf *why)
{
    static const char *const words[][2] = {
        {"true", "false"}, {"1", "0"}, {"on", "off"}, {"yes", "no"}};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        *out = strcasecmp(text, words[i][0]) == 0;
        if (*out || strcasecmp(text, words[i][1]) == 0)
            return OK;
    }
    return buf_why(why, ERR_INVALID, "%s: expected true or false, got \"%.80s\"", source, text);
}

static enum status add_item(struct option_list *list, const char *text, const char *source,
                            struct buf *why)
{
    if (list->n == OPTION_LIST_MAX)
        return buf_why(why, ERR_INVALID, "%s: given more than %d times", source, OPTION_LIST_MAX);
    list->v[list->n] = strdup(text);
    if (!list->v[list->n])
        return ERR_NOMEM;
    list->n++;
    return OK;
}

static enum status set(const struct option_row *row, void *options, const char *text,
                       const char *source, struct buf *why)
{
    void *at = field_of(row, options);
    enum flag_number kind = row->type == OPTION_SIZE ? FLAG_SIZE : FLAG_COUNT;

    switch (row->type) {
    case OPTION_TEXT:
    case OPTION_FILE: return flag_set_text(at, text);
    case OPTION_CHOICE: return set_choice(row, at, text, source, why);
    case OPTION_COUNT:
    case OPTION_SIZE: return flag_parse(kind, source, text, row->min, row->max, at, why);
    case OPTION_NUMBER: return set_number(row, at, text, source, why);
    case OPTION_SHARE: return set_share(at, text, source, why);
    case OPTION_BOOL:
    case OPTION_SWITCH: return parse_bool(text, at, source, why);
    case OPTION_LIST: break;
    }
    return add_item(at, text, source, why);
}

enum status option_table_presets(const struct option_table *t, void *options, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < t->n_rows; i++)
        if (t->rows[i].preset[0] || option_row_is_text(&t->rows[i]))
            s = set(&t->rows[i], options, t->rows[i].preset, t->rows[i].name, why);
    return s;
}

/* Set a value that the user gave. */
static enum status give(const struct option_table *t, void *options, const struct option_row *row,
                        const char *text, const char *source, struct buf *why)
{
    enum status s = t->check ? t->check(options, row, text, source, why) : OK;

    if (s == OK && t->given)
        ((bool *)((char *)options + t->given))[row - t->rows] = true;
    return s == OK ? set(row, options, text, source, why) : s;
}

/* --- the command line --- */

static enum status give_bool(const struct option_table *t, void *options,
                             const struct option_row *row, bool on, const char *value,
                             const char *source, struct buf *why)
{
    bool v = true;

    if (value && row->type == OPTION_SWITCH)
        return buf_why(why, ERR_INVALID, "%s: takes no value", source);
    enum status s = value ? parse_bool(value, &v, source, why) : OK;
    return s == OK ? give(t, options, row, v == on ? "true" : "false", source, why) : s;
}

static enum status set_operand(const struct option_table *t, void *options, const char *text,
                               struct buf *why)
{
    char **at = (char **)(void *)((char *)options + t->operand);

    if (!t->operand)
        return buf_why(why, ERR_INVALID, "\"%.80s\": expected an option, see --help", text);
    if (*at)
        return buf_why(why, ERR_INVALID, "\"%.80s\": one argument too many, see --help", text);
    return flag_set_text(at, text);
}

static bool read_help(const struct option_table *t, void *options, const char *name)
{
    bool help = strcmp(name, "help") == 0;

    if (!help && strcmp(name, "version") != 0)
        return false;
    *(bool *)((char *)options + (help ? t->help : t->version)) = true;
    return true;
}

/* argv[*i]; *i moves on over the words that belong to the option. */
static enum status read_arg(const struct option_table *t, void *options, int argc, char **argv,
                            int *i, struct buf *why)
{
    const char *arg = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i];
    char name[FLAG_NAME_BYTES_MAX], source[FLAG_NAME_BYTES_MAX + 2];
    bool on;

    if (strncmp(arg, "--", 2) != 0)
        return set_operand(t, options, arg, why);
    size_t n = strcspn(arg + 2, "=");
    if (n >= sizeof name)
        return buf_why(why, ERR_INVALID, "a name of %zu letters is no option, see --help", n);
    snprintf(name, sizeof name, "%.*s", (int)n, arg + 2);
    snprintf(source, sizeof source, "--%s", name);
    const char *value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
    if (read_help(t, options, name))
        return OK;
    const struct option_row *row = find_flag(t, name, &on);
    if (!row)
        return unknown(t, source, name, why);
    if (row->type == OPTION_BOOL || row->type == OPTION_SWITCH)
        return give_bool(t, options, row, on, value, source, why);
    if (!value && *i + 1 >= argc)
        return buf_why(why, ERR_INVALID, "%s: needs a value", source);
    enum status s = give(t, options, row, value ? value : argv[++*i], source, why);
    /* vLLM's way: --goodput ttft:200 tpot:50. */
    while (s == OK && row->type == OPTION_LIST && *i + 1 < argc && argv[*i + 1][0] != '-')
        s = give(t, options, row, argv[++*i], source, why);
    return s;
}

enum status option_table_read_args(const struct option_table *t, void *options, int argc,
                                   char **argv, int first, struct buf *why)
{
    enum status s = OK;

    for (int i = first; s == OK && i < argc; i++)
        s = read_arg(t, options, argc, argv, &i, why);
    return s;
}

/* --- variables and files --- */

const struct option_row *option_table_find_variable(const struct option_table *t,
                                                    const char *variable, const char **value,
                                                    bool *is_ours)
{
    const char *equals = strchr(variable, '=');
    char name[FLAG_NAME_BYTES_MAX];
    size_t n_prefix = strlen(t->variables), n = 0;

    *is_ours = equals && strncmp(variable, t->variables, n_prefix) == 0;
    if (!*is_ours)
        return NULL;
    for (const char *p = variable + n_prefix; p < equals && n + 1 < sizeof name; p++)
        name[n++] = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
    name[n] = '\0';
    *value = equals + 1;
    return find_exact(t, name);
}

enum status option_table_read_env(const struct option_table *t, void *options, char **env,
                                  struct buf *why)
{
    char source[SOURCE_BYTES];
    enum status s = OK;
    const char *value;
    bool is_ours;

    for (; s == OK && *env; env++) {
        const struct option_row *row = option_table_find_variable(t, *env, &value, &is_ours);
        if (!row)
            continue;
        snprintf(source, sizeof source, "%.*s", (int)(value - 1 - *env), *env);
        s = give(t, options, row, value, source, why);
    }
    return s;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = '\0';
    return s;
}

static enum status read_line(const struct option_table *t, void *options, char *line,
                             const char *where, struct buf *why)
{
    char source[SOURCE_BYTES + FLAG_NAME_BYTES_MAX + 3];
    char *text = trim(line);
    char *equals = strchr(text, '=');

    if (text[0] == '\0' || text[0] == '#')
        return OK;
    if (!equals)
        return buf_why(why, ERR_INVALID, "%s: expected name = value", where);
    *equals = '\0';
    const char *name = trim(text), *value = trim(equals + 1);
    snprintf(source, sizeof source, "%s: %.*s", where, FLAG_NAME_BYTES_MAX, name);
    const struct option_row *row = find_exact(t, name);
    if (!row || row->type == OPTION_FILE)
        return unknown(t, source, name, why);
    return give(t, options, row, value, source, why);
}

enum status option_table_read_file(const struct option_table *t, void *options, const char *path,
                                   const char *flag, struct buf *why)
{
    char line[FILE_LINE_BYTES_MAX], where[SOURCE_BYTES];
    enum status s = OK;
    unsigned n = 0;

    FILE *f = fopen(path, "r");
    if (!f)
        return buf_why(why, ERR_NOT_FOUND, "%s: cannot open %s: %s", flag, path, strerror(errno));
    while (s == OK && fgets(line, sizeof line, f)) {
        snprintf(where, sizeof where, "%.160s:%u", path, ++n);
        if (strlen(line) + 1 == sizeof line)
            s = buf_why(why, ERR_INVALID, "%s: a line is longer than %zu bytes", where,
                        sizeof line - 2);
        else
            s = read_line(t, options, line, where, why);
    }
    fclose(f);
    return s;
}

void option_table_fini(const struct option_table *t, void *options)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        struct option_list *list = field_of(&t->rows[i], options);
        if (option_row_is_text(&t->rows[i])) {
            char **at = field_of(&t->rows[i], options);
            free(*at);
            *at = NULL;
        }
        while (t->rows[i].type == OPTION_LIST && list->n > 0)
            free(list->v[--list->n]);
    }
    if (t->operand) {
        char **at = (char **)(void *)((char *)options + t->operand);
        free(*at);
        *at = NULL;
    }
}

/* --- output --- */

/* Words of `text` from column HELP_INDENT on, wrapped. */
static void print_wrapped(FILE *f, const char *text)
{
    int column = HELP_INDENT;

    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (column + 1 + n > HELP_COLUMNS) {
            fprintf(f, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        } else if (p != text) {
            fputc(' ', f);
            column++;
        }
        fprintf(f, "%.*s", n, p);
        column += n;
        p += n + (p[n] == ' ');
    }
    fputc('\n', f);
}

static void print_row(FILE *f, const struct option_row *row)
{
    char text[512], all[256] = "", words[256 + 16] = "";

    if (row->type == OPTION_CHOICE)
        list_choices(choices_of(row), all, sizeof all, "|");
    const char *value = all[0] ? all : row->value;
    if (strlen(row->name) + strlen(all) + sizeof "  -- " > HELP_COLUMNS) {
        list_choices(choices_of(row), all, sizeof all, ", ");
        snprintf(words, sizeof words, "one of %s; ", all);
        value = "WORD";
    }
    if (row->group)
        fprintf(f, "\n%s\n", row->group);
    int n = fprintf(f, "  --%s%s%s%s", row->type == OPTION_BOOL ? "[no-]" : "", row->name,
                    value ? " " : "", value ? value : "");
    if (n > HELP_INDENT - 2) /* two blanks end the name */
        fprintf(f, "\n%*s", HELP_INDENT, "");
    else
        fprintf(f, "%*s", HELP_INDENT - n, "");
    snprintf(text, sizeof text, row->preset[0] ? "%s%s [%s]" : "%s%s", words, row->help,
             row->preset);
    print_wrapped(f, text);
}

void option_table_help(const struct option_table *t, FILE *f)
{
    static const struct option_row last = {.group = LAST_GROUP,
                                           .name = "help, --version",
                                           .type = OPTION_SWITCH,
                                           .preset = "",
                                           .help = "print and exit"};
    struct option_row ending = last;

    for (size_t i = 0; i < t->n_rows; i++) {
        if (!t->rows[i].help)
            continue;
        print_row(f, &t->rows[i]);
        if (t->rows[i].group && strcmp(t->rows[i].group, LAST_GROUP) == 0)
            ending.group = NULL;
    }
    print_row(f, &ending);
}

const char *option_table_value(const struct option_row *row, const void *options, char *text)
{
    const void *at = (const char *)options + row->offset;

    switch (row->type) {
    case OPTION_BOOL:
    case OPTION_SWITCH: return *(const bool *)at ? "true" : "false";
    case OPTION_COUNT:
    case OPTION_SIZE:
        snprintf(text, OPTION_VALUE_BYTES, "%llu", (unsigned long long)*(const uint64_t *)at);
        return text;
    case OPTION_NUMBER:
    case OPTION_SHARE: snprintf(text, OPTION_VALUE_BYTES, "%g", *(const double *)at); return text;
    case OPTION_TEXT:
    case OPTION_FILE:
    case OPTION_CHOICE: break;
    case OPTION_LIST: return "";
    }
    const char *value = *(char *const *)at;
    return row->secret && value[0] ? "***" : value;
}
