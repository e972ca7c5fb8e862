/* jinja_marks.h - provenance of text in a template run: which bytes came from untrusted strings.
 *
 * Problem: special tokens count in trusted text only, so each byte of a rendered chat needs its
 * origin. All texts of a run are slices: of the template, of the JSON context, of buffers in the
 * run's arena.
 *
 * Design: provenance belongs to addresses, not to values. A bitmap beside the memory has a bit for
 * each byte, set if the byte is marked. A slice keeps its marks without any code; a copy takes them
 * along (jinja_put(), jinja_concat()); text made character by character from other text is marked
 * by jinja_mark_from(). The arena never reuses an address in a run, so a mark never becomes stale.
 * Numbers and booleans are not marked, since their text contains no special token.
 *
 * Owns    nothing: pages of bits and their hash table are in the run's arena.
 * Thread  the run's.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the arena.
 * Units   bytes. A page of bits covers 4096 of them and takes 512. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_MARKS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_MARKS_H

#include "engine/text/jinja/jinja_text.h"
#include "engine/text/ranges.h"

struct jinja_marks_page {
    uintptr_t number; /* address / 4096; 0: free slot */
    uint64_t *bits;
};

/* Mark p[0..len). All other functions do nothing until something is marked. */
NODISCARD enum status jinja_marks_set(struct jinja_run *r, const char *p, size_t len);
bool jinja_marks_any(const struct jinja_run *r, const char *p, size_t len);
/* Mark the bytes of `to` whose counterparts in `from` are marked; the two do not overlap. */
NODISCARD enum status jinja_marks_copy(struct jinja_run *r, char *to, const char *from, size_t len);
/* If any byte of from[0..len) is marked, mark everything that was appended to *o after n_before. */
NODISCARD enum status jinja_mark_from(struct jinja_run *r, const struct jinja_out *o,
                                      size_t n_before, const char *from, size_t len);
/* Add the marked bytes of p[0..len) to *out, with p[0] at offset `base`. */
NODISCARD enum status jinja_marks_ranges(struct jinja_run *r, const char *p, size_t len,
                                         size_t base, struct ranges *out);

#endif
