/* jinja_marks.h - provenance of text in a template run: which bytes came from untrusted strings.
 *
 * A run's texts are slices: of the template, of the JSON context, of buffers in the run's arena. So
 * provenance belongs to addresses, not to values: a bitmap beside the memory has a bit for each
 * marked byte. A slice keeps its marks without any code, a copy takes them along (jinja_put(),
 * jinja_concat()), and text that is made character by character from other text is marked by
 * jinja_mark_from(). The arena never uses an address twice in a run, so a mark never goes stale.
 * Numbers and truth values are not marked: their digits spell no token.
 *
 * Owns    nothing: pages of bits and their hash table live in the run's arena.
 * Thread  the run's.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the arena.
 * Units   bytes. A page of bits covers 4096 of them and takes 512. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_MARKS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_MARKS_H

#include "engine/text/jinja/jinja_text.h"
#include "engine/text/ranges.h"

struct jinja_marks_page {
    uintptr_t number; /* address / 4096; 0: a free slot */
    uint64_t *bits;
};

/* All functions do nothing while nothing is marked. */
NODISCARD enum status jinja_marks_set(struct jinja_run *r, const char *p, size_t len);
bool jinja_marks_any(const struct jinja_run *r, const char *p, size_t len);
/* Mark of `to` what is marked of `from`; they do not overlap. */
NODISCARD enum status jinja_marks_copy(struct jinja_run *r, char *to, const char *from, size_t len);
/* Mark what was appended to *o behind n_before if any byte of from[0..len) is marked. */
NODISCARD enum status jinja_mark_from(struct jinja_run *r, const struct jinja_out *o,
                                      size_t n_before, const char *from, size_t len);
/* Add the marked bytes of p[0..len) to *out, the first one as `base`. */
NODISCARD enum status jinja_marks_ranges(struct jinja_run *r, const char *p, size_t len,
                                         size_t base, struct ranges *out);

#endif
