/* catalog_bench.c - figures of the catalog: import, size, memory, opening, lists, search. No test.
 *
 *   TARN_SHARED=... catalog_bench FILE N_DOCUMENTS [GROUP]
 *
 * Puts documents of four random paragraphs of rag-derived-squad2dev (about 700 tokens), GROUP to a
 * transaction (default 500), then opens the file again and asks 200 of its questions. Prints one
 * line of JSON; times of searches are those of the CPU and by the clock. Put N_DOCUMENTS 0 to
 * measure an existing file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/retrieval/catalog.h"

#define N_QUESTIONS 200

static char *paragraphs[1000], *questions[10000];
static uint32_t n_paragraphs, n_questions;

static void must(enum status s, const struct buf *why)
{
    if (s == OK)
        return;
    fprintf(stderr, "catalog_bench: %s: %s\n", status_name(s), buf_str(why));
    exit(1);
}

static uint32_t read_lines(const char *name, const char *key, char **out, uint32_t max)
{
    const char *shared = getenv("TARN_SHARED");
    char path[4096], *line = NULL;
    struct buf why = {.max = BUF_WHY_MAX};
    size_t cap = 0;
    uint32_t n = 0;
    ssize_t len;

    snprintf(path, sizeof path, "%s/data/rag-derived-squad2dev/%s", shared ? shared : "", name);
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        exit(1);
    }
    while (n < max && (len = getline(&line, &cap, f)) > 0) {
        struct json *j;
        must(js_parse(&j, line, (size_t)len, &why), &why);
        out[n++] = strdup(js_string(js_get(j, key), NULL));
        js_unref(j);
    }
    free(line);
    fclose(f);
    return n;
}

static double seconds_since(uint64_t t0)
{
    return (double)(clock_now_ns() - t0) / 1e9;
}

static double resident_mib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576;
}

static void import(struct catalog *c, uint32_t n, uint32_t group, struct buf *why)
{
    struct catalog_change change;
    struct document d;

    document_init(&d);
    for (uint32_t i = 0; i < n; i++) {
        if (i % group == 0)
            must(catalog_begin(c, why), why);
        snprintf(d.id, sizeof d.id, "document-%07u", i);
        buf_reset(&d.title);
        buf_reset(&d.text);
        buf_reset(&d.metadata);
        must(buf_printf(&d.title, "Document %u", i), why);
        must(buf_printf(&d.metadata, "{\"n\": %u, \"group\": \"g%u\"}", i, i % 100), why);
        for (uint32_t k = 0; k < 4; k++)
            must(buf_printf(&d.text, "%s\n", paragraphs[rng_u32(1, 4 * i + k) % n_paragraphs]),
                 why);
        must(catalog_put(c, &d, &change, why), why);
        if (i % group == group - 1 || i == n - 1)
            must(catalog_commit(c, why), why);
    }
    document_fini(&d);
}

static bool ignore(void *arg, const struct document *d)
{
    (void)d;
    ++*(uint32_t *)arg;
    return true;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void print_percentiles(const char *name, double *ms)
{
    qsort(ms, N_QUESTIONS, sizeof ms[0], compare);
    printf(", \"%s_ms\": {\"median\": %.2f, \"p99\": %.2f}", name, ms[N_QUESTIONS / 2],
           ms[N_QUESTIONS * 99 / 100]);
}

static void search(struct catalog *c, const char *name, const char *filter_text, struct buf *why)
{
    static double ms[N_QUESTIONS], busy_ms[N_QUESTIONS];
    const struct catalog_scope scope = {.tenant = "", .public = true};
    struct catalog_hit hits[8];
    struct json *filter = NULL;
    char clock_name[64];
    uint32_t n;

    if (filter_text)
        must(js_parse(&filter, filter_text, strlen(filter_text), why), why);
    for (uint32_t i = 0; i < N_QUESTIONS; i++) {
        const char *q = questions[(uint64_t)i * n_questions / N_QUESTIONS];
        uint64_t t0 = clock_now_ns();
        double cpu0 = cpu_ms();

        must(catalog_search_text(c, &scope, q, strlen(q), filter, 8, hits, &n, why), why);
        ms[i] = seconds_since(t0) * 1e3;
        busy_ms[i] = cpu_ms() - cpu0;
    }
    js_unref(filter);
    snprintf(clock_name, sizeof clock_name, "%s_by_clock", name);
    print_percentiles(name, busy_ms);
    print_percentiles(clock_name, ms);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct buf why = {.max = BUF_WHY_MAX};
    uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 0, group = 500, n_listed = 0;
    double import_s = 0, import_cpu_s = 0, open_ms, list_ms;
    struct catalog_stats stats;
    struct catalog *c;
    bool has_more;
    uint64_t t0;

    if (argc < 3) {
        fprintf(stderr, "usage: catalog_bench FILE N_DOCUMENTS [GROUP]\n");
        return 2;
    }
    if (argc > 3)
        group = (uint32_t)atoi(argv[3]);
    n_paragraphs = read_lines("documents.jsonl", "text", paragraphs, 1000);
    n_questions = read_lines("questions.jsonl", "question", questions, 10000);
    if (n > 0) {
        must(catalog_open(&c, argv[1], 0, &why), &why);
        t0 = clock_now_ns();
        import_cpu_s = -cpu_ms() / 1e3;
        import(c, n, group, &why);
        import_s = seconds_since(t0);
        import_cpu_s += cpu_ms() / 1e3;
        catalog_close(c);
    }
    t0 = clock_now_ns();
    must(catalog_open(&c, argv[1], 0, &why), &why);
    open_ms = seconds_since(t0) * 1e3;
    t0 = clock_now_ns();
    must(catalog_list(c, "", "document-0050000", 100, NULL, ignore, &n_listed, &has_more, &why),
         &why);
    list_ms = seconds_since(t0) * 1e3;
    must(catalog_stats(c, NULL, &stats), &why);
    printf("{\"documents\": %llu, \"import_s\": %.2f, \"import_cpu_s\": %.2f, \"file_mib\": %.1f, "
           "\"open_ms\": %.2f, \"list_100_ms\": %.2f",
           (unsigned long long)stats.n_documents, import_s, import_cpu_s,
           (double)stats.file_bytes / 1048576, open_ms, list_ms);
    search(c, "first_search", NULL, &why);
    search(c, "search", NULL, &why); /* counts of words are known */
    search(c, "filtered_search", "{\"group\": \"g7\"}", &why);
    printf(", \"resident_mib\": %.1f}\n", resident_mib());
    catalog_close(c);
    return 0;
}
