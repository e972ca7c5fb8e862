#include "loadgen/bench/draft/scripts.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mapfile.h"
#include "base/rng.h"

#define N_DOCUMENTS_MAX 4096
#define N_TEXT_IDS_MAX ((size_t)1 << 22)
#define N_TEXT_BYTES_MAX ((size_t)1 << 20)
#define QUOTE_MIN 16u
#define QUOTE_MAX 64u

/* Texts from which scripts are cut. */
struct sources {
    struct buf documents;           /* ids, one document after the other */
    uint32_t ends[N_DOCUMENTS_MAX]; /* [n] */
    uint32_t n;
    struct buf text; /* ids */
    uint64_t seed, n_drawn;
};

static uint32_t draw(struct sources *s, uint32_t n)
{
    return rng_u32(s->seed, s->n_drawn++) % n;
}

static uint32_t n_ids(const struct buf *b)
{
    return (uint32_t)(b->len / sizeof(uint32_t));
}

static enum status read_line(struct sources *s, const struct tokenizer *t, const char *line,
                             size_t len, struct buf *why)
{
    const char *text = NULL;
    struct json *j;
    size_t n = 0;
    enum status st = js_parse(&j, line, len, why);

    if (st != OK)
        return st;
    st = js_get_str(j, "text", &text, &n, why);
    if (st == OK && text)
        st = tokenizer_encode(t, text, n, TOKENIZE_CONTINUES, &s->documents);
    js_unref(j);
    s->ends[s->n++] = n_ids(&s->documents);
    return st;
}

static enum status read_documents(struct sources *s, const struct tokenizer *t, const char *path,
                                  struct buf *why)
{
    struct mapfile m;
    enum status st = mapfile_open(&m, path, why);

    if (st != OK)
        return st;
    const char *at = (const char *)m.data, *end = at + m.n_bytes;
    while (st == OK && at < end && s->n < N_DOCUMENTS_MAX) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        if (stop > at)
            st = read_line(s, t, at, (size_t)(stop - at), why);
        at = stop + 1;
    }
    mapfile_close(&m);
    return st == OK && s->n == 0 ? buf_why(why, ERR_INVALID, "%s has no documents", path) : st;
}

static enum status read_text(struct sources *s, const struct tokenizer *t, const char *path,
                             struct buf *why)
{
    struct mapfile m;
    enum status st = mapfile_open(&m, path, why);

    if (st != OK)
        return st;
    st = tokenizer_encode(t, (const char *)m.data,
                          m.n_bytes < N_TEXT_BYTES_MAX ? m.n_bytes : N_TEXT_BYTES_MAX,
                          TOKENIZE_CONTINUES, &s->text);
    mapfile_close(&m);
    if (st == OK && n_ids(&s->text) <= SCRIPTS_N_OUT_MAX)
        return buf_why(why, ERR_INVALID, "%s is too short", path);
    return st;
}

/* A piece of the prompt, which has the ids of documents only. */
static uint32_t quote(struct sources *s, const struct script *x, uint32_t *out, uint32_t room)
{
    uint32_t n_all = n_ids(&x->prompt), n = QUOTE_MIN + draw(s, QUOTE_MAX - QUOTE_MIN + 1);

    n = n < room ? n : room;
    n = n < n_all ? n : n_all;
    memcpy(out, (const uint32_t *)x->prompt.data + draw(s, n_all - n + 1), n * sizeof *out);
    return n;
}

static uint32_t own_words(struct sources *s, uint32_t *out, uint32_t n)
{
    memcpy(out, (const uint32_t *)s->text.data + draw(s, n_ids(&s->text) - n), n * sizeof *out);
    return n;
}

static void write_answer(struct sources *s, struct script *x, const struct draftbench_options *o)
{
    uint32_t n = 0, n_out = (uint32_t)o->n_out, copied = (uint32_t)o->copied, n_quoted = 0;

    if (copied == 0)
        n = own_words(s, x->answer, n_out);
    while (n < n_out) {
        uint32_t k = quote(s, x, x->answer + n, n_out - n);
        n += k;
        n_quoted += k;
        uint32_t n_own = n_quoted * (100 - copied) / copied; /* by now */
        n_own = n_own > n - n_quoted ? n_own - (n - n_quoted) : 0;
        n += own_words(s, x->answer + n, n_own < n_out - n ? n_own : n_out - n);
    }
}

static enum status write_prompt(struct sources *s, struct script *x,
                                const struct draftbench_options *o)
{
    enum status st = OK;

    buf_init(&x->prompt, N_TEXT_IDS_MAX);
    for (uint64_t i = 0; st == OK && i < o->n_documents; i++) {
        uint32_t d = draw(s, s->n), begin = d ? s->ends[d - 1] : 0;
        st = buf_append(&x->prompt, s->documents.data + begin * sizeof(uint32_t),
                        (s->ends[d] - begin) * sizeof(uint32_t));
    }
    return st;
}

enum status scripts_make(struct scripts *out, const struct tokenizer *t,
                         const struct draftbench_options *o, struct buf *why)
{
    struct sources *s = calloc(1, sizeof *s);

    *out = (struct scripts){.v = calloc(o->batch, sizeof *out->v)};
    if (!s || !out->v) {
        free(s);
        return buf_why(why, ERR_NOMEM, "out of memory for the scripts");
    }
    s->seed = o->seed;
    buf_init(&s->documents, N_TEXT_IDS_MAX * sizeof(uint32_t));
    buf_init(&s->text, N_TEXT_IDS_MAX * sizeof(uint32_t));
    enum status st = read_documents(s, t, o->documents, why);
    if (st == OK)
        st = read_text(s, t, o->text, why);
    for (; st == OK && out->n < o->batch; out->n++) {
        st = write_prompt(s, &out->v[out->n], o);
        if (st == OK)
            write_answer(s, &out->v[out->n], o);
    }
    buf_fini(&s->documents);
    buf_fini(&s->text);
    free(s);
    return st;
}

void scripts_fini(struct scripts *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        buf_fini(&s->v[i].prompt);
    free(s->v);
    *s = (struct scripts){0};
}
