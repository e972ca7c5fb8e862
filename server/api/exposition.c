#include "server/api/exposition.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define NAME_BYTES 96
#define SERIES_LABELS_BYTES 256

/* --- labels --- */

/* Append `value` to out[*n..n_out) with its escapes, whole characters only. */
static void add_escaped(char *out, size_t *n, size_t n_out, const char *value)
{
    size_t len = strlen(value);

    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t n_char = utf8_decode(value + i, len - i, &c);
        const char *from = n_char ? value + i : "\xef\xbf\xbd";
        size_t n_from = n_char ? n_char : 3;
        bool escape = n_from == 1 && strchr("\\\"\n", *from);
        if (*n + escape + n_from >= n_out)
            break;
        if (escape)
            out[(*n)++] = '\\';
        memcpy(out + *n, *from == '\n' ? "n" : from, n_from);
        *n += n_from;
        i += n_char ? n_char : 1;
    }
    out[*n] = '\0';
}

void label_add(char *out, size_t n_out, const char *name, const char *value)
{
    size_t n = strlen(out), n_need = strlen(name) + 5; /* ,="" and the NUL */

    if (n + n_need > n_out)
        return;
    n += (size_t)snprintf(out + n, n_out - n, ",%s=\"", name);
    add_escaped(out, &n, n_out - 1, value);
    out[n++] = '"';
    out[n] = '\0';
}

void page_begin(struct page *p, struct buf *out, const char *model)
{
    char labels[PAGE_LABELS_BYTES - 16] = "";

    p->w = (struct writer){out, OK};
    label_add(labels, sizeof labels, "model_name", model);
    snprintf(p->labels, sizeof p->labels, "%s,engine=\"0\"", labels + 1);
}

/* --- samples --- */

void page_head(struct page *p, const char *name, const char *type, const char *help)
{
    write_format(&p->w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_value(struct page *p, double value)
{
    if (isnan(value))
        write_puts(&p->w, "NaN");
    else if (isinf(value))
        write_puts(&p->w, value > 0 ? "+Inf" : "-Inf");
    else if (value == floor(value) && fabs(value) < 1e15)
        write_format(&p->w, "%.0f", value);
    else
        write_number(&p->w, value); /* %g would cut a Unix time, which has ten digits */
    write_puts(&p->w, "\n");
}

void page_sample(struct page *p, const char *name, const char *more, double value)
{
    write_format(&p->w, "%s{%s%s} ", name, p->labels, more);
    write_value(p, value);
}

void page_bare_sample(struct page *p, const char *name, const char *labels, double value)
{
    if (labels[0])
        write_format(&p->w, "%s{%s} ", name, labels + 1);
    else
        write_format(&p->w, "%s ", name);
    write_value(p, value);
}

typedef void write_sample(struct page *p, const char *name, const char *labels, double value);

static void write_hist(struct page *p, write_sample *write, const char *name, const char *labels,
                       const struct hist *h)
{
    char full[NAME_BYTES], all[SERIES_LABELS_BYTES];
    uint64_t n = 0;

    snprintf(full, sizeof full, "%s_bucket", name);
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        snprintf(all, sizeof all, "%s,le=\"%g\"", labels, h->bounds[i]);
        write(p, full, all, (double)n);
    }
    snprintf(all, sizeof all, "%s,le=\"+Inf\"", labels);
    write(p, full, all, (double)h->n);
    snprintf(full, sizeof full, "%s_sum", name);
    write(p, full, labels, h->sum);
    snprintf(full, sizeof full, "%s_count", name);
    write(p, full, labels, (double)h->n);
}

void page_hist(struct page *p, const char *name, const char *more, const struct hist *h)
{
    write_hist(p, page_sample, name, more, h);
}

void page_bare_hist(struct page *p, const char *name, const char *labels, const struct hist *h)
{
    write_hist(p, page_bare_sample, name, labels, h);
}

/* --- families of one sample --- */

void page_gauge(struct page *p, const char *name, const char *help, double value)
{
    page_head(p, name, "gauge", help);
    page_sample(p, name, "", value);
}

void page_counter(struct page *p, const char *name, const char *help, uint64_t value)
{
    page_head(p, name, "counter", help);
    page_sample(p, name, "", (double)value);
}

void page_histogram(struct page *p, const char *name, const char *help, const struct hist *h)
{
    page_head(p, name, "histogram", help);
    page_hist(p, name, "", h);
}
