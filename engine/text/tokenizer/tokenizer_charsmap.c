/* tokenizer_charsmap.c - the normalizer "Precompiled": SentencePiece's rewriting of characters.
 *
 * The map, base64 in the file, is in SentencePiece's format (all numbers little-endian):
 *
 *   u32   size of the trie in bytes
 *   u32[] the trie, a double array of darts-clone: bytes of a character sequence -> u32
 *   text  replacements, each ended by a NUL; the trie's values are offsets into it
 *
 * A unit of the trie is a node: bits 0-7 are the byte that leads to it, bit 8 is set if it has a
 * value, bit 9 if its offset counts in units of 256, bits 10-30 are the offset. The children of the
 * node at `pos` are at pos ^ offset ^ byte, its value is at pos ^ offset.
 *
 * As in Hugging Face, a grapheme cluster of at most 5 bytes is looked up first: the *shortest*
 * entry that is a prefix of the cluster replaces all of it. Otherwise each character of the cluster
 * is looked up alone. */
#include <stdlib.h>
#include <string.h>

#include "base/little_endian.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define CLUSTER_BYTES_MAX 5

struct tok_charsmap {
    uint32_t *units;
    size_t n_units;
    char *text; /* replacements, with one more NUL at the end */
    size_t text_len;
    bool changes_ascii[128];
};

/* ---- loading ---- */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode padded base64 to out, which has room for len / 4 * 3 bytes. ERR_INVALID: any other
 * text. */
static enum status decode_base64(const char *s, size_t len, char *out, size_t *n_out)
{
    size_t n = 0, n_pad = 0;

    if (len % 4 != 0)
        return ERR_INVALID;
    while (n_pad < 2 && n_pad < len && s[len - 1 - n_pad] == '=')
        n_pad++;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t bits = 0;
        for (size_t k = i; k < i + 4; k++) {
            int value = k < len - n_pad ? base64_value(s[k]) : 0;
            if (value < 0)
                return ERR_INVALID;
            bits = bits << 6 | (uint32_t)value;
        }
        out[n++] = (char)(bits >> 16);
        out[n++] = (char)(bits >> 8);
        out[n++] = (char)bits;
    }
    *n_out = n - n_pad;
    return OK;
}

static enum status read_map(struct tok_charsmap *m, const char *blob, size_t len)
{
    if (len < 4 || get_u32((const uint8_t *)blob) > len - 4)
        return ERR_INVALID;
    m->n_units = get_u32((const uint8_t *)blob) / 4;
    /* As in Hugging Face, bytes of the trie's size beyond whole units belong to the text. */
    size_t text_at = 4 + m->n_units * 4;
    m->text_len = len - text_at;
    if (m->n_units == 0 || !utf8_is_valid(blob + text_at, m->text_len))
        return ERR_INVALID;
    m->units = malloc(m->n_units * sizeof *m->units);
    m->text = malloc(m->text_len + 1);
    if (!m->units || !m->text)
        return ERR_NOMEM;
    for (size_t i = 0; i < m->n_units; i++)
        m->units[i] = get_u32((const uint8_t *)blob + 4 + 4 * i);
    memcpy(m->text, blob + text_at, m->text_len);
    m->text[m->text_len] = '\0';
    return OK;
}

static const char *replacement(const struct tok_charsmap *m, const char *s, size_t len);

static enum status create(struct tok_charsmap *m, const char *base64, size_t len)
{
    size_t n;
    char *blob = malloc(len / 4 * 3 + 1);

    if (!blob)
        return ERR_NOMEM;
    enum status s = decode_base64(base64, len, blob, &n);
    if (s == OK)
        s = read_map(m, blob, n);
    free(blob);
    for (int c = 0; c < 128 && s == OK; c++)
        m->changes_ascii[c] = replacement(m, &(char){(char)c}, 1) != NULL;
    return s;
}

