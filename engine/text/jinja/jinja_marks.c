#include "engine/text/jinja/jinja_marks.h"

#define PAGE_BYTES 4096u
#define PAGE_WORDS (PAGE_BYTES / 64)
#define N_PAGES_MIN 64u

static size_t slot_of(const struct jinja_marks *m, uintptr_t number)
{
    size_t i = (size_t)(number * 0x9e3779b97f4a7c15u >> 20) & (m->cap - 1);

    while (m->pages[i].number != 0 && m->pages[i].number != number)
        i = (i + 1) & (m->cap - 1);
    return i;
}

/* The bits of the page of an address; NULL: nothing in the page is marked. */
static const uint64_t *find_page(const struct jinja_marks *m, uintptr_t address)
{
    return m->n == 0 ? NULL : m->pages[slot_of(m, address / PAGE_BYTES)].bits;
}

static enum status grow(struct jinja_run *r, struct jinja_marks *m)
{
    struct jinja_marks bigger = {.n = m->n, .cap = m->cap ? m->cap * 2 : N_PAGES_MIN};

    TRY(jinja_alloc_array(r, bigger.cap, sizeof *bigger.pages, &bigger.pages));
    for (size_t i = 0; i < m->cap; i++)
        if (m->pages[i].number != 0)
            bigger.pages[slot_of(&bigger, m->pages[i].number)] = m->pages[i];
    *m = bigger;
    return OK;
}

static enum status make_page(struct jinja_run *r, uintptr_t address, uint64_t **bits)
{
    struct jinja_marks *m = &r->marks;
    uintptr_t number = address / PAGE_BYTES;

    if (m->n * 2 >= m->cap)
        TRY(grow(r, m));
    struct jinja_marks_page *page = &m->pages[slot_of(m, number)];
    if (page->number == 0) {
        TRY(jinja_alloc_array(r, PAGE_WORDS, sizeof *page->bits, &page->bits));
        page->number = number;
        m->n++;
    }
    *bits = page->bits;
    return OK;
}

/* Bytes from an address to the end of its page, at most len. */
static size_t page_left(uintptr_t address, size_t len)
{
    size_t left = PAGE_BYTES - address % PAGE_BYTES;

    return left < len ? left : len;
}

/* Bits from bit `at` to the end of its word, at most len. */
static size_t word_left(size_t at, size_t len)
{
    size_t left = 64 - at % 64;

    return left < len ? left : len;
}

static uint64_t low_bits(size_t n)
{
    return n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
}

enum status jinja_marks_set(struct jinja_run *r, const char *p, size_t len)
{
    uintptr_t address = (uintptr_t)p;

    for (size_t n; len > 0; address += n, len -= n) {
        uint64_t *bits;
        n = page_left(address, len);
        TRY(make_page(r, address, &bits));
        for (size_t at = address % PAGE_BYTES, end = at + n, k; at < end; at += k) {
            k = word_left(at, end - at);
            bits[at / 64] |= low_bits(k) << at % 64;
        }
    }
    return OK;
}

bool jinja_marks_any(const struct jinja_run *r, const char *p, size_t len)
{
    uintptr_t address = (uintptr_t)p;

    for (size_t n; len > 0 && r->marks.n > 0; address += n, len -= n) {
        const uint64_t *bits = find_page(&r->marks, address);
        n = page_left(address, len);
        for (size_t at = address % PAGE_BYTES, end = at + n, k; bits && at < end; at += k) {
            k = word_left(at, end - at);
            if (bits[at / 64] >> at % 64 & low_bits(k))
                return true;
        }
    }
    return false;
}

/* Copy marks between two places, each inside one page. `from_bits` has marks. */
static enum status copy_within_pages(struct jinja_run *r, uintptr_t to, const uint64_t *from_bits,
                                     size_t from, size_t len)
{
    uint64_t *to_bits = NULL;

    for (size_t at = to % PAGE_BYTES, k; len > 0; at += k, from += k, len -= k) {
        k = word_left(from, word_left(at, len));
        uint64_t bits = from_bits[from / 64] >> from % 64 & low_bits(k);
        if (bits == 0)
            continue;
        if (!to_bits)
            TRY(make_page(r, to, &to_bits));
        to_bits[at / 64] |= bits << at % 64;
    }
    return OK;
}

enum status jinja_marks_copy(struct jinja_run *r, char *to, const char *from, size_t len)
{
    uintptr_t dst = (uintptr_t)to, src = (uintptr_t)from;

    for (size_t n; len > 0 && r->marks.n > 0; dst += n, src += n, len -= n) {
        const uint64_t *bits = find_page(&r->marks, src);
        n = page_left(src, page_left(dst, len));
        if (bits)
            TRY(copy_within_pages(r, dst, bits, src % PAGE_BYTES, n));
    }
    return OK;
}

enum status jinja_mark_from(struct jinja_run *r, const struct jinja_out *o, size_t n_before,
                            const char *from, size_t len)
{
    if (!jinja_marks_any(r, from, len))
        return OK;
    return jinja_marks_set(r, o->p + n_before, o->len - n_before);
}

enum status jinja_marks_ranges(struct jinja_run *r, const char *p, size_t len, size_t base,
                               struct ranges *out)
{
    uintptr_t address = (uintptr_t)p;
    size_t done = 0;

    for (size_t n; done < len && r->marks.n > 0; done += n) {
        const uint64_t *bits = find_page(&r->marks, address + done);
        size_t at = (address + done) % PAGE_BYTES;
        n = bits ? word_left(at, len - done) : page_left(address + done, len - done);
        uint64_t word = bits ? bits[at / 64] >> at % 64 & low_bits(n) : 0;
        for (size_t k = 0; word != 0;) { /* one run of ones per turn */
            size_t zeros = (size_t)__builtin_ctzll(word);
            word >>= zeros;
            size_t ones = word == ~(uint64_t)0 ? 64 : (size_t)__builtin_ctzll(~word);
            k += zeros;
            if (ranges_add(out, base + done + k, base + done + k + ones) != OK)
                return jinja_fail(r, ERR_NOMEM, "out of memory");
            k += ones;
            word = ones == 64 ? 0 : word >> ones;
        }
    }
    return OK;
}
