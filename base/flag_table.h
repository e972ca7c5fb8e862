/* flag_table.h - a command line by a table: one row for each option says where its value goes.
 *
 * For programs whose options are numbers, sizes, texts, choices and switches, written --name V or
 * --name=V. An unknown name is an error that names the nearest known one.
 *
 * Owns    nothing: texts point into argv.
 * Thread  any; no state.
 * Errors  ERR_INVALID with words that name the option.
 * Units   as flags.h. */
#ifndef TARN_BASE_FLAG_TABLE_H
#define TARN_BASE_FLAG_TABLE_H

#include <stddef.h>

#include "base/flags.h"

enum option_kind {
    OPTION_TEXT,   /* const char * */
    OPTION_CHOICE, /* const char *, one of the words of `value` */
    OPTION_COUNT,  /* uint64_t in [min, max] */
    OPTION_SIZE,   /* the same, in bytes */
    OPTION_SWITCH, /* bool; takes no value, starts as false */
    OPTION_OTHER   /* what the program's own function makes of it; has no preset */
};

struct option_row {
    const char *group; /* starts a group of --help when not NULL */
    const char *name;
    enum option_kind kind;
    size_t offset; /* of the field in the program's struct of options */
    uint64_t min, max;
    const char *preset;
    const char *value; /* what --help calls it; OPTION_CHOICE: the words, separated by | */
    const char *help;
};

struct option_table {
    const struct option_row *rows;
    size_t n_rows;
    /* Of OPTION_OTHER; may be NULL when there is none. */
    enum status (*other)(void *options, const struct option_row *row, const char *text,
                         struct buf *why);
};

/* Every field of a row gets its preset. */
NODISCARD enum status option_table_presets(const struct option_table *t, void *options,
                                           struct buf *why);
/* argv[*i], which begins with "--"; *i moves on over a value of its own. */
NODISCARD enum status option_table_read(const struct option_table *t, void *options, int argc,
                                        char **argv, int *i, struct buf *why);
/* All rows as of --help, and those that every program has. */
void option_table_help(const struct option_table *t, FILE *f);

#endif
