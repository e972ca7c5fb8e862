/* flags.h - reading single words that a user wrote: numbers, sizes, lists, the nearest known name.
 * For whole command lines see option_table.h.
 *
 * Owns    copies that flag_set_text() makes belong to the caller: free().
 * Thread  any; no state.
 * Errors  ERR_INVALID for a text of another form, with words where there is a `why`; ERR_NOMEM.
 * Units   bytes (K, M, G, T are powers of 1024). */
#ifndef TARN_BASE_FLAGS_H
#define TARN_BASE_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Bytes of an option's name and its NUL. */
#define FLAG_NAME_BYTES_MAX 64

/* The best of the words considered so far; starts zeroed. */
struct flag_near {
    const char *word; /* NULL: none is near */
    unsigned distance;
};

/* Compare a word, which the caller keeps, with `given`. True: it is the nearest so far. */
bool flag_consider(struct flag_near *best, const char *word, const char *given);
/* Find the nearest of words[0..n); NULL: none is near. */
const char *flag_nearest(const char *given, const char *const *words, size_t n);

/* Read digits with one optional suffix: "64M" is 67108864. */
NODISCARD enum status flag_parse_size(const char *text, uint64_t *out);

/* Read a finite decimal number: "1.5", "1e6". */
NODISCARD enum status flag_parse_number(const char *text, double *out);

enum flag_number { FLAG_COUNT, FLAG_SIZE };

/* Read a whole number in [min, max]. `source` is the name as the user wrote it: "--port",
 * "TARN_PORT". */
NODISCARD enum status flag_parse(enum flag_number kind, const char *source, const char *text,
                                 uint64_t min, uint64_t max, uint64_t *out, struct buf *why);

/* Whether `text` is one of `words`, as in "auto|f32|bf16". */
bool flag_is_choice(const char *words, const char *text);
/* The place of `text`, which is one of `words`, among them. */
uint32_t flag_choice_at(const char *words, const char *text);

/* Read the next item of a list such as "a, b", without the white space around it. The item is empty
 * where nothing stands between two commas. False at the end of the list; *list moves on. */
bool flag_list_next(const char **list, const char **item, size_t *len);

/* Replace *at, which is freed, by a copy of `text`; *at stays on ERR_NOMEM. */
NODISCARD enum status flag_set_text(char **at, const char *text);

#endif
