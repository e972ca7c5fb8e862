/* option_table.h - the options of a program, from one table.
 *
 * A row gives an option's name, type, default, range and help. From the rows come: reading the
 * command line, the environment and a file of options; error messages that name the option and its
 * range; the text of --help; values for a log. base/option_rows.h has a macro for each type of row.
 *
 * The command line takes --name V, --name=V and, for OPTION_BOOL, --name, --no-name and vLLM's
 * --enable-name and --no-enable-name. A variable is called PREFIX_SOME_NAME. A file has one
 * `some-name = value` per line; empty lines and lines that begin with # are skipped, a value is not
 * quoted and ends at the end of its line.
 *
 * Modules below a program name an option as {some_name} in their error messages.
 * option_table_name_options() turns that into the program's own --some-name.
 *
 * Owns    copies of all texts in the program's struct of options: option_table_fini().
 * Thread  any; no state.
 * Errors  ERR_INVALID with words that name the option, where its value came from and, for an
 *         unknown name or word, the nearest known one; ERR_NOT_FOUND for a file of options that
 *         cannot be opened; ERR_NOMEM.
 * Units   bytes (K, M, G, T are powers of 1024). */
#ifndef TARN_BASE_OPTION_TABLE_H
#define TARN_BASE_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

#define OPTION_LIST_MAX 64
#define OPTION_VALUE_BYTES 32

enum option_type {
    OPTION_TEXT,   /* char * */
    OPTION_FILE,   /* char *, the file of options; such a file has no option of this type */
    OPTION_CHOICE, /* char *, one of the words; "" only where that is the default */
    OPTION_COUNT,  /* uint64_t in [min, max] */
    OPTION_SIZE,   /* uint64_t in [min, max], bytes */
    OPTION_NUMBER, /* double in [low, high] */
    OPTION_SHARE,  /* double above 0 and at most 1 */
    OPTION_BOOL,   /* bool */
    OPTION_SWITCH, /* bool, false until --name is given; command line only */
    OPTION_LIST    /* struct option_list: one or more words after each --name */
};

struct option_list {
    char *v[OPTION_LIST_MAX]; /* [n] */
    uint32_t n;
};

struct option_row {
    const char *group; /* starts a group of --help when not NULL */
    const char *name;  /* without the two dashes */
    enum option_type type;
    size_t offset;      /* of the field in the program's struct */
    const char *preset; /* the default, as a user writes it; "": the field keeps what it has */
    uint64_t min, max;
    double low, high;
    /* OPTION_CHOICE: the words, separated by "|" or ", "; `a=b` means that a is another word for b.
     * NULL: those of words(). */
    const char *choices;
    const char *(*words)(void);
    const char *value; /* what --help calls the value */
    const char *help;  /* NULL: --help leaves the row out */
    bool secret;       /* option_table_value() answers "***" */
};

struct option_table {
    const struct option_row *rows;
    size_t n_rows;
    size_t help, version; /* offsets of bools: --help, --version were given */
    /* Offsets of further fields; 0: the program has none, so none of them is a struct's first. */
    size_t given;                    /* a bool for each row: the user gave the option */
    size_t operand;                  /* char *: the one argument that is no option */
    const char *const (*aliases)[2]; /* [n_aliases] other name, name ("no-name": switched off) */
    size_t n_aliases;
    const char *variables; /* prefix of environment variables; NULL: none are read */
    /* Refuse what the user gave, before it is set. `source` is how the user wrote the name:
     * "--port", "TARN_PORT", "FILE:3: port". May be NULL. */
    enum status (*check)(const void *options, const struct option_row *row, const char *text,
                         const char *source, struct buf *why);
};

/* Set every field that has a default. `options` is zeroed, but for fields whose default is "". */
NODISCARD enum status option_table_presets(const struct option_table *t, void *options,
                                           struct buf *why);
/* Read argv[first..argc). */
NODISCARD enum status option_table_read_args(const struct option_table *t, void *options, int argc,
                                             char **argv, int first, struct buf *why);
/* Read the variables of `env` (as environ) that name an option; others are passed over. */
NODISCARD enum status option_table_read_env(const struct option_table *t, void *options, char **env,
                                            struct buf *why);
/* `flag` is how the user calls the option that names the file. */
NODISCARD enum status option_table_read_file(const struct option_table *t, void *options,
                                             const char *path, const char *flag, struct buf *why);
/* Free all texts. */
void option_table_fini(const struct option_table *t, void *options);

/* The row of a name or of another name for it; NULL: there is none. */
const struct option_row *option_table_find(const struct option_table *t, const char *name);
/* The row of "PREFIX_SOME_NAME=value"; NULL: there is none. *value: what follows the "=". *is_ours:
 * whether the variable has the prefix. */
const struct option_row *option_table_find_variable(const struct option_table *t,
                                                    const char *variable, const char **value,
                                                    bool *is_ours);
/* The option name nearest to `name`; NULL when nothing is near. */
const char *option_table_nearest(const struct option_table *t, const char *name);

/* All rows and --help, --version; at most 98 columns. */
void option_table_help(const struct option_table *t, FILE *f);
/* A row's value as a user would write it; numbers are written to text[OPTION_VALUE_BYTES]. Not for
 * OPTION_LIST. */
const char *option_table_value(const struct option_row *row, const void *options, char *text);
bool option_row_is_text(const struct option_row *row); /* the field is a char * */

/* Replace each {some_name} in a message that names a row by --some-name. Without memory the message
 * stays as it is. */
void option_table_name_options(const struct option_table *t, struct buf *why);

#endif
