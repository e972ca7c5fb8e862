/* flags.h - what the programs' command lines share: rows of --help, the nearest known name, numbers
 * and choices. Each program keeps its own table and its own rules.
 *
 * Owns    copies that flag_set_text() makes belong to the caller: free().
 * Thread  any; no state.
 * Errors  ERR_INVALID for a text that does not fit, with words about it where there is a `why`;
 *         ERR_NOMEM.
 * Units   bytes (K, M, G, T are powers of 1024), columns. */
#ifndef TARN_BASE_FLAGS_H
#define TARN_BASE_FLAGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

/* A buffer for a name and its NUL; a longer name is no option's. */
#define FLAG_NAME_BYTES_MAX 64

struct flag_row {
    const char *group; /* starts a group when not NULL */
    const char *name;  /* without the two dashes */
    bool is_switch;    /* --[no-]name */
    const char *value; /* what follows the name, or NULL */
    const char *help;
    const char *preset; /* shown in [ ], or "" */
};

/* One option of --help, at most 98 columns wide. */
void flag_print(FILE *f, const struct flag_row *row);

/* The best of the words considered so far; starts zeroed. */
struct flag_near {
    const char *word; /* NULL: none is near */
    unsigned distance;
};

/* True when `word`, which must stay, is now the nearest to what was `given`. */
bool flag_consider(struct flag_near *best, const char *word, const char *given);
/* The nearest of words[0..n), or NULL when nothing is near. */
const char *flag_nearest(const char *given, const char *const *words, size_t n);

/* "64M" -> 67108864. ERR_INVALID for anything else than digits and one optional suffix. */
NODISCARD enum status flag_parse_size(const char *text, uint64_t *out);

enum flag_number { FLAG_COUNT, FLAG_SIZE };

/* A number in [min, max]; `source` is how the user wrote the name: "--port", "TARN_PORT". */
NODISCARD enum status flag_parse(enum flag_number kind, const char *source, const char *text,
                                 uint64_t min, uint64_t max, uint64_t *out, struct buf *why);

/* Whether `text` is one of `words`, as in "auto|f32|bf16". */
bool flag_is_choice(const char *words, const char *text);

/* Read the next item of a list such as "a, b", without the white space around it. The item is empty
 * where nothing stands between two commas. False at the end of the list; *list moves on. */
bool flag_list_next(const char **list, const char **item, size_t *len);

/* Frees *at and puts a copy of `text` there; *at stays on ERR_NOMEM. */
NODISCARD enum status flag_set_text(char **at, const char *text);

#endif
