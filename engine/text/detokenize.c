/* detokenize.c - ids to text that never has to be taken back.
 *
 * Bytes of tokens pass two stages. The first joins bytes to whole characters: up to three bytes
 * wait in `part`. The second matches every stop string against the characters (Knuth-Morris-Pratt,
 * so a byte costs O(1) amortized per stop string, even hostile ones): the longest end of the text
 * that may still become a stop string waits in `held`. */
#include "engine/text/detokenize.h"

#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

/* The held text is shorter than a stop string plus one token, and no vocabulary has tokens this
 * long. */
#define HELD_BYTES_MAX (1u << 24)

void detok_init(struct detok *d, const struct tokenizer *tok, const struct detok_stop *stops,
                uint32_t n_stops, bool show_special, bool continues, bool include_stop)
{
    ASSERT(n_stops <= DETOK_N_STOPS_MAX);
    for (uint32_t i = 0; i < n_stops; i++)
        ASSERT(stops[i].len > 0 && stops[i].len <= DETOK_STOP_BYTES_MAX);
    *d = (struct detok){
        .tok = tok,
        .stops = stops,
        .n_stops = n_stops,
        .show_special = show_special,
        .continues = continues,
        .include_stop = include_stop,
        .stopped_by = -1,
    };
    buf_init(&d->held, HELD_BYTES_MAX);
    buf_init(&d->fail, DETOK_N_STOPS_MAX * DETOK_STOP_BYTES_MAX * sizeof(uint16_t));
}

void detok_fini(struct detok *d)
{
    buf_fini(&d->held);
    buf_fini(&d->fail);
}

/* ---- stop strings ---- */

/* fail[i]: length of the longest proper prefix of text[0..i] that is also its suffix. */
static void fill_fail_table(uint16_t *fail, const struct detok_stop *stop)
{
    uint16_t k = 0;

    fail[0] = 0;
    for (uint32_t i = 1; i < stop->len; i++) {
        while (k > 0 && stop->text[i] != stop->text[k])
            k = fail[k - 1];
        if (stop->text[i] == stop->text[k])
            k++;
        fail[i] = k;
    }
}

static enum status make_fail_tables(struct detok *d)
{
    size_t n_bytes = 0;

    if (d->n_stops == 0 || d->fail.len > 0)
        return OK;
    for (uint32_t i = 0; i < d->n_stops; i++)
        n_bytes += d->stops[i].len * sizeof(uint16_t);
    enum status s = buf_reserve(&d->fail, n_bytes);
    if (s != OK)
        return s;
    uint16_t *fail = (uint16_t *)(void *)d->fail.data;
    for (uint32_t i = 0; i < d->n_stops; i++) {
        fill_fail_table(fail, &d->stops[i]);
        fail += d->stops[i].len;
    }
    d->fail.len = n_bytes;
    return OK;
}

/* Advance by one byte. Returns the index of the longest stop string that ends here, or -1. */
static int step_stops(struct detok *d, char byte)
{
    const uint16_t *fail = (const uint16_t *)(const void *)d->fail.data;
    int met = -1;

    for (uint32_t i = 0; i < d->n_stops; i++) {
        const struct detok_stop *stop = &d->stops[i];
        uint16_t k = d->n_matched[i];
        while (k > 0 && stop->text[k] != byte)
            k = fail[k - 1];
        if (stop->text[k] == byte)
            k++;
        if (k == stop->len && d->n_ids <= d->n_ids_without_stop)
            k = fail[k - 1]; /* plain text here; its end may begin the next stop string */
        d->n_matched[i] = k;
        if (k == stop->len && (met < 0 || stop->len > d->stops[met].len))
            met = (int)i;
        fail += stop->len;
    }
    return met;
}

static size_t n_bytes_held_back(const struct detok *d)
{
    size_t n = 0;

    for (uint32_t i = 0; i < d->n_stops; i++)
        n = d->n_matched[i] > n ? d->n_matched[i] : n;
    return n;
}

/* Match the new characters held[from..) and emit the text that is certain. */
static enum status emit(struct detok *d, size_t from, struct buf *out)
{
    for (size_t i = from; i < d->held.len && d->n_stops > 0; i++) {
        int met = step_stops(d, d->held.data[i]);
        if (met < 0)
            continue;
        size_t end = i + 1, start = end - d->stops[met].len;
        enum status s = buf_append(out, d->held.data, d->include_stop ? end : start);
        if (s == OK) {
            d->stopped_by = met;
            buf_reset(&d->held);
        }
        return s;
    }
    size_t certain = d->held.len - n_bytes_held_back(d);
    enum status s = buf_append(out, buf_str(&d->held), certain);
    if (s == OK)
        buf_consume(&d->held, certain);
    return s;
}

/* ---- characters ---- */

/* Add one byte to the current character; a complete one goes to held. */
static enum status take_byte(struct detok *d, char byte)
{
    size_t size;
    enum status s = OK;

    d->part[d->n_part++] = byte;
    enum utf8_kind kind = utf8_classify(d->part, d->n_part, &size);
    if (kind == UTF8_PARTIAL)
        return OK;
    if (kind == UTF8_VALID) {
        s = buf_append(&d->held, d->part, size);
        d->n_part = 0;
        return s;
    }
    /* This byte does not continue the character that the earlier ones began: one U+FFFD replaces
     * those. The byte itself, unless it was the only one, may begin another character. */
    s = buf_puts(&d->held, UTF8_REPLACEMENT);
    bool again = d->n_part > 1;
    d->n_part = 0;
    return s == OK && again ? take_byte(d, byte) : s;
}

static enum status take_bytes(struct detok *d, const char *bytes, size_t len)
{
    enum status s = OK;

    if (d->n_part == 0 && utf8_is_valid(bytes, len))
        return buf_append(&d->held, bytes, len);
    for (size_t i = 0; i < len && s == OK; i++)
        s = take_byte(d, bytes[i]);
    return s;
}

static bool is_hidden(const struct detok *d, uint32_t id)
{
    for (uint32_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return false;
    return !d->show_special && tokenizer_is_special(d->tok, id);
}

enum status detok_feed(struct detok *d, uint32_t id, struct buf *out)
{
    size_t len, first_len, from = d->held.len;

    d->n_ids++;
    if (d->stopped_by >= 0 || is_hidden(d, id))
        return OK;
    const char *bytes = tokenizer_bytes(d->tok, id, &len);
    const char *first = tokenizer_first_bytes(d->tok, id, &first_len);
    if (len == 0 && first_len == 0)
        return OK;
    if (!d->begun && !d->continues) {
        bytes = first;
        len = first_len;
    }
    d->begun = true;
    enum status s = make_fail_tables(d);
    if (s == OK)
        s = take_bytes(d, bytes, len);
    return s == OK ? emit(d, from, out) : s;
}

enum status detok_finish(struct detok *d, struct buf *out)
{
    size_t from = d->held.len;

    if (d->stopped_by >= 0)
        return OK;
    enum status s = make_fail_tables(d);
    if (s == OK && d->n_part > 0) {
        d->n_part = 0;
        s = buf_puts(&d->held, UTF8_REPLACEMENT);
    }
    if (s == OK)
        s = emit(d, from, out);
    if (s == OK && d->stopped_by < 0)
        s = buf_append(out, buf_str(&d->held), d->held.len);
    if (s == OK)
        buf_reset(&d->held);
    return s;
}
