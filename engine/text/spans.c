#include "engine/text/spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define TEXT_BYTES_MAX (256u << 20)
#define N_MARKS_MAX 4096
#define N_STRINGS_MAX 8 /* strings of one document that are replaced by sentinels */

/* --- boundaries --- */

struct mark {
    const char *text; /* owned by the tokenizer */
    size_t len;
};

struct span_marks {
    uint32_t n;
    struct mark marks[N_MARKS_MAX];
};

enum status span_marks_create(struct span_marks **out, const struct tokenizer *t)
{
    struct span_marks *m = calloc(1, sizeof *m);

    *out = m;
    if (!m)
        return ERR_NOMEM;
    for (uint32_t id = 0; t && id < tokenizer_n_vocab(t) && m->n < N_MARKS_MAX; id++) {
        size_t len;
        if (!tokenizer_is_special(t, id))
            continue;
        const char *text = tokenizer_piece(t, id, &len);
        if (text && len > 0)
            m->marks[m->n++] = (struct mark){text, len};
    }
    return OK;
}

void span_marks_destroy(struct span_marks *m)
{
    free(m);
}

/* Whether a boundary is allowed at `at`: right behind a newline or a special token. */
static bool is_boundary(const struct span_marks *m, const char *text,
                        const struct ranges *untrusted, size_t at)
{
    if (at > 0 && text[at - 1] == '\n')
        return true;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->marks[i].len <= at &&
            !memcmp(text + at - m->marks[i].len, m->marks[i].text, m->marks[i].len) &&
            !ranges_touch(untrusted, at - m->marks[i].len, at))
            return true;
    return false;
}

static size_t next_boundary(const struct span_marks *m, const char *text,
                            const struct ranges *untrusted, size_t from, size_t to)
{
    for (size_t at = from; at <= to; at++)
        if (is_boundary(m, text, untrusted, at))
            return at;
    return 0;
}

size_t spans_next_boundary(const struct span_marks *m, const char *text, size_t from, size_t to)
{
    return next_boundary(m, text, NULL, from, to);
}

/* --- sentinels --- */

/* "Qx<nonce>d<document>s<string>z": letters and digits only, so that templates that escape, strip
 * or split keep it whole. The nonce is random for each call, so no text contains a sentinel. */
#define SENTINEL_BYTES 48

struct sentinels {
    char nonce[17];
    uint32_t n_documents;
};

static int sentinel(char out[SENTINEL_BYTES], const struct sentinels *s, uint32_t document,
                    uint32_t string)
{
    return snprintf(out, SENTINEL_BYTES, "Qx%sd%us%uz", s->nonce, document, string);
}

/* Copy a document with sentinels for its non-empty strings. */
static enum status mask_document(const struct sentinels *s, const struct json *document,
                                 uint32_t index, struct json **out)
{
    struct json *copy = js_new_object();
    enum status st = copy ? OK : ERR_NOMEM;
    uint32_t k = 0;

    for (void *it = js_first(document); st == OK && it; it = js_next(document, it)) {
        struct json *v = js_it_value(it);
        char word[SENTINEL_BYTES];
        size_t len = 0;
        if (js_is(v, JS_STRING))
            js_string(v, &len);
        if (len > 0 && k < N_STRINGS_MAX) {
            int n = sentinel(word, s, index, k);
            st = js_set(copy, js_it_key(it), js_new_string(word, (size_t)n));
        } else {
            st = js_set(copy, js_it_key(it), js_ref(v));
        }
        k++;
    }
    if (st == OK)
        *out = copy;
    else
        js_unref(copy);
    return st;
}

/* Mask all documents. one_more: append the last one again, so that even a single document shows
 * what comes between two. */
static enum status mask_documents(const struct sentinels *s, const struct json *documents,
                                  bool one_more, struct json **out)
{
    struct json *list = js_new_array();
    uint32_t n = (uint32_t)js_len(documents);
    enum status st = list ? OK : ERR_NOMEM;

    for (uint32_t i = 0; st == OK && i < n + one_more; i++) {
        struct json *masked = NULL;
        st = mask_document(s, js_at(documents, i < n ? i : n - 1), i, &masked);
        if (st == OK)
            st = js_push(list, masked);
    }
    if (st == OK)
        *out = list;
    else
        js_unref(list);
    return st;
}

