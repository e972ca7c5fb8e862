#include "server/api/citations.h"

#include <stdlib.h>
#include <string.h>

#include "server/api/documents.h"

/* White space inside the brackets of a mark, on each side. */
#define SPACES_MAX 8
#define TAIL_BYTES (CITATIONS_TITLE_BYTES_MAX + 2 * SPACES_MAX + 2)

struct citations {
    const struct document_use *documents; /* [n_documents] */
    uint32_t n_documents;
    char tail[2 * TAIL_BYTES]; /* [n_tail] the end of the text behind the last mark */
    size_t n_tail;
    uint64_t n_chars; /* of the text so far */
    struct buf found; /* of struct citation */
};

enum status citations_create(struct citations **out, const struct document_use *documents,
                             uint32_t n_documents)
{
    struct citations *c = calloc(1, sizeof *c);

    *out = c;
    if (!c)
        return ERR_NOMEM;
    c->documents = documents;
    c->n_documents = n_documents;
    buf_init(&c->found, CITATIONS_N_MAX * sizeof(struct citation));
    return OK;
}

void citations_destroy(struct citations *c)
{
    if (c)
        buf_fini(&c->found);
    free(c);
}

static bool is_space(char b)
{
    return b == ' ' || b == '\t' || b == '\n' || b == '\r';
}

static char lower(char b)
{
    return b >= 'A' && b <= 'Z' ? (char)(b - 'A' + 'a') : b;
}

/* Length of the mark of a document with which the tail, which ends with ']', ends; 0: none. */
static size_t mark_length(const struct citations *c, const struct buf *title)
{
    size_t at = c->n_tail - 1, n = title->len;

    if (n == 0 || n > CITATIONS_TITLE_BYTES_MAX)
        return 0;
    for (int i = 0;
         i < SPACES_MAX && at > 0 && is_space(c->tail[at - 1]) && !is_space(title->data[n - 1]);
         i++)
        at--;
    if (at < n)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (lower(c->tail[at - 1 - i]) != lower(title->data[n - 1 - i]))
            return 0;
    at -= n;
    for (int i = 0; i < SPACES_MAX && at > 0 && is_space(c->tail[at - 1]); i++)
        at--;
    return at > 0 && c->tail[at - 1] == '[' ? c->n_tail - (at - 1) : 0;
}

/* UTF-8 continues a character with the bytes 10xxxxxx. */
static bool begins_char(char b)
{
    return ((unsigned char)b & 0xC0) != 0x80;
}

static uint64_t count_chars(const char *text, size_t len)
{
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += begins_char(text[i]);
    return n;
}

/* The text so far ends with ']': look for a mark that ends there. */
static enum status find_mark(struct citations *c)
{
    struct citation found = {.end = c->n_chars};
    size_t longest = 0;

    for (uint32_t i = 0; i < c->n_documents; i++) {
        size_t len = mark_length(c, &c->documents[i].title);
        if (len > longest) {
            longest = len;
            found.document = i;
        }
    }
    if (longest == 0 || c->found.len + sizeof found > c->found.max)
        return OK;
    found.begin = c->n_chars - count_chars(c->tail + c->n_tail - longest, longest);
    c->n_tail = 0; /* a mark does not reach into another one */
    return buf_append(&c->found, &found, sizeof found);
}

enum status citations_feed(struct citations *c, const char *text, size_t len)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < len; i++) {
        if (c->n_tail == sizeof c->tail) {
            memmove(c->tail, c->tail + TAIL_BYTES, sizeof c->tail - TAIL_BYTES);
            c->n_tail -= TAIL_BYTES;
        }
        c->tail[c->n_tail++] = text[i];
        c->n_chars += begins_char(text[i]);
        if (text[i] == ']')
            s = find_mark(c);
    }
    return s;
}

const struct citation *citations_found(const struct citations *c, uint32_t *n)
{
    *n = (uint32_t)(c->found.len / sizeof(struct citation));
    return (const struct citation *)(const void *)c->found.data;
}
