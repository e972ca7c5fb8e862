/* grammar_masks_main.c - the times of masks of the vocabulary, for random JSON schemas.
 *
 *     tarn-grammar-masks MODEL [SCHEMAS]
 *
 * MODEL is a directory with a tokenizer, or a GGUF file. Each of SCHEMAS (200) random schemas is
 * new to the server: the schema is compiled, and two answers of random tokens are written. A step is the mask
 * of one token, and taking the token. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/grammar/grammar.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer.h"

#define STEPS_MAX 200u    /* of an answer */
#define ANSWERS 2u        /* of a schema */
#define MANY_TOKENS 5000u /* allowed: inside of a string */
#define STRING_TOKENS 4u  /* then the string is closed */
#define SCHEMAS_MAX 10000u

static uint64_t seed = 1;

static uint32_t drawn(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static void check(enum status s, const struct buf *why)
{
    if (s == OK)
        return;
    fprintf(stderr, "tarn-grammar-masks: %s %s\n", status_name(s), buf_str(why));
    exit(1);
}

static enum status random_schema(struct buf *b, uint32_t depth)
{
    static const char *const leaves[] = {"{\"type\":\"string\"}",
                                         "{\"type\":\"integer\"}",
                                         "{\"type\":\"boolean\"}",
                                         "{\"type\":\"number\",\"minimum\":0,\"maximum\":10}",
                                         "{\"enum\":[\"alpha\",1,null]}",
                                         "{\"type\":\"string\",\"maxLength\":50}",
                                         "{\"type\":\"string\",\"format\":\"date-time\"}",
                                         "{\"type\":\"string\",\"pattern\":\"^[a-z]+@[a-z]+$\"}"};
    uint32_t kind = depth > 3 ? 0 : drawn(4), n = 1 + drawn(5);
    enum status s;

    if (depth > 0 && kind < 2)
        return buf_puts(b, leaves[drawn(ARRAY_SIZE(leaves))]);
    if (kind == 2) {
        s = buf_puts(b, "{\"type\":\"array\",\"maxItems\":6,\"items\":");
        s = s == OK ? random_schema(b, depth + 1) : s;
        return s == OK ? buf_puts(b, "}") : s;
    }
    s = buf_puts(b, "{\"type\":\"object\",\"properties\":{");
    for (uint32_t i = 0; s == OK && i < n; i++) {
        s = buf_printf(b, "%s\"property_%u\":", i ? "," : "", i);
        s = s == OK ? random_schema(b, depth + 1) : s;
    }
    return s == OK ? buf_printf(b, "},\"required\":[\"property_%u\"]}", drawn(n)) : s;
}

struct times {
    double *v; /* [n] */
    size_t n;
};

struct writer {
    const struct tokenizer *tokenizer;
    uint32_t n_vocab, eos;
    uint32_t *mask, *ids;  /* [words of the vocabulary], [n_vocab] */
    struct times steps;    /* microseconds */
    struct times compiles; /* milliseconds */
};

static uint32_t closing_quote(const struct writer *w, uint32_t n, uint32_t otherwise)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(w->tokenizer, w->ids[i], &len);
        if (len == 1 && *bytes == '"')
            return w->ids[i];
    }
    return otherwise;
}

/* Choose one of the allowed tokens; strings are closed after some tokens. */
static uint32_t choose(struct writer *w, uint32_t *n_in_string)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < w->n_vocab; id++)
        if (id != w->eos && vocab_mask_allows(w->mask, id))
            w->ids[n++] = id;
    if (n == 0 || (vocab_mask_allows(w->mask, w->eos) && drawn(2) == 0))
        return w->eos;
    uint32_t id = w->ids[drawn(n)];
    if (n > MANY_TOKENS && ++*n_in_string > STRING_TOKENS) {
        *n_in_string = 0;
        id = closing_quote(w, n, id);
    }
    return id;
}

static void write_answer(struct writer *w, struct grammar *g)
{
    struct grammar_run r;
    uint32_t n_in_string = 0;

    check(grammar_run_init(&r, g, true), NULL);
    for (uint32_t i = 0; i < STEPS_MAX && !r.is_over; i++) {
        uint64_t t = clock_now_ns();
        check(grammar_run_mask(&r, &w->eos, 1, w->mask), NULL);
        t = clock_now_ns() - t;
        uint32_t id = choose(w, &n_in_string);
        uint64_t began = clock_now_ns();
        check(grammar_run_feed(&r, &w->eos, 1, id), NULL);
        w->steps.v[w->steps.n++] = (double)(t + clock_now_ns() - began) / 1e3;
    }
    grammar_run_fini(&r);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void show(const char *what, struct times *t, const char *unit)
{
    double sum = 0;

    for (size_t i = 0; i < t->n; i++)
        sum += t->v[i];
    qsort(t->v, t->n, sizeof *t->v, ascending);
    printf("%-8s %7zu   mean %8.2f   median %8.2f   P99 %8.2f   largest %8.2f %s\n", what, t->n,
           sum / (double)t->n, t->v[t->n / 2], t->v[t->n * 99 / 100], t->v[t->n - 1], unit);
}

int main(int argc, char **argv)
{
    uint32_t n_schemas = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 200;
    struct tokenizer *tokenizer = NULL;
    struct grammar_vocab *vocab = NULL;
    struct writer w = {.n_vocab = 0};
    struct buf why, text;

    if (argc < 2 || n_schemas == 0 || n_schemas > SCHEMAS_MAX) {
        fprintf(stderr, "usage: tarn-grammar-masks MODEL [SCHEMAS]\n");
        return 2;
    }
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&text, 1 << 20);
    check(tokenizer_load(&tokenizer, argv[1], &why), &why);
    w.tokenizer = tokenizer;
    w.n_vocab = tokenizer_n_vocab(tokenizer);
    w.eos = tokenizer_eos(tokenizer) == TOKEN_NONE ? 0 : tokenizer_eos(tokenizer);
    uint64_t began = clock_now_ns();
    check(grammar_vocab_create(&vocab, tokenizer, w.n_vocab), &why);
    printf("%u tokens, their trees: %.0f ms\n", w.n_vocab, (double)(clock_now_ns() - began) / 1e6);
    w.mask = calloc(vocab_mask_n_words(w.n_vocab), sizeof *w.mask);
    w.ids = calloc(w.n_vocab, sizeof *w.ids);
    w.steps.v = calloc((size_t)n_schemas * ANSWERS * STEPS_MAX, sizeof *w.steps.v);
    w.compiles.v = calloc(n_schemas, sizeof *w.compiles.v);
    check(w.mask && w.ids && w.steps.v && w.compiles.v ? OK : ERR_NOMEM, &why);
    for (uint32_t i = 0; i < n_schemas; i++) {
        struct json *schema = NULL;
        struct grammar *g = NULL;
        buf_reset(&text);
        check(random_schema(&text, 0), &why);
        check(js_parse(&schema, text.data, text.len, &why), &why);
        began = clock_now_ns();
        check(grammar_create(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, &why), &why);
        w.compiles.v[w.compiles.n++] = (double)(clock_now_ns() - began) / 1e6;
        for (uint32_t k = 0; k < ANSWERS; k++)
            write_answer(&w, g);
        grammar_unref(g);
        js_unref(schema);
    }
    show("compile", &w.compiles, "ms");
    show("step", &w.steps, "us");
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    free(w.mask);
    free(w.ids);
    free(w.steps.v);
    free(w.compiles.v);
    buf_fini(&why);
    buf_fini(&text);
    return 0;
}
