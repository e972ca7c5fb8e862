/* detokenize.h - a stream of ids to a stream of text that can be shown at once.
 *
 * Holds back half a UTF-8 character, and text that may still become a stop string, so what is
 * emitted never has to be taken back. Both the engine thread (to know when to stop) and the HTTP
 * side (to write text) run one, over the same ids, and so agree.
 *
 * Owns    two small bufs; detok_fini() frees them.
 * Thread  one at a time.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE when the held-back text passes its bound (a stop string is at
 *         most DETOK_STOP_BYTES_MAX bytes).
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_DETOKENIZE_H
#define TARN_ENGINE_TEXT_DETOKENIZE_H

#include <stdbool.h>

#include "base/buf.h"
#include "engine/text/tokenizer/tokenizer.h"

#define DETOK_N_STOPS_MAX 16
#define DETOK_STOP_BYTES_MAX 1024

struct detok_stop {
    const char *text; /* borrowed for the life of the detok */
    uint32_t len;
};

struct detok {
    const struct tokenizer *tok;
    struct buf held; /* decoded whole characters, not yet emitted */
    struct buf fail; /* failure tables of the stop strings, made by the first feed */
    const struct detok_stop *stops;
    uint32_t n_stops;
    uint16_t n_matched[DETOK_N_STOPS_MAX]; /* bytes of each stop string that the text ends with */
    uint32_t n_ids;                        /* ids fed so far */
    uint32_t n_ids_without_stop; /* a stop string that ends with one of the first so many ids is
                                    text (min_tokens); detok_init() sets 0, the owner another */
    char part[4];                /* a character of which only the first n_part bytes came */
    uint8_t n_part;
    bool begun;        /* some text was decoded: no leading space to strip any more */
    bool show_special; /* skip_special_tokens = false */
    bool continues;    /* text continues a prompt: keep a leading space */
    bool include_stop; /* emit the stop string itself */
    int stopped_by;    /* index of the stop string that was met, or -1 */
};

/* stops[0..n) may be NULL when n is 0; asserts the two maxima above, and that none is empty. */
void detok_init(struct detok *d, const struct tokenizer *tok, const struct detok_stop *stops,
                uint32_t n_stops, bool show_special, bool continues, bool include_stop);
void detok_fini(struct detok *d);

/* Feed one id; text that is now certain is appended to *out. After a stop string was met nothing
 * more is emitted and d->stopped_by >= 0. The stop string that is complete first counts, of those
 * that end together the longest: so how the text is cut into tokens makes no difference. */
NODISCARD enum status detok_feed(struct detok *d, uint32_t id, struct buf *out);
/* The end: emit what is held back; an unfinished character becomes U+FFFD. */
NODISCARD enum status detok_finish(struct detok *d, struct buf *out);

#endif
