/* detokenize.h - a stream of ids to a stream of text, none of which has to be taken back.
 *
 * Incomplete UTF-8 characters, and text that may still become a stop string, are held back. The
 * engine thread (to know when to stop) and the HTTP side (to write text) each run one over the same
 * ids, so both stop at the same place.
 *
 * Owns    two small bufs; detok_fini() frees them.
 * Thread  one at a time.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE: the held-back text exceeds its limit (a stop string has at most
 *         DETOK_STOP_BYTES_MAX bytes).
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_DETOKENIZE_H
#define TARN_ENGINE_TEXT_DETOKENIZE_H

#include <stdbool.h>

#include "base/buf.h"
#include "engine/text/tokenizer/tokenizer.h"

#define DETOK_N_STOPS_MAX 16
#define DETOK_STOP_BYTES_MAX 1024
#define DETOK_SHOWN_MAX 10

struct detok_stop {
    const char *text; /* borrowed while the detok lives */
    uint32_t len;
};

struct detok {
    const struct tokenizer *tok;
    struct buf held; /* decoded whole characters, not yet emitted */
    struct buf fail; /* KMP failure tables of the stop strings, made by the first feed */
    const struct detok_stop *stops;
    uint32_t n_stops;
    uint16_t n_matched[DETOK_N_STOPS_MAX]; /* bytes of each stop string at the end of the text */
    uint32_t n_ids;                        /* ids so far */
    uint32_t n_ids_without_stop; /* a stop string that ends within the first ids, this many, is
                                    plain text (min_tokens); 0 after detok_init(), set by the
                                    owner */
    char part[4];                /* the first n_part bytes of an incomplete character */
    uint8_t n_part;
    uint32_t shown[DETOK_SHOWN_MAX], n_shown; /* special tokens that are text although show_special
                                                 is false; none after detok_init() */
    bool begun;        /* some text was decoded: a leading space is kept from now on */
    bool show_special; /* the opposite of skip_special_tokens */
    bool continues;    /* the text continues a prompt: keep a leading space */
    bool include_stop; /* emit the stop string itself */
    int stopped_by;    /* index of the stop string that was found, or -1 */
};

/* stops[0..n) may be NULL if n is 0. Asserts the two maxima above, and that no stop string is
 * empty. */
void detok_init(struct detok *d, const struct tokenizer *tok, const struct detok_stop *stops,
                uint32_t n_stops, bool show_special, bool continues, bool include_stop);
void detok_fini(struct detok *d);

/* Feed one id; append the text that is now certain to *out. After a stop string was found,
 * d->stopped_by >= 0 and no more text is appended. The stop string that is complete first wins, and
 * of several that end at the same byte the longest: so the result does not depend on how the text
 * is divided into tokens. */
NODISCARD enum status detok_feed(struct detok *d, uint32_t id, struct buf *out);
/* End the stream: append the text held back; an incomplete character becomes U+FFFD. */
NODISCARD enum status detok_finish(struct detok *d, struct buf *out);

#endif