/* --- places of the documents --- */

/* One document in a masked rendering. */
struct place {
    size_t begin, end;           /* from its first sentinel to the end of its last, in the masked
                                    rendering */
    size_t real_begin, real_end; /* the same with the real strings */
};

struct finder {
    const struct span_marks *marks;
    const struct json *documents;
    const struct ranges *untrusted; /* of the real rendering; may be NULL */
    struct sentinels sentinels;
    struct spans *spans;
};

static enum status give_up(struct finder *f, const char *why)
{
    buf_reset(&f->spans->ends);
    buf_reset(&f->spans->places);
    snprintf(f->spans->reason, sizeof f->spans->reason, "%s", why);
    return OK;
}

/* Read a sentinel at p. Returns its length; 0: there is none. */
static size_t read_sentinel(const struct finder *f, const char *p, const char *end,
                            uint32_t *document, uint32_t *string)
{
    char prefix[SENTINEL_BYTES];
    int n = snprintf(prefix, sizeof prefix, "Qx%sd", f->sentinels.nonce), used = 0;
    unsigned d, s;

    if (end - p < n + 4 || memcmp(p, prefix, (size_t)n))
        return 0;
    if (sscanf(p + n, "%us%uz%n", &d, &s, &used) != 2 || used == 0)
        return 0;
    *document = d;
    *string = s;
    return (size_t)n + (size_t)used;
}

static const char *real_string(const struct finder *f, uint32_t document, uint32_t string,
                               size_t *len)
{
    uint32_t n = (uint32_t)js_len(f->documents), k = 0;
    const struct json *d = js_at(f->documents, document < n ? document : n - 1);

    for (void *it = js_first(d); it; it = js_next(d, it), k++)
        if (k == string && js_is(js_it_value(it), JS_STRING))
            return js_string(js_it_value(it), len);
    *len = 0;
    return "";
}

/* Put the real strings into a masked rendering: *out gets the text, places[n_places] the place of
 * each document. *ok is false if a document is missing or two of them interleave. */
static enum status unmask(const struct finder *f, const struct buf *masked, struct buf *out,
                          struct place *places, uint32_t n_places, bool *ok)
{
    const char *p = buf_str(masked), *end = p + masked->len;
    uint32_t next = 0; /* number of documents seen so far */
    enum status s = OK;

    *ok = true;
    while (s == OK && p < end) {
        uint32_t d, k;
        size_t len, n = *p == 'Q' ? read_sentinel(f, p, end, &d, &k) : 0;
        if (n == 0) {
            const char *q = memchr(p + 1, 'Q', (size_t)(end - p - 1));
            q = q ? q : end;
            s = buf_append(out, p, (size_t)(q - p));
            p = q;
            continue;
        }
        if (d >= n_places || d > next || d + 1 < next) {
            *ok = false;
            return OK;
        }
        struct place *at = &places[d];
        if (d == next) {
            at->begin = (size_t)(p - buf_str(masked));
            at->real_begin = out->len;
            next++;
        }
        const char *real = real_string(f, d, k, &len);
        s = buf_append(out, real, len);
        p += n;
        at->end = (size_t)(p - buf_str(masked));
        at->real_end = out->len;
    }
    *ok = *ok && next == n_places;
    return s;
}

/* --- cutting --- */

/* Find the separator: the longest text before the first string of every document that begins at a
 * boundary and is the same for all. False: there is none. */
static bool find_separator(const struct finder *f, const struct buf *masked,
                           const struct place *places, uint32_t n, size_t *len_out)
{
    const char *text = buf_str(masked);
    size_t same = SIZE_MAX;

    for (uint32_t i = 0; i < n; i++) { /* the longest common suffix that does not reach into a
                                          document */
        size_t room = places[i].begin - (i ? places[i - 1].end : 0), k = 0;
        while (k < room && k < same &&
               text[places[i].begin - 1 - k] == text[places[0].begin - 1 - k])
            k++;
        same = k;
    }
    for (size_t len = same + 1; len-- > 0;) {
        bool all = true;
        for (uint32_t i = 0; all && i < n; i++) {
            size_t from = i ? places[i - 1].end : 0, at = places[i].begin - len;
            /* Between two documents, the cut must leave the first one its own end. */
            all = at >= from && is_boundary(f->marks, text, NULL, at) && (i == 0 || at > from);
        }
        if (all) {
            *len_out = len;
            return true;
        }
    }
    return false;
}

