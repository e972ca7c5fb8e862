/* exposition.h - write a page in Prometheus' text format, version 0.0.4.
 *
 * A family is its page_head() and the samples behind it, in one group. Samples named after vLLM's
 * and ours carry the page's constant labels (model_name, engine), those that every program has
 * (process_*, http_*) do not. Label values are escaped; bytes that are no UTF-8 become U+FFFD, as a
 * scraper refuses the whole page for one of them.
 *
 * Owns    nothing; the buf is the caller's.
 * Thread  one at a time.
 * Errors  in page.w.status, see writer.h.
 * Units   none. */
#ifndef TARN_SERVER_API_EXPOSITION_H
#define TARN_SERVER_API_EXPOSITION_H

#include <stdint.h>

#include "base/hist.h"
#include "server/api/writer.h"

#define PAGE_LABELS_BYTES 512

struct page {
    struct writer w;
    char labels[PAGE_LABELS_BYTES]; /* model_name="...",engine="0" */
};

/* The page is written to *out, which is to be empty. */
void page_begin(struct page *p, struct buf *out, const char *model);

/* Append ,name="value" to the labels in `out`, a string in n_out bytes; a value that does not fit
 * is cut. */
void label_add(char *out, size_t n_out, const char *name, const char *value);

/* HELP and TYPE. type: "counter", "gauge" or "histogram"; all are constant words. */
void page_head(struct page *p, const char *name, const char *type, const char *help);
/* One sample with the constant labels; `more`: further ones with a leading comma, or "". */
void page_sample(struct page *p, const char *name, const char *more, double value);
/* One sample without them; `labels` begins with a comma as well, or is "". */
void page_bare_sample(struct page *p, const char *name, const char *labels, double value);
/* Buckets, sum and count of one series. */
void page_hist(struct page *p, const char *name, const char *more, const struct hist *h);
void page_bare_hist(struct page *p, const char *name, const char *labels, const struct hist *h);

/* A family of one sample. */
void page_gauge(struct page *p, const char *name, const char *help, double value);
void page_counter(struct page *p, const char *name, const char *help, uint64_t value);
void page_histogram(struct page *p, const char *name, const char *help, const struct hist *h);

#endif