enum status tok_charsmap_create(struct tok_charsmap **out, const char *base64, size_t len,
                                struct buf *why)
{
    struct tok_charsmap *m = calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return ERR_NOMEM;
    enum status s = create(m, base64, len);
    if (s == OK) {
        *out = m;
        return OK;
    }
    tok_charsmap_destroy(m);
    return s != ERR_INVALID ? s
                            : buf_why(why, s,
                                      "normalizer: precompiled_charsmap: not the "
                                      "base64 of a SentencePiece character map");
}

void tok_charsmap_destroy(struct tok_charsmap *m)
{
    if (!m)
        return;
    free(m->units);
    free(m->text);
    free(m);
}

/* ---- lookup ---- */

static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The NUL-terminated replacement at a trie's value; NULL: the value is out of range. */
static const char *text_at(const struct tok_charsmap *m, uint32_t value)
{
    bool is_inside = value < m->text_len && ((unsigned char)m->text[value] & 0xc0) != 0x80;

    return is_inside ? m->text + value : NULL;
}

/* The replacement for the shortest entry that is a prefix of s[0..len); NULL: there is none. */
static const char *replacement(const struct tok_charsmap *m, const char *s, size_t len)
{
    size_t pos = unit_offset(m->units[0]);

    for (size_t i = 0; i < len && s[i] != '\0'; i++) {
        pos ^= (unsigned char)s[i];
        if (pos >= m->n_units)
            return NULL;
        uint32_t unit = m->units[pos];
        if ((unit & (1u << 31 | 0xff)) != (unsigned char)s[i])
            return NULL;
        pos ^= unit_offset(unit);
        if (unit >> 8 & 1)
            return pos < m->n_units ? text_at(m, m->units[pos] & 0x7fffffffu) : NULL;
    }
    return NULL;
}

/* ---- running ---- */

/* A rewriting in progress: text up to the next replacement is copied with it. */
struct rewrite {
    const struct tok_charsmap *m;
    const char *text;
    const char *copied; /* everything before this is in out */
    struct buf out;
    struct range_map *map;
};

/* Replace s[0..len) by the text. */
static enum status replace(struct rewrite *r, const char *s, size_t len, const char *text)
{
    enum status st = buf_append(&r->out, r->copied, (size_t)(s - r->copied));

    r->copied = s + len;
    if (st == OK)
        st = buf_puts(&r->out, text);
    if (st == OK)
        st = range_map_copy(r->map, (size_t)(s - r->text));
    return st == OK ? range_map_replace(r->map, (size_t)(r->copied - r->text), strlen(text)) : st;
}

static enum status rewrite_cluster(struct rewrite *r, const char *s, const char *end)
{
    size_t len = (size_t)(end - s);
    const char *text = len <= CLUSTER_BYTES_MAX ? replacement(r->m, s, len) : NULL;
    enum status st = OK;

    if (text)
        return replace(r, s, len, text);
    for (size_t n; s < end && st == OK; s += n) {
        n = utf8_size(*s);
        text = replacement(r->m, s, n);
        if (text)
            st = replace(r, s, n, text);
    }
    return st;
}

/* Whether the cluster at s is one ASCII character. It is if ASCII follows, except for CR LF. */
static bool is_single_ascii(const char *s, const char *end)
{
    return !(*s & 0x80) && *s != '\r' && (s + 1 == end || !(s[1] & 0x80));
}

enum status tok_charsmap_run(const struct tok_charsmap *m, struct buf *text, struct range_map *map)
{
    const char *s = buf_str(text), *end = s + text->len;
    struct rewrite r = {.m = m, .text = s, .copied = s, .map = map};
    enum status st = OK;

    buf_init(&r.out, text->max);
    while (s < end && st == OK) {
        if (is_single_ascii(s, end) && !m->changes_ascii[(unsigned char)*s]) {
            s++;
            continue;
        }
        const char *next = tok_grapheme_end(s, end);
        st = rewrite_cluster(&r, s, next);
        s = next;
    }
    if (st == OK && r.copied != buf_str(text)) {
        st = buf_append(&r.out, r.copied, (size_t)(end - r.copied));
        if (st == OK) {
            struct buf old = *text;
            *text = r.out;
            r.out = old;
        }
    }
    buf_fini(&r.out);
    return st;
}