static enum status add_end(struct finder *f, size_t at)
{
    size_t n = spans_n_ends(f->spans);

    if (at == 0 || (n > 0 && spans_end(f->spans, n - 1) >= at))
        return OK; /* nothing is between the two ends */
    return buf_append(&f->spans->ends, &at, sizeof at);
}

static enum status cut(struct finder *f, const struct place *places, uint32_t n, size_t separator,
                       const char *text, size_t len)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++) {
        size_t limit = i + 1 < n ? places[i + 1].real_begin - separator : len;
        size_t end = next_boundary(f->marks, text, f->untrusted, places[i].real_end + 1, limit);
        size_t begin = places[i].real_begin - separator;
        /* If the template adds nothing, a document's own last newline is its end. */
        if (end == 0 && is_boundary(f->marks, text, f->untrusted, places[i].real_end))
            end = places[i].real_end;
        if (end == 0 || !is_boundary(f->marks, text, f->untrusted, begin))
            return give_up(f, "no newline or special token follows a document");
        s = add_end(f, begin);
        if (s == OK)
            s = add_end(f, end);
        if (s == OK)
            s = buf_append(&f->spans->places, &(struct span_place){begin, end, 0, 0},
                           sizeof(struct span_place));
    }
    return s;
}

/* Find the separator from a rendering with one more document. */
static enum status probe_separator(struct finder *f, const struct spans_render *render,
                                   size_t *separator, bool *found)
{
    struct place places[SPANS_N_DOCUMENTS_MAX + 1] = {{0}};
    uint32_t n = (uint32_t)js_len(f->documents) + 1;
    struct json *masked_documents = NULL;
    struct buf masked, real;
    bool ok = false;

    buf_init(&masked, TEXT_BYTES_MAX);
    buf_init(&real, TEXT_BYTES_MAX);
    enum status s = mask_documents(&f->sentinels, f->documents, true, &masked_documents);
    if (s == OK)
        s = render->fn(render->arg, masked_documents, &masked);
    if (s == OK)
        s = unmask(f, &masked, &real, places, n, &ok);
    *found = s == OK && ok && find_separator(f, &masked, places, n, separator);
    js_unref(masked_documents);
    buf_fini(&masked);
    buf_fini(&real);
    return s;
}

static enum status find(struct finder *f, const char *text, size_t len,
                        const struct spans_render *render)
{
    struct place places[SPANS_N_DOCUMENTS_MAX] = {{0}};
    uint32_t n = (uint32_t)js_len(f->documents);
    struct json *masked_documents = NULL;
    struct buf masked, real;
    size_t separator = 0;
    bool ok = false, found = false;

    buf_init(&masked, TEXT_BYTES_MAX);
    buf_init(&real, TEXT_BYTES_MAX);
    enum status s = mask_documents(&f->sentinels, f->documents, false, &masked_documents);
    if (s == OK)
        s = render->fn(render->arg, masked_documents, &masked);
    if (s == OK)
        s = unmask(f, &masked, &real, places, n, &ok);
    if (s == OK && ok)
        s = probe_separator(f, render, &separator, &found);
    if (s != OK)
        ;
    else if (!ok)
        s = give_up(f, "the template omits, mixes or rewrites documents");
    else if (real.len != len || memcmp(buf_str(&real), text, len))
        s = give_up(f, "the template changes the documents' text");
    else if (!found)
        s = give_up(f, "no newline or special token precedes each document");
    else
        s = cut(f, places, n, separator, text, len);
    js_unref(masked_documents);
    buf_fini(&masked);
    buf_fini(&real);
    return s;
}

void spans_init(struct spans *s)
{
    *s = (struct spans){.reason = ""};
    buf_init(&s->ends, (2 * SPANS_N_DOCUMENTS_MAX + 2) * sizeof(size_t));
    buf_init(&s->places, SPANS_N_DOCUMENTS_MAX * sizeof(struct span_place));
}

