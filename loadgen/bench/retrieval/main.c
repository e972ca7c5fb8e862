/* main.c - tarn-retrievalbench: measures the vector search of the documents. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "loadgen/bench/retrieval/measure.h"

#define REPORT_BYTES_MAX ((size_t)1 << 20)

static void show(const struct retrievalbench_options *o, const char *words)
{
    if (!o->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s\033[K", words);
}

static enum status write_json(struct buf *out, const struct retrievalbench_options *o,
                              const struct measure_result *r, bool is_first)
{
    enum status s = buf_printf(
        out,
        "%s\n    {\"wanted\": \"%s\", \"factory\": \"%s\", \"loaded\": %s, \"build_s\": %.3f, "
        "\"memory_bytes\": %" PRIu64 ", \"n_rebuilds\": %" PRIu64
        ", \"recall\": %.5f, \"median_us\": %.1f, \"p99_us\": %.1f, \"cpu_us\": %.1f, "
        "\"final_after\": [",
        is_first ? "" : ",", r->wanted, r->stats.factory, r->is_loaded ? "true" : "false",
        r->build_s, r->stats.memory_bytes, r->stats.n_rebuilds, r->recall, r->median_us, r->p99_us,
        r->cpu_us);

    for (uint32_t i = 0; s == OK && i < o->stages; i++)
        s = buf_printf(out, "%s%.4f", i ? ", " : "", r->final_after[i]);
    return s == OK ? buf_puts(out, "]}") : s;
}

static enum status write_text(struct buf *out, const struct retrievalbench_options *o,
                              const struct measure_result *r)
{
    enum status s = buf_printf(
        out, "%-18s %8.1f %9.0f %8.4f %10.1f %10.1f %10.1f  ", r->stats.factory, r->build_s,
        (double)r->stats.memory_bytes / 1048576, r->recall, r->median_us, r->p99_us, r->cpu_us);

    for (uint32_t i = 0; s == OK && i < o->stages; i++)
        s = buf_printf(out, " %5.1f", 100 * r->final_after[i]);
    return s == OK ? buf_putc(out, '\n') : s;
}

static enum status run_all(struct buf *out, const struct retrievalbench_options *o,
                           const struct data *d, struct buf *why)
{
    char *rest = NULL;
    enum status s;

    if (o->json)
        s = buf_printf(out,
                       "{\"format\": 1, \"vectors\": %u, \"dim\": %u, \"clusters\": %" PRIu64
                       ", \"queries\": %u, \"top_k\": %u, \"threads\": %" PRIu64
                       ",\n  \"results\": [",
                       d->n, d->dim, o->clusters, d->n_queries, d->k, o->threads);
    else
        s = buf_puts(
            out,
            "factory             build s       MiB   recall  median us     P99 us     CPU us   "
            "% final after stage\n");
    for (char *name = strtok_r(o->factories, ";", &rest); name && s == OK;
         name = strtok_r(NULL, ";", &rest)) {
        struct measure_result r;
        bool is_first = out->data[out->len - 1] == '[';

        show(o, name);
        s = measure_index(&r, name, d, o, why);
        if (s == OK)
            s = o->json ? write_json(out, o, &r, is_first) : write_text(out, o, &r);
    }
    return s == OK && o->json ? buf_puts(out, "\n  ]}\n") : s;
}

static enum status measure(const struct retrievalbench_options *o, struct buf *why)
{
    struct buf text;
    struct data d = {0};
    enum status s = hash_init();

    log_init(LOG_WARN, false);
    buf_init(&text, REPORT_BYTES_MAX);
    show(o, "making vectors");
    if (s == OK)
        s = data_open(&d, o, why);
    if (s == OK)
        s = run_all(&text, o, &d, why);
    show(o, "");
    if (s == OK && (fwrite(text.data, 1, text.len, stdout) != text.len || fflush(stdout) != 0))
        s = buf_why(why, ERR_IO, "cannot write to the standard output");
    data_fini(&d);
    buf_fini(&text);
    return s;
}

int main(int argc, char **argv)
{
    struct retrievalbench_options o;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = retrievalbench_options_parse(&o, argc, argv, &why);
    if (s == OK && o.want_help)
        retrievalbench_options_help(stdout);
    else if (s == OK && o.want_version)
        puts("tarn-retrievalbench " TARN_VERSION);
    else if (s == OK)
        s = measure(&o, &why);
    if (s != OK)
        fprintf(stderr, "tarn-retrievalbench: %s\n", why.len ? buf_str(&why) : status_name(s));
    retrievalbench_options_fini(&o);
    buf_fini(&why);
    return s == OK ? 0 : s == ERR_INVALID ? 2 : 1;
}