void spans_fini(struct spans *s)
{
    buf_fini(&s->ends);
    buf_fini(&s->places);
}

size_t spans_n_ends(const struct spans *s)
{
    return s->ends.len / sizeof(size_t);
}

size_t spans_end(const struct spans *s, size_t i)
{
    size_t at;

    ASSERT(i < spans_n_ends(s));
    memcpy(&at, s->ends.data + i * sizeof at, sizeof at);
    return at;
}

size_t spans_n_places(const struct spans *s)
{
    return s->places.len / sizeof(struct span_place);
}

struct span_place *spans_place(const struct spans *s, size_t i)
{
    ASSERT(i < spans_n_places(s));
    return (struct span_place *)(void *)s->places.data + i;
}

enum status spans_add_public(struct spans *s, size_t at)
{
    size_t n = spans_n_ends(s), i = n;

    ASSERT(at > 0);
    s->public_end = at;
    while (i > 0 && spans_end(s, i - 1) > at)
        i--;
    if (i > 0 && spans_end(s, i - 1) == at)
        return OK;
    enum status st = buf_append(&s->ends, &at, sizeof at); /* makes room; the later ends move */
    if (st != OK)
        return st;
    unsigned char *place = (unsigned char *)s->ends.data + i * sizeof at;
    memmove(place + sizeof at, place, (n - i) * sizeof at);
    memcpy(place, &at, sizeof at);
    return OK;
}

enum status spans_find(struct spans *s, const struct span_marks *marks,
                       const struct json *documents, const char *text, size_t len,
                       const struct ranges *untrusted, const struct spans_render *render)
{
    struct finder f = {.marks = marks, .documents = documents, .untrusted = untrusted, .spans = s};
    uint8_t nonce[8];

    buf_reset(&s->ends);
    buf_reset(&s->places);
    s->public_end = 0;
    s->reason[0] = '\0';
    if (js_len(documents) == 0)
        return OK;
    if (js_len(documents) > SPANS_N_DOCUMENTS_MAX)
        return give_up(&f, "more than 256 documents");
    hash_random(nonce, sizeof nonce);
    hash_hex(f.sentinels.nonce, nonce, sizeof nonce);
    return find(&f, text, len, render);
}

/* Record that n_ids ids precede byte `at`, at which a span ends or the text begins. */
static void note_places(struct spans *s, size_t *next, size_t at, uint32_t n_ids)
{
    struct span_place *p;

    for (; *next < spans_n_places(s); (*next)++) {
        p = spans_place(s, *next);
        if (p->begin == at)
            p->begin_id = n_ids;
        if (p->end != at)
            return;
        p->end_id = n_ids;
    }
}

enum status spans_tokenize(struct spans *s, const struct tokenizer *t, const char *text, size_t len,
                           const struct ranges *untrusted, struct buf *ids, struct buf *span_ends)
{
    size_t n = spans_n_ends(s), from = 0, next_place = 0;
    struct ranges part = {0}; /* the part of `untrusted` in one span */
    enum status st = OK;

    s->n_public = 0;
    for (size_t i = 0; st == OK && i <= n; i++) {
        size_t to = i < n ? spans_end(s, i) : len, n_before = ids->len;
        unsigned flags = TOKENIZE_PARSE_SPECIAL | (from > 0 ? TOKENIZE_CONTINUES : 0);
        note_places(s, &next_place, from, (uint32_t)(n_before / sizeof(uint32_t)));
        st = ranges_cut(&part, untrusted, from, to);
        if (st == OK)
            st = tokenizer_encode_mixed(t, text + from, to - from, flags, &part, ids);
        if (st == OK && i < n && ids->len > n_before)
            st = buf_u32(span_ends, (uint32_t)(ids->len / sizeof(uint32_t)));
        if (i < n && to == s->public_end)
            s->n_public = (uint32_t)(ids->len / sizeof(uint32_t));
        from = to;
    }
    note_places(s, &next_place, len, (uint32_t)(ids->len / sizeof(uint32_t)));
    ranges_fini(&part);
    return st;
}
